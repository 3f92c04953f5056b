"""Standard input and Maildir: nothing is lost when the store is away or the process is killed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sendonce.dsn import sources
from sendonce.dsn.parts import LIMIT
from sendonce.dsn.run import EX_TEMPFAIL, from_maildir, from_stdin
from sendonce.dsn.sources import Maildir, Pass, envelope_of, read_descriptor
from sendonce.errors import ConfigurationError

if TYPE_CHECKING:
    from tests.dsn.conftest import Ledger, Sample

# Standard input -----------------------------------------------------------------------------------------------------


def piped(mail: bytes) -> int:
    """A descriptor from which this mail is read; it fits into a pipe."""
    reading, writing = os.pipe()
    os.write(writing, mail)
    os.close(writing)
    return reading


async def test_a_mail_on_standard_input_is_recorded(ledger: Ledger, sample: Sample) -> None:
    descriptor = piped(sample("postfix-failed"))
    assert await from_stdin(ledger.handle(), descriptor=descriptor, environ={}) == 0
    os.close(descriptor)
    assert ledger.kinds() == {"ann+books@example.org": "bounced", "bob@example.net": "soft_bounced"}


async def test_while_the_store_is_away_the_server_is_told_to_keep_the_mail(ledger: Ledger, sample: Sample) -> None:
    ledger.away = True
    for name in ("postfix-failed", "opensmtpd-failed"):
        descriptor = piped(sample(name))
        assert await from_stdin(ledger.handle(), descriptor=descriptor, environ={}) == EX_TEMPFAIL == os.EX_TEMPFAIL
        os.close(descriptor)


async def test_what_is_not_proved_is_kept_apart(ledger: Ledger, sample: Sample) -> None:
    descriptor = piped(sample("postfix-failed", envelope_id="QQ314159"))
    assert await from_stdin(ledger.handle(), descriptor=descriptor, environ={}) == 0
    os.close(descriptor)
    assert ledger.events == {}
    assert {one.why for one in ledger.parked.values()} == {"no_proof"}
    ledger.away = True
    descriptor = piped(sample("postfix-failed", envelope_id="QQ314159"))
    assert await from_stdin(ledger.handle(), descriptor=descriptor, environ={}) == EX_TEMPFAIL
    os.close(descriptor)


async def test_a_mail_without_a_word_needs_no_store(ledger: Ledger) -> None:
    ledger.away = True
    descriptor = piped(b"Subject: Out of office\n\nI am away.\n")
    assert await from_stdin(ledger.handle(), descriptor=descriptor, environ={}) == 0
    os.close(descriptor)
    assert ledger.calls == 0


async def test_a_mail_that_does_not_end_is_given_up(ledger: Ledger) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"Subject: never")
    assert await from_stdin(ledger.handle(), descriptor=reading, environ={}, seconds=0.05) == EX_TEMPFAIL
    os.close(writing)
    os.close(reading)


def test_a_large_mail_is_read_to_its_end_and_cut(tmp_path: Path) -> None:
    # Who writes must not be told that the pipe is broken.
    with subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.stdout.write('x' * {LIMIT * 4})"], stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout
        assert read_descriptor(writer.stdout.fileno(), 60) == b"x" * LIMIT
    assert writer.returncode == 0
    (tmp_path / "mail").write_bytes(b"a mail")
    with (tmp_path / "mail").open("rb") as file:
        assert read_descriptor(file.fileno(), 0) == b"a mail"


async def test_the_server_names_the_return_path(ledger: Ledger, sample: Sample, return_path: str) -> None:
    exim, postfix = {"RECIPIENT": return_path}, {"RECIPIENT": return_path, "ORIGINAL_RECIPIENT": return_path.lower()}
    assert envelope_of(exim) == envelope_of(postfix) == (return_path,)
    assert envelope_of({"RECIPIENT": "root", "USER": "bounces@shop.example"}) == ()
    descriptor = piped(sample("opensmtpd-failed", return_path="bounces@shop.example"))
    assert await from_stdin(ledger.handle(), descriptor=descriptor, environ=exim) == 0
    os.close(descriptor)
    assert ledger.kinds() == {"ann@example.org": "bounced"}


# Maildir ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def maildir(tmp_path: Path) -> Path:
    for part in ("new", "cur", "tmp"):
        (tmp_path / "Maildir" / part).mkdir(parents=True)
    return tmp_path / "Maildir"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_a_mail_is_recorded_moved_and_never_read_again(ledger: Ledger, sample: Sample, maildir: Path) -> None:
    for number, name in enumerate(("postfix-failed", "exchange-failed")):
        (maildir / "new" / f"17733069{number}.M1P2.host").write_bytes(sample(name))
    (maildir / "new" / ".hidden").write_bytes(b"no mail")
    source = Maildir(maildir)
    assert await source.take(ledger.handle()) == Pass(2, failed=False)
    assert set(ledger.kinds()) == {"ann+books@example.org", "bob@example.net", "ann@tenant.example"}
    assert names(maildir / "new") == [".hidden"]
    assert names(maildir / "cur") == ["177330690.M1P2.host:2,S", "177330691.M1P2.host:2,S"]
    calls = ledger.calls
    assert await source.take(ledger.handle()) == Pass(0, failed=False)
    assert ledger.calls == calls


@pytest.mark.parametrize("name", ["nowhere", "x" * 5000, "a-file"])
def test_what_is_no_maildir_is_said_to_be_none(tmp_path: Path, name: str) -> None:
    (tmp_path / "a-file").write_bytes(b"")
    with pytest.raises(ConfigurationError, match="is no Maildir that can be read"):
        Maildir(tmp_path / name)


async def test_while_the_store_is_away_mails_stay_in_new(ledger: Ledger, sample: Sample, maildir: Path) -> None:
    for number in range(3):
        (maildir / "new" / f"{number}").write_bytes(sample("postfix-failed"))
    ledger.away = True
    source = Maildir(maildir)
    assert await source.take(ledger.handle()) == Pass(0, failed=True)
    # One try is enough to know.
    assert ledger.calls == 1
    assert len(names(maildir / "new")) == 3
    ledger.away = False
    assert await source.take(ledger.handle()) == Pass(3, failed=False)
    assert len(ledger.events) == 2


async def test_a_mail_that_can_never_be_recorded_holds_up_no_other(sample: Sample, maildir: Path) -> None:
    seen = []

    async def handle(mail: bytes, recipients: tuple[str, ...]) -> None:
        if mail == b"poison":
            raise ValueError("no")
        seen.append(mail)

    (maildir / "new" / "0").write_bytes(b"poison")
    (maildir / "new" / "1").write_bytes(b"one")
    source = Maildir(maildir)
    assert await source.take(handle) == Pass(0, failed=True)
    assert await source.take(handle) == Pass(1, failed=True)
    (maildir / "new" / "2").write_bytes(b"two")
    assert await source.take(handle) == Pass(1, failed=True)
    assert seen == [b"one", b"two"]
    assert names(maildir / "new") == ["0"]


async def test_what_is_no_file_is_left_alone(ledger: Ledger, sample: Sample, maildir: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(sample("postfix-failed"))
    (maildir / "new" / "0").mkdir()
    (maildir / "new" / "1").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(maildir / "new" / "2")
    assert await Maildir(maildir).take(ledger.handle()) == Pass(0, failed=False)
    assert ledger.events == {}


async def test_a_mail_that_another_process_takes_meanwhile_does_no_harm(
    ledger: Ledger, sample: Sample, maildir: Path
) -> None:
    (maildir / "new" / "0").write_bytes(sample("postfix-failed"))
    (maildir / "new" / "1").write_bytes(sample("postfix-delayed"))
    handle = ledger.handle()

    async def slow(mail: bytes, recipients: tuple[str, ...]) -> None:
        assert await Maildir(maildir).take(handle) == Pass(2, failed=False)
        await handle(mail, recipients)

    assert await Maildir(maildir).take(slow) == Pass(1, failed=False)
    assert len(ledger.events) == 3
    assert names(maildir / "cur") == ["0:2,S", "1:2,S"]


async def test_a_large_mail_is_cut(maildir: Path) -> None:
    found = []

    async def handle(mail: bytes, recipients: tuple[str, ...]) -> None:
        found.append(len(mail))

    (maildir / "new" / "0").write_bytes(b"x" * (LIMIT * 2))
    await Maildir(maildir).take(handle)
    assert found == [LIMIT]


@pytest.mark.parametrize("missing", ["new", "cur"])
def test_a_folder_that_is_no_maildir_is_refused(maildir: Path, missing: str) -> None:
    (maildir / missing).rmdir()
    with pytest.raises(ConfigurationError, match="is no Maildir"):
        Maildir(maildir)


READER = """
import asyncio, sys
from pathlib import Path
from sendonce.dsn.sources import Maildir

where, folder, ledger = sys.argv[1:]

async def handle(mail, recipients):
    if where == "before":
        await hang()
    with open(ledger, "ab") as file:
        file.write(mail.splitlines()[0] + b"\\n")
    if where == "after":
        await hang()

async def hang():
    print("here", flush=True)
    await asyncio.sleep(3600)

asyncio.run(Maildir(Path(folder)).take(handle))
"""


@pytest.mark.parametrize(("where", "before"), [("before", []), ("after", [b"mail 0"])])
async def test_a_killed_process_loses_nothing(maildir: Path, tmp_path: Path, where: str, before: list[bytes]) -> None:
    for number in range(3):
        (maildir / "new" / f"{number}").write_bytes(b"mail %d\n" % number)
    ledger = tmp_path / "ledger"
    ledger.touch()
    command = [sys.executable, "-c", READER, where, str(maildir), str(ledger)]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert process.stdout
    assert await process.stdout.readline() == b"here\n"
    process.kill()
    await process.wait()
    assert ledger.read_bytes().split(b"\n")[:-1] == before
    assert names(maildir / "new") == ["0", "1", "2"]
    seen = list(before)

    async def handle(mail: bytes, recipients: tuple[str, ...]) -> None:
        seen.append(mail.strip())

    assert await Maildir(maildir).take(handle) == Pass(3, failed=False)
    # The one that was recorded and not moved comes twice; its events are the same.
    assert seen == [*before, b"mail 0", b"mail 1", b"mail 2"]
    assert names(maildir / "cur") == ["0:2,S", "1:2,S", "2:2,S"]


async def test_a_maildir_is_watched_until_stopped(ledger: Ledger, sample: Sample, maildir: Path) -> None:
    stop, tried, recorded = asyncio.Event(), asyncio.Event(), asyncio.Event()
    handle = ledger.handle()

    async def announced(mail: bytes, recipients: tuple[str, ...]) -> None:
        tried.set()
        await handle(mail, recipients)
        recorded.set()

    ledger.away = True
    (maildir / "new" / "0").write_bytes(sample("postfix-failed"))
    watching = asyncio.create_task(from_maildir(announced, maildir, stop, interval=0.01))
    await tried.wait()
    ledger.away = False
    await recorded.wait()
    stop.set()
    assert await watching
    assert set(ledger.kinds()) == {"ann+books@example.org", "bob@example.net"}


async def test_once_takes_everything_and_says_whether_it_could(
    ledger: Ledger, sample: Sample, maildir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "BATCH", 2)
    monkeypatch.setattr("sendonce.dsn.run.BATCH", 2)
    for number in range(5):
        (maildir / "new" / f"{number}").write_bytes(sample("postfix-failed"))
    assert await from_maildir(ledger.handle(), maildir, asyncio.Event(), once=True)
    assert len(names(maildir / "cur")) == 5
    (maildir / "new" / "5").write_bytes(sample("postfix-failed"))
    ledger.away = True
    assert not await from_maildir(ledger.handle(), maildir, asyncio.Event(), once=True)
