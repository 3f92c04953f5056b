"""A transport of one's own: what its class must have, and how an account comes to it by its entry point."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr

from sendonce import settings
from sendonce.errors import ConfigurationError
from sendonce.transport import Capability, SimpleMail, SimpleSettings, SimpleTransport

SECRET = "correct-horse-battery"


class Own(SimpleTransport[SimpleSettings]):
    name = "own"
    capability = Capability()

    def __init__(self) -> None:
        super().__init__(SimpleSettings())

    async def send(self, mail: SimpleMail) -> str:
        return "id-1"


async def coroutine(*_: object) -> None:
    await asyncio.Event().wait()


def plain(*_: object) -> bytes:
    return b""


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ({"name": "Own Post"}, "name must be"),
        ({"capability": "everything"}, "capability must be a Capability"),
        ({"send": plain}, "async def send"),
        ({"ask": plain}, "async def ask"),
        ({"request": plain}, None),
        ({"request": coroutine}, "request must be a plain function"),
        ({"prepare": coroutine}, "asynccontextmanager"),
        ({"key_window": 60.0}, "key_window needs"),
        ({"key_window": 60.0, "capability": Capability(key="header X", key_assumed=True)}, "key_window needs"),
        ({"key_window": 60.0, "capability": Capability(key="header X")}, None),
        ({"ask": coroutine}, "go together"),
        ({"capability": Capability(look_up="tag")}, "go together"),
        ({"settings_model": BaseModel}, "settings_model must be"),
        ({"settings_model": type("Loose", (SimpleSettings,), {"model_config": {"extra": "allow"}})}, "unknown keys"),
    ],
)
def test_a_class_that_cannot_work_says_what_to_write(members: dict[str, Any], says: str | None) -> None:
    made = type("Made", (Own,), members)
    if says is None:
        made()
        return
    with pytest.raises(ConfigurationError, match=r"^Made: ") as caught:
        made()
    assert says in str(caught.value)


PIGEON = """
import os
from pydantic import SecretStr
from sendonce.transport import Capability, SimpleSettings, SimpleTransport

class Settings(SimpleSettings):
    token: SecretStr
    wings: int = 2

class Pigeon(SimpleTransport[Settings]):
    name = "pigeon"
    settings_model = Settings
    capability = Capability()

    async def send(self, mail):
        return "id"

class Silent(Pigeon):
    @property
    def capability(self):
        raise KeyError(self.settings.token.get_secret_value())

class Hasty(Pigeon):
    def __init__(self, settings):
        pass

class Leaky(Pigeon):
    def __init__(self, settings):
        raise OSError(settings.token.get_secret_value())

class Lost(Pigeon):
    def __init__(self, settings):
        open("/nowhere/key.pem")

class Odd(Pigeon):
    capability = {"key": "none"}

class Long(Pigeon):
    identity = "x" * 201

class Bare(SimpleTransport):
    settings_model = Settings

class Taking(Pigeon):
    settings_model = type("Taking", (Settings,), {"__annotations__": {"webhook": str, "rates": str}})

class Stranger:
    settings_model = Settings

class Half(Stranger):
    def slot(self, generation): ...
    render = transmit = close = slot
    def __init__(self, settings): ...

def function(settings): ...
function.settings_model = Settings

REFUSED = os.fspath
"""
NAMES = (
    "Pigeon",
    "Silent",
    "Hasty",
    "Leaky",
    "Lost",
    "Odd",
    "Long",
    "Bare",
    "Taking",
    "Stranger",
    "Half",
    "function",
    "gone",
)


@contextmanager
def installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The settings file of an application that has these packages."""
    sources = {
        "own_pigeon": PIGEON,
        "own_broken": f"raise RuntimeError({SECRET!r})",
        "own_wrong": "def",
        "own_needy": "import no_such_library",
        "own_leaving": "raise SystemExit(1)",
    }
    for module, source in sources.items():
        (folder / f"{module}.py").write_text(source, encoding="utf-8")
        points = [f"{name.lower()} = own_pigeon:{name}" for name in NAMES if module == "own_pigeon"]
        points += [f"{module[4:]} = {module}:Post"] if module != "own_pigeon" else []
        points += [f"twice = {module}:Pigeon"] if module in ("own_pigeon", "own_wrong") else []
        metadata = folder / f"{module}-1.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1\n")
        (metadata / "entry_points.txt").write_text("[sendonce.transports]\n" + "\n".join(points) + "\n")
    monkeypatch.syspath_prepend(str(folder))
    try:
        yield folder / "sendonce.toml"
    finally:
        for module in sources:
            sys.modules.pop(module, None)


async def test_an_account_of_a_transport_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with installed(tmp_path, monkeypatch) as file:
        file.write_text('[accounts.default]\ntransport = "pigeon"\ntoken_env = "TOKEN"\nscope = "loft-1"\n')
        found = settings.load(file, {"TOKEN": SECRET})
        built = settings.build_transports(found)["default"]
        assert (built.identity, built.key_window) == ("pigeon:loft-1", None)
        assert isinstance(built, SimpleTransport)
        assert built.settings.token == SecretStr(SECRET)
        assert SECRET not in f"{built.settings!r}{built.settings_digest}{built!r}"
        await built.close()
        file.write_text('[accounts.default]\ntransport = "pigeon"\ntoken = "t"\nwngs = 3\n')
        with pytest.raises(ConfigurationError, match=r"unknown key 'wngs'; did you mean 'wings'\?"):
            settings.load(file, {})


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("bare", r"own_pigeon:Bare lacks capability, name, send; its package must be repaired"),
        ("taking", r"own_pigeon:Taking: settings_model must not have rates, webhook: every account has"),
        ("stranger", r"own_pigeon:Stranger is no transport: it lacks slot, render, transmit, close; derive it from"),
        ("function", r"own_pigeon:function is no transport: it lacks slot"),
        ("gone", r"own_pigeon:gone cannot be loaded \(AttributeError at "),
        ("broken", r"own_broken:Post cannot be loaded \(RuntimeError at own_broken.py:1\)"),
        ("wrong", r"own_wrong:Post cannot be loaded \(SyntaxError at own_wrong.py:1\)"),
        ("needy", r"own_needy:Post cannot be loaded \(there is no module no_such_library\)"),
        ("leaving", r"own_leaving:Post cannot be loaded \(SystemExit at own_leaving.py:1\)"),
        ("silent", r"transport 'silent' \(own_pigeon:Silent\) cannot be made \(KeyError at own_pigeon.py:21\)"),
        ("hasty", r"transport 'hasty' \(own_pigeon:Hasty\): it lacks identity, settings_digest"),
        ("leaky", r"transport 'leaky' \(own_pigeon:Leaky\) cannot be made \(OSError at own_pigeon.py:29\)"),
        ("lost", r"No such file or directory"),
        ("odd", r"transport 'odd' \(own_pigeon:Odd\): Odd: capability must be a Capability"),
        ("long", r"transport 'long' \(own_pigeon:Long\): identity must be a text of 1 to 200 characters"),
        ("half", r"transport 'half' \(own_pigeon:Half\): it lacks capability, identity, settings_digest, key_window"),
        ("twice", r"transport 'twice' is registered twice, by \S+:Pigeon and \S+:Pigeon; uninstall one of them"),
    ],
)
def test_a_broken_transport_is_named_at_the_start(
    name: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with installed(tmp_path, monkeypatch) as file:
        file.write_text(f'[accounts.a]\ntransport = "{name}"\ntoken = "{SECRET}"\n')
        with pytest.raises(ConfigurationError, match=says) as caught:
            settings.build_transports(settings.load(file, {}))
    assert str(caught.value).startswith(f"{file}: [accounts.a] ")
    assert SECRET not in str(caught.value)
    assert caught.value.__suppress_context__
