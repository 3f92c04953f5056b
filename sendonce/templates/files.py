"""The folder of templates: names, locales, and which file serves which locale."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from pathlib import Path
from typing import Any

from sendonce.errors import ConfigurationError, TemplateFault

SUBJECT, TEXT, HTML, META = "subject.txt", "body.txt", "body.html", "meta.toml"
SAMPLES = ("sample.json", "sample.toml")
FILES = (SUBJECT, TEXT, HTML, META, *SAMPLES)
"""What a template's folder may hold; one of them makes a folder a template."""

_NAME = re.compile(r"[a-z0-9_-]+(/[a-z0-9_-]+)*")
_NAME_LIMIT = 200
# No segment begins with a dot, so there is no "..", and nothing but "/" leads into a folder.
_PATH = re.compile(r"([A-Za-z0-9_-]+/)*[A-Za-z0-9_-][A-Za-z0-9._-]*")
# Language, script, region and variants of BCP 47; extensions make no difference to a text.
_LOCALE = re.compile(r"[a-z]{2,3}(-[a-z0-9]{2,8})*")


def is_name(text: str) -> bool:
    """Whether ``text`` may name a template: 1 to 200 of a-z 0-9 _ -, with / for folders; ``_folders`` are shared."""
    return len(text) <= _NAME_LIMIT and bool(_NAME.fullmatch(text)) and not any(map(is_shared, text.split("/")))


def is_shared(segment: str) -> bool:
    """Whether a folder holds what templates share, such as layouts, and no template."""
    return segment.startswith("_")


def normal_locale(text: str) -> str | None:
    """A language tag as its folder is called (RFC 5646 2.1.1), or None if it is none.

    >>> normal_locale("de_at"), normal_locale("sr-latn-rs"), normal_locale("../x")
    ('de-AT', 'sr-Latn-RS', None)
    """
    lower = text.replace("_", "-").lower()
    if not _LOCALE.fullmatch(lower):
        return None
    language, *rest = lower.split("-")
    return "-".join([language, *(_subtag(tag) for tag in rest)])


def _subtag(tag: str) -> str:
    if len(tag) == 4 and tag.isalpha():
        return tag.title()
    return tag.upper() if len(tag) == 2 else tag


class Files:
    """One folder of templates. Paths are relative to it, with ``/``; nothing outside it is ever opened."""

    def __init__(self, folder: Path, default_locale: str | None) -> None:
        self.folder = folder.absolute()
        try:
            there = self.folder.is_dir()
        except OSError as error:
            raise ConfigurationError(
                f"the folder of templates cannot be read: {error.strerror}; name another"
            ) from None
        if not there:
            raise ConfigurationError(f"the folder of templates is not there: {folder}; make it, or name another")
        self._default = None if default_locale is None else normal_locale(default_locale)
        if default_locale is not None and self._default is None:
            raise ConfigurationError('default_locale is no language tag; write "de" or "de-AT"')

    def path(self, relative: str) -> Path | None:
        """Where a file lies, or None if there is none in the folder. Links may not lead out of it."""
        if not _PATH.fullmatch(relative):
            return None
        path = self.folder / relative
        if not path.is_file() or not path.resolve().is_relative_to(self.folder.resolve()):
            return None
        return path

    def find(self, template: str, file: str, locale: str | None) -> str | None:
        """The path of the file that serves the locale: ``de-AT``, ``de``, the default's, the template's own folder."""
        for folder in (*self._fallbacks(locale), *self._fallbacks(self._default), ""):
            relative = "/".join(part for part in (template, folder, file) if part)
            if self.path(relative):
                return relative
        return None

    def _fallbacks(self, locale: str | None) -> list[str]:
        tags = locale.split("-") if locale else []
        return ["-".join(tags[:count]) for count in range(len(tags), 0, -1)]

    def names(self) -> list[str]:
        """Every template, sorted."""
        return sorted(self._below(self.folder, ""))

    def _below(self, folder: Path, prefix: str) -> list[str]:
        found = []
        for child in self._folders(folder):
            name = f"{prefix}{child.name}"
            if any((child / file).is_file() for file in FILES):
                found.append(name)  # what lies deeper are its locales
            elif is_name(name):
                found += self._below(child, f"{name}/")
        return found

    def _folders(self, folder: Path) -> list[Path]:
        return sorted(
            child
            for child in folder.iterdir()
            # Dot folders belong to tools, such as version control and mounted volumes.
            if child.is_dir() and not is_shared(child.name) and not child.name.startswith(".")
        )

    def locales(self, template: str) -> list[str]:
        """The names of a template's locale folders as they are, sorted."""
        return [child.name for child in self._folders(self.folder / template)]

    def check_name(self, template: str, files: tuple[str, ...] = FILES, locale: str | None = None) -> None:
        """Raise :class:`~sendonce.errors.TemplateFault` unless one of ``files`` is there for the locale."""
        if not is_name(template):
            # Not shown: whoever wrote the row may have put anything there.
            raise TemplateFault("?", "", 0, "the name must be 1 to 200 of a-z 0-9 _ -, with / for folders")
        if any(self.find(template, file, locale) for file in files):
            return
        close = difflib.get_close_matches(template, self.names(), n=1)
        raise TemplateFault(
            template, "", 0, f"there is no such template{f'; did you mean {close[0]!r}?' if close else ''}"
        )

    def sample(self, template: str, locale: str | None) -> dict[str, Any] | None:
        """The sample parameters for the locale, or None. Raises TemplateFault for a file that cannot be read."""
        for file in SAMPLES:
            relative = self.find(template, file, locale)
            if relative:
                return self.table(template, relative)
        return None

    def table(self, template: str, relative: str) -> dict[str, Any]:
        """A file of JSON or TOML. Raises TemplateFault."""
        try:
            text = (self.folder / relative).read_text(encoding="utf-8")
            return parse_table(text, relative)
        except OSError as error:
            why, line = f"cannot be read: {error.strerror}", 0
        except UnicodeDecodeError:
            why, line = "is not UTF-8", 0
        except BadTable as error:
            why, line = str(error), error.line
        raise TemplateFault(template, relative, line, why)


class BadTable(ValueError):
    """A file of JSON or TOML that holds no table of values."""

    def __init__(self, why: str, line: int = 0) -> None:
        super().__init__(why)
        self.line = line


def parse_table(text: str, file: str) -> dict[str, Any]:
    """Read JSON, or TOML if ``file`` ends in ``.toml``. Raises BadTable, which quotes nothing of the text."""
    try:
        found = tomllib.loads(text) if file.endswith(".toml") else json.loads(text)
    except json.JSONDecodeError as error:
        raise BadTable(f"is not valid JSON: {error.msg}", error.lineno) from None
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"at line (\d+)", str(error))
        # Without a line it is the end of the document.
        raise BadTable("is not valid TOML", int(line[1]) if line else text.count("\n") + 1) from None
    if not isinstance(found, dict):
        raise BadTable("must hold an object, with the parameters by name")
    return found
