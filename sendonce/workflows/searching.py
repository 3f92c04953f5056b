"""Search attributes of a mail's workflow: what people filter the list of workflows by."""

from __future__ import annotations

import re

from temporalio import workflow
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

from sendonce.stages import Stage
from sendonce.workflows.port import AttemptAnswer, Ended, Sleep, Ticket

STAGE = SearchAttributeKey.for_keyword("SendStage")
LANE = SearchAttributeKey.for_keyword("SendLane")
ACCOUNT = SearchAttributeKey.for_keyword("SendAccount")
TEMPLATE = SearchAttributeKey.for_keyword("SendTemplate")
REPLY_CODE = SearchAttributeKey.for_keyword("SendReplyCode")

KEYS = (STAGE, LANE, ACCOUNT, TEMPLATE, REPLY_CODE)
"""All that must be registered in the namespace, all of type Keyword."""

STARTED = "started"
"""``SendStage`` of a workflow that is at its first attempt, or was sent by it: to say ``sent`` would cost an event."""

PARTIAL = "partial"
"""``SendStage`` of a mail that was sent, and not to everybody."""

_TEMPLATE = re.compile(r"[A-Za-z0-9._/-]{1,200}")


def template_name(template: str) -> str:
    """The template's name if it looks like one, else ``""``: what a caller puts there may be anything.

    >>> template_name("order/confirmation"), template_name("Dear ann@example.org")
    ('order/confirmation', '')
    """
    return template if _TEMPLATE.fullmatch(template) else ""


def static_summary(ticket: Ticket, template: str) -> str:
    """What the list of workflows says of this one: template, lane and account.

    >>> static_summary(Ticket("id", "order-7", "critical"), "order/confirmation")
    'order/confirmation · critical · default'
    """
    return " · ".join(part for part in (template_name(template), ticket.lane, ticket.account) if part)


def at_start(ticket: Ticket, template: str) -> TypedSearchAttributes:
    """The attributes that a workflow is started with."""
    pairs = [
        SearchAttributePair(STAGE, STARTED),
        SearchAttributePair(LANE, ticket.lane),
        SearchAttributePair(ACCOUNT, ticket.account),
    ]
    if name := template_name(template):
        pairs.append(SearchAttributePair(TEMPLATE, name))
    return TypedSearchAttributes(pairs)


def reply_code(code: int, enhanced: str) -> str:
    """A reply as people look for it.

    >>> reply_code(451, "4.7.1"), reply_code(0, "connect"), reply_code(0, "")
    ('451 4.7.1', 'connect', '')
    """
    return f"{code or ''} {enhanced}".strip()


def show(answer: AttemptAnswer | None) -> None:
    """Bring the running workflow's attributes up to date, if this answer changes what people look for.

    A command, and an event: none for a mail that is sent at once.
    """
    if not isinstance(answer, (Ended, Sleep)):
        return
    known = workflow.info().typed_search_attributes
    stage = _stage(answer)
    if stage is None or (stage == Stage.SENT and known.get(STAGE) == STARTED):
        return
    updates = []
    if stage != known.get(STAGE):
        updates.append(STAGE.value_set(stage))
    reply = reply_code(answer.code, answer.enhanced)
    if reply and reply != known.get(REPLY_CODE):
        updates.append(REPLY_CODE.value_set(reply))
    if updates:
        workflow.upsert_search_attributes(updates)


def _stage(answer: Ended | Sleep) -> str | None:
    """The value of ``SendStage``; None: nothing that anybody looks for has changed."""
    if isinstance(answer, Ended):
        return PARTIAL if answer.partial else answer.stage
    if answer.stage == Stage.UNKNOWN:
        return answer.stage
    if answer.held:
        return "held"
    if answer.why in ("paused", "on_hold"):
        return "paused"
    if answer.tried or (answer.why == "deferred" and answer.attempts):
        return "deferred"
    return None
