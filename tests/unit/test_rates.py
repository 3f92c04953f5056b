"""Slots: never more than a rate allows in any window, over any number of askers, and none held by the wrong lane."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sendonce.errors import ConfigurationError
from sendonce.rates import AHEAD_SECONDS, COMMON, Rate, reserve, shares

T0 = 1_790_000_000.0


def drain(
    rates: list[Rate], seconds: float, *, lanes: dict[str, float] | None = None, lane: str = "default"
) -> list[float]:
    """The times that one greedy asker gets in the first ``seconds``."""
    pools, now = shares(rates, lanes or {}), T0
    state: dict[str, Any] = {}
    got: list[float] = []
    while now < T0 + seconds:
        slots, state = reserve(state, pools, lane, 100, now)
        got += slots.at
        now = max(slots.next_at - AHEAD_SECONDS, now + 0.01)
    return [at - T0 for at in got]


def most_in(times: list[float], seconds: float) -> int:
    """The most that lie in any window of that length, its end excluded."""
    times = sorted(times)
    return max((sum(1 for at in times if start <= at < start + seconds) for start in times), default=0)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("14/s", Rate(14, 1.0, 1)),
        ("100/min", Rate(100, 60.0, 10)),
        ("50000/day", Rate(50000, 86400.0, 50000)),
        ("30/10s", Rate(30, 10.0, 3)),
        ("5 / h burst 2", Rate(5, 3600.0, 2)),
    ],
)
def test_a_rate_is_read(text: str, rate: Rate) -> None:
    assert Rate.parse(text) == rate


@pytest.mark.parametrize(
    "text", ["", "14", "0/s", "14/sec", "-1/s", "1.5/s", "3/s burst 4", "3/s burst 0", "9/99day", "3/0s"]
)
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"rate|burst"):
        Rate.parse(text)


def test_a_backlog_goes_out_spread_at_nearly_the_rate() -> None:
    times = drain([Rate.parse("14/s")], 10)
    assert 10 * 14 * 0.97 <= len(times) <= 11 * 14
    assert most_in(times, 1.0) == 14
    assert min(b - a for a, b in pairwise(times)) >= 1 / 14 - 1e-6


def test_a_quota_is_used_as_fast_as_it_comes_and_then_waits() -> None:
    rate = Rate.parse("50/day")
    slots, state = reserve({}, shares([rate], {}), "bulk", 1000, T0)
    assert slots.at == (T0,) * 50
    assert 86400 <= slots.next_at - T0 <= 86400 * 1.02
    again, _ = reserve(state, shares([rate], {}), "bulk", 1000, slots.next_at)
    assert len(again.at) == 50


def test_all_rates_hold_at_once() -> None:
    times = drain([Rate.parse("10/s"), Rate.parse("25/10s burst 25")], 30)
    assert most_in(times, 1.0) <= 10
    assert most_in(times, 10.0) == 25


def test_an_idle_account_gives_its_burst_at_once() -> None:
    slots, _ = reserve({}, shares([Rate.parse("100/min burst 20")], {}), "default", 30, T0)
    assert [at - T0 for at in slots.at[:20]] == [0.0] * 20
    assert slots.at[20] - T0 == pytest.approx(0.6, abs=1e-4)


def test_a_lane_with_a_share_finds_a_slot_whatever_the_others_took() -> None:
    pools = shares([Rate.parse("10/s")], {"critical": 0.2})
    bulk, state = reserve({}, pools, "bulk", 1000, T0)
    assert len(bulk.at) == 8
    code, state = reserve(state, pools, "critical", 1, T0)
    assert code.at == (T0,)
    more, _ = reserve(state, pools, "critical", 5, T0)
    assert len(more.at) == 1, "its own next one; the common ones are taken"


def test_a_lane_with_a_share_may_take_the_common_slots_and_nobody_takes_its_own() -> None:
    pools = shares([Rate.parse("10/s burst 10")], {"critical": 0.2})
    codes, _ = reserve({}, pools, "critical", 10, T0)
    assert len([at for at in codes.at if at == T0]) == 10
    bulk, _ = reserve({}, pools, "bulk", 10, T0)
    assert len([at for at in bulk.at if at == T0]) == 8


def test_a_share_of_less_than_one_is_none() -> None:
    assert shares([Rate.parse("2/s")], {"critical": 0.2}).parts == {COMMON: (Rate(2, 1.0, 1),)}
    assert shares([Rate.parse("10/s"), Rate.parse("3/min")], {"critical": 0.2}).parts.keys() == {COMMON}
    with pytest.raises(ConfigurationError, match="leave nothing"):
        shares([Rate.parse("10/s")], {"critical": 0.5, "default": 0.5})


def test_a_rate_that_changes_goes_on_with_what_was_used() -> None:
    _, state = reserve({}, shares([Rate.parse("100/h")], {}), "default", 100, T0)
    slots, _ = reserve(state, shares([Rate.parse("110/h")], {}), "default", 100, T0 + 1)
    assert len(slots.at) == 10


def test_other_shares_give_nobody_more_than_the_rate() -> None:
    rate = Rate.parse("10/day")
    state: dict[str, Any] = {}
    got = 0
    for step, wanted in enumerate([{"critical": 0.4}, {}, {"critical": 0.4}, {"bulk": 0.5}]):
        for lane in ("critical", "default", "bulk"):
            slots, state = reserve(state, shares([rate], wanted), lane, 100, T0 + step)
            got += len(slots.at)
    assert got == 10


def test_a_process_that_does_not_know_a_rate_keeps_what_was_used_of_it() -> None:
    new, old = shares([Rate.parse("14/s"), Rate.parse("10/day")], {}), shares([Rate.parse("14/s")], {})
    state: dict[str, Any] = {}
    got = 0
    for step in range(20):
        slots, state = reserve(state, new, "default", 5, T0 + step * 10)
        got += len(slots.at)
        _, state = reserve(state, old, "default", 5, T0 + step * 10 + 5)
    assert got == 10


def test_what_counts_no_more_is_not_kept() -> None:
    _, state = reserve({}, shares([Rate.parse("10/min")], {"bulk": 0.5}), "bulk", 10, T0)
    assert state.keys() == {"*", "bulk", COMMON}
    _, state = reserve(state, shares([Rate.parse("10/s")], {}), "bulk", 1, T0 + 200)
    assert {pool: list(windows) for pool, windows in state.items()} == {"*": ["1"], COMMON: ["1"]}


@pytest.mark.parametrize("step", [-600.0, -5.0, 600.0])
def test_a_clock_that_steps_stops_nobody_for_longer_than_a_window(step: float) -> None:
    pools = shares([Rate.parse("14/s")], {"critical": 0.2})
    _, state = reserve({}, pools, "default", 100, T0)
    slots, state = reserve(state, pools, "default", 1, T0 + step)
    assert slots.next_at <= T0 + step + 1.1
    slots, _ = reserve(state, pools, "default", 1, slots.next_at)
    assert len(slots.at) == 1


RATES = st.builds(
    lambda count, seconds, burst: Rate(count, seconds, max(1, min(burst, count))),
    st.integers(1, 40),
    st.sampled_from([0.5, 1.0, 3.0, 60.0, 100.0]),
    st.integers(1, 40),
)
ASKS = st.lists(
    st.tuples(st.sampled_from(["critical", "default", "bulk"]), st.integers(1, 60), st.floats(0, 5)), max_size=40
)


@settings(max_examples=150, deadline=None)
@given(rates=st.lists(RATES, min_size=1, max_size=3, unique_by=lambda rate: rate.seconds), asks=ASKS)
def test_no_window_ever_holds_more_than_the_rate(rates: list[Rate], asks: list[tuple[str, int, float]]) -> None:
    pools = [shares(rates, {})]
    with suppress(ConfigurationError):
        pools.append(shares(rates, {"critical": 0.3, "bulk": 0.2}))
    state: dict[str, Any] = {}
    times: list[float] = []
    now = T0
    for number, (lane, wanted, pause) in enumerate(asks):
        # The settings change all the time.
        slots, state = reserve(state, pools[number % len(pools)], lane, wanted, now)
        assert len(slots.at) <= wanted
        assert all(now <= at <= now + AHEAD_SECONDS for at in slots.at)
        assert slots.next_at >= now
        times += slots.at
        now += pause
    for rate in rates:
        # Floats: a window that is shorter by a microsecond than the promise.
        assert most_in(times, rate.seconds - 1e-6) <= rate.count
