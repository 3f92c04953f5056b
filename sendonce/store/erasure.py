"""Erasing a person: out of the rows, the content, what came back, the suppressions and every log.

The address is replaced by its keyed digest where it must go on working: suppressions, the recipient's row, events. Mail
that is still in flight is written down first, together with who asked; it is emptied as soon as it is final, by whoever
comes to it, this command or the upkeep. So nothing is lost when the command dies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection, errors
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from sendonce.policy import LanePolicy
from sendonce.stages import RecipientStage, Stage
from sendonce.store import texts, wakes
from sendonce.store.conclude import conclude
from sendonce.store.digests import ERASED_RECIPIENT, KNOWN_CODE
from sendonce.store.facts import reconsider
from sendonce.store.mail import load
from sendonce.store.naming import Person
from sendonce.store.retention import empty_content
from sendonce.store.sweeps import lane_of

CAUSE = "erased"
"""The cause of what an erasure does to a mail, in its log."""

LOCK_TIMEOUT_MS = 2000
"""Somebody may hold a row of a mail. It is left for the next round then."""

OCTETS = 8 * 1024 * 1024
"""Content that is searched at once."""


@dataclass(frozen=True)
class Found:
    """Mails that name the person, and the person's ordinals in them; none where only the content names them."""

    mails: Mapping[UUID, list[int]]


@dataclass
class Erased:
    """How many of what."""

    mails: int = 0
    """Emptied: the person was a recipient."""
    contents: int = 0
    """Emptied: only their content named the person."""
    withdrawn: int = 0
    """In flight, and no longer sent to the person."""
    waiting: int = 0
    """In flight, and emptied as soon as they are final."""
    events: int = 0
    """Deleted: they named the person and no mail that is known."""
    suppressions: int = 0
    """Kept as digests."""
    texts: int = 0
    """Rows of logs in which the address stood."""


_RECIPIENTS = "SELECT email_id, ordinal FROM sendonce.recipient WHERE lower(mailbox) = lower(%s) ORDER BY 1, 2"

_CONTENTS = {
    "email_content": """
SELECT email_id, 0 AS ordinal, content::text AS content FROM sendonce.email_content
WHERE email_id > coalesce(%(after)s::uuid, '00000000-0000-0000-0000-000000000000') ORDER BY email_id LIMIT 200
""",
    "attachment": """
WITH next AS (
    SELECT email_id, ordinal, octet_length(content) AS octets FROM sendonce.attachment
    WHERE (email_id, ordinal) > (coalesce(%(after)s::uuid, '00000000-0000-0000-0000-000000000000'), %(ordinal)s)
    ORDER BY email_id, ordinal LIMIT 200
),
sized AS (
    SELECT email_id, ordinal, sum(octets) OVER before - octets AS size FROM next
    WINDOW before AS (ORDER BY email_id, ordinal)
)
SELECT a.email_id, a.ordinal, a.filename, a.content_id, a.content FROM sized JOIN sendonce.attachment a
    USING (email_id, ordinal)
WHERE sized.size < %(octets)s ORDER BY a.email_id, a.ordinal
""",
    "pinned": """
WITH next AS (
    SELECT email_id, slot, octet_length(body) AS octets FROM sendonce.pinned
    WHERE (email_id, slot) > (coalesce(%(after)s::uuid, '00000000-0000-0000-0000-000000000000'), %(ordinal)s::text)
    ORDER BY email_id, slot LIMIT 200
),
sized AS (
    SELECT email_id, slot, sum(octets) OVER before - octets AS size FROM next
    WINDOW before AS (ORDER BY email_id, slot)
)
SELECT p.email_id, p.slot AS ordinal, p.url, p.headers::text AS headers, p.body FROM sized JOIN sendonce.pinned p
    USING (email_id, slot)
WHERE sized.size < %(octets)s ORDER BY p.email_id, p.slot
""",
}


async def search(conn: AsyncConnection[Any], person: Person) -> Found:
    """Every mail that names the person: as a recipient, or in its content. Reads all content; writes nothing."""
    found: dict[UUID, list[int]] = {}
    for email_id, ordinal in await (await conn.execute(_RECIPIENTS, [person.mailbox])).fetchall():
        found.setdefault(email_id, []).append(ordinal)
    for table, query in _CONTENTS.items():
        at: dict[str, Any] = {"after": None, "ordinal": "" if table == "pinned" else -1, "octets": OCTETS}
        while True:
            async with conn.cursor(row_factory=dict_row) as cur:
                rows = await (await cur.execute(query.encode(), at)).fetchall()
            if not rows:
                break
            at.update(after=rows[-1]["email_id"], ordinal=rows[-1]["ordinal"])
            for row in rows:
                if row["email_id"] not in found and _names(person, row):
                    found[row["email_id"]] = []
    return Found(found)


def _names(person: Person, row: Mapping[str, Any]) -> bool:
    return any(isinstance(value, (str, bytes)) and person.named_in(value) for value in row.values())


async def dry_run(conn: AsyncConnection[Any], person: Person, found: Found, *, withdraw: bool) -> Erased:
    """What :func:`erase` would do, as far as it can be said without doing it: texts are not counted."""
    would = Erased()
    params = {"ids": list(found.mails), "mailbox": person.mailbox}
    for email_id, final, open_ in await (await conn.execute(_STANDING, params)).fetchall():
        if not final:
            would.waiting += 1
            would.withdrawn += withdraw and open_
        elif found.mails[email_id]:
            would.mails += 1
        else:
            would.contents += 1
    row = await (await conn.execute(_COUNT, {"mailbox": person.mailbox})).fetchone()
    assert row is not None
    would.events, would.suppressions = row
    return would


_STANDING = """
SELECT e.id, e.final_at IS NOT NULL, e.stage <> 'transmitting' AND EXISTS (
    SELECT FROM sendonce.recipient r WHERE r.email_id = e.id AND lower(r.mailbox) = lower(%(mailbox)s)
        AND r.stage IN ('outstanding', 'deferred'))
FROM sendonce.email e WHERE e.id = ANY (%(ids)s)
"""
_COUNT = """
SELECT (SELECT count(*) FROM sendonce.event WHERE email_id IS NULL AND lower(recipient) = lower(%(mailbox)s)),
    (SELECT count(*) FROM sendonce.suppression WHERE mailbox = lower(%(mailbox)s))
"""


async def erase(
    conn: AsyncConnection[Any],
    person: Person,
    found: Found,
    *,
    lanes: Mapping[str, LanePolicy],
    actor: str,
    because: str | None,
    withdraw: bool,
) -> Erased:
    """Erase the person. ``conn`` is in no transaction. Safe to repeat.

    ``withdraw``: what is in flight and has not been offered to the person is not sent to them any more.
    """
    erasure = await _write_down(conn, person, found, actor, because, withdraw)
    done = Erased()
    await pending(conn, lanes, actor, done=done, erasure=erasure)
    async with conn.transaction():
        params = {"mailbox": person.mailbox}
        # One that has come back by another spelling of the list: the digest is there already.
        await conn.execute(_DOUBLE, params)
        done.suppressions = (await conn.execute(_SUPPRESSED, params)).rowcount
        done.events = (await conn.execute(_PARKED, params)).rowcount
    done.texts = await texts.blank(conn, person)
    cursor = await conn.execute("SELECT count(*) FROM sendonce.erasure_mail WHERE erasure_id = %s", [erasure])
    row = await cursor.fetchone()
    done.waiting = row[0] if row else 0
    await conn.execute(
        "UPDATE sendonce.erasure SET searched_at = sendonce.clock(), done = %s WHERE id = %s",
        [Jsonb(asdict(done)), erasure],
    )
    await finish(conn)
    return done


_DOUBLE = """
DELETE FROM sendonce.suppression s USING sendonce.suppression kept
WHERE s.mailbox = lower(%(mailbox)s) AND kept.account = s.account
    AND kept.mailbox = sendonce.mailbox_digest(%(mailbox)s)
"""
_SUPPRESSED = """
UPDATE sendonce.suppression SET mailbox = sendonce.mailbox_digest(%(mailbox)s), note = NULL
WHERE mailbox = lower(%(mailbox)s)
"""
_PARKED = "DELETE FROM sendonce.event WHERE email_id IS NULL AND lower(recipient) = lower(%(mailbox)s)"


async def _write_down(
    conn: AsyncConnection[Any], person: Person, found: Found, actor: str, because: str | None, withdraw: bool
) -> int:
    async with conn.transaction():
        cursor = await conn.execute(
            "INSERT INTO sendonce.erasure (digest, actor, because, withdraw)"
            " VALUES (sendonce.mailbox_digest(%s), %s, %s, %s) RETURNING id",
            [person.mailbox, actor, because, withdraw],
        )
        row = await cursor.fetchone()
        assert row is not None
        async with conn.cursor() as cur:
            await cur.executemany(
                # One that was emptied or is gone since it was found is left out.
                "INSERT INTO sendonce.erasure_mail (erasure_id, email_id, ordinals)"
                " SELECT %s, e.id, %s::integer[] FROM sendonce.email e WHERE e.id = %s FOR KEY SHARE OF e",
                [(row[0], ordinals, email_id) for email_id, ordinals in sorted(found.mails.items())],
            )
    return int(row[0])


# What only has to be waited for is passed over.
_NEXT = """
SELECT m.email_id, m.erasure_id, m.ordinals, e.lane, e.final_at IS NOT NULL AS final
FROM sendonce.erasure_mail m JOIN sendonce.email e ON e.id = m.email_id JOIN sendonce.erasure x ON x.id = m.erasure_id
WHERE (m.email_id, m.erasure_id) > (%(email)s, %(last)s) AND m.erasure_id = coalesce(%(erasure)s, m.erasure_id)
    AND (e.final_at IS NOT NULL OR (
        x.withdraw AND e.stage <> 'transmitting' AND e.cancel_requested_at IS NULL AND EXISTS (
            SELECT FROM sendonce.recipient r WHERE r.email_id = e.id AND r.ordinal = ANY (m.ordinals)
                AND r.stage IN ('outstanding', 'deferred'))))
ORDER BY m.email_id, m.erasure_id LIMIT 1
"""


async def pending(
    conn: AsyncConnection[Any],
    lanes: Mapping[str, LanePolicy],
    actor: str,
    *,
    done: Erased,
    erasure: int | None = None,
    leave: Callable[[], bool] = lambda: False,
) -> None:
    """Go through the mails that are written down, of one erasure or of all: withdraw, and empty those that are final.

    Each mail is a transaction of its own. ``leave`` says when time is over.
    """
    email, last = UUID(int=0), 0
    while not leave():
        async with conn.cursor(row_factory=dict_row) as cur:
            params = {"email": email, "last": last, "erasure": erasure}
            row = await (await cur.execute(_NEXT, params)).fetchone()
        if row is None:
            return
        email, last = row["email_id"], row["erasure_id"]
        try:
            if not row["final"]:
                done.withdrawn += await _withdraw(conn, email, row["ordinals"], lane_of(lanes, row["lane"]), actor)
            emptied = await _empty(conn, email, last, row["ordinals"])
        except errors.LockNotAvailable:
            # Such as business code that cancels it, or takes one of its events. It stays written down.
            continue
        if emptied:
            if row["ordinals"]:
                done.mails += 1
            else:
                done.contents += 1


async def _withdraw(
    conn: AsyncConnection[Any], email_id: UUID, ordinals: list[int], lane: LanePolicy, actor: str
) -> bool:
    """Nothing more is offered to these recipients: the mail is cancelled, or goes on to the others alone."""
    async with conn.transaction():
        await conn.execute("SELECT set_config('lock_timeout', %s, true)", [str(LOCK_TIMEOUT_MS)])
        mail = await load(conn, email_id)
        if mail is None or mail.stage.final or mail.stage is Stage.TRANSMITTING:
            return False
        if all(r["ordinal"] in ordinals for r in mail.recipients):
            await reconsider(conn, email_id, lane=lane, cause=CAUSE, actor=actor, cancel=True)
        else:
            for recipient in mail.recipients:
                if recipient["ordinal"] in ordinals and recipient["stage"] in _NOT_OFFERED:
                    recipient["stage"] = str(RecipientStage.SUPPRESSED)
            await conn.execute(
                "UPDATE sendonce.recipient SET stage = 'suppressed', changed_at = %s"
                " WHERE email_id = %s AND ordinal = ANY (%s) AND stage = ANY (%s)",
                [mail.row["now"], email_id, ordinals, list(_NOT_OFFERED)],
            )
            # A claim has offered nothing: it is revoked, and its begin will be refused.
            revoked = mail.stage is Stage.CLAIMED
            await conclude(conn, mail, lane=lane, cause=CAUSE, actor=actor, ends_hold=revoked)
        await wakes.ask(conn, [email_id])
    return True


_NOT_OFFERED = (str(RecipientStage.OUTSTANDING), str(RecipientStage.DEFERRED))


async def _empty(conn: AsyncConnection[Any], email_id: UUID, erasure: int, ordinals: list[int]) -> bool:
    """Take a person out of a mail that is final, whose content names them; False when it is not, or nothing is left.

    The other recipients keep what is theirs, without the texts of replies: such a text may name anybody.
    """
    async with conn.transaction():
        await conn.execute("SELECT set_config('lock_timeout', %s, true)", [str(LOCK_TIMEOUT_MS)])
        cursor = await conn.execute(
            "SELECT final_at IS NOT NULL FROM sendonce.email WHERE id = %s FOR UPDATE", [email_id]
        )
        row = await cursor.fetchone()
        if row is None or not row[0]:
            return False
        params: dict[str, Any] = {"id": email_id, "ordinals": ordinals, "erasure": erasure}
        cursor = await conn.execute(
            "DELETE FROM sendonce.erasure_mail WHERE email_id = %(id)s AND erasure_id = %(erasure)s", params
        )
        if not cursor.rowcount:
            return False
        await empty_content(conn, [email_id])
        # First what is compared with the recipients' addresses.
        await conn.execute(_EVENTS, params)
        for person in await _persons(conn, params):
            await texts.blank_mail(conn, person, email_id)
        for statement in _EMPTY:
            # No address that stands there is one of those: that was seen to.
            await conn.execute(statement.encode(), {**params, "pattern": NOTHING})
    return True


NOTHING = "$^a"
"""A regular expression that nothing matches."""


async def _persons(conn: AsyncConnection[Any], params: Mapping[str, Any]) -> list[Person]:
    cursor = await conn.execute(
        "SELECT DISTINCT mailbox FROM sendonce.recipient"
        " WHERE email_id = %(id)s AND ordinal = ANY (%(ordinals)s) AND mailbox NOT LIKE 'erased:%%'",
        params,
    )
    return [Person(mailbox) for (mailbox,) in await cursor.fetchall()]


_EVENTS = f"""
UPDATE sendonce.event ev SET recipient = {ERASED_RECIPIENT}
WHERE ev.email_id = %(id)s AND EXISTS (
    SELECT FROM sendonce.recipient r WHERE r.email_id = ev.email_id AND r.ordinal = ANY (%(ordinals)s)
        AND lower(r.mailbox) = lower(ev.recipient))
"""
_EMPTY = (
    f"""
UPDATE sendonce.event ev SET reply_text = NULL, enhanced = CASE WHEN enhanced ~ {KNOWN_CODE} THEN enhanced END
WHERE ev.email_id = %(id)s
""",
    """
UPDATE sendonce.recipient SET mailbox = sendonce.mailbox_digest(mailbox)
WHERE email_id = %(id)s AND ordinal = ANY (%(ordinals)s) AND mailbox NOT LIKE 'erased:%%'
""",
    f"""
UPDATE sendonce.recipient SET reply_text = NULL, enhanced = CASE WHEN enhanced ~ {KNOWN_CODE} THEN enhanced END
WHERE email_id = %(id)s
""",
    f"UPDATE sendonce.attempt t SET answers = {texts.ANSWERS} WHERE t.email_id = %(id)s",
    # The domain may be the person's own, too.
    """
UPDATE sendonce.email SET to_domains = ARRAY(
    SELECT DISTINCT lower(substring(r.mailbox FROM '@([^@]+)$')) FROM sendonce.recipient r
    WHERE r.email_id = %(id)s AND r.mailbox NOT LIKE 'erased:%%')
WHERE id = %(id)s
""",
)


async def finish(conn: AsyncConnection[Any]) -> None:
    """Mark the erasures that are through: every table was searched, and no mail is written down any more."""
    await conn.execute(
        "UPDATE sendonce.erasure x SET finished_at = sendonce.clock() WHERE finished_at IS NULL"
        " AND searched_at IS NOT NULL"
        " AND NOT EXISTS (SELECT FROM sendonce.erasure_mail m WHERE m.erasure_id = x.id)"
    )
