"""Tells workflows how mails ended."""

from __future__ import annotations

import logging
from datetime import timedelta

import psycopg
from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from sendonce.activities.failures import where
from sendonce.final import Final
from sendonce.store import Store
from sendonce.store.telling import Untold
from sendonce.workflows.port import FINAL_SIGNAL, EmailFinal, Missing, NotYet, OutcomeSteps, Watch, WatchAnswer

logger = logging.getLogger(__name__)

RPC_TIMEOUT = timedelta(seconds=10)
_AWAY = (RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED)


class Telling(OutcomeSteps):
    """One per process. Without a client the news waits, as it does while Temporal is away."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.client: Client | None = None

    @activity.defn(name="watch")
    async def watch(self, call: Watch) -> WatchAnswer:
        """How the mail ended, or have the workflow told when it does."""
        key, account = call.awaited.key, call.awaited.account
        try:
            found = await self._store.watch(account, key, call.workflow_id, FINAL_SIGNAL)
        except psycopg.OperationalError:
            return NotYet(recorded=False)
        except Exception as error:
            logger.error("watch failed: workflow_id=%s %s", call.workflow_id, where(error))
            # Its words may hold what is personal.
            raise ApplicationError("watch failed", type=type(error).__name__) from None
        if found is None:
            return Missing()
        return _final(found) if isinstance(found, Final) else NotYet()

    async def round(self) -> None:
        """Signal those that are to be told. What fails is tried again later, and keeps nobody waiting."""
        if self.client is None:
            return
        for one in await self._store.take_untold():
            if not await self._tell(self.client, one):
                # Temporal is away. The others are due again in a moment, as this one is.
                break

    async def _tell(self, client: Client, one: Untold) -> bool:
        """Tell one; False when Temporal cannot be reached."""
        try:
            await client.get_workflow_handle(one.workflow_id).signal(one.signal, _untold(one), rpc_timeout=RPC_TIMEOUT)
        except RuntimeError:
            # A client that was never connected.
            logger.warning("not told, later again: workflow_id=%s", one.workflow_id)
            return False
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                # One of ours that is gone was told, or cancelled by whoever waited.
                await self._store.told(one, gone=one.signal != FINAL_SIGNAL)
                return True
            logger.warning("not told, later again: workflow_id=%s status=%s", one.workflow_id, error.status.name)
            return error.status not in _AWAY
        await self._store.told(one)
        return True


def _final(found: Final) -> EmailFinal:
    return EmailFinal(
        account=found.account,
        key=found.key,
        stage=str(found.stage),
        email_id=str(found.email_id),
        partial=found.partial,
        maybe_accepted=found.maybe_accepted,
        attempts=found.attempts,
        code=found.code or 0,
        enhanced=found.enhanced or "",
        superseded_by=found.superseded_by or "",
    )


def _untold(one: Untold) -> EmailFinal:
    return EmailFinal(
        account=one.account,
        key=one.key,
        stage=one.stage,
        email_id=str(one.email_id),
        partial=one.partial,
        maybe_accepted=one.maybe_accepted,
        attempts=one.attempts,
        code=one.code or 0,
        enhanced=one.enhanced or "",
        superseded_by=one.superseded_by or "",
        id=one.id,
    )
