"""Commands that look: ``list``, ``show``, ``alarms``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sendonce import settings
from sendonce.cli.base import DEFAULT_ACCOUNT, ConfigOption, JsonOption, RevealOption, app
from sendonce.cli.output import mask, mask_addresses, print_fields, print_json, print_table, progress
from sendonce.stages import Stage

if TYPE_CHECKING:
    from sendonce.store import reading

_LIST_COLUMNS = ("key", "account", "lane", "stage", "attempts", "created_at", "next_attempt_at", "last_code", "note")


@app.command("list")
def list_(
    stage: Annotated[list[Stage] | None, typer.Option(help="Only this stage; may be given more than once.")] = None,
    lane: Annotated[str | None, typer.Option(help="Only this lane.")] = None,
    account: Annotated[str | None, typer.Option(help="Only this account.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="At most so many.")] = 50,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List mails, the newest first.

    JSON: id, key, account, lane, stage, partial, maybe_accepted, attempts, created_at, next_attempt_at, final_at,
    held_why, last_code, last_enhanced.
    """
    from sendonce.store import reading  # SQLAlchemy: a second that other commands need not wait

    url = settings.load(config, with_accounts=False).database_url
    with progress("reading the store"), reading.reading(url) as connection:
        mails = reading.mails(connection, stages=stage or (), lane=lane, account=account, limit=limit)
    if as_json:
        for mail in mails:
            print_json(asdict(mail) | {"held_why": _masked_text(mail.held_why)})
        return
    rows = [[getattr(mail, name) for name in _LIST_COLUMNS[:-1]] + [_note(mail)] for mail in mails]
    more = " (there may be more: --limit)" if len(mails) == limit else ""
    print_table(f"{len(mails)} mails{more}, times in UTC", _LIST_COLUMNS, rows)


def _note(mail: reading.Mail) -> str:
    notes = [f"held: {mask_addresses(mail.held_why)}"] if mail.held_why else []
    notes += ["partial"] if mail.partial else []
    notes += ["may have been accepted"] if mail.maybe_accepted else []
    return ", ".join(notes)


@app.command()
def show(
    key: Annotated[str, typer.Argument(help="The mail's idempotency key.")],
    account: Annotated[str, typer.Option(help="The account it was enqueued for.")] = DEFAULT_ACCOUNT,
    reveal: RevealOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one mail: stage, recipients, attempts, transitions, evidence, alarms.

    JSON: one object, the members of ``list`` and forgotten, send_after, expires_at, unknown_since,
    cancel_requested_at, generation, message_id, subject, requested_by, recipients, attempts_made, transitions,
    evidence, events, alarms. Without --reveal the subject and reply texts are null and addresses are masked.
    A mail that retention has emptied has forgotten = true, and only id, key, account and created_at.
    """
    from sendonce.store import reading  # SQLAlchemy: a second that other commands need not wait

    url = settings.load(config, with_accounts=False).database_url
    with progress("reading the store"), reading.reading(url) as connection:
        found = reading.story(connection, account, key)
    if isinstance(found, reading.Forgotten):
        body: dict[str, Any] = {"forgotten": True, **asdict(found)}
    else:
        body = _body(found, reveal)
    if as_json:
        print_json(body)
    else:
        _print_story(body)


def _body(story: reading.Story, reveal: bool) -> dict[str, Any]:
    body = asdict(story)
    body = {"forgotten": False, **body.pop("mail"), "attempts_made": body.pop("attempts"), **body}
    return body if reveal else _masked(body)


def _masked(body: dict[str, Any]) -> dict[str, Any]:
    body.update(subject=None, requested_by=_masked_text(body["requested_by"]), held_why=_masked_text(body["held_why"]))
    for recipient in body["recipients"]:
        recipient.update(mailbox=mask(recipient["mailbox"]), reply_text=None)
    for attempt in body["attempts_made"]:
        attempt["answers"] = {n: answer | {"text": None} for n, answer in attempt["answers"].items()}
    # Callers name actors and causes as they like; an address is a name that some of them use.
    for row in (*body["transitions"], *body["evidence"], *body["events"], *body["alarms"]):
        row.update({name: mask_addresses(value) for name, value in row.items() if isinstance(value, str)})
    return body


def _masked_text(text: str | None) -> str | None:
    return None if text is None else mask_addresses(text)


def story_of(story: reading.Story) -> None:
    """Print one mail, masked, as ``show`` does."""
    _print_story(_body(story, reveal=False))


def _print_story(body: dict[str, Any]) -> None:
    tables = {name: value for name, value in body.items() if isinstance(value, list)}
    print_fields({name: value for name, value in body.items() if name not in tables and name != "forgotten"})
    if body["forgotten"]:
        print_fields({"note": "retention has emptied this mail; its key stays taken"})
    for attempt in tables.get("attempts_made", ()):
        attempt["answers"] = "\n".join(f"{n}: {_answer(answer)}" for n, answer in sorted(attempt["answers"].items()))
    for name, rows in tables.items():
        if rows:
            print_table(f"\n{name.replace('_', ' ')}", list(rows[0]), [list(row.values()) for row in rows])


def _answer(answer: dict[str, Any]) -> str:
    parts = (answer.get("kind"), answer.get("code"), answer.get("enhanced"), answer.get("text"))
    return " ".join(str(part) for part in parts if part)


@app.command()
def alarms(
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="At most so many.")] = 100,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the open alarms, the newest first. Exit code 0 whether or not there are any.

    JSON: id, at, kind, email_id, key, account, detail, delivered_at, closed (always false here).
    """
    from sendonce.store import reading  # SQLAlchemy: a second that other commands need not wait

    url = settings.load(config, with_accounts=False).database_url
    with progress("reading the store"), reading.reading(url) as connection:
        found = reading.open_alarms(connection, limit=limit)
    rows = [asdict(alarm) | {"detail": mask_addresses(alarm.detail)} for alarm in found]
    if as_json:
        for row in rows:
            print_json(row)
        return
    columns = ("id", "at", "kind", "account", "key", "detail", "delivered_at")
    print_table(f"{len(rows)} open alarms, times in UTC", columns, [[row[name] for name in columns] for row in rows])
