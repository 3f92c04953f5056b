"""Retry policies for every attempt number, age and provider's wish."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sendonce.errors import ConfigurationError
from sendonce.policy import DAY, DEFAULT_LANES, HOUR, LONGEST_DELAY, LanePolicy, RetryPolicy

PROPERTY = settings(deadline=None, derandomize=True, max_examples=300)

seconds = st.floats(0.25, LONGEST_DELAY)
factors = st.one_of(st.floats(1, 100), st.sampled_from([1, 1 + 2**-52, 1.0000001, 100]))
limits = {"max_attempts": st.integers(1, 1000), "max_age": st.floats(1, 365 * DAY)}
exponential = {"base": seconds, "factor": factors, "cap": seconds, **limits}
policies = st.builds(
    RetryPolicy, delays=st.lists(seconds, max_size=8).map(tuple), jitter=st.floats(0, 1), **exponential
)
attempt_numbers = st.one_of(st.integers(-5, 2000), st.integers(10**6, 10**400))
wishes = st.one_of(
    st.none(), st.floats(allow_nan=True, allow_infinity=True), st.integers(-(10**400), 10**400), st.floats(0, 10 * DAY)
)


@PROPERTY
@given(policies, attempt_numbers, st.integers())
def test_every_delay_lies_between_a_quarter_second_and_seven_days(policy: RetryPolicy, attempt: int, seed: int) -> None:
    assert 0.25 <= policy.delay(attempt, random.Random(seed)) <= LONGEST_DELAY


@PROPERTY
@given(policies, st.integers(1, 2000), st.integers())
def test_jitter_only_lengthens_and_by_no_more_than_its_fraction(policy: RetryPolicy, attempt: int, seed: int) -> None:
    plain = RetryPolicy.from_json({**policy.to_json(), "jitter": 0}).delay(attempt)
    spread = policy.delay(attempt, random.Random(seed))
    assert plain <= spread <= min(LONGEST_DELAY, plain * (1 + policy.jitter)) * (1 + 1e-9)


@PROPERTY
@given(st.builds(RetryPolicy, jitter=st.just(0.0), **exponential), st.integers(1, 2000))
def test_exponential_delays_never_shrink_and_end_at_the_cap(policy: RetryPolicy, attempt: int) -> None:
    assert policy.delay(attempt) <= policy.delay(attempt + 1) <= policy.cap
    if policy.factor >= 1.01:
        assert policy.delay(10**6) == policy.cap


@PROPERTY
@given(policies, attempt_numbers, st.floats(0, 366 * DAY), wishes, st.integers())
def test_the_next_try_keeps_within_attempts_and_age(
    policy: RetryPolicy, attempt: int, age: float, wish: float | None, seed: int
) -> None:
    wait = policy.after(attempt, age, retry_after=wish, rng=random.Random(seed))
    own = policy.delay(attempt, random.Random(seed))
    if attempt >= policy.max_attempts or own > policy.max_age - age:
        assert wait is None
    else:
        assert wait is not None
        assert own <= wait <= LONGEST_DELAY
        assert wait <= policy.max_age - age


@PROPERTY
@given(policies, st.floats(0, 10 * DAY))
def test_a_wish_is_granted_where_the_limits_allow_it(policy: RetryPolicy, wish: float) -> None:
    wait = policy.after(1, 0, retry_after=wish, rng=random.Random(0))
    if wait is not None:
        assert wait >= min(wish, LONGEST_DELAY, policy.max_age)


def test_a_wish_beyond_the_age_gives_one_last_try_instead_of_none() -> None:
    policy = RetryPolicy(delays=(10,), jitter=0, max_age=100)
    assert policy.after(1, 40, retry_after=1e15) == 60
    assert policy.after(1, 95, retry_after=1e15) is None


def test_no_wish_is_granted_beyond_seven_days() -> None:
    policy = RetryPolicy(delays=(10,), jitter=0, max_age=365 * DAY)
    assert policy.after(1, 0, retry_after=8 * DAY) == LONGEST_DELAY


def test_a_nonsensical_wish_leaves_the_policys_own_delay() -> None:
    policy = RetryPolicy(delays=(10,), jitter=0)
    assert [policy.after(1, 0, retry_after=wish) for wish in (None, math.nan, math.inf, -5.0, 10**400)] == [10] * 5


def test_the_plain_series() -> None:
    exponential = RetryPolicy(base=30, factor=2, cap=200, jitter=0)
    assert [exponential.delay(n) for n in (0, 1, 2, 3, 4, 5)] == [30, 30, 60, 120, 200, 200]
    listed = RetryPolicy(delays=(2, 5, 15), jitter=0)
    assert [listed.delay(n) for n in (1, 2, 3, 4)] == [2, 5, 15, 15]


def test_attempts_are_given_up_at_the_limit_itself() -> None:
    policy = RetryPolicy(delays=(1,), jitter=0, max_attempts=3)
    assert policy.after(2, 0) == 1
    assert policy.after(3, 0) is None


@PROPERTY
@given(policies)
def test_the_horizon_is_a_time_at_which_a_try_is_made(policy: RetryPolicy) -> None:
    age, attempt, plain = 0.0, 1, RetryPolicy.from_json({**policy.to_json(), "jitter": 0})
    while attempt < policy.max_attempts and age + plain.delay(attempt) <= policy.max_age:
        age += plain.delay(attempt)
        attempt += 1
    assert policy.horizon() == pytest.approx(age)
    assert policy.horizon() <= policy.max_age


@PROPERTY
@given(policies)
def test_the_stored_form_comes_back_equal(policy: RetryPolicy) -> None:
    assert RetryPolicy.from_json(policy.to_json()) == policy


OUT_OF_BOUNDS: list[tuple[str, Any]] = [
    ("delays", (0.2,)),
    ("delays", (LONGEST_DELAY + 1,)),
    ("delays", ("5",)),
    ("delays", "53"),
    ("delays", 5),
    ("delays", None),
    ("delays", (10**400,)),
    ("base", 0),
    ("base", "30"),
    ("base", True),
    ("base", math.nan),
    ("factor", 0.99),
    ("factor", 101),
    ("cap", math.inf),
    ("cap", 10**400),
    ("jitter", -0.1),
    ("jitter", 1.1),
    ("max_attempts", 0),
    ("max_attempts", 1001),
    ("max_attempts", 2.5),
    ("max_attempts", True),
    ("max_attempts", None),
    ("max_age", 0.5),
    ("max_age", 366 * DAY),
]


@pytest.mark.parametrize(("name", "value"), OUT_OF_BOUNDS)
def test_a_value_out_of_bounds_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=rf"retry policy: {name} = .* is out of bounds: .*\d"):
        RetryPolicy(**{name: value})
    with pytest.raises(ConfigurationError, match=rf"retry policy: {name} = .* is out of bounds: .*\d"):
        RetryPolicy.from_json({name: value})


def test_an_unknown_member_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="unknown member 'max_tries'"):
        RetryPolicy.from_json({"max_tries": 3})


@pytest.mark.parametrize(
    ("policy", "key_window", "words"),
    [
        (RetryPolicy(delays=(100,), max_age=50), None, "nothing is retried"),
        (RetryPolicy(delays=(10, 100), max_age=50), None, "the last never act"),
        (RetryPolicy(delays=(1, 2, 3), max_attempts=3), None, "uses only the first 2 delays"),
        (RetryPolicy(base=2 * HOUR, cap=4 * HOUR), HOUR, "can never be replayed"),
    ],
)
def test_what_can_never_act_is_said(policy: RetryPolicy, key_window: float | None, words: str) -> None:
    assert [w for w in policy.warnings(key_window=key_window) if words in w]


def test_a_policy_of_which_all_can_act_has_no_warning() -> None:
    assert RetryPolicy(delays=(1, 2), max_attempts=3, max_age=60).warnings(key_window=60) == []
    assert RetryPolicy(max_attempts=1, max_age=1).warnings() == []


@pytest.mark.parametrize("name", list(DEFAULT_LANES))
def test_the_default_lanes_can_do_all_they_say(name: str) -> None:
    lane = DEFAULT_LANES[name]
    assert lane.name == name
    assert lane.retry.warnings(key_window=DAY) == []
    assert lane.answer_seconds == 600


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("unknown", "retry"),
        ("unknown_days", 0),
        ("unknown_days", 366),
        ("answer_seconds", 0.5),
        ("answer_seconds", 3601),
        ("rate_share", -0.1),
        ("rate_share", 0.91),
        ("urgent", 1),
        ("places", 0),
        ("places", 2.5),
        ("places", 1001),
    ],
)
def test_a_lane_out_of_bounds_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"lane 'codes': {name} = .* is out of bounds: "):
        LanePolicy("codes", **{name: value})
