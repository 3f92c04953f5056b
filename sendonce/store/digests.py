"""What takes the place of an erased address: its keyed digest. Equal addresses have equal digests, and that is all."""

from __future__ import annotations

from sendonce.retention import ERASED


def digest_of(mailbox: str) -> str:
    """SQL for the digest of an address, whatever its case: the text of ``sendonce.mailbox_digest``, for statements on
    the path of every mail, which a function would slow down. ``mailbox`` is SQL too.
    """
    inner, outer = (f"(SELECT i.mailbox_keys[{n}] FROM sendonce.installation i)" for n in (1, 2))
    return f"'{ERASED}' || encode(sha256({outer} || sha256({inner} || convert_to(lower({mailbox}), 'UTF8'))), 'hex')"


ERASED_RECIPIENT = """(sendonce.mailbox_digest(ev.recipient) || CASE WHEN EXISTS (
    SELECT FROM sendonce.event other
    WHERE other.account = ev.account AND other.source = ev.source AND other.event_id = ev.event_id AND other.id < ev.id
        AND (other.recipient = sendonce.mailbox_digest(ev.recipient) OR lower(other.recipient) = lower(ev.recipient))
    ) THEN ':' || ev.id ELSE '' END)"""
"""SQL for what takes the place of the recipient of an event ``ev``: the digest, by which the same event is known when
it comes again. The same event with the address in another spelling gets a name of its own."""

KNOWN_CODE = "'^[A-Za-z0-9._:-]*$'"
"""SQL: what an enhanced code looks like. Anything else is words of the provider's, which may quote an address."""
