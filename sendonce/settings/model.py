"""The sections of ``sendonce.toml``, every key with its unit, bounds and default. Unknown keys are refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import psycopg
from psycopg.conninfo import conninfo_to_dict
from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from sendonce.errors import ConfigurationError, InvalidEmail
from sendonce.message import Address
from sendonce.policy import LanePolicy, RetryPolicy, UnknownPolicy
from sendonce.rates import DomainLimit, Rate
from sendonce.retention import Retention
from sendonce.settings import transports
from sendonce.settings.watching import AlarmSettings, LogSettings, SinkSettings, TraceSettings, WatchSettings
from sendonce.webhooks.settings import WebhookSettings

if TYPE_CHECKING:
    from sendonce.activities.transports.base import Transport


def longest_renewal(lease_seconds: float) -> float:
    """The longest ``renew_seconds`` for a lease: one renewal may be missed and an attempt still has time to begin.

    An attempt must have begun 5 seconds before its lease ends, a quarter of it for very short leases.
    """
    return (lease_seconds - min(5.0, lease_seconds / 4)) / 2


class _Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, hide_input_in_errors=True, use_attribute_docstrings=True
    )


class StoreSettings(_Section):
    """``[store]``: the PostgreSQL database."""

    database_url: SecretStr = SecretStr("postgresql://")
    """What libpq takes: ``postgresql://user:password@host/name`` or ``host=… dbname=…``. Default: libpq's variables."""
    pool_size: int = Field(default=10, ge=2, le=200)
    """Connections of one worker process, besides one for leases, two that watch and one that listens. 2 to 200, default
    10."""
    failover: Literal["halt", "go_on"] = "halt"
    """What workers do when the server is on another timeline: ``halt`` until somebody has looked, or ``go_on``, for a
    standby that is promoted and is synchronous, so that it has lost nothing. Default: ``halt``."""
    pooler: Literal["none", "session", "transaction"] = "none"
    """A pooler such as PgBouncer between the workers and the server, by the mode it pools in. Default: ``none``."""

    @field_validator("database_url")
    @classmethod
    def _libpq(cls, value: SecretStr) -> SecretStr:
        try:
            conninfo_to_dict(value.get_secret_value())
        except psycopg.ProgrammingError:
            # The driver's message quotes parts of what it read, possibly the password.
            raise ValueError(
                "is nothing that libpq can read; write postgresql://user:password@host:5432/name, with special "
                "characters of the password percent-encoded and without a driver name such as +psycopg"
            ) from None
        return value


class TemporalSettings(_Section):
    """``[temporal]``: where the workflows run. TLS and API keys are the SDK's own configuration."""

    profile: str | None = None
    """Profile of the SDK's environment configuration. Default: ``TEMPORAL_PROFILE``, else ``default``."""
    address: str | None = Field(default=None, pattern=r"^[^\s/]+:\d{1,5}$")
    """``host:port``; wins over the SDK's configuration. Default: that, else ``localhost:7233``."""
    namespace: str | None = Field(default=None, min_length=1, max_length=255)
    """Wins over the SDK's configuration. Default: that, else ``default``."""
    task_queue_prefix: str = Field(default="sendonce", pattern=r"^[A-Za-z0-9_.-]{1,50}$")
    """Task queues are called ``<prefix>-<lane>``. Workflow ids are the keys: one namespace per installation."""
    payload_codec: str | None = Field(default=None, pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
    """``module:factory``: a function without parameters that returns a ``temporalio.converter.PayloadCodec``, which
    encrypts what Temporal gets. Every process needs the same one. Default: nothing is encrypted, for there is nothing
    personal in it."""


class WorkerSettings(_Section):
    """``[worker]``: one worker process."""

    lease_seconds: float = Field(default=20.0, ge=5, le=600)
    """How long a claim stands without renewal. A mail of a process that died waits that long. Nothing is offered in
    the last 5 seconds of it (the last quarter, if that is less). 5 to 600, default 20."""
    renew_seconds: float = Field(default=5.0, ge=0.25, le=300)
    """Between two renewals; at most half of what those seconds leave of the lease, so that one may be missed.
    Default: 5, or that half."""
    hand_off_seconds: float = Field(default=2.0, ge=0.1, le=8)
    """A transmission that takes longer goes on outside the workflow's task, which ends at 10 s. 0.1 to 8, default 2."""
    drain_seconds: float = Field(default=30.0, ge=0, le=3600)
    """How long a stopping process waits for answers before it cuts what is left. Give the supervisor longer than
    this before it kills. 0 to 3600, default 30."""
    window_margin_seconds: float = Field(default=300.0, ge=0, le=86400)
    """An unanswered mail is not replayed so shortly before the provider forgets its key. 0 to 86400, default 300."""
    short_windows: Literal["warn", "refuse"] = "warn"
    """What a worker does at its start when a lane may wait longer for its next attempt than an account's provider
    remembers a key, so that such a mail cannot be replayed: ``warn`` in the log, or ``refuse`` to start."""
    breaker_mails: int = Field(default=10, ge=1, le=1000)
    """After failures of so many different mails in a row, the account is paused as an outage. 1 to 1000, default 10."""
    lanes: tuple[str, ...] = Field(default=(), strict=False)
    """The lanes this process serves. Default: all."""
    with_starter: bool = True
    """Start workflows from this process too. Turn off where ``sendonce starter`` runs."""

    @model_validator(mode="before")
    @classmethod
    def _renew_follows_lease(cls, data: Any) -> Any:
        lease = data.get("lease_seconds") if isinstance(data, dict) else None
        if isinstance(lease, (int, float)) and "renew_seconds" not in data:
            return {**data, "renew_seconds": min(5.0, max(0.25, longest_renewal(lease)))}
        return data

    @model_validator(mode="after")
    def _renew_twice(self) -> WorkerSettings:
        longest = longest_renewal(self.lease_seconds)
        if self.renew_seconds > longest:
            raise ValueError(
                f"renew_seconds = {self.renew_seconds:g} is too long for lease_seconds = {self.lease_seconds:g}; "
                f"write at most {longest:g}, or leave it out"
            )
        return self


class StarterSettings(_Section):
    """``[starter]``: who starts workflows for new rows."""

    poll_seconds: float = Field(default=1.0, ge=0.05, le=60)
    """Between two looks at the store when no notification comes. This is the guarantee. 0.05 to 60, default 1."""
    overdue_seconds: float = Field(default=60.0, ge=1, le=3600)
    """A due mail whose workflow has shown no sign of life for so long is started again. 1 to 3600, default 60."""
    notify: bool = True
    """Listen for PostgreSQL notifications. Turn off behind a pooler that breaks LISTEN (transaction pooling)."""


class SafetySettings(_Section):
    """``[safety]``: for every environment that must not write to real people."""

    redirect_all_to: str | None = Field(default=None, repr=False)
    """A mailbox that gets the mail of everybody outside ``allowed_domains``; of everybody, if that is not set."""
    allowed_domains: tuple[str, ...] | None = Field(default=None, strict=False)
    """The only recipient domains that are served, without their subdomains. Others are refused, or redirected.
    Default: all; an empty list is none."""

    @field_validator("redirect_all_to")
    @classmethod
    def _mailbox(cls, value: str | None) -> str | None:
        try:
            return None if value is None else Address(email=value).mailbox
        except InvalidEmail as error:
            raise ValueError(f"is no e-mail address: {error.reason}") from None

    @field_validator("allowed_domains")
    @classmethod
    def _domains(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        try:
            return (
                None
                if value is None
                else tuple(Address(email=f"x@{domain.strip()}").mailbox.partition("@")[2] for domain in value)
            )
        except InvalidEmail as error:
            raise ValueError(f"holds what is no domain: {error.reason}; write example.org, without @") from None


class TemplateSettings(_Section):
    """``[templates]``: the folder of templates."""

    folder: Path | None = Field(default=None, strict=False)
    """Where the templates are, relative to the settings file. Default: there are none."""
    default_locale: str | None = Field(default=None, pattern=r"^[A-Za-z]{2,3}([-_][A-Za-z0-9]{2,8})*$")
    """A language tag such as ``en`` or ``de-AT``: whose files serve the locales that have none of their own."""
    modules: tuple[str, ...] = Field(default=(), strict=False)
    """Python modules with :class:`sendonce.Template` classes, such as ``shop.mails``: ``sendonce templates`` imports
    them, from the settings file's folder too, and takes samples from their classes. Workers do not. Default: none."""
    patience_hours: float = Field(default=24.0, ge=0.1, le=720)
    """A mail whose template is missing or broken waits so long, with an alarm, for a worker that can render it; then
    it is dead-lettered, and can be requeued. 0.1 to 720, default 24."""


class RetentionSettings(_Section):
    """``[retention]``: how many days after its end what is kept of a mail."""

    content_days: float = Field(default=7.0, ge=0, le=3650)
    """Its content: parameters, text, ready-made MIME, attachments, the rendered bytes. A mail without content cannot
    be requeued. A lane's ``content_days`` and ``templates`` win. At most ``record_days``; 0 is at once, by the next
    round. 0 to 3650, default 7."""
    record_days: float = Field(default=30.0, ge=1, le=3650)
    """Everything else of it: recipients, attempts, transitions, events, evidence, alarms, and the providers' ids by
    which late bounces find their mail. The key stays and goes on refusing a second mail. 1 to 3650, default 30."""
    forget_keys_days: float | None = Field(default=None, ge=1, le=36500)
    """Its key, so many days after it was enqueued: a key that is forgotten can send a second mail. At least
    ``record_days``. 1 to 36500; default: keys are never forgotten."""
    templates: dict[str, float] = {}
    """Template by template, its own ``content_days``: ``{ login_code = 0 }``."""
    every_minutes: float = Field(default=5.0, ge=1, le=1440)
    """Between two rounds of the upkeep, a Temporal Schedule. 1 to 1440, default 5."""

    @field_validator("templates")
    @classmethod
    def _days(cls, value: dict[str, float]) -> dict[str, float]:
        if not all(0 <= days <= 3650 for days in value.values()):
            raise ValueError("must hold numbers of days from 0 to 3650")
        return value

    def build(self) -> Retention:
        """The same, checked as a whole. Raises ConfigurationError."""
        return Retention(**self.model_dump())


class RetrySettings(_Section):
    """``[lanes.<name>.retry]``: what to change of the lane's :class:`~sendonce.policy.RetryPolicy`; bounds as there.

    ``delays`` replaces an exponential policy, and ``base``, ``factor`` or ``cap`` replace a list of delays.
    """

    delays: tuple[float, ...] | None = Field(default=None, strict=False)
    """Seconds after the first, second … attempt; the last one repeats."""
    base: float | None = None
    """Seconds after the first attempt."""
    factor: float | None = None
    """Each delay is that many times the one before."""
    cap: float | None = None
    """Seconds; no delay is longer."""
    jitter: float | None = None
    """The largest fraction by which a delay is lengthened at random."""
    max_attempts: int | None = None
    """Counted attempts after which the mail is dead."""
    max_age: float | None = None
    """Seconds after the first attempt beyond which no try is made."""

    @model_validator(mode="after")
    def _one_of_two(self) -> RetrySettings:
        if self.delays is not None and self.model_fields_set & {"base", "factor", "cap"}:
            raise ValueError("give either delays, or base, factor and cap: together they never act")
        return self

    def over(self, policy: RetryPolicy) -> RetryPolicy:
        """The policy with these changes. Raises ConfigurationError when a value is out of bounds."""
        changes = self.model_dump(exclude_none=True)
        if changes.keys() & {"base", "factor", "cap"}:
            changes["delays"] = ()
        return replace(policy, **changes)


class LaneSettings(_Section):
    """``[lanes.<name>]``: what to change of a lane; bounds and defaults as in :class:`~sendonce.policy.LanePolicy`.

    A lane of another name than ``critical``, ``default`` and ``bulk`` starts from ``default``.
    """

    retry: RetrySettings = RetrySettings()
    """When a deferred mail is tried again, and when it is given up."""
    unknown: UnknownPolicy | None = None
    """What happens to an unanswered mail that cannot be replayed: ``hold`` or ``resend``."""
    unknown_days: float | None = None
    """Days after which an unsettled unknown is closed."""
    answer_seconds: float | None = None
    """How long an answer is awaited. RFC 5321 4.5.3.2.6 asks for 600 at the final dot."""
    greylist_delays: tuple[float, ...] | None = Field(default=None, strict=False)
    """Seconds after the first, second … deferral by greylisting, instead of the retry policy's."""
    rate_share: float | None = None
    """The part of each rate of an account that only this lane may use."""
    urgent: bool | None = None
    """Whether its mail may use the connections that an account keeps free."""
    places: int | None = None
    """Transmissions at once per account and process."""
    content_days: float | None = None
    """Days after which the content of a mail that is final is erased; 0: at once."""

    def over(self, lane: LanePolicy) -> LanePolicy:
        """The lane with these changes. Raises ConfigurationError when a value is out of bounds."""
        return replace(lane, retry=self.retry.over(lane.retry), **self.model_dump(exclude={"retry"}, exclude_none=True))


class DomainSettings(_Section):
    """``[accounts.<name>.domains."example.org"]``: limits for mail to that domain, by this account."""

    rates: tuple[str, ...] = Field(default=(), strict=False)
    """How fast all processes together may write to the domain, as an account's ``rates``. Default: no limit."""
    at_once: int | None = Field(default=None, ge=1, le=1000)
    """Transmissions at once in one worker process. 1 to 1000; default: as many as the lanes' places."""


@dataclass(frozen=True, slots=True)
class AccountSettings:
    """``[accounts.<name>]``: ``transport`` (``smtp``, ``http``, or a registered one), and that transport's settings."""

    name: str
    transport: str
    options: BaseModel
    factory: type[Any] = field(repr=False)
    webhook: WebhookSettings | None = None
    """``[accounts.<name>.webhook]``. None: the provider writes to nobody."""
    rates: tuple[Rate, ...] = ()
    """``rates = ["14/s", "50000/day"]``: how fast all processes together may use the account; all of them hold. Empty:
    as fast as it goes."""
    domains: Mapping[str, DomainLimit] = field(default_factory=dict)
    """``[accounts.<name>.domains."example.org"]``: limits of single destination domains, in A-labels."""
    fallback: str | None = None
    """``fallback = "<name>"``: the account that takes over while this one is paused, for mail that this one certainly
    has not accepted. Its own fallback is not taken. None: the mail waits."""

    anew: Callable[[], AccountSettings] | None = field(default=None, repr=False, compare=False)
    """Reads the account once more, if a secret of it comes from a file: that may be written anew at any time. Raises
    ConfigurationError."""

    def build(self) -> Transport:
        """The configured transport; nothing is connected yet. Raises OSError, and ConfigurationError for a transport
        of another package that does not keep the contract.
        """
        transport: Transport = transports.build(self.transport, self.factory, self.options)
        return transport


@dataclass(frozen=True)
class Outline:
    """What needs no secret."""

    source: str
    """The file's name, or ``environment`` when there was none: the beginning of every error."""
    lanes: dict[str, LanePolicy]
    templates: TemplateSettings
    worker: WorkerSettings
    account_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything an entry point needs to know."""

    source: str
    """The file's name, or ``environment`` when there was none: the beginning of every error."""
    store: StoreSettings
    temporal: TemporalSettings
    worker: WorkerSettings
    starter: StarterSettings
    safety: SafetySettings
    templates: TemplateSettings
    retention: Retention
    lanes: dict[str, LanePolicy]
    """All lanes, the default ones first, in the order in which they are served."""
    accounts: dict[str, AccountSettings]
    alarms: AlarmSettings
    sinks: dict[str, SinkSettings]
    """Empty when accounts are not read either: they hold secrets that only a running process needs."""
    watch: WatchSettings
    traces: TraceSettings
    log: LogSettings
    store_anew: Callable[[], StoreSettings] | None = field(default=None, repr=False, compare=False)
    """Reads ``[store]`` once more, if the URL comes from a file. Raises ConfigurationError."""

    @property
    def database_url(self) -> str:
        """For libpq; holds the password."""
        return self.store.database_url.get_secret_value()

    @property
    def database_source(self) -> str | Callable[[], str]:
        """The URL. One that comes from a file is read for each connection; the last that could be read counts."""
        anew, last = self.store_anew, self.database_url
        if anew is None:
            return last

        def read() -> str:
            nonlocal last
            with suppress(ConfigurationError):
                last = anew().database_url.get_secret_value()
            return last

        return read
