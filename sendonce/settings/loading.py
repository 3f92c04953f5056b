"""From the file and the environment to :class:`~sendonce.settings.model.Settings`, or one error that says it all."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from sendonce.errors import ConfigurationError, InvalidEmail
from sendonce.message import Address
from sendonce.policy import DEFAULT_LANES, LanePolicy
from sendonce.rates import DomainLimit, Rate
from sendonce.retention import Retention
from sendonce.settings import transports
from sendonce.settings.model import (
    AccountSettings,
    DomainSettings,
    LaneSettings,
    Outline,
    RetentionSettings,
    SafetySettings,
    Settings,
    StarterSettings,
    StoreSettings,
    TemplateSettings,
    TemporalSettings,
    WorkerSettings,
)
from sendonce.settings.secrets import Secrets
from sendonce.settings.watching import AlarmSettings, LogSettings, SinkSettings, TraceSettings, WatchSettings
from sendonce.webhooks.settings import WebhookSettings

DEFAULT_FILE = "sendonce.toml"
ENVIRONMENT = {
    "SENDONCE_DATABASE_URL": ("store", "database_url"),
    "SENDONCE_TEMPORAL_ADDRESS": ("temporal", "address"),
    "SENDONCE_TEMPORAL_NAMESPACE": ("temporal", "namespace"),
    "SENDONCE_TASK_QUEUE_PREFIX": ("temporal", "task_queue_prefix"),
    "SENDONCE_REDIRECT_ALL_TO": ("safety", "redirect_all_to"),
    "SENDONCE_ALLOWED_DOMAINS": ("safety", "allowed_domains"),
}
"""Variables that win over the file. An empty one counts as unset; domains are separated by commas."""

_SECTIONS = (
    "store",
    "temporal",
    "worker",
    "starter",
    "safety",
    "templates",
    "retention",
    "lanes",
    "accounts",
    "alarms",
    "sinks",
    "watch",
    "traces",
    "log",
)
_NAME = re.compile(r"[a-z0-9_-]{1,50}")
_Model = TypeVar("_Model", bound=BaseModel)
_Read = TypeVar("_Read")


def load(
    path: Path | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    with_accounts: bool = True,
    with_store: bool = True,
    having: str | None = None,
) -> Settings:
    """Read the settings. ``environ`` is the process's environment unless given.

    ``with_accounts=False`` leaves ``[accounts]`` and ``[sinks]`` unread, for commands that send nothing: they need no
    secrets. ``with_store=False`` leaves ``[store]`` unread, for those that look at accounts alone. ``having``: only the
    accounts with this key are read, such as those with ``webhook``.
    Raises :class:`~sendonce.errors.ConfigurationError` naming the file, the key and what to write instead.
    """
    environ = os.environ if environ is None else environ
    file = _file(path, environ)
    return _Loader(file, environ).settings(with_accounts, with_store, having)


def outline(path: Path | None = None) -> Outline:
    """What a trial needs of a file: lanes, templates, the worker's habits and the names of the accounts. No secret is
    read, and no variable but the one that names the file, where ``path`` does not.

    Raises :class:`~sendonce.errors.ConfigurationError`.
    """
    return _Loader(_file(path, os.environ), {}).outline()


def _file(path: Path | None, environ: Mapping[str, str]) -> Path | None:
    if path is not None:
        return path
    if environ.get("SENDONCE_CONFIG"):
        return Path(environ["SENDONCE_CONFIG"])
    default = Path(DEFAULT_FILE)
    return default if default.is_file() else None


class _Loader:
    def __init__(self, file: Path | None, environ: Mapping[str, str]) -> None:
        self._source = str(file) if file else "environment"
        self._variables: dict[tuple[str, str], str] = {}
        self._tables = self._read(file) if file else {}
        for name in self._tables:
            if name not in _SECTIONS:
                raise self._error(f"unknown section [{name}]{_closest(name, _SECTIONS)}")
        self._base = file.parent if file else Path()
        self._secrets = Secrets(self._base, environ)
        self._override(environ)

    def outline(self) -> Outline:
        accounts = self._table("accounts")
        for name in accounts:
            self._check_name("accounts", name)
        worker = self._section("worker", WorkerSettings)
        return Outline(self._source, self._lanes(self._table("lanes")), self._templates(), worker, tuple(accounts))

    def settings(self, with_accounts: bool, with_store: bool, having: str | None) -> Settings:
        lanes = self._lanes(self._table("lanes"))
        if with_store:
            store, from_file = self._reading(lambda: self._section("store", StoreSettings))
        else:
            store, from_file = StoreSettings(), False
        settings = Settings(
            source=self._source,
            store=store,
            temporal=self._section("temporal", TemporalSettings),
            worker=self._section("worker", WorkerSettings),
            starter=self._section("starter", StarterSettings),
            safety=self._section("safety", SafetySettings),
            templates=self._templates(),
            retention=self._retention(lanes),
            lanes=lanes,
            accounts=self._accounts(self._table("accounts"), having) if with_accounts else {},
            alarms=self._section("alarms", AlarmSettings),
            sinks=self._sinks(self._table("sinks")) if with_accounts else {},
            watch=self._section("watch", WatchSettings),
            traces=self._section("traces", TraceSettings),
            log=self._section("log", LogSettings),
            store_anew=(lambda: self._section("store", StoreSettings)) if from_file else None,
        )
        for lane in settings.worker.lanes:
            if lane not in lanes:
                raise self._error(f"[worker] lanes: there is no lane {lane!r}{_closest(lane, tuple(lanes))}")
        return settings

    def _reading(self, section: Callable[[], _Read]) -> tuple[_Read, bool]:
        """The section, and whether a secret in it comes from a file of its own."""
        before = self._secrets.files_read
        found = section()
        return found, self._secrets.files_read > before

    def _read(self, file: Path) -> dict[str, Any]:
        try:
            tables = tomllib.loads(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise self._error(f"cannot be read: {error.strerror}; give another file with --config") from None
        except UnicodeDecodeError:
            raise self._error("is not UTF-8 text; save it as UTF-8") from None
        except tomllib.TOMLDecodeError as error:
            raise self._error(f"is not valid TOML: {error}") from None
        except (RecursionError, ValueError):
            # The reader's own limits: it fails with these, and names no place.
            raise self._error("is nested too deeply, or holds a number of thousands of digits") from None
        key = _with_nul(tables)
        if key:
            # No path, name or secret can hold one; what is given it fails in many ways, at many places.
            raise self._error(f"{key}: holds the character NUL; leave it out")
        return tables

    def _override(self, environ: Mapping[str, str]) -> None:
        for variable, (section, key) in ENVIRONMENT.items():
            value = environ.get(variable, "")
            if not value:
                continue
            table = dict(self._table(section))
            for spelling in (key, f"{key}_env", f"{key}_file"):
                table.pop(spelling, None)
            table[key] = value.split(",") if key == "allowed_domains" else value
            self._tables[section] = table
            self._variables[section, key] = variable

    def _table(self, section: str) -> dict[str, Any]:
        table = self._tables.get(section, {})
        if not isinstance(table, dict):
            raise self._error(f"{section} must be a table; write [{section}] and its keys below")
        return table

    def _section(self, name: str, model: type[_Model]) -> _Model:
        return self._validated(model, self._table(name), name)

    def _templates(self) -> TemplateSettings:
        found = self._section("templates", TemplateSettings)
        return found if found.folder is None else found.model_copy(update={"folder": self._base / found.folder})

    def _retention(self, lanes: Mapping[str, LanePolicy]) -> Retention:
        try:
            found = self._section("retention", RetentionSettings).build()
            found.check_lanes(lanes)
        except ConfigurationError as error:
            if str(error).startswith(self._source):
                raise
            raise self._error(f"[retention] {error}") from None
        return found

    def _lanes(self, tables: dict[str, Any]) -> dict[str, LanePolicy]:
        lanes = dict(DEFAULT_LANES)
        for name, table in tables.items():
            self._check_name("lanes", name)
            base = lanes.get(name) or replace(lanes["default"], name=name)
            changes = self._validated(LaneSettings, table, f"lanes.{name}")
            try:
                lanes[name] = changes.over(base)
            except ConfigurationError as error:
                raise self._error(f"[lanes.{name}] {error}") from None
        return lanes

    def _accounts(self, tables: dict[str, Any], having: str | None) -> dict[str, AccountSettings]:
        accounts = {}
        for name, table in tables.items():
            self._check_name("accounts", name)
            if having is not None and isinstance(table, dict) and having not in table:
                continue
            found, from_file = self._reading(partial(self._account, name, table, tables))
            if from_file:
                found = replace(found, anew=partial(self._account, name, table, tables))
            accounts[name] = found
        return accounts

    def _account(self, name: str, table: Any, tables: dict[str, Any]) -> AccountSettings:
        where = f"accounts.{name}"
        if not isinstance(table, dict) or not isinstance(table.get("transport"), str):
            raise self._error(f'[{where}] transport is missing; write transport = "smtp", or a provider\'s name')
        try:
            factory, model = transports.find(table["transport"])
        except ConfigurationError as error:
            raise self._error(f"[{where}] transport: {error}") from None
        rest = {
            key: None if value is False and _may_be_unset(model, key) else value
            for key, value in table.items()
            if key not in transports.ACCOUNT_KEYS
        }
        options, webhook = self._validated(model, rest, where, transports.ACCOUNT_KEYS), None
        if "webhook" in table:
            webhook = self._validated(WebhookSettings, table["webhook"], f"{where}.webhook")
        fallback = self._fallback(name, table, tables)
        return AccountSettings(
            name,
            table["transport"],
            options,
            factory,
            webhook,
            self._rates(where, table.get("rates", [])),
            self._domains(where, table.get("domains", {})),
            fallback,
        )

    def _sinks(self, tables: dict[str, Any]) -> dict[str, SinkSettings]:
        sinks = {}
        for name, table in tables.items():
            self._check_name("sinks", name)
            if name == "log":
                raise self._error("[sinks.log]: the log is always told; use another name")
            sinks[name] = self._validated(SinkSettings, table, f"sinks.{name}")
        return sinks

    def _rates(self, where: str, rates: object) -> tuple[Rate, ...]:
        if not isinstance(rates, (list, tuple)) or not all(isinstance(rate, str) for rate in rates):
            raise self._error(f'[{where}] rates must be a list of rates; write ["14/s", "50000/day"]')
        try:
            found = tuple(Rate.parse(rate) for rate in rates)
        except ConfigurationError as error:
            raise self._error(f"[{where}] rates: {error}") from None
        if len({rate.seconds for rate in found}) < len(found):
            raise self._error(f"[{where}] rates: two of them are about the same time; keep the smaller one")
        return found

    def _domains(self, where: str, tables: object) -> dict[str, DomainLimit]:
        if not isinstance(tables, dict):
            raise self._error(f'{where}.domains must be a table; write [{where}.domains."example.org"]')
        limits = {}
        for name, table in tables.items():
            place = f'{where}.domains."{name}"'
            if isinstance(table, dict) and table and all(isinstance(value, dict) for value in table.values()):
                whole = f"{name}.{_dotted(table)}"
                raise self._error(
                    f'[{where}.domains.{whole}]: a name with dots is quoted; write [{where}.domains."{whole}"]'
                )
            try:
                domain = Address(email=f"x@{name}").mailbox.partition("@")[2]
            except InvalidEmail as error:
                raise self._error(f"[{place}] is no domain: {error.reason}") from None
            found = self._validated(DomainSettings, table, place)
            limits[domain] = DomainLimit(self._rates(place, found.rates), found.at_once)
        return limits

    def _fallback(self, name: str, table: dict[str, Any], tables: dict[str, Any]) -> str | None:
        fallback = table.get("fallback")
        if fallback is None:
            return None
        if not isinstance(fallback, str) or fallback == name or fallback not in tables:
            others = ", ".join(other for other in tables if other != name)
            raise self._error(
                f"[accounts.{name}] fallback must be the name of another account"
                + (f"; there are {others}" if others else "; there is none")
            )
        return fallback

    def _check_name(self, section: str, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise self._error(f"[{section}.{name}] is no name; use 1 to 50 of lower-case letters, digits, '_' and '-'")

    def _validated(self, model: type[_Model], table: object, where: str, more: tuple[str, ...] = ()) -> _Model:
        """``more``: keys beside the model's own, which may have been meant."""
        if not isinstance(table, dict):
            raise self._error(f"{where} must be a table; write [{where}] and its keys below")
        try:
            return model.model_validate(self._secrets.resolved(model, table))
        except ConfigurationError as error:
            raise self._error(f"[{where}] {error}") from None
        except ValidationError as error:
            # Without the inputs: they may be secrets. The chain is cut for the same reason.
            found = error.errors(include_url=False, include_context=False, include_input=False)
            problems = (self._problem(model, where, e["loc"], e["type"], e["msg"], more) for e in found)
            raise self._error("; ".join(problems)) from None

    def _problem(
        self,
        model: type[BaseModel],
        where: str,
        loc: tuple[int | str, ...],
        kind: str,
        message: str,
        more: tuple[str, ...],
    ) -> str:
        key = ".".join(str(part) for part in loc)
        if kind == "extra_forbidden":
            known = _keys(model, loc[:-1])
            known += more if len(loc) == 1 else ()
            return f"[{where}] unknown key {key!r}{_closest(str(loc[-1]), known)}"
        if kind == "missing":
            return f"[{where}] {key} is missing"
        message = message.removeprefix("Value error, ").removeprefix("Input ")
        variable = self._variables.get((where, key))
        return f"{variable or f'[{where}] {key}'.rstrip()}: {message}"

    def _error(self, message: str) -> ConfigurationError:
        return ConfigurationError(f"{self._source}: {message}")


def _with_nul(value: object, key: str = "") -> str:
    """Where a text with the character NUL stands, its own name included; ``""``: nowhere."""
    if isinstance(value, dict):
        inner = {f"{key}.{name}".lstrip("."): one for name, one in value.items()}
    elif isinstance(value, list):
        inner = {f"{key}.{number}": one for number, one in enumerate(value)}
    else:
        return key if isinstance(value, str) and "\0" in value else ""
    if "\0" in "".join(inner):
        return key or "a name"
    return next((found for name, one in inner.items() if (found := _with_nul(one, name))), "")


def _dotted(table: dict[str, Any]) -> str:
    """The rest of a name that TOML took for tables within tables."""
    name, inner = next(iter(table.items()))
    deeper = isinstance(inner, dict) and inner and all(isinstance(value, dict) for value in inner.values())
    return f"{name}.{_dotted(inner)}" if deeper else name


def _may_be_unset(model: type[BaseModel], key: str) -> bool:
    kinds = get_args(model.model_fields[key].annotation) if key in model.model_fields else ()
    return type(None) in kinds and bool not in kinds


def _keys(model: type[BaseModel], loc: tuple[int | str, ...]) -> tuple[str, ...]:
    for part in loc:
        annotation = model.model_fields[str(part)].annotation if str(part) in model.model_fields else None
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return ()
        model = annotation
    return tuple(model.model_fields)


def _closest(word: str, known: tuple[str, ...]) -> str:
    close = [name for name in known if name.startswith(word)] or difflib.get_close_matches(word, known, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known are {', '.join(known)}" if known else ""
