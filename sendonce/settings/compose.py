"""From settings to what runs: transports, the Temporal connection, start-up warnings."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from sendonce.activities.rotation import Rotation
from sendonce.errors import ConfigurationError
from sendonce.policy import LanePolicy
from sendonce.settings.model import Settings
from sendonce.settings.watching import build_watching

if TYPE_CHECKING:
    from temporalio.envconfig import ClientConnectConfig

    from sendonce.activities.transports.base import Transport
    from sendonce.templates import Templates
    from sendonce.worker import WorkerConfig

logger = logging.getLogger(__name__)

RFC_ANSWER_SECONDS = 600
"""RFC 5321 4.5.3.2.6: how long a client waits for the reply to the final dot."""


def build_transports(settings: Settings) -> dict[str, Transport]:
    """One transport for each account; nothing is connected yet.

    Raises :class:`~sendonce.errors.ConfigurationError` when there is no account, a file of one cannot be read, or its
    transport, of another package, does not keep the contract.
    """
    if not settings.accounts:
        raise ConfigurationError(
            f'{settings.source}: there is no account to send with; write [accounts.default] with transport = "smtp"'
        )
    built = {}
    for name, account in settings.accounts.items():
        try:
            built[name] = account.build()
        except OSError as error:
            raise ConfigurationError(f"{settings.source}: [accounts.{name}] {error.strerror or error}") from None
        except ConfigurationError as error:
            raise ConfigurationError(f"{settings.source}: [accounts.{name}] {error}") from None
    return built


def build_templates(settings: Settings) -> Templates | None:
    """The folder of templates, if the settings name one. Raises ConfigurationError when it is not there."""
    if settings.templates.folder is None:
        return None
    # Imported where needed: most commands render nothing.
    from sendonce.templates import Templates

    return Templates(settings.templates.folder, settings.templates.default_locale)


def served_lanes(settings: Settings) -> dict[str, LanePolicy]:
    """The lanes this process serves, in their order."""
    wanted = settings.worker.lanes
    return {name: lane for name, lane in settings.lanes.items() if not wanted or name in wanted}


def temporal_connection(settings: Settings, environ: Mapping[str, str] | None = None) -> ClientConnectConfig:
    """What ``Client.connect`` takes: the SDK's own environment configuration, with the file's address and namespace.

    ``environ`` is the process's environment unless given. Raises ConfigurationError when the SDK's profile cannot be
    read.
    """
    from temporalio.envconfig import ClientConfig

    try:
        found = ClientConfig.load_client_connect_config(settings.temporal.profile, override_env_vars=environ)
    except RuntimeError as error:
        # Only the first line: the others quote the file, which may hold an API key.
        why = str(error).partition("\n")[0]
        raise ConfigurationError(f"{settings.source}: [temporal] the SDK's own configuration: {why}") from None
    found.setdefault("target_host", "localhost:7233")
    if settings.temporal.address is not None:
        found["target_host"] = settings.temporal.address
    if settings.temporal.namespace is not None:
        found["namespace"] = settings.temporal.namespace
    return found


def build_worker_config(
    settings: Settings, transports: Mapping[str, Transport], *, sdk_metrics: str | None = None
) -> WorkerConfig:
    """What :func:`sendonce.worker.serve` takes. ``transports`` are those of :func:`build_transports`. ``sdk_metrics``:
    where the Temporal SDK of this process shows its metrics, as ``host:port``.

    Raises :class:`~sendonce.errors.ConfigurationError` for a contradiction that the settings say to refuse, and for a
    payload codec that cannot be loaded.
    """
    from sendonce.settings.codec import load_codec
    from sendonce.worker import WorkerConfig

    if settings.worker.short_windows == "refuse" and (found := window_warnings(settings, transports)):
        raise ConfigurationError(f'{settings.source}: [worker] short_windows = "refuse": {"; ".join(found)}')

    worker, starter, safety = settings.worker, settings.starter, settings.safety
    return WorkerConfig(
        database_url=settings.database_source,
        transports=transports,
        fallbacks={name: one.fallback for name, one in settings.accounts.items() if one.fallback},
        rates={name: one.rates for name, one in settings.accounts.items() if one.rates},
        domains={name: one.domains for name, one in settings.accounts.items() if one.domains},
        temporal=temporal_connection(settings),
        lanes=settings.lanes,
        served=worker.lanes,
        task_queue_prefix=settings.temporal.task_queue_prefix,
        pool_size=settings.store.pool_size,
        failover=settings.store.failover,
        pooler=settings.store.pooler,
        rotated=Rotated(settings) if _may_be_rotated(settings) else None,
        lease_seconds=worker.lease_seconds,
        renew_seconds=worker.renew_seconds,
        hand_off_seconds=worker.hand_off_seconds,
        drain_seconds=worker.drain_seconds,
        with_starter=worker.with_starter,
        poll_seconds=starter.poll_seconds,
        notify=starter.notify,
        overdue_seconds=starter.overdue_seconds,
        window_margin=worker.window_margin_seconds,
        templates=build_templates(settings),
        template_patience=settings.templates.patience_hours * 3600,
        breaker_mails=worker.breaker_mails,
        redirect_all_to=safety.redirect_all_to,
        allowed_domains=safety.allowed_domains,
        watching=build_watching(settings.alarms, settings.sinks, settings.watch, settings.traces, sdk_metrics),
        retention=settings.retention,
        payload_codec=load_codec(settings.source, settings.temporal.payload_codec),
    )


class Rotated:
    """What was rotated since the last call: accounts whose secrets are in files, and Temporal's API key."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._last = {name: account for name, account in settings.accounts.items() if account.anew is not None}
        self._api_key = temporal_connection(settings).get("api_key")

    def __call__(self) -> Rotation:
        """Read them once more. What cannot be read now, or is not valid, counts as unchanged, with a warning."""
        changed = {}
        for name, last in self._last.items():
            assert last.anew is not None
            try:
                now = replace(last.anew(), anew=last.anew)
            except ConfigurationError as error:
                logger.warning("not rotated: %s", error)
                continue
            if now.options != last.options:
                self._last[name] = now
                changed[name] = now.build
        api_key = None
        try:
            found = temporal_connection(self._settings).get("api_key")
            if found and found != self._api_key:
                api_key = self._api_key = found
        except ConfigurationError as error:
            logger.warning("not rotated: %s", error)
        return Rotation(changed, api_key)


def _may_be_rotated(settings: Settings) -> bool:
    from_file = any(account.anew is not None for account in settings.accounts.values())
    return from_file or "api_key" in temporal_connection(settings)


def window_warnings(settings: Settings, transports: Mapping[str, Transport]) -> list[str]:
    """Where a lane's pace and a provider's memory of keys contradict each other."""
    found = []
    margin = settings.worker.window_margin_seconds
    for name, lane in served_lanes(settings).items():
        plain = lane.retry.warnings()
        for account, transport in transports.items():
            window = None if transport.key_window is None else max(0.0, transport.key_window - margin)
            ours = [warning for warning in lane.retry.warnings(key_window=window) if warning not in plain]
            found += [f"[lanes.{name}.retry] with account {account!r}: {warning}" for warning in ours]
    return found


def warnings(settings: Settings, transports: Mapping[str, Transport]) -> list[str]:
    """What can be started and is not what somebody wanted: sentences for the start-up log."""
    found = window_warnings(settings, transports)
    smtp = [name for name, account in settings.accounts.items() if account.transport == "smtp"]
    for name, lane in served_lanes(settings).items():
        found += [f"[lanes.{name}.retry] {warning}" for warning in lane.retry.warnings()]
        if smtp and lane.answer_seconds < RFC_ANSWER_SECONDS:
            found.append(
                f"[lanes.{name}] answer_seconds = {lane.answer_seconds:g} with account {smtp[0]!r} (SMTP): a mail is "
                f"called unknown earlier, and a relay that takes longer may still have accepted it; RFC 5321 4.5.3.2.6 "
                f"asks for {RFC_ANSWER_SECONDS} at the final dot"
            )
    if settings.safety.redirect_all_to is not None:
        found.append("[safety] redirect_all_to is set: mail goes there instead of to its recipients")
    if settings.safety.allowed_domains is not None:
        found.append("[safety] allowed_domains is set: other recipients are not served")
    return found
