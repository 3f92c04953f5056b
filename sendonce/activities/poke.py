"""Waking workflows by signal."""

from __future__ import annotations

import logging
from datetime import timedelta

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from sendonce.activities.failures import where
from sendonce.workflows.port import WAKE_SIGNAL, Wake

logger = logging.getLogger(__name__)

RPC_TIMEOUT = timedelta(seconds=10)
"""So long a signal is tried. A Temporal that swallows it must not hold up who wakes others next."""


class SignalPoker:
    """Pokes through a Temporal client. Without one, and when Temporal is away, the workflow's own timer wakes it."""

    def __init__(self) -> None:
        self.client: Client | None = None

    async def wake(self, workflow_id: str, wake: Wake) -> None:
        """Send the signal. A workflow that is gone is fine; nothing is raised."""
        if self.client is None:
            return
        try:
            await self.client.get_workflow_handle(workflow_id).signal(WAKE_SIGNAL, wake, rpc_timeout=RPC_TIMEOUT)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                logger.warning("workflow not woken: workflow_id=%s status=%s", workflow_id, error.status.name)
        except Exception as error:
            # A client that was never connected; a codec of somebody's.
            logger.warning("workflow not woken: workflow_id=%s %s", workflow_id, where(error))
