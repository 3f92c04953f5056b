"""The command ``show``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sendonce import settings
from sendonce.cli.base import DEFAULT_ACCOUNT, ConfigOption, JsonOption, RevealOption, app
from sendonce.cli.listing import named
from sendonce.cli.operator import ActorOption, note_reveal
from sendonce.cli.output import (
    ago,
    cell,
    mask,
    mask_addresses,
    plural,
    print_json,
    print_pairs,
    print_wrapped,
    progress,
    span,
)
from sendonce.errors import ConfigurationError, InvalidEmail, NoSuchEmail

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from sendonce.store import story

_HARMLESS = ("date", "message-id", "mime-version", "content-type", "content-transfer-encoding", "auto-submitted")
"""Fields of a header section that name nobody. (A message id holds the sender's domain.)"""


_FOLD = re.compile(r"\r?\n(?=[ \t])")


@app.command()
def show(
    key: Annotated[str, typer.Argument(metavar="KEY", help="The mail's idempotency key.")],
    account: Annotated[str, typer.Option(metavar="NAME", help="The account it was enqueued for.")] = DEFAULT_ACCOUNT,
    eml: Annotated[
        Path | None, typer.Option("--eml", metavar="FILE", help="Write the message to this file. It is logged.")
    ] = None,
    reveal: RevealOption = False,
    actor: ActorOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one mail: stage, recipients, every attempt, what came back, evidence, the message's header fields.

    JSON: one object, the members of 'list' and forgotten, send_after, expires_at, unknown_since,
    cancel_requested_at, content_erased_at, generation, message_id, subject, requested_by, again_of, sent_again_as,
    topic, superseded_by, recipients, attempts_made, transitions, evidence, events, alarms, header (null before the
    first attempt). Without --reveal the subject and reply texts are null, header fields with names have no values, and
    addresses are masked. A mail that retention has emptied has forgotten = true, and only id, key, account and
    created_at.
    """
    from sendonce.store import reading, story  # SQLAlchemy: a second that other commands need not wait

    url = settings.load(config, with_accounts=False).database_url
    with progress("reading the store"), reading.reading(url) as connection:
        found = told(connection, account, key)
        written = None if isinstance(found, story.Forgotten) else story.written(connection, found.mail.id)
    if isinstance(found, story.Forgotten):
        if eml is not None:
            raise ConfigurationError(f"{key}: retention has emptied this mail; there is no message to write")
        body: dict[str, Any] = {"forgotten": True, **asdict(found)}
    else:
        if reveal or eml is not None:
            email_id = found.mail.id
            note_reveal(url, "show --eml" if eml else "show", actor, email_id=email_id, account=account, key=key)
        if eml is not None:
            _write(eml, found, written)
        body = _body(found, written, reveal)
    if as_json:
        print_json(body)
    else:
        _print(body)


def told(connection: Connection, account: str, key: str) -> story.Story | story.Forgotten:
    """The mail's story. A key that another account has is said to be there."""
    from sendonce.store import reading, story

    try:
        return story.story(connection, account, key)
    except NoSuchEmail as error:
        others = [name for name in reading.accounts_with(connection, key) if name != account]
        if not others:
            raise
        raise NoSuchEmail(
            account,
            key,
            hint=f"; account {' and account '.join(map(repr, others))} has one: give --account {others[0]}",
        ) from error


def _write(file: Path, found: story.Story, written: story.Written | None) -> None:
    if written is None:
        raise ConfigurationError(f"{found.mail.key}: its content has been erased; there is no message to write")
    try:
        file.write_bytes(written.sent or _composed(found, written))
    except OSError as error:
        raise ConfigurationError(f"--eml {file}: {error.strerror}") from None


def _composed(found: story.Story, written: story.Written) -> bytes:
    """As it would be over SMTP: a provider's API is given the parts, and composes a message of its own."""
    from sendonce.activities.transports.base import Mail
    from sendonce.activities.transports.mime import render_mime
    from sendonce.message import OutgoingEmail

    try:
        content = OutgoingEmail.from_json(written.content, written.files)
        if content.template is not None and not content.rendered:
            raise ConfigurationError(
                f"{content.key}: template {content.template!r} has not been rendered for it yet; "
                "see 'sendonce templates preview'"
            )
        at = max(written.created_at, content.send_after or written.created_at)
        mail = Mail(str(found.mail.id), content.key, content.account, written.message_id, at, content)
        return render_mime(mail)
    except InvalidEmail as error:
        raise ConfigurationError(f"{found.mail.key}: the content in the store cannot be sent: {error}") from None


def _body(found: story.Story, written: story.Written | None, reveal: bool) -> dict[str, Any]:
    body = asdict(found)
    body = {"forgotten": False, **body.pop("mail"), "attempts_made": body.pop("attempts"), **body}
    sent = written.sent if written else None
    body["header"] = None if sent is None else _header(sent, reveal)
    return body if reveal else _masked(body)


def _header(sent: bytes, reveal: bool) -> list[dict[str, str | None]]:
    from email.parser import BytesHeaderParser

    fields = BytesHeaderParser().parsebytes(sent.partition(b"\r\n\r\n")[0]).items()
    return [
        # On one line: where a field was folded is the transport's affair (RFC 5322 2.2.3).
        {"name": name, "value": _FOLD.sub("", str(value)) if reveal or name.lower() in _HARMLESS else None}
        for name, value in fields
    ]


def _masked(body: dict[str, Any]) -> dict[str, Any]:
    body["subject"] = None
    for name in ("requested_by", "held_why", "waits_for"):
        body[name] = body[name] and mask_addresses(body[name])
    for recipient in body["recipients"]:
        recipient.update(mailbox=mask(recipient["mailbox"]), reply_text=None)
    for attempt in body["attempts_made"]:
        attempt["answers"] = {n: answer | {"text": None} for n, answer in attempt["answers"].items()}
    # Callers name actors and causes as they like; an address is a name that some of them use.
    for row in (*body["transitions"], *body["evidence"], *body["events"], *body["alarms"]):
        row.update({name: mask_addresses(value) for name, value in row.items() if isinstance(value, str)})
    return body


def story_of(found: story.Story) -> None:
    """Print one mail, masked, as ``show`` does."""
    _print(_body(found, None, reveal=False))


def _print(body: dict[str, Any]) -> None:
    """In lines that fit 80 columns."""
    now = datetime.now(UTC)
    print_wrapped(named(body["key"], body["account"]))
    if body["forgotten"]:
        print_pairs([("id", body["id"]), ("created", _at(body["created_at"], now))], "  ")
        print_wrapped("retention has emptied this mail; its key stays taken", "  ")
        return
    print_pairs(_fields(body, now), "  ")
    _section("recipients", (_recipient(row) for row in body["recipients"]))
    _section("attempts made", (_attempt(row) for row in body["attempts_made"]))
    _section("history", ([_transition(row)] for row in body["transitions"]))
    _section("evidence", ([_evidence(row)] for row in body["evidence"]))
    _section("what came back", ([_event(row)] for row in body["events"]))
    _section("alarms", ([_alarm(row)] for row in body["alarms"]))
    header = body["header"] or ()
    _section("header", ([f"{field['name']}: {field['value'] or '(hidden)'}"] for field in header))


def _section(name: str, rows: Iterable[Iterable[str]]) -> None:
    there = [list(lines) for lines in rows]
    if there:
        typer.echo(f"\n{name}")
    for lines in there:
        for n, line in enumerate(lines):
            print_wrapped(line, "  " if n == 0 else "      ")


def _fields(body: dict[str, Any], now: datetime) -> list[tuple[str, object]]:
    doubts = [word for word, said in (("partial", body["partial"]), ("may have been accepted", body["maybe_accepted"]))
              if said]  # fmt: skip
    reply = " ".join(str(part) for part in (body["last_code"], body["last_enhanced"]) if part)
    return [
        ("stage", ", ".join([body["stage"], *doubts])),
        ("waits for", body["waits_for"] or _awaited(body)),
        ("held", body["held_why"]),
        ("last reply", reply),
        ("id", body["id"]),
        ("lane", body["lane"]),
        ("account", body["account"]),
        ("tenant", body["tenant"]),
        ("template", body["template"]),
        ("subject", body["subject"]),
        ("message id", body["message_id"]),
        ("requested by", body["requested_by"]),
        ("created", _at(body["created_at"], now)),
        ("send after", body["send_after"] and _at(body["send_after"], now)),
        ("expires", body["expires_at"] and _at(body["expires_at"], now)),
        ("tries", body["attempts"]),
        ("next try", body["next_attempt_at"] and _at(body["next_attempt_at"], now)),
        ("unknown since", body["unknown_since"] and _at(body["unknown_since"], now)),
        ("cancel asked", body["cancel_requested_at"] and _at(body["cancel_requested_at"], now)),
        ("content", body["content_erased_at"] and f"erased {_at(body['content_erased_at'], now)}"),
        ("ended", body["final_at"] and _at(body["final_at"], now)),
        ("sent again of", body["again_of"]),
        ("sent again as", ", ".join(body["sent_again_as"])),
        ("topic", body["topic"]),
        ("superseded by", body["superseded_by"]),
    ]


def _awaited(body: dict[str, Any]) -> str | None:
    """What settles an unknown mail, in words."""
    if body["stage"] != "unknown":
        return None
    asked = "its next try, " if body["next_attempt_at"] else ""
    return f"{asked}a late answer, a webhook or bounce, or a decision: 'sendonce resolve'"


def _at(instant: datetime, now: datetime) -> str:
    return f"{cell(instant)} UTC ({ago(instant, now)})"


def _recipient(row: dict[str, Any]) -> list[str]:
    reply = " ".join(str(part) for part in (row["code"], row["enhanced"]) if part)
    lines = [f"{row['ordinal']}  {row['mailbox']}  {row['stage']}  {reply}".rstrip()]
    lines += [f"reply: {row['reply_text']}"] if row["reply_text"] else []
    lines += [f"provider's id: {row['provider_id']}"] if row["provider_id"] else []
    lines += [f"{row['delivery']} {cell(row['delivery_at'])}"] if row["delivery"] else []
    return lines


def _attempt(row: dict[str, Any]) -> list[str]:
    how = f"generation {row['generation']}, {'counted' if row['counted'] else 'not counted'}"
    lines = [f"{row['number']}  {cell(row['claimed_at'])}  {row['mode']} by account {row['account']}, {how}"]
    if row["begun_at"] is None:
        lines.append("nothing was offered")
    else:
        lines.append(f"offered to {plural(len(row['offered']), 'recipient')} at {cell(row['begun_at'])}")
    lines += [f"{ordinal}: {_answer(answer)}" for ordinal, answer in sorted(row["answers"].items())]
    if row["ended_at"] is not None:
        took = span((row["ended_at"] - row["claimed_at"]).total_seconds())
        lines.append(f"ended after {took}: {row['ended_why']}")
    return [*lines, f"worker {row['worker']}"]


def _answer(answer: dict[str, Any]) -> str:
    parts = (answer.get("kind"), answer.get("code"), answer.get("enhanced"), answer.get("text"))
    return " ".join(str(part) for part in parts if part)


def _transition(row: dict[str, Any]) -> str:
    stages = (
        row["to_stage"] if row["from_stage"] in (None, row["to_stage"]) else f"{row['from_stage']} > {row['to_stage']}"
    )
    because = f", because: {row['because']}" if row["because"] else ""
    return f"{cell(row['at'])}  {stages}: {row['cause']}, by {row['actor']}{because}"


def _evidence(row: dict[str, Any]) -> str:
    said = "accepted" if row["accepted"] else "not accepted"
    late = ", after its end" if row["after_final"] else ""
    return (
        f"{cell(row['recorded_at'])}  recipient {row['ordinal']} {said}, generation {row['generation']}{late}: "
        f"{row['source']} {row['event_id']}, by {row['actor']}"
    )


def _event(row: dict[str, Any]) -> str:
    whom = "" if row["ordinal"] is None else f" for recipient {row['ordinal']}"
    reply = " ".join(str(part) for part in (row["code"], row["enhanced"]) if part)
    proven = "" if row["proven"] else ", not proven"
    return f"{cell(row['received_at'])}  {row['kind']}{whom} {reply}{proven}: {row['source']} {row['event_id']}"


def _alarm(row: dict[str, Any]) -> str:
    seen = f", acknowledged by {row['acknowledged_by']}" if row["acknowledged_at"] else ""
    return f"{cell(row['at'])}  {row['kind']} ({'closed' if row['closed'] else 'open'}{seen}): {row['detail']}"
