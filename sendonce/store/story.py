"""One mail with everything that happened to it. Reads one snapshot; writes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from sqlalchemy import Connection, select

from sendonce.errors import NoSuchEmail
from sendonce.store import tables as t
from sendonce.store.open_alarms import AlarmRow, select_alarms
from sendonce.store.reading import Mail, columns, rows, select_mails

_Row = TypeVar("_Row")


@dataclass(frozen=True, slots=True)
class RecipientRow:
    """Where one recipient stands. ``mailbox`` and ``reply_text`` are personal data."""

    ordinal: int
    mailbox: str
    stage: str
    code: int | None
    enhanced: str | None
    reply_text: str | None
    provider_id: str | None
    changed_at: datetime | None
    delivery: str | None
    """What became of it afterwards: the highest :class:`~sendonce.events.EventKind` so far."""
    delivery_at: datetime | None


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """One claim and what came of it. ``answers`` maps recipient ordinals to outcomes; their texts are personal data."""

    id: UUID
    number: int
    generation: int
    account: str
    """It went by: the mail's own, or the fallback of that one."""
    mode: str
    worker: str
    claimed_at: datetime
    begun_at: datetime | None
    """None: nothing was offered."""
    offered: list[int]
    answers: dict[str, dict[str, Any]]
    counted: bool
    ended_at: datetime | None
    ended_why: str | None


@dataclass(frozen=True, slots=True)
class TransitionRow:
    """One change of stage."""

    at: datetime
    from_stage: str | None
    to_stage: str
    cause: str
    actor: str
    attempt_id: UUID | None
    because: str | None
    """An operator's reason."""


@dataclass(frozen=True, slots=True)
class EventRow:
    """One thing that came back. ``proven`` False: anyone could have written it."""

    received_at: datetime
    happened_at: datetime | None
    kind: str
    ordinal: int | None
    source: str
    event_id: str
    proven: bool
    code: int | None
    enhanced: str | None


@dataclass(frozen=True, slots=True)
class EvidenceRow:
    """One proof that was not an attempt's own answer."""

    recorded_at: datetime
    ordinal: int
    accepted: bool
    generation: int
    source: str
    event_id: str
    actor: str
    after_final: bool


@dataclass(frozen=True, slots=True)
class Story:
    """One mail with everything that happened to it. ``subject`` and ``requested_by`` are personal data."""

    mail: Mail
    send_after: datetime | None
    expires_at: datetime | None
    unknown_since: datetime | None
    cancel_requested_at: datetime | None
    content_erased_at: datetime | None
    """Since then its content is gone, and it cannot be requeued."""
    generation: int
    message_id: str | None
    subject: str | None
    requested_by: str | None
    again_of: str | None
    """It was sent again: the old mail's key, in the same account; its id when the key is not known any more."""
    sent_again_as: list[str]
    """It was sent again: the keys of the new ones."""
    topic: str | None
    """Of the account's mails with the same topic only the newest is worth sending."""
    superseded_by: str | None
    """The newer mail of its topic that took its place."""
    recipients: list[RecipientRow]
    attempts: list[AttemptRow]
    transitions: list[TransitionRow]
    evidence: list[EvidenceRow]
    events: list[EventRow]
    alarms: list[AlarmRow]


@dataclass(frozen=True, slots=True)
class Forgotten:
    """A key whose mail retention has emptied: it was accepted once, and is never accepted for other content."""

    id: UUID
    key: str
    account: str
    created_at: datetime


def story(connection: Connection, account: str, key: str) -> Story | Forgotten:
    """Everything about one mail. Raises :class:`~sendonce.errors.NoSuchEmail`."""
    known = connection.execute(
        select(t.email_key.c.email_id, t.email_key.c.created_at).where(
            t.email_key.c.account == account, t.email_key.c.key == key
        )
    ).one_or_none()
    if known is None:
        raise NoSuchEmail(account, key)
    found = rows(connection, select_mails().where(t.email.c.id == known.email_id), Mail)
    if not found:
        return Forgotten(known.email_id, key, account, known.created_at)
    return _story(connection, found[0])


def _story(connection: Connection, mail: Mail) -> Story:
    more = connection.execute(
        select(
            t.email.c.send_after,
            t.email.c.expires_at,
            t.email.c.unknown_since,
            t.email.c.cancel_requested_at,
            t.email.c.content_erased_at,
            t.email.c.generation,
            t.email_content.c.message_id,
            t.email_content.c.content["subject"].astext.label("subject"),
            t.email_content.c.requested_by,
        )
        .outerjoin_from(t.email, t.email_content, t.email_content.c.email_id == t.email.c.id)
        .where(t.email.c.id == mail.id)
    ).one()
    topics = connection.execute(
        select(t.topic.c.topic, t.email.c.superseded_by)
        .outerjoin_from(t.email, t.topic, t.topic.c.email_id == t.email.c.id)
        .where(t.email.c.id == mail.id)
    ).one()

    def of_mail(table: Any, row: type[_Row], *order: Any) -> list[_Row]:
        query = select(*columns(table, row)).where(table.c.email_id == mail.id).order_by(*order)
        return rows(connection, query, row)

    return Story(
        mail,
        *more,
        again_of=_again_of(connection, mail.id),
        sent_again_as=_sent_again_as(connection, mail.id),
        topic=topics.topic,
        superseded_by=topics.superseded_by,
        recipients=of_mail(t.recipient, RecipientRow, t.recipient.c.ordinal),
        attempts=of_mail(t.attempt, AttemptRow, t.attempt.c.number),
        transitions=of_mail(t.transition, TransitionRow, t.transition.c.id),
        evidence=of_mail(t.evidence, EvidenceRow, t.evidence.c.id),
        events=of_mail(t.event, EventRow, t.event.c.id),
        alarms=rows(connection, select_alarms().where(t.alarm.c.email_id == mail.id).order_by(t.alarm.c.id), AlarmRow),
    )


def _again_of(connection: Connection, email_id: UUID) -> str | None:
    s, k = t.sent_again.c, t.email.c
    found = connection.execute(
        select(s.of_email, k.key)
        .outerjoin_from(t.sent_again, t.email, k.id == s.of_email)
        .where(s.email_id == email_id)
    ).one_or_none()
    return None if found is None else found.key or str(found.of_email)


def _sent_again_as(connection: Connection, email_id: UUID) -> list[str]:
    s, k = t.sent_again.c, t.email.c
    query = select(k.key).join_from(t.sent_again, t.email, k.id == s.email_id).where(s.of_email == email_id)
    return list(connection.execute(query.order_by(s.at)).scalars())


@dataclass(frozen=True, slots=True)
class Written:
    """A mail's content, to be shown as a message. All of it is personal data."""

    message_id: str
    created_at: datetime
    content: dict[str, Any]
    files: list[dict[str, Any]]
    sent: bytes | None
    """The message that was, or will be, offered over SMTP; None before it was rendered and kept, and for
    other transports."""


def written(connection: Connection, email_id: UUID) -> Written | None:
    """The mail's content; None when retention has erased it."""
    c, f, p = t.email_content.c, t.attachment.c, t.pinned.c
    query = select(c.message_id, c.content, t.email.c.created_at).join(t.email, t.email.c.id == c.email_id)
    row = connection.execute(query.where(c.email_id == email_id)).one_or_none()
    if row is None or "sender" not in row.content:
        return None
    files = select(f.filename, f.content_type, f.content_id, f.inline, f.alternative, f.content)
    found = connection.execute(files.where(f.email_id == email_id).order_by(f.ordinal)).mappings()
    sent = connection.execute(select(p.body).where(p.email_id == email_id, p.slot == "mime")).scalar()
    return Written(row.message_id, row.created_at, row.content, [dict(file) for file in found], sent)
