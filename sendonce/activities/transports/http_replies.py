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

from dataclasses import replace

from sendonce.activities.transports.http_answer import Answer, as_code, by_status, key_mismatch, no_id
from sendonce.activities.transports.http_settings import GatewaySettings
from sendonce.outcome import Accepted, AccountFault, Outcome, Refused, storable


def classify(answer: Answer, settings: GatewaySettings) -> Outcome:
    """The outcome of an answer, the same for everybody who was offered."""
    code = _error_code(answer, settings)
    replayed = any(answer.headers.get(name, "").strip().lower() == "true" for name in settings.replayed_headers)
    if answer.ok:
        return _success(answer, code, settings, replayed=replayed)
    if answer.status in (409, 422) and _is_one_of(code, settings.mismatch_codes):
        return key_mismatch(answer)
    if 400 <= answer.status <= 499 and _is_one_of(code, settings.account_codes):
        return AccountFault(answer.reply(code), answer.retry_after)
    if answer.status in (404, 405):
        return Refused(answer.reply(code), replayed)
    outcome = by_status(answer, code)
    return replace(outcome, replayed=replayed) if isinstance(outcome, Refused) else outcome


def _success(answer: Answer, code: str, settings: GatewaySettings, *, replayed: bool) -> Outcome:
    if settings.id_header is not None:
        provider_id = answer.headers.get(settings.id_header, "")
    elif settings.id_path is not None:
        provider_id = answer.at(settings.id_path)
    else:
        return Accepted(answer.reply(code), "", replayed)
    if not provider_id:
        return no_id(answer, code)
    return Accepted(answer.reply(code), storable(provider_id), replayed)


def _error_code(answer: Answer, settings: GatewaySettings) -> str:
    for path in settings.error_paths:
        if found := answer.at(path):
            return as_code(found)
    return ""


def _is_one_of(code: str, codes: tuple[str, ...]) -> bool:
    return code.lower() in {one.lower() for one in codes}
