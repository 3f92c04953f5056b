"""Where a mail stands, in words for a customer."""

from __future__ import annotations

from typing import assert_never

from sendonce import MailStatus, Stage


def in_words(mail: MailStatus) -> str:
    """One sentence. Codes are the provider's; there is no address in it."""
    tries = "at the first attempt" if mail.attempts <= 1 else f"at attempt {mail.attempts}"
    code = f" (it said {mail.last_code} {mail.last_enhanced or ''})".replace(" )", ")") if mail.last_code else ""
    match mail.stage:
        case None:
            return "It ended long ago, and its record is gone."
        case Stage.PENDING if mail.held or mail.next_attempt_at is None:
            return "It is on hold until somebody decides."
        case Stage.PENDING if not mail.attempts:
            return "It is about to be sent."
        case Stage.PENDING:
            return f"Not accepted yet{code}; the next attempt is at {mail.next_attempt_at:%H:%M:%S} UTC."
        case Stage.CLAIMED | Stage.TRANSMITTING:
            return "It is being sent right now."
        case Stage.UNKNOWN:
            return "It was offered and the answer was lost; we find out, and do not send a second one meanwhile."
        case Stage.SENT:
            return f"The provider accepted it {tries}."
        case Stage.FAILED:
            return f"The provider refused it for good{code}."
        case Stage.DEAD:
            return f"Given up after {mail.attempts} attempts{code}."
        case Stage.EXPIRED:
            return "It would have come too late, so it was not sent."
        case Stage.CANCELLED:
            return "It was called off, or a newer one took its place."
        case _:
            assert_never(mail.stage)
