"""What providers document, as the table that the documentation prints. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from sendonce.activities.transports.base import Capability

COLUMNS = (
    "provider",
    "idempotency key",
    "the same request again",
    "can be asked",
    "our Message-ID",
    "answer per recipient",
    "ready-made MIME",
    "webhooks",
)


def capability_table(capabilities: Mapping[str, Capability]) -> str:
    """A Markdown table with a row for each provider, in the order given; ends with a line end."""
    rows = [COLUMNS, ("---",) * len(COLUMNS), *(_row(name, one) for name, one in capabilities.items())]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _row(name: str, one: Capability) -> tuple[str, ...]:
    key = f"{one.key} (not confirmed: never relied on)" if one.key and one.key_assumed else one.key
    return (
        name,
        key or "none",
        one.replay or "may be a second mail",
        _asked(one),
        {True: "kept", False: "replaced", None: "not documented"}[one.keeps_message_id],
        "yes" if one.per_recipient else "no",
        "yes" if one.takes_mime else "no",
        one.webhook or "not read",
    )


def _asked(one: Capability) -> str:
    if not one.look_up:
        return "no"
    if one.look_up_lag is None:
        return f"by {one.look_up}; not found says nothing"
    return f"by {one.look_up}; found after {one.look_up_lag:g} s"
