"""Intake: write a mail into the caller's transaction, through the caller's connection.

One SQL function, ``sendonce.enqueue``, does the work; :mod:`~sendonce.store.callers` calls it through SQLAlchemy or
psycopg, sync or async.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, overload
from uuid import UUID

from sendonce.errors import ConfigurationError, IdempotencyConflict, InvalidEmail
from sendonce.message import Address, OutgoingEmail
from sendonce.stages import Stage
from sendonce.store.callers import Call, Row, Statement, Steps, run
from sendonce.traceparent import current_traceparent

if TYPE_CHECKING:
    from sendonce.store.callers import AnyAsyncConnection, SyncConnection

CHUNK_MAILS = 500
CHUNK_OCTETS = 8 * 1024 * 1024
"""One statement of :func:`enqueue_many` carries at most so many mails, and ends once it holds so many octets: a
statement stays far below PostgreSQL's 1 GB for one value, and the memory it needs stays small."""

_CALL = Call("enqueue", "the mail")


@dataclass(frozen=True, slots=True)
class Enqueued:
    """A mail that is in the store, once the caller's transaction commits."""

    id: UUID
    key: str
    account: str
    lane: str
    """As asked for; when ``created`` is False, the mail that is there keeps its own."""
    created: bool
    """False: the same content was enqueued under this key before, and nothing was written."""
    stage: Stage | None
    """None when the mail was there and retention has removed it."""
    template: str | None = None
    """As asked for."""


Render = Literal["later", "now"]


class Fills(Protocol):
    """A folder of templates: :class:`sendonce.Templates`."""

    def fill(self, email: OutgoingEmail) -> OutgoingEmail:
        """The mail with subject, text and HTML made from its template. Raises TemplateFault."""


@overload
def enqueue(
    connection: SyncConnection,
    email: OutgoingEmail,
    *,
    notify: bool = True,
    render: Render = "later",
    templates: Fills | None = None,
) -> Enqueued: ...
@overload
def enqueue(
    connection: AnyAsyncConnection,
    email: OutgoingEmail,
    *,
    notify: bool = True,
    render: Render = "later",
    templates: Fills | None = None,
) -> Awaitable[Enqueued]: ...
def enqueue(
    connection: Any,
    email: OutgoingEmail,
    *,
    notify: bool = True,
    render: Render = "later",
    templates: Fills | None = None,
) -> Enqueued | Awaitable[Enqueued]:
    """Write ``email`` into the transaction of ``connection``; it is sent once that commits, and never if it does not.

    ``connection`` is SQLAlchemy's ``Session``, ``Connection``, ``AsyncSession`` or ``AsyncConnection``, or psycopg's
    ``Connection`` or ``AsyncConnection``; for an async one, await the result. It is never committed or rolled back
    here. ``notify=False`` sends no NOTIFY, which serialises commits and forbids PREPARE TRANSACTION: the mail is then
    found by polling. ``render="now"`` makes subject, text and HTML from the mail's template here and now, with
    ``templates``: a broken template is the caller's to see, as :class:`~sendonce.errors.TemplateFault`, and nothing is
    written. ``"later"``: a worker renders it, and the mail waits while it cannot.

    A concurrent transaction that enqueues the same key waits for this one to end. At READ COMMITTED it then gets the
    record that is there. At REPEATABLE READ and SERIALIZABLE it gets the driver's serialization failure (SQLSTATE
    40001): retry that transaction, as for any concurrent update.

    Raises :class:`~sendonce.errors.IdempotencyConflict` when the key is taken by other content; the transaction is
    still usable. Raises :class:`~sendonce.errors.ConfigurationError` in autocommit mode outside a transaction, and
    :class:`~sendonce.errors.StoreNotReady` when the schema is missing. What the driver raises comes through.
    """
    done = _run(connection, _rendered([email], render, templates), notify)
    return done[0] if isinstance(done, list) else _first(done)


@overload
def enqueue_many(
    connection: SyncConnection,
    emails: Iterable[OutgoingEmail],
    *,
    notify: bool = True,
    render: Render = "later",
    templates: Fills | None = None,
) -> list[Enqueued]: ...
@overload
def enqueue_many(
    connection: AnyAsyncConnection,
    emails: Iterable[OutgoingEmail],
    *,
    notify: bool = True,
    render: Render = "later",
    templates: Fills | None = None,
) -> Awaitable[list[Enqueued]]: ...
def enqueue_many(
    connection: Any,
    emails: Iterable[OutgoingEmail],
    *,
    notify: bool = True,
    render: Render = "later",
    templates: Fills | None = None,
) -> list[Enqueued] | Awaitable[list[Enqueued]]:
    """Like :func:`enqueue` for several mails in few statements; the result is in the order of ``emails``.

    They are written in the order of account and key, so that two calls with the same keys cannot deadlock; calls of
    :func:`enqueue` one after the other can. All or none: a conflict undoes what this call wrote, by a savepoint.
    """
    return _run(connection, _rendered(list(emails), render, templates), notify)


def _rendered(emails: list[OutgoingEmail], render: Render, templates: Fills | None) -> list[OutgoingEmail]:
    if render == "later":
        return emails
    if render != "now":
        raise ConfigurationError(f"render = {render!r}: write 'now' or 'later'")
    if templates is None:
        raise ConfigurationError("render = 'now' needs templates: pass sendonce.Templates(folder)")
    return [templates.fill(email) for email in emails]


async def _first(done: Awaitable[list[Enqueued]]) -> Enqueued:
    return (await done)[0]


# The set-returning function is called row by row, in the order of the array: keys are locked in that order.
_ENQUEUE = """
SELECT done.status, CAST(done.email_id AS text), done.stage
FROM jsonb_array_elements(CAST(CAST({mails} AS text) AS jsonb)) WITH ORDINALITY AS mail (value, n)
CROSS JOIN LATERAL sendonce.enqueue(
    mail.value -> 'message', mail.value -> 'attachments', CAST({notify} AS boolean)) AS done
ORDER BY mail.n
"""


def _steps(emails: list[OutgoingEmail], notify: bool) -> Steps[list[Enqueued]]:
    """The statements to execute, one after the other; each is answered with its rows."""
    order = sorted(range(len(emails)), key=lambda index: (emails[index].account, emails[index].key))
    done: dict[int, Enqueued] = {}
    span = current_traceparent()
    # One mail alone needs no savepoint: it is written or it is not.
    guarded = len(emails) > 1
    if guarded:
        yield Statement("SAVEPOINT sendonce_enqueue")
    try:
        for chunk in _chunks(order, emails):
            mails = _Private(json.dumps([_payload(emails[index], span) for index in chunk], ensure_ascii=False))
            rows = yield Statement(_ENQUEUE, {"mails": mails, "notify": notify})
            for index, row in zip(chunk, rows, strict=True):
                done[index] = _enqueued(emails[index], row)
    except (IdempotencyConflict, InvalidEmail):
        if guarded:
            yield Statement("ROLLBACK TO SAVEPOINT sendonce_enqueue")
            yield Statement("RELEASE SAVEPOINT sendonce_enqueue")
        raise
    if guarded:
        yield Statement("RELEASE SAVEPOINT sendonce_enqueue")
    return [done[index] for index in range(len(emails))]


class _Private(str):
    """Text that tracebacks, statement logs and exception texts do not show."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{len(self)} characters>"


def _chunks(order: Iterable[int], emails: Sequence[OutgoingEmail]) -> Iterator[list[int]]:
    chunk: list[int] = []
    octets = 0
    for index in order:
        email = emails[index]
        chunk.append(index)
        octets += len(email.text or "") + len(email.html or "") + sum(len(a.content) for a in email.attachments)
        octets += len(email.mime or b"")
        if len(chunk) >= CHUNK_MAILS or octets >= CHUNK_OCTETS:
            yield chunk
            chunk, octets = [], 0
    if chunk:
        yield chunk


def _payload(email: OutgoingEmail, span: str | None) -> dict[str, Any]:
    message = email.to_json()
    if span is not None:
        message["traceparent"] = span
    message["sender"] = _address(email.sender)
    for name in ("to", "cc", "bcc", "reply_to"):
        message[name] = [_address(address) for address in getattr(email, name)]
    attachments = [{**file, "content": base64.b64encode(file["content"]).decode()} for file in email.files()]
    return {"message": message, "attachments": attachments}


def _address(address: Address) -> dict[str, str]:
    shown = {"email": address.email, "name": address.name}
    # The store computes the mailbox itself; it only cannot convert a domain to A-labels.
    return shown if address.email.rpartition("@")[2].isascii() else {**shown, "mailbox": address.mailbox}


def _enqueued(email: OutgoingEmail, row: Row) -> Enqueued:
    status, email_id, stage = row
    if status == "conflict":
        raise IdempotencyConflict(email.account, email.key)
    if status not in ("created", "exists"):
        raise InvalidEmail(status.partition(":")[2], f"the store does not accept it (key {email.key!r})")
    return Enqueued(
        id=UUID(email_id),
        key=email.key,
        account=email.account,
        lane=email.lane,
        created=status == "created",
        stage=Stage(stage) if stage else None,
        template=email.template,
    )


def _run(connection: Any, emails: list[OutgoingEmail], notify: bool) -> list[Enqueued] | Awaitable[list[Enqueued]]:
    for email in emails:
        if not isinstance(email, OutgoingEmail):
            raise TypeError(f"enqueue takes an OutgoingEmail, not {type(email).__name__}")
    return run(connection, _steps(emails, notify), _CALL)
