"""What each provider's words mean, row by row of the tables in its module, and how an event finds its mail."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import astuple
from datetime import UTC, datetime
from typing import Any

import pytest

from sendonce.events import Event, EventKind
from sendonce.outcome import Reply

Send = Callable[[str, Any], Awaitable[list[Event]]]
Examples = dict[str, Any]

EMAIL_ID = "0b7cf5b4-8d5a-4d0c-9f5e-0d3f5a2f7c11"

ACCEPTED, DELAYED, SOFT, DELIVERED = (
    EventKind.ACCEPTED,
    EventKind.DELAYED,
    EventKind.SOFT_BOUNCED,
    EventKind.DELIVERED,
)
DROPPED, BOUNCED, COMPLAINED = EventKind.DROPPED, EventKind.BOUNCED, EventKind.COMPLAINED

READ = {
    "resend": (
        "msg_2Lk",
        datetime(2024, 11, 22, 23, 41, 12, 126000, UTC),
        EMAIL_ID,
        "56761188-7520-42d8-8898-ff6fc54ce618",
        "",
        "delivered@resend.dev",
        Reply(550, "5.5.0", "smtp; 550 5.5.0 Requested action not taken: mailbox unavailable"),
    ),
    "ahasend": (
        "msg_2Lk",
        datetime(2024, 5, 6, 10, 5, 16, 687031, UTC),
        "",
        "407926766d2711f09b30960002cafe7c",
        "<message-id-12345@localhost>",
        "recipient@example.com",
        Reply(),
    ),
    "lettermint": (
        "123e4567-e89b-12d3-a456-426614174000",
        datetime(2025, 8, 8, 20, 15, 12, 0, UTC),
        EMAIL_ID,
        "f47ac10b-58cc-4372-a567-0e02b2c3d479",
        "",
        "user@example.com",
        Reply(550, "5.1.1", "User unknown"),
    ),
    "mailgun": (
        None,
        datetime(2018, 3, 16, 20, 46, 35, 375624, UTC),
        EMAIL_ID,
        "<20130503192659.13651.20287@sandbox.mailgun.org>",
        "<20130503192659.13651.20287@sandbox.mailgun.org>",
        "alice@example.com",
        Reply(550, "5.1.1", "5.1.1 The email account that you tried to reach does not exist."),
    ),
    "sendgrid": (
        "ZHJvcC0xMDk5NDkxOS1MUnpYbF9OSFN0T0doUTRrb2ZTbV9BLTA",
        datetime(2017, 12, 15, 0, 59, 29, 0, UTC),
        EMAIL_ID,
        "14c5d75ce93.dfd.64b469",
        "",
        "example@test.com",
        Reply(550, "5.1.1", "550 5.1.1 The email account that you tried to reach does not exist"),
    ),
    "ses": (
        "22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324",
        datetime(2017, 8, 5, 0, 41, 2, 669000, UTC),
        EMAIL_ID,
        "EXAMPLE7c191be45-e9aedb9a-02f9-4d12-a87d-dd0099a07f8a-000000",
        "",
        "recipient@example.com",
        Reply(550, "5.1.1", "smtp; 550 5.1.1 user unknown"),
    ),
    "postmark": (
        None,
        datetime(2019, 11, 5, 16, 33, 54, 907025, UTC),
        EMAIL_ID,
        "883953f4-6105-42a2-a16a-77a8eac79483",
        "",
        "john@example.com",
        Reply(550, "5.1.1", "smtp;550 5.1.1 The email account that you tried to reach does not exist."),
    ),
    "brevo": (
        None,
        datetime(2020, 11, 9, 14, 54, 14, 0, UTC),
        EMAIL_ID,
        "<201798300811.5787683@relay.domain.com>",
        "<201798300811.5787683@relay.domain.com>",
        "example@domain.com",
        Reply(550, "5.1.1", "550 5.1.1 user unknown"),
    ),
    "mailjet": (
        None,
        datetime(2015, 5, 5, 7, 49, 55, 0, UTC),
        EMAIL_ID,
        "13792286917004336",
        "",
        "bounce@mailjet.com",
        Reply(550, "5.1.1", "550 5.1.1 Host or domain name not found."),
    ),
    "sparkpost": (
        "92356927693813856",
        datetime(2016, 2, 2, 19, 50, 0, 0, UTC),
        EMAIL_ID,
        "65832150921904138",
        "",
        "Recipient@example.com",
        Reply(550, "5.1.1", "550 5.1.1 user unknown"),
    ),
    "azure": (
        "00000000-0000-0000-0000-000000000000",
        datetime(2020, 9, 18, 0, 22, 20, 285574, UTC),
        "",
        "fb9e3380-428f-4e59-95a1-fc82e99a5219",
        f"<{EMAIL_ID}@example.com>",
        "receiver@azure.com",
        Reply(550, "5.1.1", "550 5.1.1 user unknown"),
    ),
}
"""Of the example in conftest.py: event id (None: a digest), at, email_id, provider_id, message_id, recipient, reply."""


@pytest.mark.parametrize("provider", READ)
async def test_the_documented_example(provider: str, examples: Examples, send: Send) -> None:
    (event,) = await send(provider, examples[provider])
    event_id, at, email_id, provider_id, message_id, recipient, reply = READ[provider]
    assert event.source == f"webhook:{provider}"
    assert event.kind is BOUNCED
    assert event.event_id == event_id if event_id else len(event.event_id) == 64
    assert (event.at, event.recipient, event.reply) == (at, recipient, reply)
    assert (event.email_id, event.provider_id, event.message_id) == (email_id, provider_id, message_id)


@pytest.mark.parametrize("provider", READ)
async def test_the_same_event_has_the_same_id(provider: str, examples: Examples, send: Send) -> None:
    first = await send(provider, examples[provider])
    assert await send(provider, examples[provider]) == first


def one(content: Any) -> dict[str, Any]:
    """The event itself, in any of the examples."""
    event = content[-1] if isinstance(content, list) else content
    if "msys" in event:
        event = event["msys"]["message_event"]
    found: dict[str, Any] = event.get("event-data", event)
    return found


def _resend_bounce(**bounce: str) -> dict[str, Any]:
    return {"type": "email.bounced", "data": {"to": ["a@example.org"], "bounce": bounce}}


def _status(status: str) -> dict[str, Any]:
    return {"data": {"recipient": "a@example.org", "status": status}}


def _failed(**more: Any) -> dict[str, Any]:
    return {"event": "failed", "severity": "permanent", **more}


ROWS: list[tuple[str, dict[str, Any], EventKind | None]] = [
    ("resend", {"type": "email.sent"}, ACCEPTED),
    ("resend", {"type": "email.delivered"}, DELIVERED),
    ("resend", {"type": "email.delivery_delayed"}, DELAYED),
    ("resend", _resend_bounce(type="Permanent", subType="General"), BOUNCED),
    ("resend", _resend_bounce(type="Permanent", subType="Suppressed"), DROPPED),
    ("resend", _resend_bounce(type="Permanent", subType="OnAccountSuppressionList"), DROPPED),
    ("resend", _resend_bounce(type="Transient", subType="MailboxFull"), SOFT),
    ("resend", _resend_bounce(type="Undetermined", subType="Undetermined"), SOFT),
    ("resend", {"type": "email.suppressed"}, DROPPED),
    ("resend", {"type": "email.failed"}, DROPPED),
    ("resend", {"type": "email.complained"}, COMPLAINED),
    ("resend", {"type": "email.opened"}, None),
    ("resend", {"type": "contact.created"}, None),
    ("ahasend", {"type": "message.reception"}, ACCEPTED),
    ("ahasend", {"type": "message.delivered"}, DELIVERED),
    ("ahasend", {"type": "message.transient_error"}, DELAYED),
    ("ahasend", {"type": "message.failed"}, BOUNCED),
    ("ahasend", {"type": "message.bounced"}, BOUNCED),
    ("ahasend", {"type": "message.suppressed"}, DROPPED),
    ("ahasend", {"type": "message.opened"}, None),
    ("ahasend", {"type": "domain.dns_error"}, None),
    ("lettermint", {"event": "message.created"}, ACCEPTED),
    ("lettermint", {"event": "message.sent"}, ACCEPTED),
    ("lettermint", {"event": "message.delivered"}, DELIVERED),
    ("lettermint", {"event": "message.soft_bounced"}, SOFT),
    ("lettermint", {"event": "message.hard_bounced"}, BOUNCED),
    ("lettermint", {"event": "message.failed"}, DROPPED),
    ("lettermint", {"event": "message.suppressed"}, DROPPED),
    ("lettermint", {"event": "message.policy_rejected"}, DROPPED),
    ("lettermint", {"event": "message.spam_complaint"}, COMPLAINED),
    ("lettermint", {"event": "message.unsubscribed"}, None),
    ("lettermint", {"event": "webhook.test"}, None),
    ("mailgun", {"event": "accepted"}, ACCEPTED),
    ("mailgun", {"event": "delivered"}, DELIVERED),
    ("mailgun", _failed(severity="temporary"), DELAYED),
    ("mailgun", _failed(reason="bounce"), BOUNCED),
    ("mailgun", _failed(reason="bounce", **{"delivery-status": {"bounce-type": "soft"}}), SOFT),
    ("mailgun", _failed(reason="suppress-bounce"), DROPPED),
    ("mailgun", _failed(reason="suppress-complaint"), DROPPED),
    ("mailgun", _failed(reason="old"), SOFT),
    ("mailgun", _failed(reason="generic"), SOFT),
    ("mailgun", {"event": "rejected"}, DROPPED),
    ("mailgun", {"event": "complained"}, COMPLAINED),
    ("mailgun", {"event": "unsubscribed"}, None),
    ("sendgrid", {"event": "processed"}, ACCEPTED),
    ("sendgrid", {"event": "deferred", "response": "400 try again later", "attempt": "5"}, DELAYED),
    ("sendgrid", {"event": "delivered", "response": "250 OK"}, DELIVERED),
    ("sendgrid", {"event": "bounce", "type": "bounce"}, BOUNCED),
    ("sendgrid", {"event": "bounce", "type": "blocked"}, SOFT),
    ("sendgrid", {"event": "bounce", "type": "expired"}, SOFT),
    ("sendgrid", {"event": "dropped", "reason": "Bounced Address", "status": "5.0.0"}, DROPPED),
    ("sendgrid", {"event": "spamreport"}, COMPLAINED),
    ("sendgrid", {"event": "group_unsubscribe"}, None),
    ("ses", {"eventType": "Send", "send": {}}, ACCEPTED),
    (
        "ses",
        {"eventType": "DeliveryDelay", "deliveryDelay": {"delayedRecipients": [{"emailAddress": "a@example.org"}]}},
        DELAYED,
    ),
    ("ses", {"eventType": "Delivery", "delivery": {"recipients": ["a@example.org"]}}, DELIVERED),
    ("ses", {"eventType": "Reject", "reject": {"reason": "Bad content"}}, DROPPED),
    ("ses", {"eventType": "Rendering Failure", "failure": {"errorMessage": "no name", "templateName": "t"}}, DROPPED),
    ("ses", {"eventType": "Open", "open": {}}, None),
    ("ses", {"eventType": "Subscription"}, None),
    (
        "postmark",
        {"RecordType": "Delivery", "Recipient": "a@example.org", "DeliveredAt": "2019-11-05T16:33:54Z"},
        DELIVERED,
    ),
    ("postmark", {"RecordType": "SpamComplaint", "Type": "SpamComplaint"}, COMPLAINED),
    ("postmark", {"RecordType": "SubscriptionChange", "Recipient": "a@example.org"}, None),
    ("postmark", {"RecordType": "Open", "Recipient": "a@example.org"}, None),
    *(("postmark", {"Type": name}, BOUNCED) for name in ("HardBounce", "BadEmailAddress")),
    ("postmark", {"Type": "Transient"}, DELAYED),
    *(("postmark", {"Type": name}, SOFT) for name in ("SoftBounce", "DnsError", "SpamNotification", "Blocked")),
    *(("postmark", {"Type": name}, SOFT) for name in ("DMARCPolicy", "VirusNotification", "Unknown")),
    *(("postmark", {"Type": name}, DROPPED) for name in ("ManuallyDeactivated", "SMTPApiError")),
    ("postmark", {"Type": "TemplateRenderingFailed"}, DROPPED),
    ("postmark", {"Type": "SpamComplaint"}, COMPLAINED),
    *(("postmark", {"Type": name}, None) for name in ("AutoResponder", "AddressChange", "Subscribe", "OpenRelayTest")),
    ("brevo", {"event": "request"}, ACCEPTED),
    ("brevo", {"event": "deferred"}, DELAYED),
    ("brevo", {"event": "delivered"}, DELIVERED),
    ("brevo", {"event": "soft_bounce"}, SOFT),
    ("brevo", {"event": "hardBounce"}, BOUNCED),
    ("brevo", {"event": "invalid_email"}, BOUNCED),
    ("brevo", {"event": "blocked"}, DROPPED),
    ("brevo", {"event": "error"}, DROPPED),
    ("brevo", {"event": "spam"}, COMPLAINED),
    ("brevo", {"event": "complaint"}, COMPLAINED),
    ("brevo", {"event": "unique_opened"}, None),
    ("mailjet", {"event": "sent", "smtp_reply": "sent (250 2.0.0 OK 4242 fa5si855896wjc.199 - gsmtp)"}, DELIVERED),
    ("mailjet", {"hard_bounce": True, "error_related_to": "domain"}, BOUNCED),
    ("mailjet", {"hard_bounce": True, "error_related_to": "content"}, SOFT),
    ("mailjet", {"hard_bounce": True, "error_related_to": "mailjet"}, SOFT),
    ("mailjet", {"hard_bounce": False, "error": "greylisted"}, DELAYED),
    ("mailjet", {"hard_bounce": False, "error": "quota exceeded"}, SOFT),
    ("mailjet", {"event": "blocked"}, DROPPED),
    ("mailjet", {"event": "spam", "source": "JMRPP"}, COMPLAINED),
    ("mailjet", {"event": "unsub"}, None),
    ("sparkpost", {"type": "injection"}, ACCEPTED),
    ("sparkpost", {"type": "delay"}, DELAYED),
    ("sparkpost", {"type": "delivery"}, DELIVERED),
    *(("sparkpost", {"bounce_class": number}, BOUNCED) for number in ("10", "30")),
    *(("sparkpost", {"bounce_class": number}, SOFT) for number in ("1", "20", "22", "40", "50", "52", "70")),
    ("sparkpost", {"bounce_class": "25"}, DROPPED),
    *(("sparkpost", {"bounce_class": number}, None) for number in ("60", "80", "90", "100")),
    ("sparkpost", {"type": "out_of_band", "bounce_class": "10"}, BOUNCED),
    ("sparkpost", {"type": "out_of_band", "bounce_class": "60"}, None),
    *(("sparkpost", {"type": f"generation_{name}"}, DROPPED) for name in ("failure", "rejection")),
    ("sparkpost", {"type": "policy_rejection"}, DROPPED),
    ("sparkpost", {"type": "spam_complaint"}, COMPLAINED),
    ("sparkpost", {"type": "click"}, None),
    ("azure", _status("Delivered"), DELIVERED),
    ("azure", _status("Expanded"), ACCEPTED),
    ("azure", _status("Bounced"), BOUNCED),
    ("azure", _status("Suppressed"), DROPPED),
    *(("azure", _status(status), SOFT) for status in ("FilteredSpam", "Quarantined", "Failed")),
    ("azure", _status("OutForLunch"), None),
    ("azure", {"eventType": "Microsoft.Communication.EmailEngagementTrackingReportReceived"}, None),
]


@pytest.mark.parametrize(("provider", "changes", "kind"), ROWS)
async def test_a_row_of_the_table(
    provider: str, changes: dict[str, Any], kind: EventKind | None, examples: Examples, send: Send
) -> None:
    one(examples[provider]).update(changes)
    assert [event.kind for event in await send(provider, examples[provider])] == ([kind] if kind else [])


# Several recipients -----------------------------------------------------------------------------------------------


async def test_resend_does_not_say_which_of_several(examples: Examples, send: Send) -> None:
    examples["resend"]["data"]["to"] = ["a@example.org", "b@example.org"]
    (event,) = await send("resend", examples["resend"])
    assert (event.kind, event.recipient) == (ACCEPTED, "")


async def test_ses_names_each(examples: Examples, send: Send) -> None:
    examples["ses"]["bounce"]["bouncedRecipients"].append({"emailAddress": "b@example.org", "status": "5.2.1"})
    first, second = await send("ses", examples["ses"])
    assert (first.recipient, second.recipient) == ("recipient@example.com", "b@example.org")
    assert (first.kind, second.kind, second.reply.enhanced) == (BOUNCED, BOUNCED, "5.2.1")
    assert first.event_id.removesuffix(":1") == second.event_id.removesuffix(":2")


@pytest.mark.parametrize(
    ("bounce", "kind"),
    [
        ({"bounceType": "Permanent", "bounceSubType": "NoEmail"}, BOUNCED),
        ({"bounceType": "Permanent", "bounceSubType": "Suppressed"}, DROPPED),
        ({"bounceType": "Permanent", "bounceSubType": "OnAccountSuppressionList"}, DROPPED),
        ({"bounceType": "Transient", "bounceSubType": "MailboxFull"}, SOFT),
        ({"bounceType": "Undetermined", "bounceSubType": "Undetermined"}, SOFT),
        ({"bouncedRecipients": []}, ACCEPTED),
    ],
)
async def test_bounces_of_ses(bounce: dict[str, Any], kind: EventKind, examples: Examples, send: Send) -> None:
    examples["ses"]["bounce"].update(bounce)
    (event,) = await send("ses", examples["ses"])
    assert event.kind is kind


@pytest.mark.parametrize(
    ("complaint", "kinds"),
    [
        ({"complaintFeedbackType": "abuse"}, [COMPLAINED]),
        ({"complaintFeedbackType": "not-spam"}, [ACCEPTED]),
        ({"complaintSubType": "OnAccountSuppressionList"}, [DROPPED]),
        (
            {"complainedRecipients": [{"emailAddress": "a@example.org"}, {"emailAddress": "b@example.org"}]},
            [ACCEPTED] * 2,
        ),
    ],
)
async def test_complaints_of_ses(
    complaint: dict[str, Any], kinds: list[EventKind], examples: Examples, send: Send
) -> None:
    """In the older form, by which SES reports what is not an event of a configuration set."""
    examples["ses"] = {
        "notificationType": "Complaint",
        "complaint": {"complainedRecipients": [{"emailAddress": "a@example.org"}], **complaint},
        "mail": examples["ses"]["mail"],
    }
    assert [event.kind for event in await send("ses", examples["ses"])] == kinds


async def test_a_message_of_ses_longer_than_a_reply_may_be(examples: Examples, send: Send) -> None:
    examples["ses"]["mail"]["headers"] = [{"name": "Subject", "value": "x" * 5000}]
    assert len(await send("ses", examples["ses"])) == 1


async def test_ses_ends_a_subscription_with_a_sentence(send: Send) -> None:
    assert await send("ses", "Successfully validated SNS topic for Amazon SES event publishing.") == []


async def test_a_batch_in_which_one_cannot_be_read(examples: Examples, send: Send) -> None:
    for provider in ("sendgrid", "sparkpost", "brevo", "mailjet", "azure"):
        content = examples[provider]
        good = content if isinstance(content, list) else [content]
        batch = [None, 7, "x", [], {}, {"event": None, "msys": {"x": 1}}, *good, {"event": {"event": []}}]
        assert len(await send(provider, batch)) == 1, provider


# Which mail -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("provider", "place", "value"),
    [
        ("resend", "tags", [{"name": "sendonce_key", "value": "order-1"}, {"name": "sendonce_id", "value": EMAIL_ID}]),
        ("resend", "tags", {"sendonce_id": EMAIL_ID.upper()}),
        ("lettermint", "metadata", {"sendonce-id": EMAIL_ID}),
        ("brevo", "tags", ["transac_messages", f"sendonce-id-{EMAIL_ID}"]),
        ("mailjet", "CustomID", f"sendonce-id:{EMAIL_ID}"),
        ("ses", "headers", [{"name": "X-Sendonce-Id", "value": EMAIL_ID}]),
    ],
)
async def test_our_own_id_wherever_it_was_put(
    provider: str, place: str, value: Any, examples: Examples, send: Send
) -> None:
    event = one(examples[provider])
    where = event.get("data") or event.get("mail") or event
    for name in ("tags", "metadata", "X-Mailin-custom", "Payload"):
        where.pop(name, None)
    where[place] = value
    (found,) = await send(provider, examples[provider])
    assert found.email_id == EMAIL_ID


@pytest.mark.parametrize("value", ["", "order-1", f"{EMAIL_ID}x", 7, None, {"a": 1}, [[EMAIL_ID]], "x" * 5000])
async def test_what_is_no_id_of_ours(value: Any, examples: Examples, send: Send) -> None:
    examples["lettermint"]["data"]["metadata"] = {"sendonce_id": value}
    (event,) = await send("lettermint", examples["lettermint"])
    assert event.email_id == ""


# Bounds -----------------------------------------------------------------------------------------------------------


async def test_an_event_stays_within_its_bounds(examples: Examples, send: Send) -> None:
    event = one(examples["sendgrid"])
    event.update(
        sg_event_id="\u00e9" * 500,
        sg_message_id="m" * 5000,
        email=f"Ann\x00 <{'a' * 500}@example.org>",
        reason="550 5.1.1 \ud800\x00" + "x" * 5000,
        status="5.1.1" * 100,
        timestamp=1e300,
    )
    (found,) = await send("sendgrid", examples["sendgrid"])
    assert len(found.event_id) <= 200
    assert found.event_id.isascii()
    assert len(found.provider_id) <= 500
    assert len(found.recipient) <= 320
    assert len(found.reply.text) <= 1000
    assert len(found.reply.enhanced) <= 100
    assert found.at is None
    assert "\x00" not in "".join(map(str, astuple(found)))
    assert "example.org" not in repr(found)
    assert "5.1.1" not in repr(found)


@pytest.mark.parametrize(
    ("text", "reply"),
    [
        ("250 2.6.0 Message received", Reply(250, "2.6.0", "250 2.6.0 Message received")),
        ("smtp; 550-5.1.1 no such user", Reply(550, "5.1.1", "smtp; 550-5.1.1 no such user")),
        ("connection to 10.250.1.1 timed out", Reply(0, "", "connection to 10.250.1.1 timed out")),
        ("Unknown", Reply(0, "", "Unknown")),
        ("", Reply()),
    ],
)
async def test_codes_out_of_prose(text: str, reply: Reply, examples: Examples, send: Send) -> None:
    one(examples["brevo"])["reason"] = text
    (event,) = await send("brevo", examples["brevo"])
    assert event.reply == reply
