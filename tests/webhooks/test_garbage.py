"""Whatever comes: an answer, never a fault of ours; and nothing that is not an event."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sendonce.events import Event
from sendonce.webhooks.app import make_app
from sendonce.webhooks.receiver import Delivery, Receiver

if TYPE_CHECKING:
    from tests.webhooks.conftest import Amazon, Signed

NOW = 1_788_000_000
PROVIDERS = [
    "ahasend",
    "azure",
    "brevo",
    "lettermint",
    "mailgun",
    "mailjet",
    "postmark",
    "resend",
    "sendgrid",
    "ses",
    "sparkpost",
]

OFTEN = settings(
    max_examples=120,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.just("1e999")
    | st.just(10**400)
    | st.just("2024-13-45T99:99:99Z")
)
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3))


@pytest.fixture
def receivers(signing: dict[str, Signed]) -> dict[str, Receiver]:
    from pydantic import SecretStr

    from sendonce.webhooks.registry import make_receiver
    from sendonce.webhooks.settings import WebhookSettings

    shared = WebhookSettings(secret=SecretStr("a-shared-secret-of-ours"))
    return {name: signing[name].receiver() if name in signing else make_receiver(name, shared) for name in PROVIDERS}


async def status(receiver: Receiver, body: bytes, headers: Sequence[tuple[bytes, bytes]], path: bytes) -> int:
    """The answer's status, asked of the app without a client that would refuse to send such a thing."""

    async def record(account: str, events: Sequence[Event]) -> None:
        raise AssertionError("this was not authentic")

    app = make_app({"main": receiver}, record, clock=lambda: NOW)
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path.decode("utf-8", "replace"),
        "raw_path": path,
        "query_string": b"",
        "root_path": "",
        "headers": list(headers),
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    await app(scope, receive, send)
    found: int = sent[0]["status"]
    return found


@pytest.mark.parametrize("provider", PROVIDERS)
@OFTEN
@given(body=st.binary(max_size=300) | JSON.map(lambda value: json.dumps(value).encode()), junk=st.binary(max_size=80))
def test_strangers_get_401(provider: str, receivers: dict[str, Receiver], body: bytes, junk: bytes) -> None:
    names = [
        b"svix-id",
        b"svix-signature",
        b"webhook-id",
        b"webhook-signature",
        b"x-lettermint-signature",
        b"x-twilio-email-event-webhook-signature",
        b"authorization",
        b"x-sendonce-secret",
    ]
    headers = [(name, junk) for name in names]
    headers += [(name, b"%d" % NOW) for name in (b"svix-timestamp", b"webhook-timestamp")]
    headers.append((b"x-twilio-email-event-webhook-timestamp", b"%d" % NOW))
    assert asyncio.run(status(receivers[provider], body, headers, b"/webhooks/main")) == 401


@pytest.mark.parametrize("provider", PROVIDERS)
@OFTEN
@given(body=st.binary(max_size=300) | JSON.map(lambda value: json.dumps(value).encode()))
def test_what_is_authentic_can_hold_anything(provider: str, receivers: dict[str, Receiver], body: bytes) -> None:
    asyncio.run(receivers[provider].read(Delivery(body, {}, NOW)))


def places(content: Any) -> list[tuple[Any, Any]]:
    """Every container and key in a document."""
    found: list[tuple[Any, Any]] = []
    pairs = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in pairs:
        found.append((content, key))
        found += places(value)
    return found


@pytest.mark.parametrize("provider", PROVIDERS)
@OFTEN
@given(data=st.data())
def test_any_part_of_an_example_can_be_something_else(
    provider: str, receivers: dict[str, Receiver], examples: dict[str, Any], amazon: Amazon, data: st.DataObject
) -> None:
    content = json.loads(json.dumps(examples[provider]))
    for _ in range(data.draw(st.integers(1, 3))):
        container, key = data.draw(st.sampled_from(places(content)))
        container[key] = data.draw(JSON)
        if not places(content):
            break
    body = json.dumps(content)
    whole = json.dumps(amazon.message(body)) if provider == "ses" else body
    taken = asyncio.run(receivers[provider].read(Delivery(whole.encode(), {}, NOW)))
    for event in taken.events:
        assert 0 < len(event.event_id) <= 200
        assert len(event.source) <= 50
        assert event.at is None or event.at.tzinfo is not None
        assert len(event.recipient) <= 320
        assert len(event.reply.text) <= 1000
        for text in (event.event_id, event.provider_id, event.message_id, event.recipient, event.reply.text):
            assert "\x00" not in text
            text.encode()
