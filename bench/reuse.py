"""What a connection that is kept saves: mails one after the other over it, beside a new connection for each.

No store and no engine: a transport hands its mail to a server of :mod:`sendonce.testing` on loopback. What a new
connection costs over a distance, a few more round trips, is not in it.

SMTP is measured as it is used, with its pool as set by default, and with one mail per connection. Over HTTP every mail
goes by a connection of its own, because a kept one may be dead without our knowing until the request is written. What
that costs is measured with a bare HTTP client, which posts the same requests over a connection that it keeps or
not; and beside it what the transport takes.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from bench.feed import mail
from bench.mail import mailbox
from bench.part import Handler, Part, PartFailed
from bench.stack import Machine
from sendonce.activities.transports.resend import ResendSettings, ResendTransport
from sendonce.activities.transports.smtp import SmtpSettings, SmtpTransport
from sendonce.testing.attempt import RecordingGate, make_job
from sendonce.testing.certificate import self_signed
from sendonce.testing.http_server import HttpServer
from sendonce.testing.resend_server import ResendServer
from sendonce.testing.smtp_server import SmtpServer

SERVERS = ("SMTP", "SMTP, STARTTLS", "HTTP", "HTTPS")
KEPT, NEW, TRANSPORT = "kept", "one each", "one each, by our transport"
WAYS = tuple(
    (server, how) for server in SERVERS for how in ((KEPT, NEW, TRANSPORT) if "HTTP" in server else (KEPT, NEW))
)
MAILS = 100
"""Per way and round: as many as a kept SMTP connection carries by default."""

Post = Callable[[str], Awaitable[None]]
"""Writes and sends the mail under a key."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One round of one way."""

    ms: float
    """The median of the mails."""
    cpu_ms: float
    """Of the process that sends, per mail."""
    server_cpu_ms: float
    """Of the server, per mail."""
    connections: int
    """That it took for all mails of the round."""


@dataclass
class Reuse:
    """All rounds of all ways; a way is called ``<server>: <how>``."""

    mails: int
    """Per way and round."""
    rounds: dict[str, list[Sent]] = field(default_factory=dict)

    def summary(self) -> dict[str, dict[str, float]]:
        """Medians over the rounds, by way."""
        fields = ("ms", "cpu_ms", "server_cpu_ms", "connections")
        return {
            way: {name: median(getattr(one, name) for one in rounds) for name in fields}
            for way, rounds in self.rounds.items()
        }


# In processes of their own --------------------------------------------------------------------------------------


@asynccontextmanager
async def servers(certificates: str) -> AsyncIterator[Handler]:
    """Commands: ``ports``, with the certificate to trust; ``taken`` by a server since it was asked last."""
    certificate = self_signed(Path(certificates), "IP:127.0.0.1")
    playing: dict[str, SmtpServer | HttpServer] = {
        "SMTP": SmtpServer(),
        "SMTP, STARTTLS": SmtpServer(tls=certificate.context),
        "HTTP": ResendServer(),
        "HTTPS": ResendServer(tls=certificate.context),
    }
    async with AsyncExitStack() as closing:
        for server in playing.values():
            await closing.enter_async_context(server)

        async def handle(command: dict[str, Any]) -> Any:
            if "taken" not in command:
                return {name: server.port for name, server in playing.items()}, str(certificate.file)
            server = playing[command["taken"]]
            recipients = [one for stored in server.mailbox.mails() for one in stored.recipients]
            server.mailbox.clear()
            connections = len(server.sessions) if isinstance(server, SmtpServer) else server.connections
            return recipients, connections, time.process_time()

        yield handle


def _transport(server: str, how: str, port: int, ca_file: str) -> SmtpTransport | ResendTransport:
    if server.startswith("SMTP"):
        options: dict[str, Any] = {"tls": "none"} if server == "SMTP" else {"ca_file": ca_file}
        if how == NEW:
            options["pool"] = {"mails_per_connection": 1}
        return SmtpTransport(SmtpSettings.model_validate({"host": "127.0.0.1", "port": port, **options}))
    account = {"api_key": "re_bench", "base_url": f"{server.lower()}://127.0.0.1:{port}", "ca_file": ca_file}
    return ResendTransport(ResendSettings.model_validate(account))


@asynccontextmanager
async def _post(server: str, how: str, port: int, ca_file: str) -> AsyncIterator[Post]:
    transport = _transport(server, how, port, ca_file)
    kept = httpx.Limits(max_keepalive_connections=1 if how == KEPT else 0)
    context = ssl.create_default_context(cafile=ca_file)
    async with AsyncExitStack() as closing:
        closing.push_async_callback(transport.close)
        client = await closing.enter_async_context(httpx.AsyncClient(verify=context, trust_env=False, limits=kept))

        async def transmit(key: str) -> None:
            await transport.transmit(make_job(transport, mail(key)), RecordingGate())

        async def post(key: str) -> None:
            assert isinstance(transport, ResendTransport)
            request = make_job(transport, mail(key)).rendering
            headers = {**dict(request.headers), **transport.secrets(key)}
            await client.post(request.url, content=request.body, headers=headers)

        yield post if server.startswith("HTTP") and how != TRANSPORT else transmit


@asynccontextmanager
async def sender() -> AsyncIterator[Handler]:
    """Sends ``number`` mails one after the other; answers what each took in ms, and the CPU seconds of all."""

    async def handle(command: dict[str, Any]) -> Any:
        times = []
        async with _post(*(command[name] for name in ("server", "how", "port", "ca_file"))) as post:
            used = time.process_time()
            for n in range(command["number"]):
                begun = time.perf_counter()
                await post(f"{command['prefix']}-{n}")
                times.append((time.perf_counter() - begun) * 1000)
            used = time.process_time() - used
        return times, used

    yield handle


# From here on in the benchmark ----------------------------------------------------------------------------------


async def run(machine: Machine, rounds: int, say: Callable[[str], None], *, mails: int = MAILS) -> Reuse:
    """Every way once, then again. Raises :class:`PartFailed` unless each mail came exactly once."""
    found = Reuse(mails)
    async with (
        await Part.start("bench.reuse:servers", machine.folder, certificates=str(machine.folder)) as playing,
        await Part.start("bench.reuse:sender", machine.folder) as sending,
    ):
        ports, ca_file = await playing.call(ports=True)

        async def measure(server: str, how: str, number: int) -> Sent:
            prefix = f"reuse{machine.number()}"
            _, connections, used = await playing.call(taken=server)
            where = {"server": server, "how": how, "port": ports[server], "ca_file": ca_file}
            times, own = await sending.call(prefix=prefix, number=number, **where)
            taken, connections_now, used_now = await playing.call(taken=server)
            if sorted(taken) != sorted(mailbox(f"{prefix}-{n}") for n in range(number)):
                raise PartFailed(f"{server}, {how}: {number} mails were sent, and {len(taken)} came")
            per_mail = 1000 / number
            return Sent(median(times), own * per_mail, (used_now - used) * per_mail, connections_now - connections)

        for server, how in WAYS:  # a few to warm up
            await measure(server, how, 3)
        for number in range(rounds):
            for server, how in WAYS:
                found.rounds.setdefault(f"{server}: {how}", []).append(await measure(server, how, mails))
            say(f"round {number + 1}: connections kept and not, {mails} mails each way")
    return found
