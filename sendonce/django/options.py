"""``SENDONCE`` in Django's settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS
from django.utils.module_loading import import_string

from sendonce import ConfigurationError
from sendonce.message import DEFAULT_ACCOUNT, DEFAULT_LANE

if TYPE_CHECKING:
    from sendonce import BackgroundStarter

KeyRule = Callable[[Any], str | None]


@dataclass(frozen=True, slots=True)
class Options:
    """The members of the setting, in capitals there."""

    key: str | None = None
    """Dotted path of a callable that is given the Django message and returns its key, or None when it knows none."""
    database: str = DEFAULT_DB_ALIAS
    """The alias of the database with the schema."""
    account: str = DEFAULT_ACCOUNT
    """For mail that names none."""
    lane: str = DEFAULT_LANE
    """For mail that names none."""
    temporal: Mapping[str, Any] | None = None
    """What :class:`sendonce.BackgroundStarter` is made with. None: workflows are started by the starter alone."""

    def rule(self) -> KeyRule | None:
        """The callable. Raises :class:`~sendonce.errors.ConfigurationError` when there is none at that path."""
        if self.key is None:
            return None
        try:
            rule = import_string(self.key)
        except ImportError as error:
            raise ConfigurationError(f"SENDONCE['KEY'] = {self.key!r} cannot be imported: {error}") from None
        if not callable(rule):
            raise ConfigurationError(f"SENDONCE['KEY'] = {self.key!r} is not callable: name a function")
        found: KeyRule = rule
        return found


def load() -> Options:
    """Read the setting. Raises :class:`~sendonce.errors.ConfigurationError`, which names the member at fault."""
    given = getattr(settings, "SENDONCE", {})
    known = [field.name.upper() for field in fields(Options)]
    if not isinstance(given, Mapping):
        raise ConfigurationError("SENDONCE must be a dictionary")
    if unknown := [name for name in given if name not in known]:
        raise ConfigurationError(f"SENDONCE[{unknown[0]!r}] is not known; there are {', '.join(known)}")
    options = Options(**{name.lower(): value for name, value in given.items()})
    if options.database not in settings.DATABASES:
        raise ConfigurationError(f"SENDONCE['DATABASE'] = {options.database!r} is not in DATABASES")
    if options.temporal is not None and not isinstance(options.temporal, Mapping):
        raise ConfigurationError("SENDONCE['TEMPORAL'] must be a dictionary such as {'target_host': 'localhost:7233'}")
    return options


_running: tuple[Mapping[str, Any], BackgroundStarter] | None = None


def starter(options: Options) -> BackgroundStarter | None:
    """The process's own; made when it is first asked for."""
    global _running
    if options.temporal is None:
        return None
    if _running is None or _running[0] != options.temporal:
        from sendonce import BackgroundStarter

        if _running is not None:
            _running[1].close(0)
        _running = options.temporal, BackgroundStarter(**options.temporal)
    return _running[1]
