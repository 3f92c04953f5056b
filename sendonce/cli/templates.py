"""The commands ``templates check`` and ``templates preview``."""

from __future__ import annotations

import importlib
import sys
import tempfile
import webbrowser
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sendonce import settings
from sendonce.cli.base import ConfigOption, ExitCode, Group, JsonOption, app
from sendonce.cli.output import cell, complain, print_fields, print_json
from sendonce.errors import ConfigurationError, TemplateFault

if TYPE_CHECKING:
    from sendonce.templates import RenderedTemplate, Templates

# Loaded inside the commands: Jinja, lxml and the transports are of no use to the others.

templates = typer.Typer(cls=Group, no_args_is_help=True, rich_markup_mode=None, help="Check and preview templates.")
app.add_typer(templates, name="templates")

FolderOption = Annotated[
    Path | None, typer.Option("--folder", metavar="FOLDER", help="The templates [default: [templates] folder].")
]


class Part(StrEnum):
    """What ``preview`` shows alone."""

    TEXT = "text"
    HTML = "html"
    MIME = "mime"


@templates.command()
def check(folder: FolderOption = None, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Render every template in every locale with its sample parameters. Exit code 1 when something is wrong.

    JSON: one object for each fault: template, file, line (0 when unknown), why.
    """
    library = _library(folder, config)
    count = len(library.names())
    faults = library.check()
    for fault in faults:
        if as_json:
            print_json({"template": fault.template, "file": fault.file, "line": fault.line, "why": fault.why})
        else:
            sys.stdout.write(_line(fault) + "\n")
    if faults:
        raise typer.Exit(ExitCode.NO)
    if not as_json:
        sys.stdout.write(f"{count} {'template is' if count == 1 else 'templates are'} in order\n")


@templates.command()
def preview(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The template.")],
    locale: Annotated[str | None, typer.Option(metavar="TAG", help="A language tag, such as de-AT.")] = None,
    parameters: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Parameters as JSON or TOML [default: the template's sample].")
    ] = None,
    part: Annotated[
        Part | None, typer.Option(metavar="PART", help="Only this part, as it is: text, html or mime.")
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Show the HTML in the browser.")] = False,
    folder: FolderOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a template filled in: subject, text, HTML, and the message as it would be sent. Exit code 1 when it is
    missing or broken.

    JSON: subject, sender, headers, text, html, mime.
    """
    library = _library(folder, config)
    try:
        values = library.sample(name, locale) if parameters is None else _parameters(parameters)
        made = library.render(name, values, locale)
    except TemplateFault as fault:
        complain(_line(fault))
        raise typer.Exit(ExitCode.NO) from None
    mime = _mime(made)
    if open_:
        _open(made)
    if as_json:
        print_json(_body(made, mime))
    elif part is None:
        _print(made, mime)
    else:
        _write({Part.TEXT: made.text.encode(), Part.HTML: (made.html or "").encode(), Part.MIME: mime}[part])


def _library(folder: Path | None, config: Path | None) -> Templates:
    from sendonce.templates import Templates

    found = settings.outline(config)
    folder = folder or found.templates.folder
    if folder is None:
        raise ConfigurationError(f"{found.source}: [templates] folder is missing; write it, or give --folder")
    _import(found)
    return Templates(folder, found.templates.default_locale)


def _import(found: settings.Outline) -> None:
    """Define the classes of templates: what is imported is the application's own code."""
    if found.templates.modules:
        file = Path(found.source)
        sys.path.insert(0, str(file.resolve().parent if file.is_file() else Path.cwd()))
    for name in found.templates.modules:
        try:
            importlib.import_module(name)
        except Exception as error:
            raise ConfigurationError(
                f"{found.source}: [templates] modules: {name} cannot be imported ({type(error).__name__}: {error})"
            ) from None


def _line(fault: TemplateFault) -> str:
    return fault.place if fault.file else f"{fault.template}: {fault.why}"


def _parameters(file: Path) -> dict[str, Any]:
    from sendonce.templates.files import BadTable, parse_table

    try:
        return parse_table(file.read_text(encoding="utf-8"), file.name)
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot be read: {error.strerror}; give another --parameters") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{file}: is not UTF-8 text; save it as UTF-8") from None
    except BadTable as error:
        raise ConfigurationError(f"{file}:{error.line}: {error}") from None


def _mime(made: RenderedTemplate) -> bytes:
    from sendonce.activities.transports.base import Mail
    from sendonce.activities.transports.mime import render_mime
    from sendonce.message import Address, OutgoingEmail

    content = OutgoingEmail(
        key="preview",
        sender=made.sender or Address(email="sender@example.org"),
        to="recipient@example.org",
        subject=made.subject,
        text=made.text,
        html=made.html,
        headers=made.headers,
    )
    return render_mime(Mail("preview", "preview", content.account, "<preview@example.org>", datetime.now(UTC), content))


def _open(made: RenderedTemplate) -> None:
    if made.html is None:
        raise ConfigurationError("there is no HTML to open; leave out --open")
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", prefix="sendonce-", suffix=".html", delete=False) as file:
        # A browser guesses the encoding of a file that does not name it; a byte order mark settles it.
        file.write("\ufeff" + made.html)
    if not webbrowser.open(Path(file.name).as_uri()):
        complain(f"no browser was found; open {file.name}")


def _body(made: RenderedTemplate, mime: bytes) -> dict[str, Any]:
    return {
        "subject": made.subject,
        "sender": None if made.sender is None else made.sender.model_dump(),
        "headers": dict(made.headers),
        "text": made.text,
        "html": made.html,
        "mime": mime.decode(),
    }


def _print(made: RenderedTemplate, mime: bytes) -> None:
    sender = made.sender and f"{made.sender.name} <{made.sender.email}>".strip()
    print_fields({"subject": made.subject, "from": sender, **made.headers})
    for title, text in (("text", made.text), ("HTML", made.html), ("MIME", mime.decode().replace("\r\n", "\n"))):
        if text:
            sys.stdout.write(f"\n--- {title}\n{cell(text.expandtabs())}\n")


def _write(content: bytes) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()
