"""Waking workflows by signal."""

from __future__ import annotations

import logging

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from sendonce.workflows.port import WAKE_SIGNAL, Wake

logger = logging.getLogger(__name__)


class SignalPoker:
    """Pokes through a Temporal client. Without one, and when Temporal is away, the workflow's own timer wakes it."""

    def __init__(self) -> None:
        self.client: Client | None = None

    async def wake(self, workflow_id: str, wake: Wake) -> None:
        """Send the signal. A workflow that is gone is fine; nothing is raised."""
        if self.client is None:
            return
        try:
            await self.client.get_workflow_handle(workflow_id).signal(WAKE_SIGNAL, wake)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                logger.warning("workflow not woken: workflow_id=%s status=%s", workflow_id, error.status.name)
