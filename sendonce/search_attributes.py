"""Sendonce's search attributes in a Temporal namespace: which are missing, and registering them.

A workflow that is started with an attribute that its namespace does not know is refused, and one that upserts it is
stuck for good. So starters ask first, and start workflows without attributes until they are there.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from datetime import timedelta
from weakref import WeakKeyDictionary

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import CountWorkflowExecutionsRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from sendonce.errors import SendonceError
from sendonce.workflows.searching import KEYS

logger = logging.getLogger(__name__)

NAMES = tuple(key.name for key in KEYS)

KEYWORD = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD

TIMEOUT = timedelta(seconds=5)
"""For one question."""

REGISTERING_TIMEOUT = timedelta(seconds=30)

ASK_AGAIN = 60.0
"""Seconds until a starter asks again after attributes were missing."""

AWAY_AGAIN = 5.0
"""The same, after Temporal could not be reached."""

_AWAY = frozenset({RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED})
_NOT_ALLOWED = frozenset({RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNIMPLEMENTED, RPCStatusCode.UNAUTHENTICATED})


class NotRegistered(SendonceError):
    """Search attributes cannot be registered from here."""


async def missing(client: Client) -> list[str]:
    """Which attributes the client's namespace does not have as keywords. Raises RPCError when nobody can say."""
    try:
        types = await _types(client)
    except RPCError as error:
        if error.status not in _NOT_ALLOWED:
            raise
        # Where the operator's service is not open, a query tells: it names only what is known.
        return [name for name in NAMES if not await _can_be_asked_for(client, name)]
    return [name for name in NAMES if types.get(name) != KEYWORD]


async def register(client: Client) -> list[str]:
    """Register what is missing; returns what was. Safe to repeat, and from several places at once.

    Raises :class:`NotRegistered`, which says what to do, where this is not allowed or a name is taken by another type;
    RPCError when Temporal cannot be reached.
    """
    wanted = await missing(client)
    if not wanted:
        return []
    try:
        types = await _types(client)
        taken = [name for name in wanted if name in types]
        if taken:
            raise NotRegistered(
                f"namespace {client.namespace!r} has {', '.join(taken)} as another type than Keyword:"
                " remove it (temporal operator search-attribute remove), then run 'sendonce setup' again"
            )
        await client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(namespace=client.namespace, search_attributes=dict.fromkeys(wanted, KEYWORD)),
            timeout=REGISTERING_TIMEOUT,
        )
    except RPCError as error:
        if error.status is RPCStatusCode.ALREADY_EXISTS:
            return wanted
        if error.status not in _NOT_ALLOWED:
            raise
        raise NotRegistered(
            f"this server lets nobody register search attributes from here ({error.status.name}). Add"
            f" {', '.join(wanted)}, all of type Keyword, to namespace {client.namespace!r} yourself: on Temporal Cloud"
            " under Namespaces, Edit, Search Attributes, or by 'tcld namespace search-attributes add'; elsewhere as an"
            " operator, by 'temporal operator search-attribute create --type Keyword --name …'. Until then mails are"
            " sent all the same, and the list of workflows cannot be filtered by them"
        ) from None
    return wanted


async def _types(client: Client) -> dict[str, IndexedValueType.ValueType]:
    found = await client.operator_service.list_search_attributes(
        ListSearchAttributesRequest(namespace=client.namespace), timeout=TIMEOUT
    )
    return dict(found.custom_attributes)


async def _can_be_asked_for(client: Client, name: str) -> bool:
    request = CountWorkflowExecutionsRequest(namespace=client.namespace, query=f"{name} = 'x'")
    try:
        await client.workflow_service.count_workflow_executions(request, timeout=TIMEOUT)
    except RPCError as error:
        if error.status is RPCStatusCode.INVALID_ARGUMENT:
            return False
        raise
    return True


class Registered:
    """Whether a client's namespace has all of them, as far as is known. One for each client: see :func:`registered`."""

    def __init__(self) -> None:
        self._there = False
        self._ask_at = 0.0
        self._said = ""
        self._asking = asyncio.Lock()

    async def look(self, client: Client) -> bool:
        """Are they there? Asks unless that is known, and seldom while they are missing. Raises nothing."""
        if self._must_ask():
            async with self._asking:
                if self._must_ask():
                    await self._ask(client)
        return self._there

    def do_without(self) -> None:
        """Never ask, and say nothing: the server keeps none, as that of a test."""
        self._there, self._ask_at = False, math.inf

    def refused(self, client: Client) -> None:
        """A start with them was refused: they are gone, or the server that was asked has not heard of them yet."""
        self._there, self._ask_at = False, time.monotonic() + ASK_AGAIN
        self._say(f"namespace {client.namespace!r} refuses them")

    def _must_ask(self) -> bool:
        return not self._there and time.monotonic() >= self._ask_at

    async def _ask(self, client: Client) -> None:
        try:
            absent = await missing(client)
        except RPCError as error:
            if error.status in _AWAY:
                self._ask_at = time.monotonic() + AWAY_AGAIN
                return
            absent, why = list(NAMES), f"the server does not say which there are ({error.status.name})"
        else:
            why = f"namespace {client.namespace!r} has no {', no '.join(absent)}"
        self._there, self._ask_at = not absent, time.monotonic() + ASK_AGAIN
        if absent:
            self._say(why)
        elif self._said:
            self._said = ""
            logger.info("search attributes are there: new workflows carry them")

    def _say(self, why: str) -> None:
        if why != self._said:
            logger.warning(
                "workflows are started without search attributes, because %s: run 'sendonce setup', and they are used"
                " within a minute",
                why,
            )
        self._said = why


_BY_CLIENT: WeakKeyDictionary[Client, Registered] = WeakKeyDictionary()


def registered(client: Client) -> Registered:
    """What is known of this client's namespace."""
    return _BY_CLIENT.setdefault(client, Registered())
