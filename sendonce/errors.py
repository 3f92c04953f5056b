"""What can be raised at a caller, in one tree.

SendonceError
├── InvalidEmail             the request itself is wrong; names the field
├── IdempotencyConflict      the key is taken by other content
├── NoSuchEmail              no row under that key
├── WaitTimeout              the mail has not ended within the time given
├── ConfigurationError       settings that cannot work; says which and what to write instead
├── StoreNotReady            the schema is missing or older than this release
└── TemplateFault            a template is missing, broken, or lacks a parameter; names file and line

Everything that happens *after* a row is accepted is an outcome (:mod:`sendonce.outcome`), never an exception.
Messages name fields, keys and codes; they never carry addresses, subjects or secrets.
"""

from __future__ import annotations


class SendonceError(Exception):
    """Base of every error Sendonce raises at a caller."""


class InvalidEmail(SendonceError, ValueError):
    """The message cannot be accepted as asked. ``field`` names the part at fault, ``reason`` says what to change."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class IdempotencyConflict(SendonceError):
    """The key already belongs to a mail with other content. Nothing was written; the transaction is still usable."""

    def __init__(self, account: str, key: str) -> None:
        super().__init__(
            f"key {key!r} of account {account!r} is taken by a mail with other content; "
            "use a new key for a new mail, or enqueue exactly the same content again"
        )
        self.account = account
        self.key = key


class TemplateFault(SendonceError):
    """A template is missing, broken, or asks for a parameter that is not there. Never the mail's fault.

    Names the template, the file and the line; parameters' values are never part of it.
    """

    def __init__(self, template: str, file: str, line: int, why: str) -> None:
        """``file``: relative to the folder of templates, or ``""``; ``line``: from 1, 0 when unknown."""
        self.template, self.file, self.line, self.why = template, file, line, why
        # What concerns the template as a whole says by itself what to do.
        advice = "; mend it, or give it what it asks for" if file else ""
        super().__init__(f"template {template!r}: {self.place}{advice}")

    @property
    def place(self) -> str:
        """``file:line: why``."""
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{where}: {self.why}" if where else self.why


class NoSuchEmail(SendonceError):
    """There is no mail under that key (or its transaction has not committed yet)."""

    def __init__(self, account: str, key: str, hint: str = "") -> None:
        """``hint``: what to look at instead, as the rest of the sentence."""
        super().__init__(f"no mail with key {key!r} in account {account!r}{hint}")
        self.account = account
        self.key = key


class WaitTimeout(SendonceError, TimeoutError):
    """The mail has not ended within the time given to :func:`sendonce.wait`; it goes on."""

    def __init__(self, account: str, key: str, stage: str, seconds: float) -> None:
        super().__init__(
            f"the mail with key {key!r} in account {account!r} is {stage} after {seconds:g} s; it goes on by itself"
        )
        self.account = account
        self.key = key
        self.stage = stage


class ConfigurationError(SendonceError):
    """A setting is missing or cannot work."""


class StoreNotReady(SendonceError):
    """The schema ``sendonce`` is missing or older than this release: run ``sendonce migrate``."""
