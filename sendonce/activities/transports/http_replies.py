"""What a gateway's answer means. Pure.

=====================================  ===========================================================
answer                                 outcome
=====================================  ===========================================================
2xx with the id where it is expected   ``Accepted``
2xx without it                         ``Unanswered``: success is read from the body
409, 422 with a mismatch code          ``Unanswered``, enhanced ``key_mismatch``: our fault, never a fresh key
409 otherwise                          ``Unanswered``: the first request is still in progress
400 404 405 413 422                    ``Refused``
429                                    ``Deferred``
408 421 425, 5xx                       ``Unanswered``
3xx and every other 4xx                ``AccountFault``: key, quota, URL or shape of the request
=====================================  ===========================================================

An error code that the settings name as the account's fault makes any 4xx an ``AccountFault``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sendonce.activities.transports.http_settings import GatewaySettings
from sendonce.activities.transports.retry_after import retry_after
from sendonce.outcome import (
    TEXT_LIMIT,
    Accepted,
    AccountFault,
    Deferred,
    Outcome,
    Refused,
    Reply,
    Unanswered,
    storable,
)

KEY_MISMATCH = "key_mismatch"
NO_ID = "no_id"

_CODE = re.compile(r"[A-Za-z0-9._:\[\]-]{1,100}")
_REFUSED = frozenset({400, 404, 405, 413, 422})
_SETTLES_NOTHING = frozenset({408, 421, 425})


def classify(status: int, headers: Mapping[str, str], body: bytes, settings: GatewaySettings, now: datetime) -> Outcome:
    """The outcome of an answer that was read whole (or to the limit). ``headers`` is asked by name in any case."""
    content = _json(body)
    code = _error_code(content, settings)
    reply = Reply(status, code, storable(body[: TEXT_LIMIT * 4]))
    wait = retry_after(headers.get("Retry-After"), now)
    replayed = any(headers.get(name, "").strip().lower() == "true" for name in settings.replayed_headers)
    if 200 <= status <= 299:
        return _success(reply, headers, content, settings, replayed=replayed)
    if status in (409, 422) and _is_one_of(code, settings.mismatch_codes):
        return Unanswered(Reply(status, KEY_MISMATCH, reply.text))
    if 400 <= status <= 499 and _is_one_of(code, settings.account_codes):
        return AccountFault(reply, wait)
    if status in _REFUSED:
        return Refused(reply, replayed)
    if status == 429:
        return Deferred(reply, wait)
    if status == 409 or status in _SETTLES_NOTHING or not 300 <= status <= 499:
        return Unanswered(reply, wait)
    return AccountFault(reply, wait)


def _success(
    reply: Reply, headers: Mapping[str, str], content: Any, settings: GatewaySettings, *, replayed: bool
) -> Outcome:
    if settings.id_header is not None:
        provider_id = headers.get(settings.id_header, "")
    elif settings.id_path is not None:
        provider_id = _at(content, settings.id_path)
    else:
        return Accepted(reply, "", replayed)
    if not provider_id:
        return Unanswered(Reply(reply.code, reply.enhanced or NO_ID, reply.text))
    return Accepted(reply, storable(provider_id), replayed)


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _error_code(content: Any, settings: GatewaySettings) -> str:
    for path in settings.error_paths:
        found = _at(content, path)
        if found:
            # A code is kept, prose is not: it may name a recipient, and the whole body stands in the reply's text.
            return found if _CODE.fullmatch(found) else ""
    return ""


def _at(content: Any, path: str) -> str:
    """The text or integer at a dotted path; ``""`` when there is none."""
    for step in path.split("."):
        if isinstance(content, dict):
            content = content.get(step)
        elif isinstance(content, list) and step.isdecimal() and step.isascii() and int(step) < len(content):
            content = content[int(step)]
        else:
            return ""
    if isinstance(content, str):
        return content
    return str(content) if isinstance(content, int) and not isinstance(content, bool) else ""


def _is_one_of(code: str, codes: tuple[str, ...]) -> bool:
    return code.lower() in {one.lower() for one in codes}
