"""Amazon SES: how a mail is written for it, how requests are signed, and what each of its answers means."""

from __future__ import annotations

import base64
import email
import email.policy
import json
import shlex
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from sendonce.activities.transports.base import LooksUp
from sendonce.activities.transports.http_answer import Answer
from sendonce.activities.transports.mime import render_mime
from sendonce.activities.transports.ses import SesSettings, SesTransport, classify
from sendonce.errors import ConfigurationError
from sendonce.message import OutgoingEmail
from sendonce.outcome import Accepted, AccountFault, AttemptResult, Outcome, Refused, Unanswered
from sendonce.settings import build_transports, load
from sendonce.testing import http_misbehaviour as bad
from sendonce.testing.attempt import RecordingGate, make_job, make_mail
from sendonce.testing.ses_server import SesServer, ses_error

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
A, B, C = "a@example.org", "b@example.org", "c@example.org"
SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
GIVEN = {"access_key_id": SecretStr("AKIA1"), "secret_access_key": SecretStr(SECRET)}


@pytest.fixture
async def ses() -> AsyncIterator[SesServer]:
    server = SesServer()
    server.secrets = {"AKIA1": SECRET}
    server.now = lambda: NOW
    async with server:
        yield server


@pytest.fixture
def aws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of AWS's shared files; nothing else of this machine is found by its chain."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return tmp_path


def mail(**changes: Any) -> OutgoingEmail:
    content: dict[str, Any] = {"key": "k1", "sender": "shop@example.org", "to": [A], "subject": "Hi", "text": "Hi.\n"}
    return OutgoingEmail(**{**content, **changes})


def transport_for(
    server: SesServer | None = None, now: datetime = NOW, given: dict[str, Any] = GIVEN, **settings: Any
) -> SesTransport:
    url = {"base_url": server.origin} if server else {}
    return SesTransport(SesSettings(**{"region": "eu-central-1", **given, **url, **settings}), now=lambda: now)


async def send(server: SesServer, content: OutgoingEmail | None = None, **settings: Any) -> Outcome:
    transport = transport_for(server, **settings)
    try:
        return await send_by(transport, content)
    finally:
        await transport.close()


async def send_by(transport: SesTransport, content: OutgoingEmail | None = None) -> Outcome:
    result: AttemptResult = await transport.transmit(make_job(transport, content or mail()), RecordingGate())
    [outcome] = {id(one): one for one in result.outcomes.values()}.values()
    return outcome


def written(content: OutgoingEmail, ordinals: tuple[int, ...] | None = None, **settings: Any) -> dict[str, Any]:
    body = make_job(transport_for(**settings), content, ordinals=ordinals).rendering.body
    found: dict[str, Any] = json.loads(body)
    return found


def answer(status: int, name: str = "", message: str = "") -> Answer:
    headers = {"Retry-After": "7"} | ({"x-amzn-ErrorType": f"{name}:http://internal.test/"} if name else {})
    return Answer(status, headers, json.dumps({"message": message}).encode(), NOW)


# The request


def test_a_mail_as_it_is_written() -> None:
    content = mail(to=["Jörg <jörg@bücher.example>", A], cc=[B, "JÖRG <jörg@BÜCHER.example>"], bcc=[C])
    transport = transport_for(configuration_set="transactional")
    rendering = make_job(transport, content).rendering
    assert rendering.method == "POST"
    assert rendering.url == "https://email.eu-central-1.amazonaws.com/v2/email/outbound-emails"
    assert rendering.headers == (("Content-Type", "application/json"),)
    assert json.loads(rendering.body) == {
        "Destination": {
            "ToAddresses": ["jörg@xn--bcher-kva.example", A],
            "CcAddresses": [B],
            "BccAddresses": [C],
        },
        "Content": {"Raw": {"Data": base64.b64encode(render_mime(make_mail(content))).decode()}},
        "EmailTags": [{"Name": "sendonce_id", "Value": "id-k1"}, {"Name": "sendonce_key", "Value": "k1"}],
        "ConfigurationSetName": "transactional",
    }


def test_tags_hold_what_the_key_may_and_tags_may_not() -> None:
    assert written(mail(key="order:1.a"))["EmailTags"][1] == {"Name": "sendonce_key", "Value": "order_1_a"}


@pytest.mark.parametrize(
    ("ordinals", "expected"),
    [
        ((0,), {"ToAddresses": [A]}),
        ((1, 2), {"CcAddresses": [B], "BccAddresses": [C]}),
        ((2,), {"BccAddresses": [C]}),
    ],
)
def test_only_the_envelope_is_named(ordinals: tuple[int, ...], expected: dict[str, Any]) -> None:
    assert written(mail(cc=[B], bcc=[C]), ordinals)["Destination"] == expected


def test_bounces_are_forwarded_where_the_mail_says() -> None:
    name = "FeedbackForwardingEmailAddress"
    assert written(mail(envelope_sender="bounces@example.org"))[name] == "bounces@example.org"
    assert name not in written(mail(envelope_sender=""))
    assert name not in written(mail())


async def test_ready_made_mime_goes_as_it_is_to_the_envelope(ses: SesServer) -> None:
    ready = (
        b"From: shop@example.org\r\nTo: a@example.org\r\nBcc: c@example.org\r\nSubject: Hi\r\n"
        b"Date: Thu, 01 Jan 2026 00:00:00 +0000\r\nMessage-ID: <m@example.org>\r\n\r\nHi.\r\n"
    )
    content = OutgoingEmail.from_mime(ready, key="k1")
    assert transport_for().capability.takes_mime
    assert isinstance(await send(ses, content), Accepted)
    [stored] = ses.mailbox.mails()
    assert sorted(stored.recipients) == [A, C]
    data = base64.b64decode(stored.json()["Content"]["Raw"]["Data"])
    assert data == ready.replace(b"Bcc: c@example.org\r\n", b"")
    assert email.message_from_bytes(data, policy=email.policy.default)["Bcc"] is None


@pytest.mark.parametrize(
    ("settings", "origin"),
    [
        ({"region": "cn-north-1"}, "https://email.cn-north-1.amazonaws.com.cn"),
        ({"region": "us-gov-west-1"}, "https://email.us-gov-west-1.amazonaws.com"),
        ({"base_url": "https://vpce-1.example.com/"}, "https://vpce-1.example.com"),
    ],
)
def test_where_the_api_is(settings: dict[str, Any], origin: str) -> None:
    transport = transport_for(**settings)
    assert make_job(transport, mail()).rendering.url == f"{origin}/v2/email/outbound-emails"
    assert transport.identity == f"ses:{origin.removeprefix('https://')}"


# Signatures


async def test_what_is_sent_is_signed_and_nothing_of_it_is_pinned(ses: SesServer) -> None:
    ses.session_token = "token of a session"
    outcome = await send(ses, session_token=SecretStr("token of a session"))
    [stored] = ses.mailbox.mails()
    assert isinstance(outcome, Accepted)
    assert outcome.provider_id == stored.provider_id != ""
    [request] = ses.requests
    assert request.headers["x-amz-date"] == "20260101T120000Z"
    assert "Credential=AKIA1/20260101/eu-central-1/ses/aws4_request" in request.headers["authorization"]
    job = make_job(transport_for(ses), mail())
    assert job.rendering.body == request.body
    assert dict(job.rendering.headers).keys() == {"Content-Type"}
    assert "AKIA1" not in repr(job.rendering)


async def test_the_same_bytes_are_signed_anew_each_time(ses: SesServer) -> None:
    job = make_job(transport_for(ses), mail())
    for now in (NOW, NOW + timedelta(days=2)):
        ses.now = lambda now=now: now  # type: ignore[misc]
        transport = transport_for(ses, now)
        result = await transport.transmit(job, RecordingGate())
        await transport.close()
        assert isinstance(result.outcomes[0], Accepted)
    first, second = ses.requests
    assert first.body == second.body
    assert first.headers["authorization"] != second.headers["authorization"]


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"given": {**GIVEN, "secret_access_key": SecretStr("other")}}, "InvalidSignatureException"),
        ({"given": {**GIVEN, "access_key_id": SecretStr("AKIA2")}}, "UnrecognizedClientException"),
        ({"region": "eu-west-1"}, "InvalidSignatureException"),
        ({"now": NOW + timedelta(hours=1)}, "InvalidSignatureException"),
    ],
)
async def test_what_is_wrong_with_credentials_is_the_accounts_fault(
    ses: SesServer, settings: dict[str, Any], name: str
) -> None:
    outcome = await send(ses, **settings)
    assert outcome == AccountFault(outcome.reply, None, "account")
    assert outcome.reply.enhanced == name
    assert ses.mailbox.mails() == []


# Credentials


async def test_credentials_are_found_as_every_aws_tool_does(
    ses: SesServer, aws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA1")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    assert isinstance(await send(ses, given={}), Accepted)


async def test_a_profile_is_found_and_a_replaced_key_is_read_anew(ses: SesServer, aws: Path) -> None:
    (aws / "credentials").write_text("[mail]\naws_access_key_id = AKIA1\naws_secret_access_key = old\n")
    transport = transport_for(ses, given={}, profile="mail")
    assert isinstance(await send_by(transport), AccountFault)
    (aws / "credentials").write_text(f"[mail]\naws_access_key_id = AKIA1\naws_secret_access_key = {SECRET}\n")
    assert isinstance(await send_by(transport), Accepted)
    await transport.close()


async def test_credentials_that_expire_are_fetched_again(ses: SesServer, aws: Path) -> None:
    # The command counts its runs in the token that it gives out, and every token is at its end already.
    given = {"Version": 1, "AccessKeyId": "AKIA1", "SecretAccessKey": SECRET}
    script = aws / "command.py"
    script.write_text(
        "import json, pathlib, datetime\n"
        "runs = pathlib.Path(__file__).with_suffix('.runs')\n"
        "runs.write_text((runs.read_text() if runs.exists() else '') + 'x')\n"
        "end = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=30)\n"
        f"print(json.dumps({{**{given!r}, 'SessionToken': runs.read_text(), 'Expiration': end.isoformat()}}))\n"
    )
    command = shlex.join([sys.executable, str(script)])
    (aws / "config").write_text(f"[profile mail]\ncredential_process = {command}\n")
    transport = transport_for(ses, given={}, profile="mail")
    for _ in range(2):
        assert isinstance(await send_by(transport), Accepted)
    await transport.close()
    first, second = (request.headers["x-amz-security-token"] for request in ses.requests)
    assert len(first) < len(second)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ("", "AWS gave no credentials (ProfileNotFound)"),
        ("[profile mail]\nregion = eu-central-1\n", "no AWS credentials: set access_key_id"),
        ("[profile mail]\ncredential_process = /nowhere/hunter2\n", "AWS gave no credentials (FileNotFoundError)"),
    ],
)
async def test_without_credentials_nothing_is_offered(ses: SesServer, aws: Path, config: str, says: str) -> None:
    (aws / "config").write_text(config)
    transport, gate = transport_for(ses, given={}, profile="mail"), RecordingGate()
    result = await transport.transmit(make_job(transport, mail()), gate)
    await transport.close()
    outcome = result.outcomes[0]
    assert outcome == AccountFault(outcome.reply, None, "account")
    assert outcome.reply.enhanced == "no_credentials"
    assert outcome.reply.text.startswith(says)
    assert "hunter2" not in outcome.reply.text
    assert (gate.begun, ses.requests) == ([], [])


async def test_credentials_that_take_too_long_are_not_waited_for(ses: SesServer, aws: Path) -> None:
    release = aws / "release"
    script = aws / "command.py"
    script.write_text(
        "import pathlib, sys, time\n"
        f"while not pathlib.Path({str(release)!r}).exists():\n    time.sleep(0.01)\n"
        "sys.exit(1)\n"
    )
    (aws / "config").write_text(f"[profile mail]\ncredential_process = {shlex.join([sys.executable, str(script)])}\n")
    try:
        outcome = await send(ses, given={}, profile="mail", connect_seconds=0.05)
    finally:
        release.touch()
    assert outcome.reply.text == "AWS gave no credentials within 0.05 s"
    assert ses.requests == []


# Answers


@pytest.mark.parametrize(
    ("found", "kind", "scope"),
    [
        (answer(400, "MessageRejected", "Illegal filename 'a.exe'."), "refused", None),
        (answer(400, "BadRequestException", "Missing final '@domain'"), "refused", None),
        (answer(400), "refused", None),
        (answer(413), "refused", None),
        (answer(400, "MessageRejected", "Email address is not verified. The following …"), "account_fault", "sender"),
        (answer(400, "BadRequestException", "Email address is not verified."), "account_fault", "sender"),
        (answer(400, "MailFromDomainNotVerifiedException"), "account_fault", "sender"),
        (answer(403, "AccessDeniedException", "… on resource `arn:aws:ses:r:1:identity/x'"), "account_fault", "sender"),
        (answer(403, "AccessDeniedException", "… no policy allows ses:SendEmail"), "account_fault", "account"),
        (answer(400, "MessageRejected", "Sending suspended for this account."), "account_fault", "account"),
        (answer(400, "MessageRejected", "Sending is paused for this account."), "account_fault", "account"),
        (answer(400, "AccountSuspendedException"), "account_fault", "account"),
        (answer(400, "SendingPausedException"), "account_fault", "account"),
        (answer(400, "LimitExceededException"), "account_fault", "account"),
        (answer(404, "NotFoundException", "Configuration set does not exist."), "account_fault", "account"),
        (answer(404, "UnknownOperationException"), "account_fault", "account"),
        (answer(429, "TooManyRequestsException"), "deferred", None),
        (answer(400, "ThrottlingException", "Maximum sending rate exceeded."), "deferred", None),
        (answer(400, "Throttling", "Rate exceeded"), "deferred", None),
        (answer(400, "LimitExceededException", "Maximum sending rate exceeded."), "deferred", None),
        (answer(429), "deferred", None),
        (answer(400, "ThrottlingException", "Daily message quota exceeded."), "account_fault", "account"),
        (answer(429, "TooManyRequestsException", "Daily message quota exceeded."), "account_fault", "account"),
        (answer(403, "InvalidSignatureException"), "account_fault", "account"),
        (answer(403, "SignatureDoesNotMatch"), "account_fault", "account"),
        (answer(400, "IncompleteSignature"), "account_fault", "account"),
        (answer(400, "ExpiredTokenException"), "account_fault", "account"),
        (answer(400, "RequestExpired"), "account_fault", "account"),
        (answer(403, "UnrecognizedClientException"), "account_fault", "account"),
        (answer(403, "MissingAuthenticationTokenException"), "account_fault", "account"),
        (answer(403, "OptInRequired"), "account_fault", "account"),
        (answer(403), "account_fault", "account"),
        (answer(302), "account_fault", "account"),
        (answer(408), "unanswered", None),
        (answer(409), "unanswered", None),
        (answer(500, "InternalFailure"), "unanswered", None),
        (answer(503, "ThrottlingException", "Maximum sending rate exceeded."), "unanswered", None),
        (answer(500, "AccessDeniedException"), "unanswered", None),
        (Answer(200, {}, b'{"MessageId": "0100"}', NOW), "accepted", None),
        (Answer(200, {}, b"{}", NOW), "unanswered", None),
        (Answer(200, {}, b"<html>", NOW), "unanswered", None),
    ],
)
def test_what_each_answer_means(found: Answer, kind: str, scope: str | None) -> None:
    outcome = classify(found)
    assert (outcome.kind, getattr(outcome, "scope", None)) == (kind, scope)
    assert outcome.reply.code == found.status
    if kind in ("deferred", "account_fault"):
        assert getattr(outcome, "retry_after", None) == 7.0


@pytest.mark.parametrize(
    "body",
    [
        {"__type": "com.amazonaws.ses#SendingPausedException", "message": "x"},
        {"__type": "SendingPausedException", "Message": "x"},
        {"code": "SendingPaused"},
    ],
)
def test_an_error_is_named_in_the_body_too(body: dict[str, str]) -> None:
    outcome = classify(Answer(400, {}, json.dumps(body).encode(), NOW))
    assert isinstance(outcome, AccountFault)
    assert outcome.reply.enhanced.startswith("SendingPaused")


async def test_who_is_not_verified(ses: SesServer) -> None:
    ses.verified = frozenset({"example.com"})
    outcome = await send(ses)
    assert outcome == AccountFault(outcome.reply, None, "sender")
    assert outcome.reply.enhanced == "MessageRejected"
    assert isinstance(await send(ses, mail(sender="shop@example.com")), Accepted)
    forwarded = await send(ses, mail(sender="shop@example.com", envelope_sender="bounces@example.org"))
    assert getattr(forwarded, "scope", None) == "sender"
    ses.in_sandbox = True
    sandboxed = await send(ses, mail(sender="shop@example.com"))
    assert getattr(sandboxed, "scope", None) == "sender"
    assert len(ses.mailbox.mails()) == 1


async def test_a_configuration_set_that_is_not_there_blames_no_mail(ses: SesServer) -> None:
    outcome = await send(ses, configuration_set="other")
    assert outcome == AccountFault(outcome.reply, None, "account")
    assert isinstance(await send(ses, configuration_set="transactional"), Accepted)


async def test_more_recipients_than_ses_takes_are_refused(ses: SesServer) -> None:
    assert isinstance(await send(ses, mail(to=[f"a{n}@example.org" for n in range(51)])), Refused)


async def test_a_mail_for_bcc_alone_is_taken(ses: SesServer) -> None:
    assert isinstance(await send(ses, mail(to=(), bcc=[B, C])), Accepted)
    assert ses.mailbox.mails()[0].recipients == (B, C)


# Neither keys nor questions


async def test_a_lost_answer_stays_unanswered_and_a_second_request_is_a_second_mail(ses: SesServer) -> None:
    transport = transport_for(ses)
    assert transport.key_window is None
    assert (transport.capability.key, transport.capability.look_up) == ("", "")
    assert not isinstance(transport, LooksUp)
    ses.script.add(bad.lose_answer(times=1))
    assert isinstance(await send_by(transport), Unanswered)
    assert isinstance(await send_by(transport), Accepted)
    await transport.close()
    assert ses.mailbox.copies(A) == 2


async def test_an_answer_as_scripted_is_read_by_its_header(ses: SesServer) -> None:
    status, body, headers = ses_error(400, "ThrottlingException", "Daily message quota exceeded.")
    ses.script.add(bad.answer(status, body=body, headers=dict(headers)))
    outcome = await send(ses)
    assert outcome == AccountFault(outcome.reply, None, "account")
    assert outcome.reply.enhanced == "ThrottlingException"


# Settings


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"region": "Frankfurt"}, "region"),
        ({"secret_access_key": None}, "access_key_id and secret_access_key go together"),
        ({"access_key_id": None}, "access_key_id and secret_access_key go together"),
        ({"access_key_id": None, "secret_access_key": None, "session_token": SecretStr("t")}, "session_token belongs"),
        ({"profile": "mail"}, "profile and access_key_id: give one"),
        ({"secret_access_key": SecretStr(f"{SECRET}\n")}, "must be printable ASCII"),
        ({"base_url": "http://email.example.com"}, "base_url: http would send"),
        ({"configuration_set": "a b"}, "configuration_set"),
        ({"key_window": 60}, "not permitted"),
    ],
)
def test_settings_that_cannot_work_are_refused_in_plain_words(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError) as caught:
        SesSettings(**{"region": "eu-central-1", **GIVEN, **settings})
    assert says in str(caught.value)
    assert SECRET not in str(caught.value)


def test_without_botocore_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "sendonce.toml"
    file.write_text('[accounts.mail]\ntransport = "ses"\nregion = "eu-central-1"\n')
    assert isinstance(build_transports(load(file, {}))["mail"], SesTransport)
    monkeypatch.setitem(sys.modules, "botocore", None)
    with pytest.raises(ConfigurationError) as caught:
        load(file, {})
    assert str(caught.value).startswith(f"{file}: [accounts.mail]")
    assert "pip install 'sendonce[ses]'" in str(caught.value)
