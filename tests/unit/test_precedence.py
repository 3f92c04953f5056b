"""How many other mails are started at once while urgent mail comes."""

from __future__ import annotations

from uuid import uuid4

import pytest

from sendonce.precedence import LEAST, MOST, RECOVERY_SECONDS, Precedence


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def precedence(clock: Clock) -> Precedence:
    return Precedence(clock)


def urgent(precedence: Precedence, clock: Clock, took: float, *, used_up: bool = False, every: float = 0.2) -> None:
    clock.now += every
    one = uuid4()
    precedence.leaves(one)
    if used_up:
        precedence.used_up()
    clock.now += took
    precedence.arrives(one)


def test_without_urgent_mail_nobody_yields(precedence: Precedence, clock: Clock) -> None:
    for _ in range(100):
        clock.now += 1
        assert precedence.at_once == MOST


def test_the_first_urgent_mail_leaves_little_room_at_once(precedence: Precedence) -> None:
    precedence.leaves(uuid4())
    assert precedence.at_once == LEAST


def test_while_urgent_mail_is_as_quick_as_alone_others_become_more(precedence: Precedence, clock: Clock) -> None:
    for _ in range(20):
        urgent(precedence, clock, 0.01)
    for _ in range(100):
        urgent(precedence, clock, 0.012, used_up=True)
    assert precedence.at_once > 3 * LEAST


def test_where_nothing_else_was_beside_it_its_time_says_nothing(precedence: Precedence, clock: Clock) -> None:
    for _ in range(200):
        urgent(precedence, clock, 0.01)
    # But for what time has brought back, which is one for five seconds.
    assert precedence.at_once <= LEAST + 200 * 0.21 / RECOVERY_SECONDS
    precedence.used_up()
    assert precedence.at_once < MOST


def test_where_urgent_mail_takes_longer_others_become_fewer_but_never_none(
    precedence: Precedence, clock: Clock
) -> None:
    for _ in range(20):
        urgent(precedence, clock, 0.01)
    for _ in range(100):
        urgent(precedence, clock, 0.012, used_up=True)
    before = precedence.at_once
    urgent(precedence, clock, 0.2, used_up=True)
    assert precedence.at_once <= before // 2 + 1
    for _ in range(10):
        urgent(precedence, clock, 0.2, used_up=True)
    assert precedence.at_once == LEAST


def test_mails_that_were_under_way_together_are_one_sign(precedence: Precedence, clock: Clock) -> None:
    for _ in range(20):
        urgent(precedence, clock, 0.01)
    for _ in range(150):
        urgent(precedence, clock, 0.012, used_up=True)
    before = precedence.at_once
    together = [uuid4() for _ in range(4)]
    for one in together:
        precedence.leaves(one)
    clock.now += 0.3
    for one in together:
        precedence.arrives(one)
    assert precedence.at_once == before // 2


def test_after_the_last_urgent_mail_all_room_comes_back(precedence: Precedence, clock: Clock) -> None:
    urgent(precedence, clock, 0.01)
    clock.now += MOST * RECOVERY_SECONDS
    assert precedence.at_once == MOST


def test_a_machine_that_has_become_slower_is_not_taken_for_a_busy_one_for_ever(
    precedence: Precedence, clock: Clock
) -> None:
    urgent(precedence, clock, 0.01)
    for _ in range(3600):
        urgent(precedence, clock, 0.04, used_up=True, every=1.0)
    assert precedence.at_once > LEAST + 2


def test_what_never_arrives_here_is_forgotten(precedence: Precedence, clock: Clock) -> None:
    first = uuid4()
    precedence.leaves(first)
    for _ in range(2000):
        clock.now += 0.001
        precedence.leaves(uuid4())
    before = precedence.at_once
    precedence.arrives(first)
    assert precedence.at_once == before
