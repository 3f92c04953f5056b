"""The kit delivers as an installation does, hours pass at once, and a failure says what became of the mail."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from sendonce import Attachment, ConfigurationError, LanePolicy, OutgoingEmail, RetryPolicy, StoreNotReady, enqueue
from sendonce.activities.transports.base import Capability, Gate, Job, Mail, Recipient, Rendering
from sendonce.outcome import Accepted, AttemptResult, Reply, same_for_all
from sendonce.rates import Rate
from sendonce.testing import HttpProvider, KitSettings, Sendonce, SmtpProvider
from sendonce.testing.kit.loop import BackgroundLoop
from sendonce.testing.smtp_misbehaviour import silent_after_dot

if TYPE_CHECKING:
    from tests.testkit.conftest import Make, Order

ANN = "ann@example.org"
PAGE = '<p>See <a href="https://shop.example/orders/1?a=1&amp;b=2">your order</a>.</p>'


def test_an_outage_of_three_hours_costs_no_mail_and_makes_no_second_one(sendonce: Sendonce, order: Order) -> None:
    sendonce.provider.down_for(hours=3)
    order(sendonce)
    sendonce.skip(hours=2)
    assert not sendonce.mailbox
    sendonce.run_until_idle()
    arrived = sendonce.mailbox.one(to=ANN)
    assert (arrived.subject, arrived.text) == ("Your order", "Thanks.\n")
    sendonce.skip(days=3)
    assert len(sendonce.mailbox) == 1


async def test_async_tests_use_the_same_verbs(sendonce: Sendonce) -> None:
    async with await psycopg.AsyncConnection.connect(sendonce.database_url) as connection:
        await enqueue(connection, OutgoingEmail(key="k", sender="shop@example.com", to=ANN, text="Hi."))
    sendonce.provider.defer(times=1)
    await asyncio.to_thread(sendonce.deliver)
    assert not sendonce.mailbox
    sendonce.skip(minutes=5)
    assert sendonce.mailbox.one(to="ann@EXAMPLE.org").text == "Hi.\n"


@pytest.mark.parametrize("kind", ["smtp", "http", "resend", "postmark", "brevo"])
def test_every_provider_understands_the_same_verbs(kind: str, make: Make, order: Order, invoice: Attachment) -> None:
    shop = make(accounts={"default": kind})
    order(shop, "whole", html=PAGE, attachments=[invoice], to="whole@example.org")
    shop.deliver()
    arrived = shop.mailbox.one(to="whole@example.org")
    assert (arrived.account, arrived.sender, arrived.subject) == ("default", "shop@example.com", "Your order")
    assert arrived.text.strip() == "Thanks."
    assert arrived.link("orders") == "https://shop.example/orders/1?a=1&b=2"
    assert arrived.attachment("invoice.pdf").content == invoice.content
    assert arrived.headers["auto-submitted"] == "auto-generated"

    shop.provider.refuse("bob@example.org")
    order(shop, "refused", to="bob@example.org")
    shop.deliver()
    assert shop.outbox.one(key="refused").stage == "failed"

    shop.provider.defer(times=2)
    shop.provider.down_for(minutes=1)
    order(shop, "waits", to=ANN)
    shop.skip(seconds=50)
    assert "provider is down for another " in shop.explain()
    assert "2 attempts" in shop.explain()
    shop.skip(minutes=30)
    assert len(shop.mailbox.to(ANN)) == 1

    shop.provider.lose_answer()
    order(shop, "lost", to="lost@example.org")
    shop.deliver()
    assert shop.outbox.one(key="lost").stage == "unknown"
    shop.skip(hours=2)
    assert len(shop.mailbox.to("lost@example.org")) == 1
    # The provider knows its keys or its mails by the test's time, or does not at all.
    assert shop.outbox.one(key="lost").stage == ("unknown" if kind == "smtp" else "sent")

    shop.provider.refuse_login()
    order(shop, "paused", to="paused@example.org")
    shop.skip(hours=1)
    assert not shop.mailbox.to("paused@example.org")
    assert "alarm: account_paused default" in shop.explain()
    shop.provider.recover()
    assert shop.provider.state() == "accepts everything"
    shop.skip(hours=1)
    assert len(shop.mailbox.to("paused@example.org")) == 1


def test_whatever_falls_due_is_done_at_its_time(sendonce: Sendonce, order: Order) -> None:
    begun = sendonce.now()
    order(sendonce, "later", send_after=begun + timedelta(days=2), to="later@example.org")
    order(sendonce, "expired", send_after=begun + timedelta(hours=1), expires_at=begun + timedelta(hours=3))
    sendonce.provider.down_for(hours=4)
    sendonce.skip(days=1)
    assert sendonce.outbox.one(key="expired").stage == "expired"
    assert sendonce.outbox.one(key="later").stage == "pending"
    sendonce.run_until_idle()
    assert sendonce.mailbox.one().recipients == ("later@example.org",)
    with sendonce.connect() as connection:
        row = connection.execute("SELECT final_at FROM sendonce.email WHERE key = 'later'").fetchone()
    assert row is not None
    assert timedelta(0) <= row[0] - begun - timedelta(days=2) < timedelta(seconds=10)


def test_rates_are_kept_by_the_clock_of_the_test(make: Make, order: Order) -> None:
    shop = make(options={"rates": {"default": (Rate.parse("1/min"),)}})
    for number in range(3):
        order(shop, f"order-{number}")
    shop.deliver()
    assert len(shop.mailbox) == 1
    shop.skip(minutes=10)
    assert len(shop.mailbox) == 3


class Slow:
    """A transport of the user's own that takes its time and looks at the clock."""

    capability = Capability()
    identity = "slow:one"
    settings_digest = "1"
    key_window = None

    def __init__(self) -> None:
        self.shop: Sendonce | None = None
        self.passed: list[timedelta] = []

    def slot(self, generation: int) -> str:
        return "mime"

    def render(self, mail: Mail, recipients: tuple[Recipient, ...], provider_key: str) -> Rendering:
        return Rendering(b"x")

    async def transmit(self, job: Job, gate: Gate) -> AttemptResult:
        assert self.shop is not None
        before = self.shop.now()
        await gate.begin((0,))
        gate.offered()
        await asyncio.sleep(0.3)
        self.passed.append(self.shop.now() - before)
        return same_for_all((0,), Accepted(Reply(250)))

    async def close(self) -> None:
        """Nothing is open."""


def test_time_stands_still_while_a_mail_is_transmitted(make: Make, order: Order) -> None:
    transport = Slow()
    shop = transport.shop = make(accounts={"default": transport})
    order(shop, "now")
    order(shop, "later", send_after=shop.now() + timedelta(hours=1))
    order(shop, "last", send_after=shop.now() + timedelta(hours=1))
    shop.skip(days=1)
    assert [mail.stage for mail in shop.outbox] == ["sent"] * 3
    assert len(transport.passed) == 3
    assert max(transport.passed) < timedelta(seconds=5)


# What a failure says ------------------------------------------------------------------------------------------------


def test_a_missing_mail_tells_its_story(sendonce: Sendonce, order: Order) -> None:
    order(sendonce)
    with pytest.raises(AssertionError) as failure:
        sendonce.mailbox.one(to=ANN)
    assert str(failure.value).splitlines() == [
        f"no mail to {ANN}",
        "enqueued:",
        f"  order-1 to {ANN}: stage pending, due now",
        "provider accepts everything",
        "nothing was delivered yet: call deliver(), skip(hours=…) or run_until_idle()",
    ]
    sendonce.provider.reply_with("451 4.7.1 greylisted", times=20)
    sendonce.skip(seconds=10)
    sendonce.provider.down_for(hours=3)
    with pytest.raises(AssertionError) as failure:
        sendonce.mailbox.one(to=ANN, subject="order")
    lines = str(failure.value).splitlines()
    assert lines[0] == f"no mail to {ANN} whose subject contains 'order'"
    assert lines[2].startswith(f"  order-1 to {ANN}: stage pending, due in ")
    assert lines[2].endswith(" s, 1 attempt, last reply 451 4.7.1 greylisted")
    assert lines[3] == "provider is down for another 3 h"
    # The time on the wall, which passes as well, is not counted.
    assert re.fullmatch(r"skipped so far: \d+ s", lines[4])
    with pytest.raises(AssertionError, match=r"nothing was enqueued to this mailbox\nenqueued:\n  order-1 to ann"):
        sendonce.mailbox.one(to="bob@example.org")
    sendonce.provider.recover()
    sendonce.provider.reply_with("451 4.7.1 greylisted", times=20)
    sendonce.skip(minutes=1)
    assert "provider answers 451 4.7.1 greylisted (19 more)" in sendonce.explain()


def test_nothing_enqueued_and_too_many(sendonce: Sendonce, order: Order) -> None:
    with pytest.raises(AssertionError, match=r"no mail to ann.*\nenqueued: nothing \(was the transaction comm"):
        sendonce.mailbox.one(to=ANN)
    order(sendonce, "a")
    order(sendonce, "b", subject="Another")
    sendonce.deliver()
    with pytest.raises(AssertionError) as failure:
        sendonce.mailbox.one(to=ANN)
    assert sorted(str(failure.value).splitlines()) == [
        f"  'Another' to {ANN}",
        f"  'Your order' to {ANN}",
        "2 mails instead of one:",
    ]
    assert sendonce.mailbox.one(subject="Another").recipients == (ANN,)
    with pytest.raises(AssertionError, match="0 links with 'x' in the mail 'Another'; its links: none"):
        sendonce.mailbox.one(subject="Another").link("x")
    with pytest.raises(AssertionError, match="no attachment 'x' in the mail 'Another'; attachments: none"):
        sendonce.mailbox.one(subject="Another").attachment("x")


def test_idle_is_not_reached_while_an_account_is_paused(sendonce: Sendonce, order: Order) -> None:
    sendonce.provider.refuse_login()
    order(sendonce)
    with pytest.raises(AssertionError) as failure:
        sendonce.run_until_idle(days=0.1)
    story = str(failure.value)
    assert story.startswith("not idle after 0.1 days; enqueued:\n  order-1 to ann@example.org: stage pending, due ")
    assert "\nprovider refuses the account\n" in story
    assert "\nalarm: account_paused default " in story


def test_a_provider_that_never_answers_uses_up_the_patience(make: Make, order: Order) -> None:
    shop = make(patience=1.0, lanes={"default": LanePolicy("default", RetryPolicy(), answer_seconds=5.0)})
    assert isinstance(shop.provider, SmtpProvider)
    shop.provider.server.script.add(silent_after_dot())
    order(shop)
    with pytest.raises(AssertionError) as failure:
        shop.deliver()
    assert str(failure.value).startswith("deliver did not end within 1 s; mails in work: order-1; enqueued:\n  order-1")


# What it is made of -------------------------------------------------------------------------------------------------


def test_an_unknown_provider_and_a_wrong_reply_are_refused(make: Make) -> None:
    with pytest.raises(ConfigurationError, match="cannot play 'pigeon' for the account 'default': name one of smtp, "):
        make(accounts={"default": "pigeon"})
    shop = make(accounts={"a": "smtp", "b": "resend"})
    assert isinstance(shop.providers["b"], HttpProvider)
    with pytest.raises(ConfigurationError, match="no account 'default' whose provider is played; there are: a, b"):
        _ = shop.provider
    for name, reply in (("a", "250 ok"), ("a", "greylisted"), ("b", "200"), ("b", "4xx")):
        with pytest.raises(ValueError, match="refuses with: write for example"):
            shop.providers[name].reply_with(reply)
    with pytest.raises(ValueError, match="say how long"):
        shop.skip()


def test_the_real_clock_comes_back_and_a_database_in_use_is_refused(make: Make, order: Order) -> None:
    shop = make()
    order(shop)
    shop.skip(hours=5)
    query = "SELECT sendonce.clock() - clock_timestamp() > interval '4 hours'"
    with psycopg.connect(shop.database_url) as connection:
        assert connection.execute(query).fetchone() == (True,)
    shop.close()
    with psycopg.connect(shop.database_url) as connection:
        assert connection.execute(query).fetchone() == (False,)
        connection.execute(
            "INSERT INTO sendonce.process (id, kind, lanes, started_at, beat_at)"
            " VALUES ('live', 'worker', '{default}', now(), now())"
        )
    with pytest.raises(ConfigurationError, match=r"a worker uses this database \(live\)"):
        shop.deliver()


def test_a_database_without_the_schema_is_refused(
    empty_database_url: str, sendonce_settings: KitSettings, sendonce_loop: BackgroundLoop
) -> None:
    shop = Sendonce(empty_database_url, sendonce_settings, sendonce_loop)
    with pytest.raises(StoreNotReady, match="run 'sendonce migrate'"):
        shop.deliver()


def test_settings_of_a_file(tmp_path: Path, make: Make) -> None:
    (tmp_path / "mail").mkdir()
    file = tmp_path / "sendonce.toml"
    file.write_text(
        """
        [store]
        database_url_env = "DATABASE_URL_THAT_NO_TEST_HAS"
        [worker]
        breaker_mails = 3
        [templates]
        folder = "mail"
        [lanes.news]
        places = 2
        [accounts.default]
        transport = "resend"
        api_key_env = "RESEND_KEY"
        fallback = "spare"
        [accounts.spare]
        transport = "sparkpost"
        api_key_env = "SPARKPOST_KEY"
        """,
        encoding="utf-8",
    )
    found = KitSettings.load(file)
    assert found.accounts == {"default": "resend", "spare": "http"}
    assert found.lanes["news"].places == 2
    assert found.templates == tmp_path / "mail"
    assert found.options == {"fallbacks": {"default": "spare"}, "breaker_mails": 3}
    assert KitSettings.load(file, accounts={"default": "smtp"}, options={}).accounts == {"default": "smtp"}
