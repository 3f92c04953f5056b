"""Where secrets come from: written in the file, a variable of the environment, or a file of their own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, SecretStr

from sendonce.errors import ConfigurationError

_HOW = {"env", "file", "prefix"}


class Secrets:
    """Replaces ``<key>_env``, ``<key>_file`` and ``{ env = … }`` by the secret. ``folder`` anchors relative paths."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self._folder = folder
        self._environ = environ
        self.files_read = 0
        """How many secrets were read from files of their own, which may be written anew while a process runs."""

    def resolved(self, model: type[BaseModel], table: dict[str, Any]) -> dict[str, Any]:
        """The table with every reference replaced; only fields that are secrets in ``model`` are touched.

        Raises :class:`~sendonce.errors.ConfigurationError` naming the key, and the variable or file that is missing.
        """
        result = dict(table)
        for name, field in model.model_fields.items():
            if not _holds_secret(field.annotation):
                continue
            given = [key for key in (name, f"{name}_env", f"{name}_file") if key in result]
            if len(given) > 1:
                raise ConfigurationError(f"{given[0]} and {given[1]} are both set; keep one")
            for how in ("env", "file"):
                key = f"{name}_{how}"
                if key in result:
                    result[name] = self._fetch(key, {how: result.pop(key)})
            value = result.get(name)
            if isinstance(value, dict):
                result[name] = {key: self._member(f"{name}.{key}", entry) for key, entry in value.items()}
        return result

    def _member(self, key: str, entry: Any) -> Any:
        return self._fetch(key, entry) if isinstance(entry, dict) else entry

    def _fetch(self, key: str, reference: dict[str, Any]) -> str:
        sources = set(reference) - {"prefix"}
        if set(reference) - _HOW or len(sources) != 1 or not all(isinstance(v, str) for v in reference.values()):
            raise ConfigurationError(
                f'{key}: write {{ env = "NAME" }} or {{ file = "PATH" }}, if need be with a prefix'
            )
        prefix: str = reference.get("prefix", "")
        if "env" in reference:
            name: str = reference["env"]
            if not self._environ.get(name):
                raise ConfigurationError(f"{key}: the environment variable {name} is not set")
            return f"{prefix}{self._environ[name]}"
        path = self._folder / str(reference["file"])
        self.files_read += 1
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise ConfigurationError(f"{key}: {path} cannot be read: {why}") from None
        return prefix + text.removesuffix("\n").removesuffix("\r")


def _holds_secret(annotation: Any) -> bool:
    return annotation is SecretStr or any(_holds_secret(part) for part in get_args(annotation))
