"""Days of retries in seconds: the time-skipping server, with the store's clock following the workflow's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError

from sendonce import OutgoingEmail, enqueue
from sendonce.activities.failures import client_options
from sendonce.activities.transports.base import Gate, Job
from sendonce.outcome import AttemptResult, Deferred, Outcome, Reply, Unanswered, same_for_all
from sendonce.policy import DEFAULT_LANES, LanePolicy, RetryPolicy
from sendonce.testing import KitSettings, Sendonce
from sendonce.testing.kit.loop import BackgroundLoop

if TYPE_CHECKING:
    from tests.flow.conftest import Relay, Step

Make = Callable[..., Sendonce]
GREYLISTED = Deferred(Reply(451, "4.7.1", "greylisted"))


@pytest.fixture
def make(sendonce_database_url: str, sendonce_loop: BackgroundLoop) -> Iterator[Make]:
    """An installation whose account ``default`` uses this transport, with the one lane of the test."""
    made: list[Sendonce] = []

    def make(transport: Relay, retry: RetryPolicy, **policy: Any) -> Sendonce:
        lanes = {"default": LanePolicy("default", retry, **policy)}
        settings = KitSettings(accounts={"default": transport}, lanes=lanes, options={"sandboxed": True})
        made.append(Sendonce(sendonce_database_url, settings, sendonce_loop))
        return made[-1]

    yield make
    for one in made:
        one.close()


def answer(outcome: Outcome) -> Step:
    async def step(job: Job, gate: Gate) -> AttemptResult:
        ordinals = tuple(r.ordinal for r in job.recipients)
        await gate.begin(ordinals)
        gate.offered()
        return same_for_all(ordinals, outcome)

    return step


def order(installation: Sendonce, **fields: Any) -> None:
    with installation.connect() as connection:
        mail = OutgoingEmail(key="k", sender="shop@example.com", to="ann@example.org", text="Hi.", **fields)
        enqueue(connection, mail)


async def ending(installation: Sendonce) -> tuple[WorkflowHandle[Any, Any], ApplicationError]:
    """The mail's workflow, which has failed, and how it did."""
    client = await Client.connect(installation.temporal_address, **client_options())
    handle = client.get_workflow_handle("k")
    with pytest.raises(WorkflowFailureError) as failure:
        await handle.result()
    assert isinstance(failure.value.cause, ApplicationError)
    return handle, failure.value.cause


async def test_five_days_of_deferrals_end_dead(make: Make, relay: type[Relay]) -> None:
    transport = relay(answer(GREYLISTED))
    installation = make(transport, DEFAULT_LANES["bulk"].retry)
    order(installation)
    begun = installation.now()
    installation.run_until_idle()
    handle, cause = await ending(installation)
    assert cause.type == "dead"
    ended = (await handle.describe()).close_time
    assert ended is not None
    assert timedelta(days=4, hours=19) < ended - begun < timedelta(days=5)
    assert 25 < len(transport.jobs) < 60
    with installation.connect() as connection:
        rows = connection.execute("SELECT stage, attempts FROM sendonce.email").fetchall()
        alarms = connection.execute("SELECT kind FROM sendonce.alarm").fetchall()
    assert rows == [("dead", len(transport.jobs))]
    assert alarms == [("dead",)]


async def test_a_mail_that_expires_while_it_waits_is_not_tried_again(make: Make, relay: type[Relay]) -> None:
    transport = relay(answer(GREYLISTED))
    installation = make(transport, RetryPolicy(delays=(3600,), jitter=0, max_age=86400))
    begun = installation.now()
    order(installation, expires_at=begun + timedelta(minutes=90))
    installation.run_until_idle()
    handle, cause = await ending(installation)
    assert cause.type == "expired"
    ended = (await handle.describe()).close_time
    assert ended is not None
    # It ends at its deadline, not at the next try.
    assert timedelta(minutes=89) < ended - begun < timedelta(minutes=95)
    assert len(transport.jobs) == 2


async def test_silence_is_replayed_under_the_same_key_and_long_waits_continue_as_new(
    make: Make, relay: type[Relay]
) -> None:
    transport = relay(answer(Unanswered()), key_window=7 * 86400.0)
    retry = RetryPolicy(delays=(2 * 86400.0,), jitter=0, max_attempts=50, max_age=30 * 86400.0)
    installation = make(transport, retry, unknown_days=20)
    order(installation)
    installation.skip(days=21)
    handle, cause = await ending(installation)
    # Unsettled after unknown_days, and never clean.
    assert cause.type == "dead"
    assert cause.message.endswith("may have been accepted")
    # One offer and its replays within seven days, all the same request.
    assert len(transport.jobs) == 4
    assert len({(job.provider_key, job.rendering.body) for job in transport.jobs}) == 1
    first = json.loads((await handle.fetch_history()).to_json())["events"][0]
    assert first["workflowExecutionStartedEventAttributes"]["continuedExecutionRunId"]
