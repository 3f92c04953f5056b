"""The command ``send-again``: a mail once more, under a new key, to a corrected address."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from sendonce import settings
from sendonce.cli.base import DEFAULT_ACCOUNT, ConfigOption, ExitCode, JsonOption, app
from sendonce.cli.operator import ActorOption, actor, with_store
from sendonce.cli.output import complain, print_json, progress
from sendonce.cli.showing import told
from sendonce.errors import ConfigurationError, IdempotencyConflict, InvalidEmail

if TYPE_CHECKING:
    from sendonce.message import OutgoingEmail
    from sendonce.store.intake import Enqueued
    from sendonce.store.story import Written


@app.command("send-again")
def send_again(
    key: Annotated[str, typer.Argument(metavar="KEY", help="The old mail's key.")],
    new_key: Annotated[str, typer.Option("--new-key", metavar="KEY", help="The new mail's key.")],
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="ADDRESS", help="To this address alone [default: to whom the old one went]."),
    ] = None,
    account: Annotated[str, typer.Option(metavar="NAME", help="The account it was enqueued for.")] = DEFAULT_ACCOUNT,
    actor_name: ActorOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send a mail once more, as a new one under a new key, with the same content; both are linked. With --to it goes to
    that address alone: nobody gets it who was in To, Cc or Bcc. A deadline or a send_after that has passed is left out.

    Exit code 1 when the key is taken by other content. JSON: one object: key, account, id, of (the old key), created
    (false: it was there already), stage.
    """
    from sendonce.store import again, reading, story

    found = settings.load(config, with_accounts=False)
    with progress("reading the store"), reading.reading(found.database_url) as connection:
        old = told(connection, account, key)
        written = None if isinstance(old, story.Forgotten) else story.written(connection, old.mail.id)
    if isinstance(old, story.Forgotten) or written is None:
        raise ConfigurationError(f"{key}: its content has been erased; there is nothing to send again")
    by = actor(actor_name)
    old_id = old.mail.id
    try:
        email = _new(written, new_key, to, by)

        async def run(connection: Any) -> Enqueued:
            return await again.send_again(connection, old_id, email, actor=by)

        done = with_store(found.database_url, run)
    except InvalidEmail as error:
        raise ConfigurationError(str(error)) from None
    except IdempotencyConflict as error:
        complain(str(error))
        raise typer.Exit(ExitCode.NO) from None
    if as_json:
        print_json({"key": done.key, "account": done.account, "id": done.id, "of": key, "created": done.created,
                    "stage": done.stage})  # fmt: skip
    elif done.created:
        typer.echo(f"{done.key}: enqueued, with the content of {key}")
    else:
        typer.echo(f"{done.key}: was sent again already; nothing was written")


def _new(written: Written, key: str, to: str | None, by: str) -> OutgoingEmail:
    from datetime import UTC, datetime

    from sendonce.message import OutgoingEmail

    if key == written.content.get("key"):
        raise ConfigurationError("--new-key is the old mail's: a mail under the same key is the same mail")
    email = OutgoingEmail.from_json(written.content, written.files)
    # Without its topic: a copy of an old word must not take the place of a newer one that is still to be sent.
    changes: dict[str, Any] = {"key": key, "requested_by": by, "topic": None}
    if email.on_final != "take":
        # The workflow that waited for the old mail has been told of that one.
        changes["on_final"] = None
    now = datetime.now(UTC)
    for name in ("send_after", "expires_at"):
        at = getattr(email, name)
        if at is not None and at <= now:
            changes[name] = None
    if to is not None:
        # What a ready-made message says in To stays as it is.
        changes |= {"to": (), "cc": (), "bcc": to} if email.mime is not None else {"to": to, "cc": (), "bcc": ()}
    members = {name: getattr(email, name) for name in type(email).model_fields}
    return OutgoingEmail(**(members | changes))
