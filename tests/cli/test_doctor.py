"""``doctor``: what it finds at accounts that are in order and at accounts that are not."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import ssl
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from sendonce.cli import app
from sendonce.embedded import free_port
from sendonce.testing import smtp_misbehaviour as bad
from sendonce.testing.certificate import Authority, Certificate, encrypted, private_authority, self_signed
from sendonce.testing.http_gateway import HttpGateway
from sendonce.testing.smtp_server import SmtpServer
from sendonce.testing.tls_handshake import handshakes
from tests.cli.test_installation import STEPS

if TYPE_CHECKING:
    from tests.conftest import Result, Run

SECRET = "hunter2-secret"
STARTTLS_ORDER = ["dns", "tcp", "greeting", "ehlo", "tls", "auth", "mail"]
IMPLICIT_ORDER = ["dns", "tcp", "tls", "greeting", "ehlo", "auth", "mail"]
TO = ("--to", "ann@example.org", "--from", "shop@example.org")


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return private_authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def certificate(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return authority.issue(tmp_path_factory.mktemp("certificate"), "IP:127.0.0.1", "DNS:localhost", days=60)


class Found:
    """What the command left behind."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def steps(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def states(self) -> dict[str, str]:
        return {step["step"]: step["status"] for step in self.steps}

    def named(self, name: str) -> dict[str, Any]:
        return next(step for step in self.steps if step["step"] == name)

    @property
    def failed(self) -> dict[str, Any]:
        """The last step, which failed, and says what to do."""
        assert self.code == 1, (self.out, self.err)
        assert [step["status"] for step in self.steps].count("fail") == 1
        assert self.steps[-1]["status"] == "fail"
        assert self.steps[-1]["fix"]
        return self.steps[-1]


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml(each)}" for key, each in value.items()) + " }"
    return json.dumps(str(value) if isinstance(value, Path) else value)


@pytest.fixture
def settings(tmp_path: Path) -> Any:
    """Write the settings of one account, ``shop``; returns their file."""

    def write(section: str = "", **account: Any) -> Path:
        account = {"transport": "smtp", "host": "127.0.0.1", **account}
        lines = [f"{key} = {toml(value)}" for key, value in account.items() if value is not None]
        file = tmp_path / "sendonce.toml"
        file.write_text("\n".join([section, "[accounts.shop]", *lines]), encoding="utf-8")
        return file

    return write


@pytest.fixture
def look(settings: Any) -> Any:
    """``doctor --json`` on an account with these settings, in this process."""

    async def look(*arguments: str, section: str = "", **account: Any) -> Found:
        file = settings(section, **account)
        line = ["doctor", "--config", str(file), "--account", "shop", "--json", *arguments]
        done = await asyncio.to_thread(CliRunner().invoke, app, line)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        for hidden in (SECRET, "ann@example.org", "shop@example.org"):
            assert hidden not in done.stdout + done.stderr
        return Found(done.exit_code, done.stdout, done.stderr)

    return look


# In order


async def test_an_account_in_order(look: Any, authority: Authority, certificate: Certificate) -> None:
    async with SmtpServer(tls=certificate.context, credentials={"shop": SECRET}) as server:
        found = await look(host="localhost", port=server.port, ca_file=authority.file, username="shop", password=SECRET)
        assert (found.code, found.err) == (0, "")
        assert list(found.states.items()) == [(name, "ok") for name in STARTTLS_ORDER]
        assert "127.0.0.1" in found.named("dns")["details"]["addresses"]
        shown = found.named("tls")["details"]["certificate"]
        assert shown["protocol"] == "TLSv1.3"
        assert (shown["subject"], shown["issuer"]) == ("127.0.0.1, localhost", "authority.test")
        assert "AUTH PLAIN" in found.named("tls")["details"]["offers"]
        assert found.named("auth")["details"] == {"mechanism": "PLAIN"}
        await server.idle()
        # Nothing was sent, and the server was left in order.
        assert server.mailbox.mails() == []
        assert server.sessions[-1].verbs()[-3:] == ["MAIL", "RSET", "QUIT"]


async def test_implicit_tls_comes_before_the_greeting(
    look: Any, authority: Authority, certificate: Certificate
) -> None:
    async with SmtpServer(tls=certificate.context, implicit_tls=True) as server:
        found = await look(port=server.port, tls="implicit", ca_file=authority.file)
    assert found.code == 0
    assert list(found.states) == IMPLICIT_ORDER
    assert found.states["auth"] == "skip"


async def test_a_token_logs_in(look: Any) -> None:
    command = [sys.executable, "-c", f"print({SECRET!r})"]
    async with SmtpServer(credentials={"shop@example.org": SECRET}, mechanisms=("XOAUTH2",)) as server:
        found = await look(port=server.port, tls="none", username="shop@example.org", token_command=command)
    assert found.code == 0
    assert found.named("auth")["details"] == {"mechanism": "XOAUTH2"}


async def test_people_read_lines(settings: Any, run: Run) -> None:
    async with SmtpServer() as server:
        settings(port=server.port, tls="none")
        found: Result = await asyncio.to_thread(run, "doctor", "--account", "shop")
        assert (found.code, found.err) == (0, "")
        lines = [line for line in found.out.splitlines() if line[:1] != " "]
        assert [line.split()[1] for line in lines] == STARTTLS_ORDER
        assert [line.split()[0] for line in lines] == ["skip", "ok", "ok", "ok", "skip", "skip", "ok"]
        settings(port=server.port)
        found = await asyncio.to_thread(run, "doctor", "--account", "shop")
    assert found.code == 1
    failed = found.out.partition("\nfail ")[2]
    assert failed.split()[0] == "tls"
    assert "-> set tls = 'implicit'" in " ".join(failed.split())


def test_the_documentation_names_every_step() -> None:
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    section = page.partition("## Doctor\n")[2].partition("\n## ")[0]
    ours, _, accounts = section.partition("Of an account the doctor walks")
    assert re.findall(r"^\| `([\w ]+)` \|", ours, re.MULTILINE) == [*STEPS, "attributes"]
    assert re.findall(r"^\| `(\w+)` \|", accounts, re.MULTILINE) == [*STARTTLS_ORDER, "send"]


async def test_the_documented_client_certificate_logs_in(
    settings: Any, run: Run, authority: Authority, tmp_path: Path
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "smtp-login.md").read_text(encoding="utf-8")
    (block,) = [text for text in re.findall(r"```text\n(.*?)```", page, re.DOTALL) if "client_certificate" in text]
    shown = authority.issue(tmp_path / "server", "DNS:localhost")
    shown.context.load_verify_locations(authority.file)
    shown.context.verify_mode = ssl.CERT_REQUIRED
    own = authority.issue(tmp_path / "own", "DNS:client.test")
    encrypted(own.key, tmp_path / "client-key.pem", SECRET)
    (tmp_path / "client.pem").write_bytes(own.file.read_bytes())
    (tmp_path / "authority.pem").write_bytes(authority.file.read_bytes())
    block = block.replace("/etc/sendonce", str(tmp_path)).replace("relay.internal.example", "localhost")
    async with SmtpServer(tls=shown.context) as server:
        settings().write_text(f"{block}port = {server.port}\n", encoding="utf-8")
        command = ("doctor", "--account", "default", "--json")
        found: Result = await asyncio.to_thread(run, *command, CLIENT_KEY_PASSWORD=SECRET)
    assert (found.code, found.err) == (0, "")
    assert found.objects[-1]["step"] == "mail"
    assert SECRET not in found.out


async def test_an_account_that_is_not_there(settings: Any, run: Run) -> None:
    settings()
    found: Result = await asyncio.to_thread(run, "doctor", "--account", "news")
    assert (found.code, found.out) == (2, "")
    assert "there is no account 'news'; known are shop" in found.err


async def test_one_account_needs_no_database(look: Any) -> None:
    async with SmtpServer() as server:
        section = '[store]\ndatabase_url_env = "UNSET_URL"'
        found = await look(port=server.port, tls="none", section=section)
    assert (found.code, found.err) == (0, "")
    assert found.states["mail"] == "ok"


# The test mail


async def test_one_test_mail_is_sent_when_asked_for(look: Any) -> None:
    async with SmtpServer() as server:
        found = await look(*TO, port=server.port, tls="none")
        assert found.code == 0, found.out
        (mail,) = server.mailbox.mails()
    assert (mail.sender, mail.recipients) == ("shop@example.org", ("ann@example.org",))
    assert found.steps[-1]["step"] == "send"
    assert found.steps[-1]["details"] == {"queue_id": mail.provider_id}


async def test_the_test_mail_comes_from_whoever_logs_in(look: Any) -> None:
    async with SmtpServer(credentials={"shop@example.org": SECRET}) as server:
        log_in = {"port": server.port, "tls": "none", "username": "shop@example.org", "password": SECRET}
        assert (await look("--to", "ann@example.org", **log_in)).code == 0
        assert [mail.sender for mail in server.mailbox.mails()] == ["shop@example.org"]
        refused = await look("--to", "ann@example.org", port=server.port, tls="none")
    assert (refused.code, refused.out) == (2, "")
    assert "give --from" in refused.err


async def test_the_test_mail_keeps_to_the_safety_settings(look: Any) -> None:
    section = '[safety]\nredirect_all_to = "staging@example.net"'
    async with SmtpServer() as server:
        found = await look(*TO, section=section, port=server.port, tls="none")
        assert found.code == 0
        assert "redirected" in found.steps[-1]["what"]
        refused = await look(*TO, section="[safety]\nallowed_domains = []", port=server.port, tls="none")
        assert refused.failed["step"] == "send"
        assert [mail.recipients for mail in server.mailbox.mails()] == [("staging@example.net",)]


async def test_a_refused_test_mail_shows_the_reply_without_addresses(look: Any) -> None:
    refusal = bad.reject_mailbox("ann@example.org", text="5.1.1 <ann@example.org> is unknown")
    async with SmtpServer(None, refusal) as server:
        found = await look(*TO, port=server.port, tls="none")
    assert "refused: 550" in found.failed["what"]


async def test_no_test_mail_follows_a_step_that_failed(look: Any) -> None:
    async with SmtpServer(None, bad.answer("connect", 554)) as server:
        assert (await look(*TO, port=server.port, tls="none")).failed["step"] == "greeting"
        assert len(server.sessions) == 1


# Out of order: before TLS


async def test_a_name_that_does_not_exist(look: Any) -> None:
    step = (await look(host="nowhere.invalid")).failed
    assert (step["step"], step["fix"]) == ("dns", "check host, and the name server of this machine")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize("tls", ["starttls", "implicit"])
async def test_nobody_listens(look: Any, tls: str, host: str) -> None:
    step = (await look(host=host, port=free_port(), tls=tls)).failed
    assert (step["step"], step["fix"]) == ("tcp", "nobody listens there: check host and port")
    assert "Connection refused" in step["what"]


@pytest.fixture
def dropping_port() -> Iterator[int]:
    """A port at which connections are dropped without a word, as a firewall does: its queue is full."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]
        for one in waiting:
            one.close()


@pytest.mark.parametrize("tls", ["starttls", "implicit"])
async def test_a_firewall_drops_the_connection(look: Any, dropping_port: int, tls: str) -> None:
    step = (await look(port=dropping_port, tls=tls, timeouts={"connect": 0.2, "tls": 0.2})).failed
    assert (step["step"], step["what"]) == ("tcp", f"port {dropping_port}: no answer in time")
    assert "a firewall drops the connection: many networks block port 25" in step["fix"]


async def test_starttls_towards_a_port_for_implicit_tls(look: Any, certificate: Certificate) -> None:
    async with SmtpServer(tls=certificate.context, implicit_tls=True) as server:
        step = (await look(port=server.port, timeouts={"greeting": 0.5})).failed
    assert step["step"] == "greeting"
    assert "set tls = 'implicit'" in step["fix"]


async def test_implicit_tls_towards_a_port_for_starttls(look: Any, certificate: Certificate) -> None:
    async with SmtpServer(tls=certificate.context) as server:
        found = await look(port=server.port, tls="implicit")
    assert found.states["tcp"] == "ok"
    assert found.failed["step"] == "tls"
    assert "set tls = 'starttls'" in found.failed["fix"]


async def test_implicit_tls_towards_a_server_that_waits_before_its_greeting(look: Any) -> None:
    async with SmtpServer(None, bad.silent("connect")) as server:
        found = await look(port=server.port, tls="implicit", timeouts={"tls": 0.3})
    assert found.states["tcp"] == "ok"
    assert found.failed["step"] == "tls"
    assert "set tls = 'starttls'" in found.failed["fix"]


@pytest.mark.parametrize(
    ("rule", "step", "said", "fix"),
    [
        (bad.answer("connect", 554, "no service for you"), "greeting", "554 no service", "its operator knows why"),
        (bad.SmtpRule("connect", bad.SmtpAct(b"", "close")), "greeting", "", "may hang up too"),
        (bad.answer("ehlo", 550, "who are you"), "ehlo", "550 who are you", "set ehlo_name"),
        (bad.cut("ehlo"), "ehlo", "", "hung up or fell silent"),
        (bad.cut("auth"), "auth", "", "the server's log says why"),
        (bad.cut("mail"), "mail", "", "hung up or fell silent"),
        (bad.shut_down("mail"), "mail", "421 4.3.2", "try later"),
        (bad.answer("mail", 530, "5.7.0 authentication required"), "mail", "530 5.7.0", "set username and password"),
        (bad.answer("auth", 534, "5.7.9 too weak"), "auth", "534", "app password"),
        (bad.answer("auth", 454, "4.7.0 temporary"), "auth", "454", "try later"),
        (bad.answer("auth", 538, "5.7.11 encrypt"), "auth", "538", "set tls = 'starttls'"),
    ],
)  # fmt: skip
async def test_what_a_server_can_say_no_with(look: Any, rule: Any, step: str, said: str, fix: str) -> None:
    async with SmtpServer(None, rule, credentials={"shop": SECRET}) as server:
        found = await look(port=server.port, tls="none", username="shop", password=SECRET)
    assert found.failed["step"] == step
    assert said in found.failed["what"]
    assert fix in found.failed["fix"]


async def test_a_server_that_refuses_the_empty_sender_may_take_others(look: Any) -> None:
    async with SmtpServer(None, bad.refuse_sender(times=1)) as server:
        found = await look(*TO, port=server.port, tls="none")
    assert found.code == 0
    assert found.states["mail"] == "warn"
    assert "try --to" in found.named("mail")["fix"]
    assert found.states["send"] == "ok"


async def test_mail_in_clear_where_tls_is_offered(look: Any, certificate: Certificate) -> None:
    async with SmtpServer(tls=certificate.context) as server:
        found = await look(port=server.port, tls="none")
    assert found.code == 0
    assert found.states["ehlo"] == "warn"
    assert "set tls = 'starttls'" in found.named("ehlo")["fix"]


# TLS


async def test_no_starttls(look: Any) -> None:
    async with SmtpServer(credentials={"shop": SECRET}) as server:
        step = (await look(port=server.port, username="shop", password=SECRET)).failed
        assert "AUTH" not in server.sessions[0].verbs()
    assert step["step"] == "tls"
    assert "set tls = 'implicit'" in step["fix"]


@pytest.mark.parametrize("tls", ["starttls", "implicit"])
@pytest.mark.parametrize(
    ("fault", "fix"),
    [
        ("expired", "must renew it"),
        ("self-signed", "set ca_file to a copy of it"),
        ("private", "set ca_file for a private one"),
        ("other name", "set host to a name that it holds"),
    ],
)
async def test_a_certificate_at_fault(
    look: Any, authority: Authority, certificate: Certificate, tmp_path: Path, tls: str, fault: str, fix: str
) -> None:
    trusted: Path | None = authority.file
    match fault:
        case "expired":
            shown = authority.issue(tmp_path / "own", "IP:127.0.0.1", days=0)
        case "self-signed":
            shown, trusted = self_signed(tmp_path / "own", "IP:127.0.0.1"), None
        case "private":
            shown, trusted = certificate, None
        case _:
            shown = authority.issue(tmp_path / "own", "IP:127.0.0.2", "DNS:elsewhere.test")
    async with SmtpServer(tls=shown.context, implicit_tls=tls == "implicit") as server:
        step = (await look(port=server.port, tls=tls, ca_file=trusted)).failed
    assert step["step"] == "tls"
    assert fix in step["fix"]


async def test_a_certificate_that_expires_soon(look: Any, authority: Authority, tmp_path: Path) -> None:
    names = ["IP:127.0.0.1", *(f"DNS:mail{n}.test" for n in range(9))]
    shown = authority.issue(tmp_path / "own", *names, days=7)
    async with SmtpServer(tls=shown.context) as server:
        found = await look(port=server.port, ca_file=authority.file)
    assert found.code == 0
    assert found.states["tls"] == "warn"
    assert "expires soon" in found.named("tls")["fix"]
    assert found.named("tls")["details"]["certificate"]["subject"] == "127.0.0.1, mail0.test, mail1.test and 7 more"


@pytest.mark.parametrize("starttls", [True, False])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_server_asks_for_a_client_certificate(
    look: Any, authority: Authority, tmp_path: Path, starttls: bool, version: ssl.TLSVersion
) -> None:
    shown = authority.issue(tmp_path / "own", "IP:127.0.0.1").context
    shown.maximum_version = version
    shown.load_verify_locations(authority.file)
    shown.verify_mode = ssl.CERT_REQUIRED
    with handshakes(shown, starttls=starttls) as port:
        step = (await look(port=port, tls="starttls" if starttls else "implicit", ca_file=authority.file)).failed
    # TLS 1.3 has an alert for it, TLS 1.2 has not.
    fix = "set client_certificate" if version is ssl.TLSVersion.TLSv1_3 else "if it asks for a client certificate"
    assert fix in step["fix"]


@pytest.mark.parametrize("tls", ["starttls", "implicit"])
async def test_a_server_that_asks_for_a_client_certificate_may_just_hang_up(
    look: Any, authority: Authority, tmp_path: Path, tls: str
) -> None:
    shown = authority.issue(tmp_path / "own", "IP:127.0.0.1").context
    shown.load_verify_locations(authority.file)
    shown.verify_mode = ssl.CERT_REQUIRED
    async with SmtpServer(tls=shown, implicit_tls=tls == "implicit") as server:
        step = (await look(port=server.port, tls=tls, ca_file=authority.file)).failed
    assert "if it asks for a client certificate" in step["fix"]


async def test_a_server_with_nothing_newer_than_tls_1_1(look: Any, authority: Authority, tmp_path: Path) -> None:
    old = authority.issue(tmp_path / "own", "IP:127.0.0.1").context
    old.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    with handshakes(old, starttls=True) as port:
        step = (await look(port=port, ca_file=authority.file)).failed
    assert (step["step"], step["fix"]) == ("tls", "the server offers nothing as new as TLS 1.2: it must be updated")


# Log-in


async def test_a_wrong_password(look: Any) -> None:
    said = f"5.7.8 shop@example.org: {SECRET} is wrong"
    async with SmtpServer(None, bad.auth_refused(535, said), credentials={}) as server:
        step = (await look(port=server.port, tls="none", username="shop@example.org", password=SECRET)).failed
        await server.idle()
        assert server.sessions[0].verbs()[-1] == "QUIT"
    assert (step["step"], step["what"][:3]) == ("auth", "535")
    assert "check username and password" in step["fix"]


async def test_a_server_that_leaves_with_the_password_on_its_lips(look: Any) -> None:
    async with SmtpServer(None, bad.answer("auth", 421, f"4.7.0 {SECRET}, no"), credentials={}) as server:
        step = (await look(port=server.port, tls="none", username="shop", password=SECRET)).failed
    assert (step["step"], step["what"]) == ("auth", "421 4.7.0 ***, no")


async def test_no_mechanism_in_common(look: Any) -> None:
    async with SmtpServer(credentials={"shop": SECRET}, mechanisms=("GSSAPI", "XOAUTH2")) as server:
        step = (await look(port=server.port, tls="none", username="shop", password=SECRET)).failed
    assert step["step"] == "auth"
    assert "GSSAPI, XOAUTH2" in step["what"]
    assert "set auth and credentials to what the server offers" in step["fix"]


@pytest.mark.parametrize("source", ["token_command", "token_url"])
async def test_a_source_of_tokens_that_fails(look: Any, source: str) -> None:
    settings: dict[str, Any]
    if source == "token_command":
        settings = {"token_command": [sys.executable, "-c", f"print({SECRET!r}); raise SystemExit(3)"]}
    else:
        url = f"http://127.0.0.1:{free_port()}/token"
        settings = {"token_url": url, "client_id": "id", "client_secret": SECRET, "refresh_token": SECRET}
    async with SmtpServer(credentials={}, mechanisms=("XOAUTH2",)) as server:
        step = (await look(port=server.port, tls="none", username="shop", **settings)).failed
    assert step["step"] == "auth"
    assert source in step["what"]
    assert source in step["fix"]


# HTTP


def gateway(port: int, scheme: str = "https", **more: Any) -> dict[str, Any]:
    """An account at a gateway on loopback."""
    url = f"{scheme}://127.0.0.1:{port}/emails"
    return {"transport": "http", "host": None, "url": url, "headers": {"Authorization": f"Bearer {SECRET}"}, **more}


async def test_an_account_over_http_in_order(look: Any, authority: Authority, certificate: Certificate) -> None:
    async with HttpGateway(tls=certificate.context, api_key=SECRET) as server:
        found = await look(**gateway(server.port, ca_file=authority.file))
        assert found.code == 0
        assert found.states == {"dns": "skip", "tcp": "ok", "tls": "ok", "credentials": "skip"}
        assert "--to" in found.named("credentials")["what"]
        assert found.named("tls")["details"]["certificate"]["issuer"] == "authority.test"
        assert server.requests == []
        found = await look(*TO, **gateway(server.port, ca_file=authority.file))
        assert (found.code, found.states["send"]) == (0, "ok")
        assert len(server.mailbox.mails()) == 1


async def test_only_the_test_mail_proves_an_api_key(look: Any) -> None:
    async with HttpGateway(api_key="another") as server:
        assert (await look(**gateway(server.port, "http"))).states["tls"] == "skip"
        assert (await look(*TO, **gateway(server.port, "http"))).failed["step"] == "send"


async def test_an_api_whose_name_does_not_exist(look: Any) -> None:
    account = {"transport": "postmark", "host": None, "api_key": SECRET, "base_url": "https://nowhere.invalid"}
    step = (await look(**account)).failed
    assert (step["step"], step["fix"]) == ("dns", "check base_url, and the name server of this machine")


async def test_an_api_at_which_nobody_listens(look: Any) -> None:
    step = (await look(**gateway(free_port()))).failed
    assert (step["step"], step["fix"]) == ("tcp", "nobody listens there: check url")


async def test_an_api_whose_certificate_is_not_trusted(look: Any, certificate: Certificate) -> None:
    async with HttpGateway(tls=certificate.context) as server:
        step = (await look(**gateway(server.port))).failed
    assert step["step"] == "tls"
    assert "set ca_file" in step["fix"]


async def test_an_api_that_speaks_no_tls(look: Any) -> None:
    async with HttpGateway() as server:
        step = (await look(**gateway(server.port, connect_seconds=0.3))).failed
    assert (step["step"], step["what"]) == ("tls", "TLS: no answer in time")
    assert "check url" in step["fix"]
