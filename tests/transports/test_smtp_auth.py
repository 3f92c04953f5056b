"""Logging in over SMTP: each mechanism, tokens from a command and from an OAuth 2 server, certificates."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import ssl
import sys
import urllib.parse
import warnings
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from sendonce.activities.transports.smtp import SmtpSettings, SmtpTransport
from sendonce.activities.transports.smtp_auth import choose
from sendonce.activities.transports.smtp_token import NoToken, TokenSource
from sendonce.message import OutgoingEmail
from sendonce.outcome import AccountFault, NotOffered, Outcome
from sendonce.testing import smtp_misbehaviour as bad
from sendonce.testing.attempt import RecordingGate, make_job
from sendonce.testing.certificate import Authority, Certificate, encrypted, private_authority, self_signed
from sendonce.testing.smtp_server import SmtpServer
from sendonce.testing.tls_handshake import handshakes

MAIL = OutgoingEmail(key="k", sender="shop@example.org", to="a@example.org", text="t")
SECRET = "hunter2"
ALL = ("PLAIN", "LOGIN", "CRAM-MD5", "XOAUTH2", "OAUTHBEARER")


class TokenEndpoint:
    """An OAuth 2 token endpoint on loopback: answers in turn, the last one again and again."""

    def __init__(self, *answers: tuple[int, dict[str, Any] | bytes]) -> None:
        self.answers = list(answers)
        self.headers: dict[str, str] = {}
        self.forms: list[dict[str, str]] = []
        self.port = 0
        self.scheme = "http"
        self.silent = False

    async def start(self, tls: Certificate | None = None) -> None:
        context = tls.context if tls else None
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=context)
        self.port = self._server.sockets[0].getsockname()[1]
        self.scheme = "https" if tls else "http"

    async def close(self) -> None:
        self._server.close()
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/token"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
            body = (await reader.readexactly(length)).decode()
            self.forms.append(dict(urllib.parse.parse_qsl(body)))
            if self.silent:
                await reader.read()
                return
            status, answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            extra = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
            writer.write(f"HTTP/1.1 {status} x\r\nContent-Length: {len(content)}\r\n{extra}\r\n".encode() + content)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client would not go on
        finally:
            writer.close()


def granted(token: str, **more: Any) -> tuple[int, dict[str, Any]]:
    return 200, {"access_token": token, "token_type": "Bearer", **more}


@pytest.fixture
async def endpoint() -> AsyncIterator[TokenEndpoint]:
    endpoint = TokenEndpoint(granted("t1", expires_in=3600))
    await endpoint.start()
    yield endpoint
    await endpoint.close()


def refreshing(endpoint: TokenEndpoint, **more: Any) -> dict[str, Any]:
    return {
        "username": "shop",
        "token_url": endpoint.url,
        "client_id": "id-1",
        "client_secret": "secret-1",
        "refresh_token": "refresh-1",
        **more,
    }


def source(**settings: Any) -> TokenSource:
    return TokenSource(SmtpSettings(**{"host": "127.0.0.1", "username": "shop", **settings}))


def script(tmp_path: Path, body: str) -> list[str]:
    """A command whose program is Python."""
    file = tmp_path / "token.py"
    file.write_text(body, encoding="utf-8")
    return [sys.executable, str(file)]


async def send(server: SmtpServer | int, **settings: Any) -> Outcome:
    """One mail to the server, or to the one at that port."""
    port = server if isinstance(server, int) else server.port
    transport = SmtpTransport(SmtpSettings(**{"host": "127.0.0.1", "port": port, "tls": "none", **settings}))
    try:
        return await attempt(transport)
    finally:
        await transport.close()


async def attempt(transport: SmtpTransport) -> Outcome:
    return (await transport.transmit(make_job(transport, MAIL), RecordingGate())).outcomes[0]


# Mechanisms


@pytest.mark.parametrize("mechanism", ["plain", "login", "cram-md5"])
async def test_passwords(mechanism: str) -> None:
    async with SmtpServer(credentials={"shop": "hünter"}, mechanisms=ALL) as server:
        assert (await send(server, username="shop", password="hünter", auth=mechanism)).kind == "accepted"
        assert (server.sessions[0].user, server.sessions[0].mechanism) == ("shop", mechanism.upper())
        outcome = await send(server, username="shop", password="wrong", auth=mechanism)
        assert (outcome.kind, outcome.reply.code) == ("account_fault", 535)
        assert "MAIL" not in server.sessions[1].verbs()


@pytest.mark.parametrize("mechanism", ["xoauth2", "oauthbearer"])
async def test_tokens(mechanism: str, tmp_path: Path) -> None:
    command = script(tmp_path, "print('token-1')")
    async with SmtpServer(credentials={"a=b,c": "token-1", "x": "other"}, mechanisms=ALL) as server:
        assert (await send(server, username="a=b,c", token_command=command, auth=mechanism)).kind == "accepted"
        assert (server.sessions[0].user, server.sessions[0].mechanism) == ("a=b,c", mechanism.upper())
        outcome = await send(server, username="x", token_command=command, auth=mechanism)
        assert (outcome.kind, outcome.reply.code) == ("account_fault", 535)
        # The server's 334 with its reasons was answered, and the refused token tried once more, as a fresh one.
        answer = b"" if mechanism == "xoauth2" else base64.b64encode(b"\x01")
        assert [line for line in server.sessions[1].commands if b" " not in line] == [answer, answer]
        assert server.sessions[1].verbs().count("AUTH") == 2


@pytest.mark.parametrize(
    ("tls", "auth", "offered", "chosen"),
    [
        ("starttls", "auto", ALL, "plain"),
        ("starttls", "auto", ("LOGIN", "CRAM-MD5"), "cram-md5"),
        ("implicit", "auto", ("LOGIN", "NTLM"), "login"),
        ("none", "auto", ALL, "cram-md5"),
        ("none", "auto", ("PLAIN", "LOGIN"), "plain"),
        ("starttls", "login", ALL, "login"),
        ("starttls", "login", ("PLAIN",), ""),
        ("starttls", "auto", ("XOAUTH2",), ""),
    ],
)
def test_which_mechanism_is_chosen_for_a_password(tls: Any, auth: Any, offered: tuple[str, ...], chosen: str) -> None:
    settings = SmtpSettings(host="127.0.0.1", tls=tls, auth=auth, username="shop", password="x")
    assert choose(settings, offered) == chosen


@pytest.mark.parametrize(("offered", "chosen"), [(ALL, "oauthbearer"), (("XOAUTH2", "PLAIN"), "xoauth2"), ((), "")])
def test_which_mechanism_is_chosen_for_a_token(offered: tuple[str, ...], chosen: str) -> None:
    settings = SmtpSettings(host="127.0.0.1", username="shop", token_command=("x",))
    assert choose(settings, offered) == chosen


async def test_a_mechanism_that_is_not_offered_says_what_is() -> None:
    async with SmtpServer(credentials={"shop": SECRET}, mechanisms=("PLAIN", "XOAUTH2")) as server:
        outcome = await send(server, username="shop", password=SECRET, auth="cram-md5")
    assert isinstance(outcome, AccountFault)
    assert outcome.reply.enhanced == "auth_missing"
    assert "PLAIN, XOAUTH2, and CRAM-MD5 is needed" in outcome.reply.text
    assert "AUTH" not in server.sessions[0].verbs()


async def test_a_long_first_response_waits_for_the_server(tmp_path: Path) -> None:
    token = "t" * 2000
    async with SmtpServer(credentials={"shop": token}, mechanisms=("XOAUTH2",)) as server:
        command = script(tmp_path, f"print({token!r})")
        assert (await send(server, username="shop", token_command=command)).kind == "accepted"
        assert b"AUTH XOAUTH2" in server.sessions[0].commands


@pytest.mark.parametrize(("octets", "waits"), [(366, False), (367, True)])
async def test_a_first_response_goes_along_as_long_as_the_command_line_allows(octets: int, waits: bool) -> None:
    # "AUTH PLAIN ", the base64 of two NULs, user and password, and CRLF: 509 octets, and 513 with one octet more.
    password = "p" * octets
    async with SmtpServer(credentials={"shop": password}) as server:
        assert (await send(server, username="shop", password=password)).kind == "accepted"
        assert (b"AUTH PLAIN" in server.sessions[0].commands) == waits
        assert all(len(line) + 2 <= 512 for line in server.sessions[0].commands if line.startswith(b"AUTH"))


@pytest.mark.parametrize("mechanism", ["plain", "login", "cram-md5", "auto"])
async def test_a_password_is_never_said_before_tls(certificate: Certificate, mechanism: str) -> None:
    # The server offers the log-in in clear as well.
    async with SmtpServer(tls=certificate.context, credentials={"shop": SECRET}, mechanisms=ALL) as server:
        settings = {"tls": "starttls", "ca_file": certificate.file, "auth": mechanism}
        assert (await send(server, **settings, username="shop", password=SECRET)).kind == "accepted"
        assert server.sessions[0].verbs()[:4] == ["EHLO", "STARTTLS", "EHLO", "AUTH"]


# Replies


@pytest.mark.parametrize("code", [432, 500, 504, 530, 534, 535, 538, 554])
async def test_a_log_in_that_is_refused_is_our_fault(code: int) -> None:
    async with SmtpServer(None, bad.auth_refused(code), credentials={"shop": SECRET}) as server:
        outcome = await send(server, username="shop", password=SECRET)
        assert (outcome.kind, outcome.reply.code) == ("account_fault", code)
        assert "MAIL" not in server.sessions[0].verbs()


@pytest.mark.parametrize("code", [450, 451, 454])
async def test_a_server_that_cannot_check_anybody_now_is_tried_again(tmp_path: Path, code: int) -> None:
    refused = bad.answer("auth", code, "4.7.0 temporary authentication failure", times=1)
    async with SmtpServer(None, refused, credentials={"shop": "t1"}, mechanisms=("XOAUTH2",)) as server:
        settings = {"host": "127.0.0.1", "port": server.port, "tls": "none"}
        command = script(tmp_path, "print('t1')")
        transport = SmtpTransport(SmtpSettings(**{**settings, "username": "shop", "token_command": command}))
        try:
            outcome = await attempt(transport)
            assert isinstance(outcome, NotOffered)
            # It is counted, as a server's failure to serve is: what lasts is dead-lettered, or trips the breaker.
            assert (outcome.counted, outcome.reply.code) == (True, code)
            assert (await attempt(transport)).kind == "accepted"
        finally:
            await transport.close()
        # The token is not to blame: no fresh one was fetched for it.
        assert [session.verbs().count("AUTH") for session in server.sessions] == [1, 1]


@pytest.mark.parametrize("mechanism", ["plain", "login"])
async def test_a_reply_that_repeats_the_secret_is_kept_without_it(mechanism: str) -> None:
    said = [base64.b64encode(text).decode() for text in (f"\0shop\0{SECRET}".encode(), SECRET.encode())]
    text = f"5.7.8 shop may not use {SECRET}, which is {said[0]} or {said[1]}"
    async with SmtpServer(None, bad.auth_refused(535, text), credentials={}, mechanisms=ALL) as server:
        outcome = await send(server, username="shop", password=SECRET, auth=mechanism)
    assert outcome.reply.text.startswith("5.7.8 shop may not use ***, which is ")
    assert [secret for secret in (SECRET, said[1]) if secret in outcome.reply.text] == []
    assert mechanism == "login" or said[0] not in outcome.reply.text


@pytest.mark.parametrize("mechanism", ["xoauth2", "oauthbearer"])
async def test_a_reply_that_repeats_the_token_is_kept_without_it(tmp_path: Path, mechanism: str) -> None:
    command = script(tmp_path, "print('token-1')")
    refused = bad.auth_refused(535, "5.7.8 token-1 has expired")
    async with SmtpServer(None, refused, credentials={}, mechanisms=ALL) as server:
        outcome = await send(server, username="shop", token_command=command, auth=mechanism)
    assert outcome.reply.text == "5.7.8 *** has expired"


@pytest.mark.parametrize("challenge", [b"334 \xff\xff\r\n", b"334 *not base64\r\n"])
async def test_a_challenge_that_cannot_be_read_is_cancelled(challenge: bytes) -> None:
    async with SmtpServer(None, bad.answer_raw("auth", challenge, times=1), credentials={}) as server:
        # LOGIN's exchange is over when this 334 comes; there is nothing left to say.
        outcome = await send(server, username="shop", password=SECRET, auth="login")
        assert (outcome.kind, server.sessions[0].commands[-1]) == ("account_fault", b"*")


# Tokens


async def test_a_token_is_kept_until_shortly_before_it_expires(endpoint: TokenEndpoint) -> None:
    time = [0.0]
    endpoint.answers = [granted("t1", expires_in=3600), granted("t2", expires_in=100), granted("t3")]
    settings = SmtpSettings(**{"host": "127.0.0.1", **refreshing(endpoint, scope="smtp.send")})
    tokens = TokenSource(settings, now=lambda: time[0])
    seen = []
    for now in (0, 3539, 3540, 3629, 3630, 3899, 3900):
        time[0] = now
        seen.append(await tokens.get())
    assert seen == ["t1", "t1", "t2", "t2", "t3", "t3", "t3"]
    assert endpoint.forms[0] == {
        "grant_type": "refresh_token",
        "client_id": "id-1",
        "client_secret": "secret-1",
        "refresh_token": "refresh-1",
        "scope": "smtp.send",
    }
    assert len(endpoint.forms) == 4


async def test_many_log_ins_share_one_token(endpoint: TokenEndpoint) -> None:
    tokens = source(**refreshing(endpoint))
    assert set(await asyncio.gather(*(tokens.get() for _ in range(20)))) == {"t1"}
    assert len(endpoint.forms) == 1
    endpoint.answers = [granted("t2")]
    assert set(await asyncio.gather(*(tokens.get(refused="t1") for _ in range(20)))) == {"t2"}
    assert len(endpoint.forms) == 2


async def test_a_new_refresh_token_replaces_the_old_one(endpoint: TokenEndpoint) -> None:
    endpoint.answers = [granted("t1", refresh_token="refresh-2"), granted("t2")]
    tokens = source(**refreshing(endpoint))
    await tokens.get()
    await tokens.get(refused="t1")
    assert [form["refresh_token"] for form in endpoint.forms] == ["refresh-1", "refresh-2"]


@pytest.mark.parametrize("mechanism", ["XOAUTH2", "OAUTHBEARER"])
async def test_a_token_that_was_revoked_is_replaced_once(endpoint: TokenEndpoint, mechanism: str) -> None:
    async with SmtpServer(credentials={"shop": "t1"}, mechanisms=[mechanism]) as server:
        settings = {"host": "127.0.0.1", "port": server.port, "tls": "none", "pool": {"idle_seconds": 0}}
        transport = SmtpTransport(SmtpSettings(**{**settings, **refreshing(endpoint)}))
        try:
            assert (await attempt(transport)).kind == "accepted"
            server.credentials, endpoint.answers = {"shop": "t2"}, [granted("t2")]
            assert (await attempt(transport)).kind == "accepted"
            assert (await attempt(transport)).kind == "accepted"
        finally:
            await transport.close()
        assert [session.verbs().count("AUTH") for session in server.sessions] == [1, 2, 1]
    assert len(endpoint.forms) == 2


async def test_a_server_that_hangs_up_on_a_revoked_token_gets_the_fresh_one_next_time(endpoint: TokenEndpoint) -> None:
    hangs_up = bad.SmtpRule("auth", bad.SmtpAct(then="close"), 1)
    async with SmtpServer(None, hangs_up, credentials={"shop": "t2"}, mechanisms=["XOAUTH2"]) as server:
        settings = {"host": "127.0.0.1", "port": server.port, "tls": "none"}
        transport = SmtpTransport(SmtpSettings(**{**settings, **refreshing(endpoint)}))
        endpoint.answers = [granted("t1"), granted("t2")]
        try:
            assert (await attempt(transport)).kind in ("account_fault", "not_offered")
            assert (await attempt(transport)).kind == "accepted"
        finally:
            await transport.close()
    assert len(endpoint.forms) == 2


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ((400, {"error": "invalid_grant", "hint": "refresh-1"}), "token_url: answered 400 invalid_grant"),
        ((400, {"error": "Refresh-1 of Ann"}), "token_url: answered 400"),
        ((503, b"busy"), "token_url: answered 503"),
        ((302, b""), "token_url: answered 302"),
        ((200, b"no json"), "token_url: answered 200 without a usable access_token"),
        ((200, [1]), "token_url: answered 200 without a usable access_token"),
        ((200, {"access_token": "a\r\nb"}), "token_url: answered 200 without a usable access_token"),
        ((200, b"x" * 70000), "token_url: answered more than 65536 octets"),
    ],
)  # fmt: skip
async def test_a_token_endpoint_that_grants_nothing_is_our_fault(
    endpoint: TokenEndpoint, answer: Any, text: str
) -> None:
    endpoint.answers = [answer]
    endpoint.headers = {"Retry-After": "7", "Location": endpoint.url}
    with pytest.raises(NoToken) as raised:
        await source(**refreshing(endpoint)).get()
    outcome = raised.value.outcome
    assert isinstance(outcome, AccountFault)
    assert (outcome.reply.enhanced, outcome.reply.text) == ("token_url", text)
    assert outcome.retry_after == (None if answer[0] == 200 else 7.0)
    assert len(endpoint.forms) == 1


async def test_a_token_endpoint_out_of_reach_is_tried_again(endpoint: TokenEndpoint, closed_port: int) -> None:
    endpoint.silent = True
    for changes in ({"token_seconds": 0.2}, {"token_url": f"http://127.0.0.1:{closed_port}/"}):
        with pytest.raises(NoToken) as raised:
            await source(**refreshing(endpoint, **changes)).get()
        outcome = raised.value.outcome
        assert isinstance(outcome, NotOffered)
        assert (outcome.counted, outcome.reply.enhanced) == (True, "token_url")


async def test_the_token_endpoints_certificate_is_verified(certificate: Certificate) -> None:
    endpoint = TokenEndpoint(granted("t1"))
    await endpoint.start(certificate)
    try:
        with pytest.raises(NoToken) as raised:
            await source(**refreshing(endpoint)).get()
        assert isinstance(raised.value.outcome, AccountFault)
        assert "certificate" in raised.value.outcome.reply.text
        assert endpoint.forms == []
        assert await source(**refreshing(endpoint, token_ca_file=certificate.file)).get() == "t1"
    finally:
        await endpoint.close()


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("print('secret'); raise SystemExit(3)", "token_command: ended with exit code 3"),
        ("import sys; print('secret', file=sys.stderr); sys.exit('secret')", "token_command: ended with exit code 1"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "token_command: ended with exit code -9"),
        (
            "import sys; sys.stdout.buffer.write(b'\\xff\\xfe\\x00')",
            "token_command: wrote something else than one token to standard output",
        ),
        ("print('two tokens')", "token_command: wrote something else than one token to standard output"),
        ("", "token_command: wrote something else than one token to standard output"),
        ("print('x' * 70000)", "token_command: wrote something else than one token to standard output"),
    ],
)
async def test_a_token_command_that_fails_is_our_fault(tmp_path: Path, body: str, text: str) -> None:
    with pytest.raises(NoToken) as raised:
        await source(token_command=script(tmp_path, body)).get()
    outcome = raised.value.outcome
    assert isinstance(outcome, AccountFault)
    assert (outcome.reply.enhanced, outcome.reply.text) == ("token_command", text)


async def test_a_token_command_that_is_not_there_is_our_fault() -> None:
    with pytest.raises(NoToken) as raised:
        await source(token_command=["/no/such/program"]).get()
    assert raised.value.outcome.reply.text == "token_command: cannot be run: No such file or directory"


async def heard(fd: int) -> bytes:
    """What the pipe says next; nothing when nobody holds its other end any more."""
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(fd, readable.set)
    try:
        async with asyncio.timeout(30):
            await readable.wait()
    finally:
        loop.remove_reader(fd)
    return os.read(fd, 10)


@pytest.mark.parametrize("ended", [False, True], ids=["the program waits", "the program has ended"])
@pytest.mark.parametrize("how", ["cancelled", "timed out"])
async def test_a_token_command_that_hangs_is_killed_with_its_children(tmp_path: Path, how: str, ended: bool) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    # The child holds the fifo, and the output, as long as it lives; without a shell's exec it is the program's child.
    child = 'exec 3>"$0"; sleep 600 & printf up >&3; ' + ("exit 0" if ended else "exec 3>&-; wait")
    command = ["/bin/sh", "-c", child, str(fifo)]
    held = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        getting = asyncio.ensure_future(source(token_command=command, token_seconds=1).get())
        assert await heard(held) == b"up"
        if how == "cancelled":
            getting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await getting
        else:
            with pytest.raises(NoToken) as raised:
                await getting
            assert raised.value.outcome.reply.text == "token_command: no token within 1 s"
        assert await heard(held) == b""
    finally:
        os.close(held)


async def test_a_token_command_is_run_without_a_shell(tmp_path: Path) -> None:
    command = [*script(tmp_path, "import sys; print(sys.argv[1].replace(' ', '_'))"), "$HOME; echo x"]
    assert await source(token_command=command).get() == "$HOME;_echo_x"


async def test_no_secret_is_logged_or_shown(
    endpoint: TokenEndpoint, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.DEBUG)
    endpoint.answers = [granted("token-1", refresh_token="refresh-2"), (400, {"error": "invalid_grant"})]
    shown = []
    async with SmtpServer(credentials={"shop": "other"}, mechanisms=("XOAUTH2",)) as server:
        # The token is refused, and the fresh one is not granted.
        outcome = await send(server, **refreshing(endpoint))
        assert outcome.reply.text == "token_url: answered 400 invalid_grant"
        shown.append(repr(outcome))
    for settings in (
        refreshing(endpoint),
        {"token_command": script(tmp_path, "print('token-1'); raise SystemExit(1)")},
        {"token_command": ["/no/such/program", "secret-1"]},
    ):
        tokens = source(**settings)
        with pytest.raises(NoToken) as raised:
            await tokens.get()
        shown += [repr(raised.value), str(raised.value), repr(raised.value.outcome), repr(tokens)]
        assert raised.value.__cause__ is None
    secrets = ("secret-1", "refresh-1", "refresh-2", "token-1", base64.b64encode(b"token-1").decode())
    assert [secret for secret in secrets if secret in caplog.text + "".join(shown)] == []


# TLS


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return private_authority(tmp_path_factory.mktemp("authority"))


@pytest.mark.parametrize("tls", ["starttls", "implicit"])
async def test_a_private_authority_is_trusted_when_it_is_named(authority: Authority, tmp_path: Path, tls: str) -> None:
    shown = authority.issue(tmp_path, "IP:127.0.0.1")
    async with SmtpServer(tls=shown.context, implicit_tls=tls == "implicit") as server:
        assert (await send(server, tls=tls, ca_file=authority.file)).kind == "accepted"
        assert (await send(server, tls=tls)).reply.enhanced == "certificate"


@pytest.mark.parametrize("tls", ["starttls", "implicit"])
@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("expired", "TLS: certificate has expired"),
        ("self-signed", "TLS: self-signed certificate"),
        ("other name", "TLS: IP address mismatch, certificate is not valid for '127.0.0.1'."),
    ],
)
async def test_a_certificate_at_fault_stops_everything(
    authority: Authority, certificate: Certificate, tmp_path: Path, tls: str, fault: str, text: str
) -> None:
    shown, trusted = certificate, None
    if fault != "self-signed":
        expired = fault == "expired"
        name, trusted = "IP:127.0.0.1" if expired else "DNS:elsewhere.test", authority.file
        shown = authority.issue(tmp_path, name, days=0 if expired else 7)
    async with SmtpServer(tls=shown.context, implicit_tls=tls == "implicit", credentials={"shop": SECRET}) as server:
        outcome = await send(server, tls=tls, ca_file=trusted, username="shop", password=SECRET)
        assert (outcome.kind, outcome.reply.enhanced) == ("account_fault", "certificate")
        assert outcome.reply.text.replace("self signed", "self-signed") == text
        assert {verb for session in server.sessions for verb in session.verbs()} <= {"EHLO", "STARTTLS"}


@pytest.mark.parametrize("tls", ["starttls", "implicit"])
async def test_a_server_with_nothing_newer_than_tls_1_1_gets_nothing(tmp_path: Path, tls: str) -> None:
    old = self_signed(tmp_path, "IP:127.0.0.1").context
    # Distributions switch such old versions off by the security level.
    old.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        old.minimum_version = ssl.TLSVersion.TLSv1
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    with handshakes(old, starttls=tls == "starttls") as port:
        outcome = await send(port, tls=tls, ca_file=tmp_path / "certificate.pem", username="shop", password=SECRET)
    assert (outcome.kind, outcome.reply.enhanced) == ("account_fault", "tls")
    assert outcome.reply.text == "TLS: TLSV1_ALERT_PROTOCOL_VERSION"


@pytest.mark.parametrize("tls", ["starttls", "implicit"])
async def test_a_client_certificate_is_shown(authority: Authority, tmp_path: Path, tls: str) -> None:
    own = authority.issue(tmp_path / "own", "DNS:client.test")
    stranger = self_signed(tmp_path / "stranger", "DNS:client.test")
    both = tmp_path / "both.pem"
    both.write_bytes(own.file.read_bytes() + own.key.read_bytes())
    demanding = authority.issue(tmp_path / "server", "IP:127.0.0.1")
    demanding.context.load_verify_locations(authority.file)
    demanding.context.verify_mode = ssl.CERT_REQUIRED
    async with SmtpServer(tls=demanding.context, implicit_tls=tls == "implicit") as server:
        settings = {"tls": tls, "ca_file": authority.file}
        locked = {"client_key": encrypted(own.key, tmp_path / "locked.pem", "pw"), "client_key_password": "pw"}
        for key in ({"client_key": own.key}, locked):
            assert (await send(server, **settings, client_certificate=own.file, **key)).kind == "accepted"
        assert (await send(server, **settings, client_certificate=both)).kind == "accepted"
        served = len(server.mailbox.mails())
        for wrong in ({}, {"client_certificate": stranger.file, "client_key": stranger.key}):
            assert (await send(server, **settings, **wrong)).kind in ("account_fault", "not_offered")
        assert (served, len(server.mailbox.mails())) == (3, 3)


def test_files_that_cannot_be_used_are_named_with_their_setting(tmp_path: Path) -> None:
    own, other = self_signed(tmp_path / "a", "DNS:a.test"), self_signed(tmp_path / "b", "DNS:b.test")
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nonsense", encoding="utf-8")
    missing = tmp_path / "missing.pem"
    key = other.key
    for files, words in [
        ({"ca_file": missing}, f"ca_file: {missing} cannot be read: No such file"),
        ({"ca_file": nonsense}, f"ca_file: {nonsense} does not hold certificates in PEM"),
        ({"client_certificate": missing}, f"client_certificate: {missing} cannot be read: No such file"),
        ({"client_certificate": own.file, "client_key": missing}, f"client_key: {missing} cannot be read"),
        ({"client_certificate": own.file, "client_key": key}, f"client_key: {key} does not hold"),
        ({"client_certificate": own.file}, f"client_certificate: {own.file} does not hold"),
    ]:
        with pytest.raises(OSError) as raised:
            SmtpTransport(SmtpSettings(**{"host": "relay.example.org", **files}))
        assert (raised.value.strerror or "").startswith(words)


def test_an_encrypted_key_needs_its_password_and_nobody_is_asked(tmp_path: Path) -> None:
    own = self_signed(tmp_path, "DNS:a.test")
    key = encrypted(own.key, tmp_path / "encrypted.pem", "pw")
    settings: dict[str, Any] = {"host": "relay.example.org", "client_certificate": own.file, "client_key": key}
    SmtpTransport(SmtpSettings(**settings, client_key_password="pw"))
    for wrong in ({}, {"client_key_password": "no"}):
        with pytest.raises(OSError) as raised:
            SmtpTransport(SmtpSettings(**settings, **wrong))
        assert "client_key_password" in (raised.value.strerror or "")


# Settings


TOKEN = {"token_url": "https://login.example.org/token", "client_id": "i", "refresh_token": "r", "username": "u"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"username": "u"}, "go together"),
        ({"password": "p"}, "go together"),
        ({"username": "u", "password": "p", "token_command": ["x"]}, "password and token_command are two ways"),
        ({**TOKEN, "token_command": ["x"]}, "token_command and token_url are two ways"),
        ({**TOKEN, "token_url": "https://u:p@login.example.org/token"}, "no user or password in it"),
        ({"auth": "plain"}, "needs a username"),
        ({"username": "u", "token_command": ["x"], "auth": "plain"}, "needs a password"),
        ({"username": "u", "password": "p", "auth": "xoauth2"}, "needs token_command or token_url"),
        ({"username": "u", "password": "p", "scope": "s"}, "set token_url too"),
        ({"username": "u", "token_command": ["x"], "client_secret": "s"}, "set token_url too"),
        ({**TOKEN, "client_id": None}, "needs client_id and refresh_token"),
        ({**TOKEN, "refresh_token": None}, "needs client_id and refresh_token"),
        ({**TOKEN, "token_url": "http://login.example.org/token"}, "must be https"),
        ({**TOKEN, "tls": "none"}, "would go in clear"),
        ({"username": "u", "token_command": ["x"], "tls": "none"}, "would go in clear"),
        ({"username": "u", "password": "p", "tls": "none"}, "would go in clear"),
        ({"username": "u", "password": "p", "tls": "none", "auth": "cram-md5"}, "would go in clear"),
        ({"client_key": "k.pem"}, "needs client_certificate"),
        ({"client_certificate": "c.pem", "tls": "none"}, "in TLS only"),
    ],
)
def test_settings_that_cannot_work_say_so(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        SmtpSettings(**{"host": "relay.example.org", **settings})


def test_the_digest_covers_every_secret_and_nothing_shows_one() -> None:
    base = {"host": "relay.example.org", **TOKEN, "client_certificate": "c.pem"}
    secrets = {name: f"{name}-{SECRET}" for name in ("client_secret", "refresh_token", "client_key_password")}
    settings = SmtpSettings(**{**base, **secrets})
    digests = {SmtpSettings(**{**base, **secrets, name: "other"}).digest() for name in secrets}
    assert len(digests | {settings.digest()}) == 4
    command = SmtpSettings(host="relay.example.org", username="u", token_command=("get", SECRET))
    assert SECRET not in repr(settings) + repr(command)
    assert settings.secrets() == secrets
