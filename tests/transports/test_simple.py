"""A transport of one's own in a few lines: what its author's code does and says, and what is made of it.

What every transport must do is in test_conformance.py, against a real server; here the author's code is the subject.
"""

from __future__ import annotations

import asyncio
import email
import email.policy
import json
import logging
import math
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from http import HTTPStatus
from typing import Any

import pytest

from sendonce.activities.transports import simple, simple_attempt
from sendonce.activities.transports.base import Asked, Fenced, Job, Recipient, StoreAway
from sendonce.activities.transports.simple_contract import place_of
from sendonce.activities.transports.smtp import SmtpSettings, SmtpTransport
from sendonce.errors import InvalidEmail
from sendonce.message import Attachment, OutgoingEmail
from sendonce.outcome import Accepted, AttemptResult, Outcome, Refused, Reply
from sendonce.testing.attempt import CREATED_AT, RecordingGate, make_job, make_mail
from sendonce.transport import (
    AccountError,
    Capability,
    MaybeTaken,
    NotSent,
    PermanentError,
    Question,
    RetryLater,
    SendError,
    SimpleMail,
    SimpleSettings,
    SimpleTransport,
)

A, B = "ann@example.org", "bob@example.org"
SECRET = "correct-horse-battery"

Send = Callable[[SimpleMail], Awaitable[Any]]


def mail(**changes: Any) -> OutgoingEmail:
    content: dict[str, Any] = {"key": "k1", "sender": "shop@example.org", "to": [A, B], "subject": "Hi", "text": "Hi."}
    return OutgoingEmail(**{**content, **changes})


class Own(SimpleTransport[SimpleSettings]):
    """Does what the test says."""

    name = "own"
    capability = Capability(takes_mime=True, per_recipient=True)

    def __init__(self, send: Send | None = None, **options: Any) -> None:
        self.does = send
        super().__init__(SimpleSettings(**options))

    async def send(self, mail: SimpleMail) -> Any:
        assert self.does is not None
        return await self.does(mail)


class Preparing(Own):
    """Prepares by what the test says, and notes what happened in which order."""

    def __init__(self, prepare: Callable[[], Awaitable[Any]], send: Send | None = None, **options: Any) -> None:
        super().__init__(send or says(lambda: "id-1"), **options)
        self.connects = prepare
        self.left = asyncio.Event()

    @asynccontextmanager
    async def prepare(self, mail: SimpleMail) -> AsyncIterator[Any]:
        try:
            yield await self.connects()
        finally:
            self.left.set()


def says(what: Callable[[], Any]) -> Send:
    """Returns what ``what`` returns, or raises what it raises or returns."""

    async def send(_: SimpleMail) -> Any:
        said = what()
        if isinstance(said, BaseException):
            raise said
        return said

    return send


async def attempt(
    transport: Own, gate: RecordingGate | None = None, content: OutgoingEmail | None = None, **job: Any
) -> AttemptResult:
    result = await transport.transmit(make_job(transport, content or mail(), **job), gate or RecordingGate())
    await transport.close()
    return result


async def outcome_of(transport: Own, gate: RecordingGate | None = None, **job: Any) -> Outcome:
    result = await attempt(transport, gate, **job)
    assert set(result.outcomes) == {0, 1}
    assert result.outcomes[0] == result.outcomes[1]
    return result.outcomes[0]


# What is said -------------------------------------------------------------------------------------------------------


SAID: list[tuple[SendError, str, dict[str, Any]]] = [
    (PermanentError(422, "no such user", name="invalid_to"), "refused", {}),
    (RetryLater(7, 429, "no such user", name="invalid_to"), "deferred", {"retry_after": 7.0}),
    (AccountError(401, "no such user", after=7), "account_fault", {"retry_after": 7.0, "scope": "account"}),
    (AccountError(401, "no such user", sender=True), "account_fault", {"retry_after": None, "scope": "sender"}),
    (NotSent("no such user", after=7), "not_offered", {"retry_after": 7.0, "counted": True}),
    (MaybeTaken(503, "no such user"), "unanswered", {}),
]


@pytest.mark.parametrize(("said", "kind", "more"), SAID, ids=lambda one: type(one).__name__)
async def test_each_exception_of_the_contract_has_its_outcome(said: SendError, kind: str, more: dict[str, Any]) -> None:
    gate = RecordingGate()
    outcome = await outcome_of(Own(says(lambda: said)), gate)
    assert outcome.kind == kind
    assert outcome.reply == said.reply
    assert outcome.reply.text == "no such user"
    assert {name: getattr(outcome, name) for name in more} == more
    assert (gate.begun, gate.offers) == ([(0, 1)], 1)


@pytest.mark.parametrize(("said", "kind", "more"), SAID, ids=lambda one: type(one).__name__)
async def test_said_in_prepare_nothing_was_offered(said: SendError, kind: str, more: dict[str, Any]) -> None:
    gate = RecordingGate()
    outcome = await outcome_of(Preparing(lambda: says(lambda: said)(...)), gate)  # type: ignore[arg-type]
    assert outcome.kind == ("not_offered" if kind == "unanswered" else kind)
    assert outcome.reply == said.reply
    assert gate.begun == []


@pytest.mark.parametrize(
    "error",
    [
        ValueError(SECRET),
        TimeoutError(SECRET),
        ConnectionRefusedError(SECRET),
        ExceptionGroup(SECRET, [PermanentError(422)]),
        Fenced(SECRET),
        StoreAway(SECRET),
        asyncio.CancelledError(SECRET),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_any_other_exception_is_unanswered_and_its_text_is_nowhere(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    outcome = await outcome_of(Own(says(lambda: error)))
    assert outcome.kind == "unanswered"
    assert SECRET not in f"{outcome!r}{caplog.text}"
    if not isinstance(error, asyncio.CancelledError):
        assert outcome.reply.text.startswith(f"send raised {type(error).__name__} at test_simple.py:")
        assert outcome.reply.text in caplog.text


async def test_what_is_handed_over_is_made_storable() -> None:
    text = b"caf\xe9 \x00 \xed\xa0\x80" + b"x" * 5000
    for said in (PermanentError(422, text, name="\x00" * 500), NotSent(text), PermanentError("a\ud83d", "b\ud83d")):
        reply = (await outcome_of(Own(says([said].pop)))).reply
        assert len(reply.text) <= 1000
        assert len(reply.enhanced) <= 100
        assert "\x00" not in reply.text + reply.enhanced
        (reply.text + reply.enhanced).encode()


@pytest.mark.parametrize(
    ("code", "reply"),
    [
        (422, Reply(422)),
        (HTTPStatus.CONFLICT, Reply(409)),
        ("mailbox_full", Reply(0, "mailbox_full")),
        (10_000_000_000, Reply(0, "10000000000")),
        (-1, Reply(0, "-1")),
        (0, Reply()),
        ("", Reply()),
    ],
)
def test_a_code_is_a_number_or_a_name(code: int | str, reply: Reply) -> None:
    assert PermanentError(code).reply == reply
    assert RetryLater(None, code).reply == reply


@pytest.mark.parametrize(
    ("after", "seconds"),
    [(7, 7.0), (0.5, 0.5), ("30", 30.0), ("soon", None), (-3, 0.0), (math.nan, None), (math.inf, None), (None, None)],
)
def test_a_wish_to_wait_is_seconds_or_none(after: Any, seconds: float | None) -> None:
    for said in (RetryLater(after), AccountError(after=after), NotSent(after=after)):
        assert getattr(said.outcome, "retry_after") == seconds  # noqa: B009 - not every outcome has it


async def test_a_refusal_for_some_leaves_the_others_to_be_tried_again_without_them() -> None:
    said = PermanentError(406, f"inactive: {B}", name="inactive", recipients=["BOB@example.org", "who@example.org"])
    outcomes = (await attempt(Own(says(lambda: said)), content=mail(to=[A, "Bob@example.org"]))).outcomes
    assert (outcomes[0].kind, outcomes[0].reply) == ("deferred", Reply(406, "inactive"))
    assert (outcomes[1].kind, outcomes[1].reply) == ("refused", said.reply)


@pytest.mark.parametrize(("recipients", "kinds"), [(B, ["deferred", "refused"]), ([], ["deferred", "deferred"])])
async def test_a_refusal_of_nobody_in_the_envelope_refuses_nobody(recipients: Any, kinds: list[str]) -> None:
    outcomes = (await attempt(Own(says(lambda: PermanentError(recipients=recipients))))).outcomes
    assert [outcomes[ordinal].kind for ordinal in (0, 1)] == kinds


# What is returned ---------------------------------------------------------------------------------------------------


class NoIds(Own):
    gives_id = False


@pytest.mark.parametrize(
    ("made", "said", "expected"),
    [
        (Own, "id-1", Accepted(Reply(), "id-1")),
        (Own, 17, Accepted(Reply(), "17")),
        (Own, "a\x00b", Accepted(Reply(), "a?b")),
        (Own, None, "no id"),
        (Own, "", "no id"),
        (Own, True, "bool"),
        (Own, object(), "object"),
        (Own, ["id-1"], "list"),
        (NoIds, None, Accepted(Reply())),
        (NoIds, "", Accepted(Reply())),
        (NoIds, object(), "object"),
    ],
)
async def test_success_is_an_id(made: type[Own], said: object, expected: Accepted | str) -> None:
    outcome = await outcome_of(made(says(lambda: said)))
    if isinstance(expected, str):
        assert (outcome.kind, outcome.reply.enhanced) == ("unanswered", "no_id")
        assert expected in outcome.reply.text
    else:
        assert outcome == expected


async def test_each_recipient_can_have_its_own_answer() -> None:
    said = {"Ann@Example.org": "id-1", B: PermanentError(550, "no such user"), "who@example.org": "id-2"}
    outcomes = (await attempt(Own(says(lambda: said)))).outcomes
    assert outcomes == {0: Accepted(Reply(), "id-1"), 1: Refused(Reply(550, "", "no such user"))}
    outcomes = (await attempt(Own(says(lambda: {B: RetryLater(5)})))).outcomes
    assert [outcomes[ordinal].kind for ordinal in (0, 1)] == ["unanswered", "deferred"]


# Time and cancellation ----------------------------------------------------------------------------------------------


async def forever(_: Any = None) -> None:
    await asyncio.Event().wait()


async def test_the_answer_timer_ends_the_wait_and_counts_from_the_offer() -> None:
    gate = RecordingGate(on_begin=lambda: asyncio.sleep(0.3))
    transport = Preparing(lambda: asyncio.sleep(0.3), forever)
    outcome = await outcome_of(transport, gate, answer_seconds=0.2)
    assert (outcome.kind, outcome.reply.text) == ("unanswered", "no answer in time")
    assert gate.offers == 1
    assert transport.left.is_set()


class Stubborn:
    """Code that takes no cancellation for an end, until it is told."""

    def __init__(self, *, then: Any) -> None:
        self.then = then
        self.started, self.interrupted, self.end, self.cancelled = asyncio.Event(), asyncio.Event(), asyncio.Event(), 0

    async def __call__(self, _: Any = None) -> Any:
        self.started.set()
        while not self.end.is_set():
            try:
                await self.end.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                self.interrupted.set()
        return await says(lambda: self.then)(...)  # type: ignore[arg-type]


@pytest.mark.parametrize("then", ["id-1", RetryLater(), {A: RetryLater()}])
async def test_code_that_swallows_its_cancellation_does_not_hold_the_attempt(then: Any) -> None:
    send = Stubborn(then=then)
    transport = Own()
    job = make_job(transport, mail(), answer_seconds=0.1)
    got = await received(transport, job)
    transport.does = send
    attempt = simple_attempt.Attempt(transport, job, RecordingGate(), got, prepare_seconds=1)
    try:
        async with asyncio.timeout(1.5):
            result = await attempt.result()
    finally:
        send.end.set()
        await attempt.task
    assert {one.kind for one in result.outcomes.values()} == {"unanswered"}
    assert send.cancelled == 1
    # What it says in the end comes too late to be an answer.
    assert await attempt.result() == result


async def test_an_attempt_that_is_cut_waits_a_moment_for_such_code_and_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(simple_attempt, "STOP_SECONDS", 0.05)
    send = Stubborn(then="id-1")
    transport = Own(send)
    task = asyncio.create_task(transport.transmit(make_job(transport, mail()), RecordingGate()))
    await send.started.wait()
    task.cancel()
    try:
        done, _ = await asyncio.wait({task}, timeout=5)
        assert done
        assert task.cancelled()
    finally:
        send.end.set()
        await transport.close()


async def cut(send: Stubborn, made: type[Own] = Own) -> AttemptResult:
    transport = made(send)
    task = asyncio.create_task(transport.transmit(make_job(transport, mail()), RecordingGate()))
    await send.started.wait()
    task.cancel()
    send.end.set()
    try:
        return await task
    finally:
        await transport.close()


@pytest.mark.parametrize("said", [RetryLater(), PermanentError(422), NotSent(), AccountError(), ValueError()])
async def test_what_interrupted_code_says_is_no_answer(said: Exception) -> None:
    with pytest.raises(asyncio.CancelledError):
        await cut(Stubborn(then=said))


@pytest.mark.parametrize("made", [Own, NoIds])
@pytest.mark.parametrize(
    "said", [None, "", False, object(), {}, {A: RetryLater(), B: PermanentError(550)}, {A: None, B: ""}]
)
async def test_nor_is_what_it_returns(made: type[Own], said: object) -> None:
    with pytest.raises(asyncio.CancelledError):
        await cut(Stubborn(then=said), made)


async def test_but_an_id_in_hand_is() -> None:
    for said in ("id-1", 17, {A: "id-1", B: "id-1"}):
        result = await cut(Stubborn(then=said))
        assert {one.kind for one in result.outcomes.values()} == {"accepted"}


@pytest.mark.parametrize("other", [RetryLater(), PermanentError(550), None])
async def test_and_an_id_for_some_is_nothing_for_the_others(other: object) -> None:
    for made in (Own, NoIds):
        outcomes = (await cut(Stubborn(then={A: "id-1", B: other}), made)).outcomes
        assert outcomes[0] == Accepted(Reply(), "id-1")
        assert (outcomes[1].kind, "told to stop" in outcomes[1].reply.text) == ("unanswered", True)


async def test_what_code_says_that_is_cut_as_its_account_closes_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simple, "CLOSE_SECONDS", 0.05)
    send = Stubborn(then=RetryLater())
    transport = Own(send)
    task = asyncio.create_task(transport.transmit(make_job(transport, mail()), RecordingGate()))
    await send.started.wait()
    closing = asyncio.create_task(transport.close())
    await send.interrupted.wait()
    send.end.set()
    await closing
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_prepare_has_its_time() -> None:
    gate = RecordingGate()
    transport = Preparing(forever, prepare_seconds=0.1)
    outcome = await outcome_of(transport, gate)
    assert (outcome.kind, gate.begun) == ("not_offered", [])
    assert transport.left.is_set()


@pytest.mark.parametrize("then", ["connection", NotSent(), KeyError()])
async def test_prepare_that_swallows_its_cancellation_leads_to_no_begin(then: Any) -> None:
    gate = RecordingGate()
    prepare = Stubborn(then=then)
    transport = Preparing(prepare)
    task = asyncio.create_task(transport.transmit(make_job(transport, mail()), gate))
    await prepare.started.wait()
    task.cancel()
    prepare.end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    await transport.close()
    assert gate.begun == []


async def test_cancelled_before_its_first_step_nothing_was_done() -> None:
    gate = RecordingGate()
    transport = Own(says(lambda: "id-1"))
    job = make_job(transport, mail())
    attempt = simple_attempt.Attempt(transport, job, gate, await received(Own(), job), prepare_seconds=1)
    attempt.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt.result()
    assert gate.begun == []


async def test_begin_is_waited_for_however_long_and_says_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simple_attempt, "STOP_SECONDS", 0.05)
    begun, release = asyncio.Event(), asyncio.Event()

    async def shielded() -> None:
        begun.set()
        while not release.is_set():
            with suppress(asyncio.CancelledError):
                await release.wait()
        raise StoreAway

    transport = Own(says(lambda: "id-1"))
    task = asyncio.create_task(transport.transmit(make_job(transport, mail()), RecordingGate(on_begin=shielded)))
    await begun.wait()
    for _ in range(3):
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=0.1)
        assert not done
    release.set()
    with pytest.raises(StoreAway):
        await task
    await transport.close()


async def test_the_outcome_is_handed_over_before_the_connection_is_closed() -> None:
    closing, release = asyncio.Event(), asyncio.Event()

    class Slow(Own):
        @asynccontextmanager
        async def prepare(self, mail: SimpleMail) -> AsyncIterator[str]:
            yield "line"
            closing.set()
            await release.wait()
            raise RuntimeError(SECRET)

    seen: list[Any] = []

    async def send(mail: SimpleMail) -> str:
        seen.append(mail.prepared)
        return "id-1"

    transport = Slow(send)
    result = await transport.transmit(make_job(transport, mail()), RecordingGate())
    assert result.outcomes[0] == Accepted(Reply(), "id-1")
    assert seen == ["line"]
    await closing.wait()
    release.set()
    await transport.close()


async def test_an_id_in_hand_when_it_is_cut_is_kept_and_the_connection_closes_in_order() -> None:
    left: list[str] = []

    class Orderly(Own):
        @asynccontextmanager
        async def prepare(self, mail: SimpleMail) -> AsyncIterator[None]:
            yield
            await asyncio.sleep(0.2)  # longer than the answer is awaited
            left.append("in order")

    async def send(_: SimpleMail) -> str:
        task.cancel()
        return "id-1"

    transport = Orderly(send)
    job = make_job(transport, mail(), answer_seconds=0.1)
    task = asyncio.create_task(transport.transmit(job, RecordingGate()))
    assert (await task).outcomes[0] == Accepted(Reply(), "id-1")
    await transport.close()
    assert left == ["in order"]


async def test_a_failure_to_close_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Careless(Own):
        @asynccontextmanager
        async def prepare(self, mail: SimpleMail) -> AsyncIterator[None]:
            yield
            raise RuntimeError(SECRET)

    assert (await outcome_of(Careless(says(lambda: "id-1")))).kind == "accepted"
    assert "leaving prepare failed: key=k1 RuntimeError at test_simple.py:" in caplog.text
    assert SECRET not in caplog.text


async def test_prepare_is_left_before_a_refused_begin_gets_out() -> None:
    transport = Preparing(lambda: asyncio.sleep(0))
    with pytest.raises(Fenced):
        await transport.transmit(make_job(transport, mail()), RecordingGate(refuse=Fenced()))
    assert transport.left.is_set()
    await transport.close()


# Faults before the offer --------------------------------------------------------------------------------------------


def raised_from(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


CERTIFICATE = ssl.SSLCertVerificationError(1, SECRET)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConnectionRefusedError(SECRET), "not_offered"),
        (OSError(f"Multiple exceptions: {SECRET}"), "not_offered"),
        (ssl.SSLError(SECRET), "not_offered"),
        (raised_from(RuntimeError(SECRET), ConnectionResetError(SECRET)), "not_offered"),
        (CERTIFICATE, "account_fault"),
        (raised_from(ConnectionError(SECRET), CERTIFICATE), "account_fault"),
    ],
)
async def test_a_connection_that_fails_in_prepare(
    error: Exception, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    gate = RecordingGate()
    outcome = await outcome_of(Preparing(lambda: says(lambda: error)(...)), gate)  # type: ignore[arg-type]
    assert (outcome.kind, gate.begun) == (kind, [])
    assert getattr(outcome, "counted", True)
    assert SECRET not in f"{outcome!r}{caplog.text}"


@pytest.mark.parametrize("error", [KeyError("x"), FileNotFoundError("key.pem"), PermissionError("key.pem")])
async def test_a_fault_of_the_code_is_nobodys_attempt(error: Exception) -> None:
    gate = RecordingGate()
    transport = Preparing(lambda: says(lambda: error)(...))  # type: ignore[arg-type]
    with pytest.raises(type(error)):
        await attempt(transport, gate)
    assert gate.begun == []


async def test_prepare_that_cancels_itself_is_a_fault_of_the_code() -> None:
    # Not CancelledError: that would be tried again at once, and again.
    transport = Preparing(lambda: says(asyncio.CancelledError)(...))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="cancelled from within"):
        await attempt(transport)


# What it gets -------------------------------------------------------------------------------------------------------


FULL = {
    "sender": "Shop, Inc. <shop@example.org>",
    "envelope_sender": "bounces@example.org",
    "to": ["Ann Ü <ann@example.org>"],
    "cc": [B],
    "bcc": ["eve@example.org"],
    "reply_to": ["help@example.org"],
    "subject": "Grüße",
    "html": "<p>Hi</p>",
    "headers": {"X-Order": "17"},
    "attachments": [Attachment(filename="a.bin", content=bytes(range(256)), content_type="application/pdf")],
}


async def received(transport: Own, job: Job) -> SimpleMail:
    found: list[SimpleMail] = []

    async def send(mail: SimpleMail) -> str:
        found.append(mail)
        return "id-1"

    transport.does = send
    await transport.transmit(job, RecordingGate())
    await transport.close()
    return found[0]


async def test_everything_that_was_asked_for_is_there() -> None:
    content, transport = mail(**FULL), Own()
    got = await received(transport, make_job(transport, content, provider_key="p.k1.1", answer_seconds=12))
    assert got.content == content
    assert (got.email_id, got.key, got.account, got.message_id) == ("id-k1", "k1", "default", "<k1@sendonce.test>")
    assert (got.created_at, got.idempotency_key, got.answer_seconds) == (CREATED_AT, "p.k1.1", 12)
    assert got.envelope_sender == "bounces@example.org"
    assert got.recipients == (A, B, "eve@example.org")
    assert got.prepared is None
    smtp = SmtpTransport(SmtpSettings(host="relay.example.org"))
    assert got.body == make_job(smtp, content).rendering.body
    assert email.message_from_bytes(got.body, policy=email.policy.default)["Subject"] == "Grüße"


async def test_only_those_who_are_left_are_named() -> None:
    content, transport = mail(**FULL), Own()
    job = make_job(transport, content, ordinals=(1,))
    got = await received(transport, job)
    assert got.recipients == (B,)
    assert [one.mailbox for one in (*got.content.to, *got.content.cc, *got.content.bcc)] == [B]
    # The message itself names them all, as any other copy of it does.
    assert A.encode() in got.body


@pytest.mark.parametrize(
    "content",
    [
        mail(text=None, template="order", parameters={"n": 1}).model_copy(update={"text": "Order 1", "rendered": True}),
        OutgoingEmail.from_mime(b"From: shop@example.org\r\nTo: ann@example.org\r\n\r\nHi\r\n", key="k1"),
        mail(text=None, attachments=[Attachment.calendar("BEGIN:VCALENDAR\r\nMETHOD:REQUEST\r\nEND:VCALENDAR\r\n")]),
    ],
    ids=["template", "ready-made", "calendar"],
)
async def test_every_kind_of_mail_comes_through(content: OutgoingEmail) -> None:
    transport = Own()
    assert (await received(transport, make_job(transport, content))).content == content


class Requesting(Own):
    def request(self, mail: SimpleMail) -> bytes:
        if mail.content.subject == "never":
            raise PermanentError("too_large", "not with us")
        return b"length " + str(len(mail.body)).encode() + f" {mail.idempotency_key} {mail.recipients}".encode()


async def test_the_request_is_made_once_and_sent_as_it_was_pinned() -> None:
    transport = Requesting()
    job = make_job(transport, mail(), provider_key="p.k1.1")
    assert job.rendering == make_job(transport, mail(), provider_key="p.k1.1").rendering
    assert job.rendering.body.startswith(b"length ")
    assert job.rendering.body.endswith(f" p.k1.1 {(A, B)}".encode())
    later = replace(job, rendering=replace(job.rendering, body=b"as it was pinned"))
    assert (await received(transport, later)).body == b"as it was pinned"


async def test_what_send_can_see_is_under_the_digest() -> None:
    transport = Requesting()
    one = transport.render(make_mail(mail()), (Recipient(0, A),), "p")
    other = transport.render(make_mail(mail(html="<p>another</p>", text=None)), (Recipient(0, A),), "p")
    assert replace(other, headers=()).body != b""
    assert replace(one, body=other.body).digest() != other.digest()


def test_content_that_can_never_be_carried_is_refused() -> None:
    with pytest.raises(InvalidEmail) as caught:
        make_job(Requesting(), mail(subject="never"))
    assert (caught.value.field, caught.value.reason) == ("too_large", "not with us")


def test_requests_are_kept_apart_by_generation_and_account() -> None:
    slots = {Own(scope=scope).slot(generation) for scope in ("one", "two") for generation in (1, 2)}
    assert len(slots) == 4
    assert Own(scope="one").identity == "own:one"


async def test_a_mail_can_be_logged() -> None:
    transport = Own()
    got = await received(transport, make_job(transport, mail()))
    assert "example.org" not in repr(got)


# Asking -------------------------------------------------------------------------------------------------------------


class Asking(Own):
    capability = Capability(look_up="reference")

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer

    async def ask(self, question: Question) -> Any:
        assert question.provider_key == "p.k1.1"
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


QUESTION = Question("id-k1", "k1", "<k1@x>", "p.k1.1", CREATED_AT, (Recipient(0, A), Recipient(3, B)))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (None, {}),
        ("", {}),
        ({}, {}),
        ("id-1", {0: Accepted(Reply(), "id-1"), 3: Accepted(Reply(), "id-1")}),
        (
            {"Ann@example.org": PermanentError(550), B: "id-2", "who@example.org": "id-3"},
            {0: Refused(Reply(550)), 3: Accepted(Reply(), "id-2")},
        ),
        ({A: None, B: RetryLater()}, {}),
        (17, {0: Accepted(Reply(), "17"), 3: Accepted(Reply(), "17")}),
        ({A: 17, B: True}, {0: Accepted(Reply(), "17")}),
        (object(), {}),
    ],
)
async def test_what_the_provider_knows(answer: Any, expected: dict[int, Outcome]) -> None:
    assert await Asking(answer).look_up(QUESTION) == expected


async def test_a_question_without_a_usable_answer_proves_nothing() -> None:
    with pytest.raises(Asked) as caught:
        await Asking(RetryLater(7, 429)).look_up(QUESTION)
    assert (caught.value.why, caught.value.retry_after) == ("429", 7)
    # A 404 of the search says nothing of the mail.
    with pytest.raises(Asked):
        await Asking(PermanentError(404, name="not_found")).look_up(QUESTION)


def test_a_place_is_where_somebody_elses_code_failed() -> None:
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads("{")
    first, last = place_of(caught.value).removeprefix("JSONDecodeError at ").split(" ")
    assert first.startswith("test_simple.py:")
    assert last.startswith("decoder.py:")
    assert place_of(ValueError(SECRET)) == "ValueError at unknown place"
