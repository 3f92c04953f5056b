"""The Jinja environment: sandboxed, strict, the same result on every Python, and bounded where it can be.

A template is written by a colleague, its parameters come from anywhere. What a parameter holds is never executed; the
bounds are for mistakes, and for templates that a less trusted person may edit.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from typing import Any

from jinja2 import BaseLoader, StrictUndefined, TemplateNotFound, TemplateSyntaxError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from sendonce.templates.files import Files

ROUNDS_LIMIT = 100_000
"""Rounds of all ``range(…)`` of one file together."""
SIZE_LIMIT = 100_000
"""The longest string or list that ``*`` makes, the widest padding, and the highest exponent."""
NUMBER_LIMIT = 10**30
"""Numbers beyond it are not multiplied or raised to a power."""

_WIDE_FORMAT = re.compile(r"\d{5,}|\*|\{[^{}]*\{")
_WIDE_FILTERS = ("batch", "center", "indent", "slice")
_WIDE_METHODS = frozenset({"center", "expandtabs", "ljust", "rjust", "zfill"})


class Limit(Exception):
    """A bound was reached. The text names the bound only."""


class NoText(Exception):
    """An expression gave null or a function where text is wanted. The text says which of them."""


class Missing(StrictUndefined):
    """A value that is not there: whatever uses it fails. The error's message is the name alone, for jinja's own would
    quote values."""

    __slots__ = ()

    @property
    def _undefined_message(self) -> str:
        return str(self._undefined_name or "")


class Environment(ImmutableSandboxedEnvironment):
    """One for each folder of templates; threads may share it."""

    intercepted_binops = frozenset({"*", "**", "%"})

    def __init__(self, files: Files) -> None:
        super().__init__(
            loader=_Loader(files),
            undefined=Missing,
            autoescape=_is_html,
            finalize=_text,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=True,
        )
        self._local = threading.local()
        self.globals["range"] = self._range
        # The same mail must come out the same every time.
        del self.globals["lipsum"], self.filters["random"]
        for name in _WIDE_FILTERS:
            self.filters[name] = _bounded(self.filters[name])
        self.filters["format"] = _narrow_format(self.filters["format"])

    def start(self) -> None:
        """Begin a file: its bounds are counted from here, in this thread."""
        self._local.rounds = ROUNDS_LIMIT

    def _range(self, *args: int) -> range:
        found = range(*args)
        # len() of a huge range overflows.
        rounds = (found[-1] - found[0]) // found.step + 1 if found else 0
        self._local.rounds -= rounds
        if self._local.rounds < 0:
            raise Limit(f"more than {ROUNDS_LIMIT} rounds of range()")
        return found

    def getattr(self, obj: Any, attribute: str) -> Any:
        """A parameter's own member wins: ``order.items`` is the order's, not the method of Python's dict."""
        if isinstance(obj, Mapping) and attribute in obj:
            return obj[attribute]
        return super().getattr(obj, attribute)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """``"…".format``, but for widths that would fill the memory."""
        wrapped = super().wrap_str_format(value)
        if wrapped is not None and _WIDE_FORMAT.search(value.__self__):
            raise Limit("a format that is too wide")
        return wrapped

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a function; methods that pad, to bounded widths only."""
        if getattr(obj, "__name__", "") in _WIDE_METHODS:
            _check_widths(args, kwargs)
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """``*``, ``**`` and ``%`` with bounded results."""
        if operator == "%":
            if isinstance(left, str) and _WIDE_FORMAT.search(left):
                raise Limit("a format that is too wide")
        else:
            _check_product(operator, left, right)
        return super().call_binop(context, operator, left, right)


class _Loader(BaseLoader):
    """Reads files of the folder, and again when they have changed on disk."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def get_source(self, environment: Any, template: str) -> tuple[str, str, Callable[[], bool]]:  # noqa: ARG002
        path = self._files.path(template)
        if path is None:
            raise TemplateNotFound(template)
        # Before the file is read: a change in between is then seen at the next use.
        seen = _stamp(path.stat())
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise TemplateSyntaxError("is not UTF-8", 1, template, str(path)) from None

        def current() -> bool:
            try:
                return _stamp(path.stat()) == seen
            except OSError:
                return False

        return text, str(path), current


def _stamp(stat: Any) -> tuple[int, int, int]:
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _is_html(name: str | None) -> bool:
    return name is not None and name.endswith(".html")


def _text(value: Any) -> Any:
    if value is None:
        raise NoText('a value is null; write {{ … or "" }} where that is meant')
    if callable(value) and not isinstance(value, Missing):
        raise NoText("a function is shown; call it with ()")
    return value


def _check_product(operator: str, left: Any, right: Any) -> None:
    if any(isinstance(one, int) and abs(one) > NUMBER_LIMIT for one in (left, right)):
        raise Limit("a number that is too large")
    if operator == "**":
        if isinstance(right, (int, float)) and abs(right) > 100:
            raise Limit("an exponent that is too large")
        return
    for many, times in ((left, right), (right, left)):
        if isinstance(times, int) and isinstance(many, (str, list, tuple)) and len(many) * times > SIZE_LIMIT:
            raise Limit(f"a product longer than {SIZE_LIMIT}")


def _check_widths(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    if any(isinstance(one, int) and one > SIZE_LIMIT for one in (*args, *kwargs.values())):
        raise Limit(f"a width beyond {SIZE_LIMIT}")


def _bounded(function: Callable[..., Any]) -> Callable[..., Any]:
    def bounded(*args: Any, **kwargs: Any) -> Any:
        _check_widths(args[1:], kwargs)
        return function(*args, **kwargs)

    return bounded


def _narrow_format(function: Callable[..., Any]) -> Callable[..., Any]:
    def narrow(value: Any, *args: Any, **kwargs: Any) -> Any:
        if _WIDE_FORMAT.search(str(value)):
            raise Limit("a format that is too wide")
        return function(value, *args, **kwargs)

    return narrow
