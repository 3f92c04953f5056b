"""``doctor``: what it finds at servers that are in order and at servers that are not."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sendonce.embedded import free_port
from sendonce.testing import smtp_misbehaviour as bad
from sendonce.testing.certificate import Certificate, self_signed
from sendonce.testing.smtp_server import SmtpServer

if TYPE_CHECKING:
    from tests.cli.conftest import Result, Run

SECRET = "hunter2-secret"
STARTTLS_ORDER = ["dns", "tcp", "greeting", "ehlo", "tls", "auth", "mail"]


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return self_signed(tmp_path_factory.mktemp("certificate"), "IP:127.0.0.1", "DNS:localhost")


@pytest.fixture
def look(run: Run, tmp_path: Path) -> Any:
    """Run ``doctor`` on an account with these settings, and what it printed."""

    async def look(*arguments: str, section: str = "", **account: Any) -> Result:
        account = {"transport": "smtp", "host": "127.0.0.1", **account}
        lines = [f"{key} = {json.dumps(str(value) if isinstance(value, Path) else value)}"
                 for key, value in account.items()]  # fmt: skip
        text = "\n".join([section, "[accounts.shop]", *lines])
        (tmp_path / "sendonce.toml").write_text(text, encoding="utf-8")
        found = await asyncio.to_thread(run, "doctor", "--account", "shop", *arguments)
        assert SECRET not in found.out + found.err
        return found

    return look


def steps(found: Result) -> dict[str, str]:
    return {step["step"]: step["status"] for step in found.objects}


def failed(found: Result) -> dict[str, Any]:
    """The last step, which failed."""
    assert found.code == 1, (found.out, found.err)
    assert [step["status"] for step in found.objects].count("fail") == 1
    assert found.objects[-1]["status"] == "fail"
    return found.objects[-1]


# In order


async def test_an_account_in_order(look: Any, certificate: Certificate) -> None:
    async with SmtpServer(tls=certificate.context, credentials={"shop": SECRET}) as server:
        found = await look(
            "--json", host="localhost", port=server.port, ca_file=certificate.file, username="shop", password=SECRET
        )
        assert (found.code, found.err) == (0, "")
        assert list(steps(found)) == STARTTLS_ORDER
        # The certificate is valid for a week only, which is worth a word.
        assert set(steps(found).items()) - {("tls", "warn")} == {(n, "ok") for n in STARTTLS_ORDER if n != "tls"}
        by_name = {step["step"]: step for step in found.objects}
        assert "expires soon" in by_name["tls"]["fix"]
        assert by_name["tls"]["details"]["certificate"].keys() == {"subject", "issuer", "until", "protocol", "cipher"}
        assert by_name["tls"]["details"]["certificate"]["protocol"] == "TLSv1.3"
        assert "AUTH PLAIN" in by_name["tls"]["details"]["offers"]
        assert by_name["auth"]["details"] == {"mechanism": "PLAIN"}
        assert all(step["seconds"] < 30 for step in found.objects)
        await server.idle()
        # Nothing was sent, and the server was left in order.
        assert server.mailbox.mails() == []
        assert server.sessions[-1].verbs()[-3:] == ["MAIL", "RSET", "QUIT"]


async def test_implicit_tls_comes_before_the_greeting(look: Any, certificate: Certificate) -> None:
    async with SmtpServer(tls=certificate.context, implicit_tls=True) as server:
        found = await look("--json", port=server.port, tls="implicit", ca_file=certificate.file)
    assert found.code == 0
    assert list(steps(found)) == ["dns", "tcp", "tls", "greeting", "ehlo", "auth", "mail"]
    assert steps(found)["auth"] == "skip"


async def test_people_read_lines(look: Any) -> None:
    async with SmtpServer() as server:
        found = await look(port=server.port, tls="none")
    assert found.code == 0
    lines = found.out.splitlines()
    assert [line.split()[1] for line in lines] == STARTTLS_ORDER
    assert [line.split()[0] for line in lines] == ["skip", "ok", "ok", "ok", "skip", "skip", "ok"]


async def test_one_test_mail_is_sent_when_asked_for(look: Any) -> None:
    async with SmtpServer() as server:
        found = await look("--json", "--to", "ann@example.org", "--from", "shop@example.org", port=server.port,
                           tls="none")  # fmt: skip
        assert found.code == 0, (found.out, found.err)
        (mail,) = server.mailbox.mails()
    assert (mail.sender, mail.recipients) == ("shop@example.org", ("ann@example.org",))
    assert found.objects[-1]["step"] == "send"
    assert found.objects[-1]["details"] == {"queue_id": mail.provider_id}
    assert "ann@" not in found.out


async def test_the_test_mail_keeps_to_the_safety_settings(look: Any) -> None:
    section = '[safety]\nredirect_all_to = "staging@example.net"'
    arguments = ("--json", "--to", "ann@example.org", "--from", "shop@example.org")
    async with SmtpServer() as server:
        found = await look(*arguments, section=section, port=server.port, tls="none")
        assert found.code == 0
        assert "redirected" in found.objects[-1]["what"]
        refused = await look(*arguments, section="[safety]\nallowed_domains = []", port=server.port, tls="none")
        assert failed(refused)["step"] == "send"
        assert [mail.recipients for mail in server.mailbox.mails()] == [("staging@example.net",)]


async def test_a_refused_test_mail_shows_the_reply_without_addresses(look: Any) -> None:
    refusal = bad.reject_mailbox("ann@example.org", text="5.1.1 <ann@example.org> is unknown")
    async with SmtpServer(None, refusal) as server:
        found = await look("--json", "--to", "ann@example.org", "--from", "shop@example.org", port=server.port,
                           tls="none")  # fmt: skip
    assert "refused: 550" in failed(found)["what"]
    assert "ann@" not in found.out


# Out of order


async def test_a_name_that_does_not_exist(look: Any) -> None:
    step = failed(await look("--json", host="nowhere.invalid"))
    assert (step["step"], step["fix"]) == ("dns", "check host, and the name server of this machine")


async def test_nobody_listens(look: Any) -> None:
    step = failed(await look("--json", port=free_port()))
    assert step["step"] == "tcp"
    assert "check host and port" in step["fix"]


async def test_starttls_towards_a_port_for_implicit_tls(look: Any, certificate: Certificate) -> None:
    async with SmtpServer(tls=certificate.context, implicit_tls=True) as server:
        step = failed(await look("--json", port=server.port, timeouts="greeting = 0.5"))
    assert step["step"] == "greeting"
    assert "tls = 'implicit'" in step["fix"]
