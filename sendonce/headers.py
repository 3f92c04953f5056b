"""Header fields that callers may set themselves, and the usual sets of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated
from urllib.parse import quote

from pydantic import BeforeValidator

from sendonce.checks import LINE_LIMIT, envelope_mailbox, header_text
from sendonce.errors import InvalidEmail

_FTEXT = re.compile(r"[!-9;-~]+")  # RFC 5322 3.6.8
# Fields whose syntax has no place for encoded words (RFC 2047 5 (3)); everything else a caller may set is free text.
STRUCTURED = re.compile(
    r"(?i)list-.*|in-reply-to|references|auto-submitted|precedence|priority|importance|x-priority|errors-to"
    r"|disposition-notification-to|feedback-id|archived-at|expires|supersedes|original-message-id"
)
OURS = frozenset(
    {"from", "to", "cc", "bcc", "subject", "date", "message-id", "mime-version", "sender", "reply-to"}
    | {"return-path", "received", "dkim-signature"}
)


ONE_CLICK = "List-Unsubscribe=One-Click"


def _checked_headers(value: object) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError("must be a mapping of header names to values")  # noqa: TRY004
    seen: set[str] = set()
    for number, (name, text) in enumerate(value.items(), 1):
        if not isinstance(name, str) or not isinstance(text, str):
            raise ValueError(f"header {number}: name and value must be strings")  # noqa: TRY004
        lower = name.lower()
        if not _FTEXT.fullmatch(name):
            raise ValueError(f"header {number}: the name may hold printable ASCII but no colon (RFC 5322 3.6.8)")
        if lower in OURS or lower.startswith(("content-", "resent-")):
            raise ValueError(f"header {number}: this one is set by Sendonce from the other fields")
        if lower in seen:
            raise ValueError(f"header {number}: the name is there twice")
        seen.add(lower)
        if STRUCTURED.fullmatch(name) and not text.isascii():
            raise ValueError(f"header {number}: takes ASCII only: write other characters %-encoded or leave them out")
        try:
            header_text(name, LINE_LIMIT)
            header_text(text, LINE_LIMIT - len(name) - len(": "))
        except ValueError as error:
            raise ValueError(f"header {number}: name and value {error}") from None
    _one_click({name.lower(): text for name, text in value.items()})
    return {str(name): str(text) for name, text in value.items()}


def _one_click(fields: Mapping[str, str]) -> None:
    """RFC 8058 3.1."""
    post = fields.get("list-unsubscribe-post")
    if post is None:
        return
    if post != ONE_CLICK:
        raise ValueError(f"List-Unsubscribe-Post must be {ONE_CLICK} (RFC 8058 3.1)")
    if "<https://" not in fields.get("list-unsubscribe", "").lower():
        raise ValueError("List-Unsubscribe-Post needs an https URL in List-Unsubscribe (RFC 8058 3.1)")


Headers = Annotated[dict[str, str], BeforeValidator(_checked_headers)]


def unsubscribe_headers(url: str | None = None, *, mailto: str | None = None, one_click: bool = True) -> dict[str, str]:
    """The header fields by which mail programs offer to unsubscribe (RFC 2369 3.2, RFC 8058), for ``headers``.

    ``url``: an ``https`` URL that names the recipient's subscription, ASCII, at most 900 characters; with ``one_click``
    it must take a POST without a log-in and unsubscribe at once. ``mailto``: a mailbox that does the same for mail.
    Give one or both. Mailbox providers honour one-click only if the mail is DKIM-signed over both fields, which is the
    relay's or provider's part. Raises :class:`~sendonce.errors.InvalidEmail`.

    >>> unsubscribe_headers("https://shop.example/u/7f3a")["List-Unsubscribe-Post"]
    'List-Unsubscribe=One-Click'
    """
    targets = []
    if url is not None:
        if not re.fullmatch(r"https://[!-;=?-~]{1,892}", url):
            raise InvalidEmail("headers", "the URL to unsubscribe must be https, ASCII without spaces, below 900 long")
        # A comma would end the item (RFC 2369 2).
        targets.append(url.replace(",", "%2C"))
    if mailto is not None:
        try:
            targets.append(f"mailto:{quote(envelope_mailbox(mailto), safe='@')}")
        except ValueError as error:
            raise InvalidEmail("headers", f"the mailbox to unsubscribe {error}") from None
    if not targets:
        raise InvalidEmail("headers", "give a URL or a mailbox to unsubscribe")
    fields = {"List-Unsubscribe": ", ".join(f"<{target}>" for target in targets)}
    if url is not None and one_click:
        fields["List-Unsubscribe-Post"] = ONE_CLICK
    return fields


def with_auto_submitted(headers: Mapping[str, str]) -> dict[str, str]:
    """``headers``, and that no human wrote the mail unless they say otherwise: vacation responders then keep quiet
    (RFC 3834 2 and 5).
    """
    if any(name.lower() == "auto-submitted" for name in headers):
        return dict(headers)
    return {**headers, "Auto-Submitted": "auto-generated"}
