"""The options that choose mails, the same for all commands."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from sendonce.errors import ConfigurationError
from sendonce.stages import Stage

if TYPE_CHECKING:
    from sendonce.store.reading import MailFilter

_AGE = re.compile(r"(\d{1,6})([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_CODE = re.compile(r"[1-5](xx|XX)|\d{3}|[245]\.\d{1,3}\.\d{1,3}|[a-z_:]{1,100}")

StageOption = Annotated[
    list[Stage] | None,
    typer.Option("--stage", metavar="STAGE", help=f"Only this stage ({', '.join(Stage)}); may be repeated."),
]
LaneOption = Annotated[str | None, typer.Option("--lane", metavar="LANE", help="Only this lane.")]
AccountOption = Annotated[str | None, typer.Option("--account", metavar="NAME", help="Only this account.")]
TemplateOption = Annotated[str | None, typer.Option("--template", metavar="NAME", help="Only mail from this template.")]
TenantOption = Annotated[str | None, typer.Option("--tenant", metavar="KEY", help="Only mail with this fairness key.")]
RecipientOption = Annotated[str | None, typer.Option("--to", metavar="ADDRESS", help="Only mail to this address.")]
SinceOption = Annotated[
    str | None,
    typer.Option(
        "--since", metavar="WHEN", help="Only mail enqueued since then: 30m, 24h, 7d, or an ISO 8601 time (UTC)."
    ),
]
CodeOption = Annotated[
    list[str] | None,
    typer.Option("--code", metavar="CODE", help="Only this last reply: 550, 5xx or 4.7.1; may be repeated."),
]


def chosen(
    *,
    stage: list[Stage] | None = None,
    lane: str | None = None,
    account: str | None = None,
    template: str | None = None,
    tenant: str | None = None,
    to: str | None = None,
    since: str | None = None,
    code: list[str] | None = None,
) -> MailFilter:
    """What the options mean. Raises :class:`~sendonce.errors.ConfigurationError` for one that means nothing."""
    from sendonce.store.reading import MailFilter

    for one in code or ():
        if not _CODE.fullmatch(one):
            raise ConfigurationError(f"--code {one!r}: write 550, 5xx, or an enhanced code such as 4.7.1")
    return MailFilter(
        stages=[str(one) for one in stage or ()],
        lane=lane,
        account=account,
        template=template,
        tenant=tenant,
        recipient=None if to is None else mailbox(to, "--to"),
        since=None if since is None else instant(since),
        codes=code or (),
    )


def instant(text: str, option: str = "--since") -> datetime:
    """``24h`` ago, or an instant; one without an offset is in UTC."""
    age = _AGE.fullmatch(text)
    if age:
        return datetime.now(UTC) - timedelta(seconds=int(age[1]) * _UNITS[age[2]])
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(
            f"{option} {text!r}: write 30m, 24h or 7d, or a time such as 2030-01-31T09:00"
        ) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def mailbox(text: str, option: str = "the address") -> str:
    """An address as the store keeps it."""
    from sendonce.checks import envelope_mailbox

    try:
        return envelope_mailbox(text)
    except ValueError as error:
        raise ConfigurationError(f"{option} {error}") from None
