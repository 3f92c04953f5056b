"""Starts one workflow per mail, and finds the workflows that have vanished. The store says which; a claim is the proof.

A start that fails, is lost, or is made twice does no harm: the id is the mail's key, and Temporal refuses the second.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import psycopg
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from sendonce.activities.failures import where
from sendonce.activities.pulse import Pulse
from sendonce.activities.upkeep import patience
from sendonce.pace import Pace
from sendonce.policy import LanePolicy
from sendonce.precedence import MOST, Precedence
from sendonce.search_attributes import registered
from sendonce.stages import FINAL
from sendonce.store import Store
from sendonce.store.intake import Enqueued
from sendonce.store.pool import DatabaseUrl, current
from sendonce.store.records import Startable
from sendonce.store.turns import Turns
from sendonce.workflows import searching
from sendonce.workflows.delivery import EmailDelivery
from sendonce.workflows.port import WAKE_SIGNAL, WORKFLOW_NAME, Sent, Ticket, Wake, task_queue

logger = logging.getLogger(__name__)

TASK_TIMEOUT = timedelta(seconds=10)
"""After this long another worker takes over from one that died; a longer hand-off would be a heartbeat each time."""

RPC_TIMEOUT = timedelta(seconds=10)
BUSY_POLL = 0.1
"""Seconds between two looks at the store while rows are being found: places fall free without any notification."""

SHORTEST_POLL = 0.02
"""Seconds. However many notifications come, the store is not asked more often."""

LOCKED_SECONDS = 3.0
"""A mail whose row somebody else holds locked is passed over for so long, so that others behind it have their turn."""

MOST_LOCKED = 2000
"""So many are remembered for a lane."""

LOOKS = 100
"""Looks at the store in a row that find nothing to start, when there are very many turns."""

LONGEST_BACK_OFF = 30.0
"""Seconds between two tries while Temporal is away."""

RESTARTS_PER_SECOND = 20
OVERDUE_EVERY = 5.0


async def start_delivery(
    client: Client, ticket: Ticket, *, prefix: str, wake: bool = False, template: str = ""
) -> WorkflowHandle[EmailDelivery, Sent]:
    """Start the mail's workflow; with ``wake``, poke it if it runs already. ``template``: its name, to be shown.

    It carries search attributes if the namespace has them.

    Raises ``WorkflowAlreadyStartedError`` when it runs (without ``wake``) or has completed, RPCError when Temporal
    cannot be reached.
    """
    known = registered(client)
    if await known.look(client):
        try:
            return await _start_delivery(client, replace(ticket, attributes=True), prefix, wake, template)
        except RPCError as error:
            if error.status is not RPCStatusCode.INVALID_ARGUMENT:
                raise
            known.refused(client)
    return await _start_delivery(client, ticket, prefix, wake, template)


async def _start_delivery(
    client: Client, ticket: Ticket, prefix: str, wake: bool, template: str
) -> WorkflowHandle[EmailDelivery, Sent]:
    # Eager: a worker on this client runs the first step at once, without going through the task queue.
    signal = {"start_signal": WAKE_SIGNAL, "start_signal_args": [Wake()]} if wake else {"request_eager_start": True}
    return await client.start_workflow(
        EmailDelivery.run,
        ticket,
        id=ticket.workflow_id,
        task_queue=task_queue(prefix, ticket.lane),
        # Completed means sent: a workflow that did not end so may be started anew, and one that did may not.
        id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY,
        task_timeout=TASK_TIMEOUT,
        rpc_timeout=RPC_TIMEOUT,
        search_attributes=searching.at_start(ticket, template) if ticket.attributes else None,
        static_summary=searching.static_summary(ticket, template),
        **signal,
    )


async def start_now(
    client: Client, enqueued: Enqueued, *, task_queue_prefix: str = "sendonce", raise_errors: bool = False
) -> bool:
    """Start a mail's workflow right after the commit, instead of waiting for the starter. Optional.

    Call it after the *outermost* commit: a workflow that finds no row ends. ``client`` is best connected with
    :func:`sendonce.activities.failures.client_options`. True when the workflow was started or was there already;
    False when it could not be started, which the starter makes good, and for a mail that was there before: it has been
    started then, and may be in another lane than the one that was asked for now. Nothing is raised unless
    ``raise_errors``.
    """
    if not enqueued.created or enqueued.stage is None or enqueued.stage in FINAL:
        return False
    ticket = Ticket(str(enqueued.id), enqueued.key, enqueued.lane, enqueued.account)
    try:
        await start_delivery(client, ticket, prefix=task_queue_prefix, template=enqueued.template or "")
    except WorkflowAlreadyStartedError:
        return True
    except Exception as error:
        if raise_errors:
            raise
        logger.warning("not started, the starter will: workflow_id=%s %s", ticket.workflow_id, where(error))
        return False
    return True


class Starter:
    """One loop per lane for new rows, one for vanished workflows."""

    def __init__(
        self,
        store: Store,
        client: Client,
        lanes: Sequence[LanePolicy],
        *,
        actor: str,
        prefix: str = "sendonce",
        poll_seconds: float = 1.0,
        overdue_seconds: float = 60.0,
        full_accounts: Callable[[str], Sequence[str]] = lambda _: (),
        full_domains: Callable[[], Mapping[str, Sequence[str]]] = dict,
        precedence: Precedence | None = None,
        in_flight: Callable[[str], int] = lambda _: 0,
        halted: Callable[[], bool] = lambda: False,
        pulse: Pulse | None = None,
    ) -> None:
        """``poll_seconds`` is the longest time until a committed row is seen without a notification.

        ``overdue_seconds``: a due mail whose workflow has shown no sign of life for so long is started again.
        ``full_accounts`` names a lane's accounts that this process can take no more mails of, ``full_domains`` the
        destinations, by account. ``in_flight`` says how many attempts of a lane have begun a moment ago in this
        process; ``precedence`` is told there of those that are urgent. ``halted``: nothing is to be started, because
        the store may have forgotten what was. ``pulse`` gets the signs of life of its loops.
        """
        self._halted = halted
        self._pulse = pulse or Pulse()
        self._store = store
        self._client = client
        self._lanes = list(lanes)
        self._actor = actor
        self._prefix = prefix
        self._poll_seconds = poll_seconds
        self._overdue_seconds = overdue_seconds
        self._full_accounts = full_accounts
        self._full_domains = full_domains
        self._wakes: Mapping[str, asyncio.Event] = {lane.name: asyncio.Event() for lane in lanes}
        self._turns: Mapping[str, dict[str, str]] = {lane.name: {} for lane in lanes}
        # Until when (monotonic) they are passed over.
        self._locked: Mapping[str, dict[UUID, float]] = {lane.name: {} for lane in lanes}
        self._precedence = precedence or Precedence()
        self._in_flight = in_flight
        self._back_off = 0.0
        self._resume_at = 0.0
        self._waiting: set[asyncio.Task[None]] = set()
        self._pace = Pace(store)

    def wake(self, lane: str = "") -> None:
        """There may be new rows; in this lane, if it is named."""
        for name, event in self._wakes.items():
            if not lane or name == lane:
                event.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Start workflows until ``stop``; then let the calls that are in flight end."""
        await registered(self._client).look(self._client)
        async with asyncio.TaskGroup() as group:
            # In the order of the lanes: the first is asked for first.
            for lane in self._lanes:
                group.create_task(self._serve(lane, stop))
            for lane in self._lanes:
                group.create_task(self._heal(lane, stop))
            await stop.wait()
            self.wake()

    async def once(self) -> bool:
        """Start what may be started now, in every lane, instead of :meth:`run`; True when there was something.

        Returns when all calls have ended.
        """
        found, stop = False, asyncio.Event()
        # What is known of slots is of another time.
        self._pace = Pace(self._store)
        for lane in self._lanes:
            calls: set[asyncio.Task[None]] = set()
            found = await self._start_due(lane, calls, stop) or found
            if ending := calls | self._waiting:
                await asyncio.wait(ending)
        return found

    async def _serve(self, lane: LanePolicy, stop: asyncio.Event) -> None:
        calls: set[asyncio.Task[None]] = set()
        found_at, away = -1.0, False
        self._pulse.expect(_loop(lane), patience(LONGEST_BACK_OFF))
        while not stop.is_set():
            # Also while everything is halted: then no look is taken.
            self._pulse.beat(_loop(lane))
            # Cleared before the look: what is committed after it sets it again.
            self._wakes[lane.name].clear()
            try:
                if await self._start_due(lane, calls, stop):
                    found_at = time.monotonic()
                away = False
            except psycopg.OperationalError as error:
                if not away:
                    logger.warning(
                        "lane %s: the store cannot be reached (%s); trying on", lane.name, type(error).__name__
                    )
                away = True
            except Exception as error:
                logger.error("lane %s: %s", lane.name, where(error))
            busy = time.monotonic() - found_at < 1.0
            await _pause(stop, SHORTEST_POLL)
            await _wait(self._wakes[lane.name], min(BUSY_POLL, self._poll_seconds) if busy else self._poll_seconds)
            await _pause(stop, self._resume_at - time.monotonic())
        self._pulse.forget(_loop(lane))
        if ending := calls | self._waiting:
            await asyncio.wait(ending)

    async def _start_due(self, lane: LanePolicy, calls: set[asyncio.Task[None]], stop: asyncio.Event) -> bool:
        """Start what is due; True when there was something."""
        found = False
        looks = 0
        while not stop.is_set() and not self._halted():
            self._pulse.beat(_loop(lane))
            # While Temporal is away one row is enough to find out that it is back.
            await _some_end(calls)
            at_once = MOST if lane.urgent else self._precedence.at_once
            yielding = at_once < MOST
            free = (1 if self._back_off else at_once) - len(calls) - (self._in_flight(lane.name) if yielding else 0)
            if free <= 0:
                if yielding:
                    self._precedence.used_up()
                if calls:
                    await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
                else:
                    await _pause(stop, SHORTEST_POLL)
                continue
            rows = await self._store.unstarted(
                lane.name,
                limit=free,
                ceiling=min(lane.places, at_once) if yielding else lane.places,
                accounts_full=[*self._full_accounts(lane.name), *self._pace.without_slots(lane.name)],
                caps=self._pace.caps(lane.name),
                turns_taken=self._turns[lane.name],
                domains_full=self._domains_full(lane),
                locked=_still(self._locked[lane.name]),
            )
            _pass_over(self._locked[lane.name], rows.locked)
            startable = await self._pace.with_slots(lane.name, rows) if rows else []
            _take_turns(self._turns[lane.name], rows, [row for row, _ in startable])
            for row, delay in startable:
                task = asyncio.create_task(
                    self._start_later(lane, row, delay, stop) if delay else self._start(lane, row)
                )
                # Whoever waits for a slot makes no call: others of the lane go before.
                among = self._waiting if delay else calls
                among.add(task)
                task.add_done_callback(among.discard)
            found = found or bool(startable)
            looks += 1
            # Fewer than wanted is all there is, unless several took turns and some had little, or not all were seen.
            taking_turns = len({row.fairness_key for row, _ in startable}) > 1
            seen_all = (rows.all_keys and not rows.locked) or looks >= LOOKS
            enough = len(startable) < free and not taking_turns and seen_all
            if self._back_off or enough:
                break
        return found

    def _domains_full(self, lane: LanePolicy) -> dict[str, list[str]]:
        """The destinations that take no new mail now, by account."""
        full = {account: list(domains) for account, domains in self._full_domains().items()}
        for name in self._pace.without_slots(lane.name):
            account, _, domain = name.partition("@")
            if domain:
                full.setdefault(account, []).append(domain)
        return full

    async def _start_later(self, lane: LanePolicy, row: Startable, delay: float, stop: asyncio.Event) -> None:
        await _pause(stop, delay)
        if stop.is_set() or self._halted():
            await self._unstamp(row)
        else:
            await self._start(lane, row)

    async def _start(self, lane: LanePolicy, row: Startable, *, again: bool = False) -> None:
        """Start one mail's workflow; ``again`` pokes one that runs after all."""
        ticket = Ticket(str(row.email_id), row.key, row.lane, row.account)
        if lane.urgent and not again:
            self._precedence.leaves(row.email_id)
        try:
            try:
                if again:
                    await self._leave_other_queue(ticket)
                await start_delivery(self._client, ticket, prefix=self._prefix, wake=again, template=row.template)
            except WorkflowAlreadyStartedError:
                await self._look_at(lane, row, ticket)
        except psycopg.OperationalError as error:
            # The stamp stands: the mail is overdue in a minute.
            logger.warning("email_id=%s: the store cannot be reached (%s)", row.email_id, type(error).__name__)
        except Exception as error:
            self._away(ticket, error)
            await self._unstamp(row)
        else:
            self._back_off = 0.0

    async def _leave_other_queue(self, ticket: Ticket) -> None:
        """End a run that waits on a task queue other than ours, where nobody may ever ask for it: another prefix in the
        settings of whoever started it. The next start puts it on ours.
        """
        handle = self._client.get_workflow_handle(ticket.workflow_id)
        try:
            found = await handle.describe(rpc_timeout=RPC_TIMEOUT)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return
            raise
        queue = task_queue(self._prefix, ticket.lane)
        ours = found.workflow_type == WORKFLOW_NAME and found.status is WorkflowExecutionStatus.RUNNING
        if ours and found.task_queue != queue:
            logger.warning(
                "%s waits on task queue %r: it is started anew on %r; is task_queue_prefix the same everywhere?",
                ticket.workflow_id,
                found.task_queue,
                queue,
            )
            await self._client.get_workflow_handle(found.id, run_id=found.run_id).terminate(
                reason="on another task queue", rpc_timeout=RPC_TIMEOUT
            )

    async def _look_at(self, lane: LanePolicy, row: Startable, ticket: Ticket) -> None:
        """ "Already started" proves nothing: see what is there."""
        found = await self._client.get_workflow_handle(ticket.workflow_id).describe(rpc_timeout=RPC_TIMEOUT)
        if found.workflow_type != WORKFLOW_NAME:
            logger.error("another workflow has the id %s: the mail is held", ticket.workflow_id)
            await self._store.hold(row.email_id, "workflow_id_taken", actor=self._actor)
        elif found.status is WorkflowExecutionStatus.COMPLETED:
            email_id = await self._sent_by(found.id, found.run_id)
            if email_id == ticket.email_id:
                # It was sent, and the store has forgotten: restored, or failed over with a loss.
                await self._store.record_completed_run(row.email_id, lane=lane, actor=self._actor)
            elif email_id:
                logger.error("another mail was sent under the key %s: this one is held", row.key)
                await self._store.hold(row.email_id, "key_sent_before", actor=self._actor)
            else:
                # It would be the first in its turn again and again, and everybody behind it would wait.
                await self._store.hold(row.email_id, "run_unreadable", actor=self._actor)
        elif found.status is not WorkflowExecutionStatus.RUNNING:
            # It has ended in between; the next look starts it.
            await self._unstamp(row)

    async def _sent_by(self, name: str, run_id: str | None) -> str:
        """Which mail a completed run has sent; ``""``: its result is none of ours, or cannot be decoded."""
        handle = self._client.get_workflow_handle(name, run_id=run_id, result_type=Sent)
        try:
            sent: Sent = await handle.result(rpc_timeout=RPC_TIMEOUT)
            return sent.email_id
        except RPCError:
            raise
        except Exception as error:
            logger.error("the result of %s cannot be read (%s): the mail is held", name, where(error))
            return ""

    async def _unstamp(self, row: Startable) -> None:
        try:
            await self._store.unstamp([row.email_id])
        except psycopg.OperationalError:
            logger.warning("email_id=%s: the store cannot be reached, the start will be overdue", row.email_id)

    def _away(self, ticket: Ticket, error: Exception) -> None:
        reason = error.status.name if isinstance(error, RPCError) else where(error)
        if not self._back_off:
            logger.warning("not started: workflow_id=%s %s; trying on", ticket.workflow_id, reason)
        now = time.monotonic()
        if now >= self._resume_at:
            self._back_off = min(LONGEST_BACK_OFF, self._back_off * 2 or 0.5)
            self._resume_at = now + self._back_off

    async def _heal(self, lane: LanePolicy, stop: asyncio.Event) -> None:
        """Start again, or poke, what is due while its workflow shows no sign of life."""
        every = min(OVERDUE_EVERY, self._overdue_seconds)
        name, away = f"overdue:{lane.name}", False
        self._pulse.expect(name, patience(LONGEST_BACK_OFF))
        while not stop.is_set():
            self._pulse.beat(name)
            try:
                rows = (
                    []
                    if self._halted()
                    else await self._store.overdue(
                        lane.name, limit=int(RESTARTS_PER_SECOND * every) or 1, after_seconds=self._overdue_seconds
                    )
                )
                away = False
                for done, row in enumerate(rows, start=1):
                    self._pulse.beat(name)
                    await self._start(lane, row, again=True)
                    await _pause(stop, 1 / RESTARTS_PER_SECOND)
                    if stop.is_set() or self._back_off or self._halted():
                        await self._store.unstamp([other.email_id for other in rows[done:]])
                        break
            except psycopg.OperationalError as error:
                if not away:
                    logger.warning("lane %s: the store cannot be reached (%s)", lane.name, type(error).__name__)
                away = True
            except Exception as error:
                logger.error("lane %s: %s", lane.name, where(error))
            await _pause(stop, every)
        self._pulse.forget(name)


async def listen(database_url: DatabaseUrl, wake: Callable[[str], None]) -> None:
    """Call ``wake`` with the lane of each notification; with ``""``, all lanes, after each connect; until cancelled.

    Only a hint: the starter polls all the same, because a dead connection may go unnoticed for a while.
    """
    delay = 1.0
    while True:
        try:
            connection = await psycopg.AsyncConnection.connect(
                await current(database_url)(),
                autocommit=True,
                application_name="sendonce listen",
                connect_timeout=5,
                keepalives_idle=10,
                keepalives_interval=5,
                keepalives_count=3,
                tcp_user_timeout=30_000,
            )
            async with connection:
                await connection.execute("LISTEN sendonce")
                delay = 1.0
                # What was committed while nobody listened.
                wake("")
                async for notification in connection.notifies():
                    wake(notification.payload)
        except Exception as error:
            logger.warning("not listening (%s), polling; next try in %.0f s", type(error).__name__, delay)
        await asyncio.sleep(delay)
        delay = min(LONGEST_BACK_OFF, delay * 2)


def _loop(lane: LanePolicy) -> str:
    return f"starter:{lane.name}"


def _take_turns(turns: dict[str, str], found: Turns, started: Sequence[Startable]) -> None:
    """Keep whose turn was the last, account by account.

    That of the last mail that was started; where nothing could be, the last one that was looked at. What was found and
    had no slot keeps its turn.
    """
    with_mail = {row.account for row in found}
    turns.update({account: key for account, key in found.last_keys.items() if account not in with_mail})
    turns.update({row.account: row.fairness_key for row in started})


def _still(locked: dict[UUID, float]) -> list[UUID]:
    """Those that are still to be passed over."""
    now = time.monotonic()
    for email_id in [email_id for email_id, until in locked.items() if until <= now]:
        del locked[email_id]
    return list(locked)


def _pass_over(locked: dict[UUID, float], more: Sequence[UUID]) -> None:
    until = time.monotonic() + LOCKED_SECONDS
    locked.update(dict.fromkeys(more[: max(0, MOST_LOCKED - len(locked))], until))


async def _some_end(calls: set[asyncio.Task[None]]) -> None:
    """Where calls are many, wait a moment: one look for several mails costs what it costs for one."""
    end = time.monotonic() + SHORTEST_POLL
    while len(calls) > MOST // 2 and (left := end - time.monotonic()) > 0:
        await asyncio.wait(calls, timeout=left, return_when=asyncio.FIRST_COMPLETED)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), max(0.0, seconds))


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    if seconds > 0:
        await _wait(stop, seconds)
