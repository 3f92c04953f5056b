"""Which unknowns are asked about, how often, and what the answer does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sendonce.outcome import Accepted, AttemptResult, Deferred, Refused, Reply, Unanswered
from sendonce.store import Store
from sendonce.store.records import Begun

if TYPE_CHECKING:
    from sendonce.store.records import LookUp
    from tests.store.conftest import Bench

OK = Accepted(Reply(200), "P1")
SILENCE = Unanswered()


async def due(bench: Bench, account: str = "default", askable: str = "default") -> list[LookUp]:
    return await bench.store.due_look_ups(account, [askable], 10)


async def test_only_unknowns_are_asked_about_and_each_of_them_at_its_time(bench: Bench) -> None:
    await bench.enqueue("waits")
    await bench.enqueue("sent")
    await bench.attempt(OK, "sent")
    await bench.enqueue("k1", to=["ann@example.org", "bob@example.org"])
    claimed = await bench.claim()
    assert isinstance(await bench.begin(claimed), Begun)
    assert await due(bench) == []
    await bench.settle(claimed, SILENCE)
    assert await due(bench) == [], "its own answer may still come"
    await bench.advance(6)
    assert await due(bench, "other") == []
    (asked,) = await due(bench)
    assert (asked.key, asked.account, asked.lane, asked.generation) == ("k1", "default", "default", 1)
    assert (asked.provider_key, asked.identity, asked.attempts) == ("pk-1", "smtp:one", (claimed.attempt_id,))
    assert [(r.ordinal, r.mailbox) for r in asked.recipients] == [(0, "ann@example.org"), (1, "bob@example.org")]
    assert asked.message_id.startswith(f"<{asked.email_id}@")
    assert await due(bench) == [], "stamped: nobody else asks at the same time"
    pauses = []
    for _ in range(6):
        seconds = 0
        while not await due(bench):
            await bench.advance(5)
            seconds += 5
        pauses.append(seconds)
    # The store's clock runs on while the test asks.
    assert pauses == pytest.approx([10, 60, 360, 2160, 3600, 3600], abs=10)


async def test_what_was_found_is_the_late_answer_of_the_offer(bench: Bench) -> None:
    await bench.enqueue(to=["ann@example.org", "bob@example.org"])
    claimed = await bench.claim()
    await bench.begin(claimed)
    await bench.settle(claimed, SILENCE)
    assert await bench.open_alarms() == ["unknown"]
    await bench.advance(6)
    (asked,) = await due(bench)
    await bench.settle(claimed, {0: OK, 1: Refused(Reply(406, "InactiveRecipient"))})
    row = await bench.email()
    assert (row["stage"], row["partial"], row["look_up_at"], row["look_ups"]) == ("sent", True, None, 0)
    assert await bench.stages() == ["accepted", "refused"]
    assert await bench.open_alarms() == []
    assert asked.attempts == (claimed.attempt_id,)


async def test_every_silent_offer_of_a_generation_is_named(bench: Bench) -> None:
    await bench.enqueue(retry={"delays": [10], "jitter": 0})
    first = await bench.claim()
    await bench.begin(first, key_window=86400.0)
    await bench.settle(first, SILENCE)
    await bench.advance(11)
    second = await bench.claim()
    assert second.mode == "replay"
    await bench.begin(second, key_window=86400.0)
    await bench.settle(second, SILENCE)
    (asked,) = await due(bench)
    assert asked.attempts == (first.attempt_id, second.attempt_id)


async def test_an_offer_that_was_answered_is_not_asked_about(bench: Bench) -> None:
    await bench.enqueue()
    await bench.attempt(Deferred(Reply(429)))
    await bench.advance(60)
    claimed = await bench.claim()
    await bench.begin(claimed)
    await bench.settle(claimed, SILENCE)
    await bench.advance(6)
    (asked,) = await due(bench)
    assert (asked.generation, asked.attempts) == (2, (claimed.attempt_id,))


async def test_the_alarm_comes_after_the_provider_had_its_chance(bench: Bench) -> None:
    store = Store(bench.pool, {"default": "settings-1"}, askable=["default"])
    for key in ("answered", "silent"):
        await bench.enqueue(key)
        claimed = await bench.claim(key)
        await bench.begin(claimed)
        await store.settle(
            claimed.email_id, claimed.attempt_id, AttemptResult({0: SILENCE}), lane=bench.lane, actor="w1"
        )
    await bench.advance(6)
    for asked in await due(bench):
        if asked.key == "answered":
            await store.settle(asked.email_id, asked.attempts[0], AttemptResult({0: OK}), lane=bench.lane, actor="w1")
    await bench.advance(10)
    assert await store.raise_due_alarms() == 0
    assert await bench.open_alarms() == []
    await bench.advance(20)
    assert await store.raise_due_alarms() == 1
    [alarm] = await bench.rows("SELECT kind, email_id FROM sendonce.alarm")
    assert alarm == {"kind": "unknown", "email_id": bench.ids["silent"]}
