"""From what a rendering raised to a :class:`~sendonce.errors.TemplateFault` without anything of the parameters."""

from __future__ import annotations

import re
from pathlib import Path
from types import TracebackType

from jinja2 import TemplateNotFound, TemplateSyntaxError, UndefinedError
from jinja2.exceptions import SecurityError

from sendonce.errors import TemplateFault
from sendonce.templates.files import Files
from sendonce.templates.sandbox import Limit, NoText

_QUOTABLE = re.compile(r"[\w./-]{1,200}")


def fault_of(template: str, file: str, error: Exception, files: Files) -> TemplateFault:
    """The fault behind ``error``, raised while ``file`` (relative to the folder) was rendered."""
    place, line = _place(file, error, files.folder)
    return TemplateFault(template, place, line, _why(error, _source(files, place)))


def _place(file: str, error: Exception, folder: Path) -> tuple[str, int]:
    if isinstance(error, TemplateSyntaxError):
        return _relative(error.filename, folder) or file, error.lineno
    # jinja rewrites tracebacks so that they name the templates' files and lines; the last one is where it happened.
    found = file, 0
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        relative = _relative(trace.tb_frame.f_code.co_filename, folder)
        if relative:
            found = relative, trace.tb_lineno
        trace = trace.tb_next
    return found


def _relative(filename: str | None, folder: Path) -> str | None:
    if filename is None or not Path(filename).is_relative_to(folder):
        return None
    return Path(filename).relative_to(folder).as_posix()


def _source(files: Files, place: str) -> str:
    path = files.path(place)
    return path.read_text(encoding="utf-8", errors="replace") if path else ""


def _why(error: Exception, source: str) -> str:
    kind = type(error).__name__
    match error:
        case TemplateSyntaxError():
            return f"{kind}: {error.message}"  # made of the template alone
        case Limit() | NoText():
            return str(error)
        case UndefinedError():
            said = _named(kind, error.message or "", source)
            return said if said == kind else f"{said} is not given"
        case SecurityError():
            return _named(kind, error.message or "", source)
        case TemplateNotFound():
            return _named(kind, str(error.name or ""), source)
        case _:
            return kind


def _named(kind: str, name: str, source: str) -> str:
    # A name can be computed, and would then be a parameter's value: only what stands in the template is shown.
    written = _QUOTABLE.fullmatch(name) and re.search(rf"(?<!\w){re.escape(name)}(?!\w)", source)
    return f"{kind}: {name!r}" if written else kind
