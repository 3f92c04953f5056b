"""The command ``doctor``."""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sendonce import settings
from sendonce.cli.base import DEFAULT_ACCOUNT, ConfigOption, ExitCode, JsonOption, app
from sendonce.cli.output import mask_addresses, print_json, print_wrapped
from sendonce.errors import ConfigurationError, InvalidEmail

if TYPE_CHECKING:
    from sendonce.activities.transports.base import Transport
    from sendonce.activities.transports.doctor_step import Step
    from sendonce.message import OutgoingEmail
    from sendonce.settings.model import AccountSettings, Settings

ANSWER_SECONDS = 60.0
"""How long the test mail's answer is awaited."""


@app.command()
def doctor(
    account: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Look at this account only [default: the installation and all accounts]."),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="ADDRESS",
            help="Then send one real test mail to this address, such as your own, by the account that --account names "
            "[default: the only one, or 'default'].",
        ),
    ] = None,
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="ADDRESS",
            help="With --to: the test mail's sender, which the account must be allowed to use "
            "[default: the account's username, if that is an address].",
        ),
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check the installation (versions, store, durability, notifications, workers, Temporal, clocks), then every
    account, step by step: name, connection, greeting, TLS and its certificate, log-in, an empty transaction. Of an
    account over HTTP: name, connection and certificate of the API's host; only --to proves its credentials.

    With --account only that account is looked at, and no database is needed. Sends no mail unless --to is given.
    Exit code 1 when a step failed.

    JSON: one object for each step: account (null for the installation), step, status (ok, warn, fail or skip), what,
    fix, seconds, and details.
    """
    found = settings.load(config, with_store=account is None)
    if account is not None and account not in found.accounts:
        known = ", ".join(found.accounts) or "none"
        raise ConfigurationError(f"{found.source}: there is no account {account!r}; known are {known}")
    if from_ is not None and to is None:
        raise ConfigurationError("--from is the sender of the test mail: give --to, to whom it goes, too")
    sender = None if to is None else _sender_account(found, account)
    content = None if to is None or sender is None else _content(found.accounts[sender], to, from_)
    failed = account is None and asyncio.run(_installation(found, as_json))
    for name in [account] if account is not None else found.accounts:
        chosen = found.accounts[name]
        transport = settings.build_transports(replace(found, accounts={name: chosen}))[name]
        if account is None and not as_json:
            sys.stdout.write(f"\naccount {name}\n")
        what = content if name == sender else None
        failed = asyncio.run(_run(found, chosen, transport, what, as_json)) or failed
    if failed:
        raise typer.Exit(ExitCode.NO)


def _sender_account(found: Settings, account: str | None) -> str:
    """By which account the test mail goes."""
    if account is not None:
        return account
    if len(found.accounts) == 1:
        return next(iter(found.accounts))
    if DEFAULT_ACCOUNT in found.accounts:
        return DEFAULT_ACCOUNT
    known = ", ".join(found.accounts) or "none"
    raise ConfigurationError(f"--to: by which account? give --account; known are {known}")


async def _installation(found: Settings, as_json: bool) -> bool:
    from sendonce.cli.installation import examine

    failed = False
    async with aclosing(examine(found)) as steps:
        async for step in steps:
            _print(step, as_json, None)
            failed = failed or step.status == "fail"
    return failed


async def _run(
    found: Settings,
    account: AccountSettings,
    transport: Transport,
    content: OutgoingEmail | None,
    as_json: bool,
) -> bool:
    """Print each step as it ends; True when one failed."""
    try:
        async with aclosing(_steps(found, account, transport, content)) as steps:
            async for step in steps:
                _print(step, as_json, account.name)
                if step.status == "fail":
                    return True
    finally:
        await transport.close()
    return False


async def _steps(
    found: Settings, account: AccountSettings, transport: Transport, content: OutgoingEmail | None
) -> AsyncGenerator[Step, None]:
    async with aclosing(_look(account)) as steps:
        async for step in steps:
            yield step
            if step.status == "fail":
                return
    if content is not None:
        yield await _send(found, transport, content)


def _look(account: AccountSettings) -> AsyncGenerator[Step, None]:
    """The steps that fit the account's transport."""
    # Imported where needed: an account over HTTP loads no mail client.
    if account.transport == "smtp":
        from sendonce.activities.transports.smtp_doctor import examine
        from sendonce.activities.transports.smtp_settings import SmtpSettings

        assert isinstance(account.options, SmtpSettings)
        return examine(account.options)
    for setting in ("url", "base_url"):
        url = getattr(account.options, setting, None)
        if isinstance(url, str):
            from sendonce.activities.transports.doctor_step import PATIENCE
            from sendonce.activities.transports.http_doctor import examine_url

            seconds = getattr(account.options, "connect_seconds", PATIENCE)
            return examine_url(setting, url, ca_file=getattr(account.options, "ca_file", None), seconds=seconds)
    return _unknown(account.transport)


async def _unknown(transport: str) -> AsyncGenerator[Step, None]:
    from sendonce.activities.transports.doctor_step import Step

    yield Step("account", "skip", f"nothing is known of transport {transport!r}; --to sends a test mail")


def _content(account: AccountSettings, to: str, sender: str | None) -> OutgoingEmail:
    from sendonce.message import OutgoingEmail

    username = getattr(account.options, "username", None) or ""
    sender = sender or (username if "@" in username else None)
    if sender is None:
        raise ConfigurationError("the test mail needs a sender: give --from with an address that this account may use")
    key = f"doctor-{uuid.uuid4()}"
    text = "This is a test mail. Sendonce's doctor sent it to see whether the account works.\n"
    try:
        return OutgoingEmail(key=key, account=account.name, sender=sender, to=to, subject="Test mail", text=text)
    except InvalidEmail as error:
        raise ConfigurationError(f"the test mail cannot be written: {error.reason}; check --to and --from") from None


async def _send(found: Settings, transport: Transport, content: OutgoingEmail) -> Step:
    from sendonce.activities.redirect import Guard
    from sendonce.activities.transmission import MIME_SLOT
    from sendonce.activities.transports.base import Job, Mail
    from sendonce.activities.transports.doctor_step import Step
    from sendonce.outcome import Accepted
    from sendonce.store.records import EnvelopeRecipient

    safety = found.safety
    domains = None if safety.allowed_domains is None else frozenset(safety.allowed_domains)
    everyone = [EnvelopeRecipient(n, mailbox) for n, mailbox in enumerate(content.recipients())]
    guard = Guard(safety.redirect_all_to, domains)
    recipients = guard.envelope(everyone).recipients
    if not recipients:
        return Step("send", "fail", "[safety] does not let mail go to that address", "give another --to")
    domain = content.sender.mailbox.rpartition("@")[2]
    if transport.slot(1) != MIME_SLOT:
        # A request names whom it goes to.
        content = guard.content(content)
    mail = Mail(content.key, content.key, content.account, f"<{content.key}@{domain}>", datetime.now(UTC), content)
    rendering = transport.render(mail, recipients, content.key)
    job = Job(rendering, content.sender.mailbox, recipients, content.key, ANSWER_SECONDS)
    started = monotonic()
    outcome = (await transport.transmit(job, _Open())).outcomes[recipients[0].ordinal]
    seconds = monotonic() - started
    reply = outcome.reply
    said = f"{reply.code} {' '.join(reply.text.split())[:300]}" if reply.code else reply.text
    if isinstance(outcome, Accepted):
        queue_id = outcome.provider_id or "none was given"
        redirected = "; it was redirected by [safety]" if recipients[0].mailbox != everyone[0].mailbox else ""
        return Step("send", "ok", f"accepted, queue id {queue_id}{redirected}", "", seconds, {"queue_id": queue_id})
    return Step("send", "fail", f"{outcome.kind}: {said}", "look the reply up at your provider", seconds)


class _Open:
    """A gate without a store: the test mail is written in no row."""

    async def begin(self, offered: tuple[int, ...]) -> None:
        """Let it pass."""

    def offered(self) -> None:
        """Let it pass."""


def _print(step: Step, as_json: bool, account: str | None) -> None:
    what = mask_addresses(step.what)
    if as_json:
        details: dict[str, Any] = step.details
        print_json({"account": account, "step": step.name, "status": step.status, "what": what,
                    "fix": step.fix or None, "seconds": round(step.seconds, 3), "details": details})  # fmt: skip
        return
    head = f"{step.status:4}  {step.name:14}  "
    print_wrapped(what, head, " " * len(head))
    if step.fix:
        print_wrapped(step.fix, f"{'':{len(head)}}-> ", " " * (len(head) + 3))
    sys.stdout.flush()
