"""Days of retries in seconds: the time-skipping server, with the store's clock following the workflow's."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import temporalio.client
import temporalio.worker
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment

from sendonce.activities.failures import client_options
from sendonce.activities.transports.base import Gate, Job
from sendonce.outcome import AttemptResult, Deferred, Outcome, Reply, Unanswered, same_for_all
from sendonce.policy import DEFAULT_LANES, LanePolicy, RetryPolicy
from sendonce.starter import start_delivery
from sendonce.workflows.port import Ticket

if TYPE_CHECKING:
    from tests.flow.conftest import Flow, Relay, Step


class StoreClock(temporalio.client.Interceptor, temporalio.worker.Interceptor):
    """Before each activity the store's clock is set to the server's."""

    def __init__(self, environment: WorkflowEnvironment, database_url: str) -> None:
        self._environment = environment
        self._database_url = database_url

    async def sync(self) -> None:
        now = await self._environment.get_current_time()
        connection = await psycopg.AsyncConnection.connect(self._database_url, autocommit=True)
        async with connection:
            await connection.execute("UPDATE public.test_clock SET off = %s - clock_timestamp()", [now])

    def intercept_activity(
        self,
        next: temporalio.worker.ActivityInboundInterceptor,  # noqa: A002
    ) -> temporalio.worker.ActivityInboundInterceptor:
        return _Synced(next, self)


class _Synced(temporalio.worker.ActivityInboundInterceptor):
    def __init__(self, following: temporalio.worker.ActivityInboundInterceptor, clock: StoreClock) -> None:
        super().__init__(following)
        self._clock = clock

    async def execute_activity(self, input: temporalio.worker.ExecuteActivityInput) -> Any:  # noqa: A002
        await self._clock.sync()
        return await super().execute_activity(input)


def answer(outcome: Outcome) -> Step:
    async def step(job: Job, gate: Gate) -> AttemptResult:
        ordinals = tuple(r.ordinal for r in job.recipients)
        await gate.begin(ordinals)
        gate.offered()
        return same_for_all(ordinals, outcome)

    return step


async def virtual(flow: Flow, environment: WorkflowEnvironment) -> Client:
    """A client of the time-skipping server whose workers keep the store's clock with it."""
    await flow.own_clock()
    clock = StoreClock(environment, flow.database_url)
    await clock.sync()
    config = environment.client.config()
    config["interceptors"] = [*config["interceptors"], clock]
    config["data_converter"] = client_options()["data_converter"]
    flow.client = Client(**config)
    return flow.client


async def test_five_days_of_deferrals_end_dead(
    flow: Flow, relay: type[Relay], time_skipping: WorkflowEnvironment
) -> None:
    client = await virtual(flow, time_skipping)
    transport = relay(answer(Deferred(Reply(451, "4.7.1", "greylisted"))))
    lanes = {"default": LanePolicy("default", DEFAULT_LANES["bulk"].retry)}
    async with flow.worker(transport, client=client, lanes=lanes, hand_off_seconds=None, with_starter=False):
        key = await flow.enqueue()
        begun = await time_skipping.get_current_time()
        ticket = Ticket(str(flow.ids[key]), key, "default")
        handle = await start_delivery(client, ticket, prefix=flow.prefix)
        with pytest.raises(WorkflowFailureError) as failure:
            await handle.result()
        ended = (await handle.describe()).close_time
    assert ended is not None
    assert isinstance(failure.value.cause, ApplicationError)
    assert failure.value.cause.type == "dead"
    assert timedelta(days=4, hours=19) < ended - begun < timedelta(days=5)
    assert 25 < len(transport.jobs) < 60
    assert (await flow.email(key))["attempts"] == len(transport.jobs)
    assert "dead" in await flow.alarms()


async def test_a_mail_that_expires_while_it_waits_is_not_tried_again(
    flow: Flow, relay: type[Relay], time_skipping: WorkflowEnvironment
) -> None:
    client = await virtual(flow, time_skipping)
    transport = relay(answer(Deferred(Reply(451, "4.7.1", "greylisted"))))
    lanes = {"default": LanePolicy("default", RetryPolicy(delays=(3600,), jitter=0, max_age=86400))}
    async with flow.worker(transport, client=client, lanes=lanes, hand_off_seconds=None, with_starter=False):
        rows = await flow.rows("SELECT to_json(sendonce.clock() + interval '90 minutes') #>> '{}' AS at")
        key = await flow.enqueue(expires_at=rows[0]["at"])
        begun = await time_skipping.get_current_time()
        handle = await start_delivery(client, Ticket(str(flow.ids[key]), key, "default"), prefix=flow.prefix)
        with pytest.raises(WorkflowFailureError) as failure:
            await handle.result()
        ended = (await handle.describe()).close_time
    assert ended is not None
    assert isinstance(failure.value.cause, ApplicationError)
    assert failure.value.cause.type == "expired"
    # It ends at its deadline, not at the next try.
    assert timedelta(minutes=89) < ended - begun < timedelta(minutes=95)
    assert len(transport.jobs) == 2


async def test_silence_is_replayed_under_the_same_key_and_long_waits_continue_as_new(
    flow: Flow, relay: type[Relay], time_skipping: WorkflowEnvironment
) -> None:
    client = await virtual(flow, time_skipping)
    transport = relay(answer(Unanswered()), key_window=7 * 86400.0)
    retry = RetryPolicy(delays=(2 * 86400.0,), jitter=0, max_attempts=50, max_age=30 * 86400.0)
    lanes = {"default": LanePolicy("default", retry, unknown_days=20)}
    async with flow.worker(transport, client=client, lanes=lanes, hand_off_seconds=None, with_starter=False):
        key = await flow.enqueue()
        handle = await start_delivery(client, Ticket(str(flow.ids[key]), key, "default"), prefix=flow.prefix)
        with pytest.raises(WorkflowFailureError) as failure:
            await handle.result()
    assert isinstance(failure.value.cause, ApplicationError)
    # Unsettled after unknown_days, and never clean.
    assert failure.value.cause.type == "dead"
    assert failure.value.cause.message.endswith("may have been accepted")
    # One offer and its replays within seven days, all the same request.
    assert len(transport.jobs) == 4
    assert len({(job.provider_key, job.rendering.body) for job in transport.jobs}) == 1
    history = await flow.handle(key).fetch_history()
    assert history.events[0].workflow_execution_started_event_attributes.continued_execution_run_id
