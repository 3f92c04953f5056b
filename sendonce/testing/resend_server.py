"""Resend's API on loopback, as documented: https://resend.com/docs/api-reference

``POST /emails`` with a bearer token; idempotency keys for 24 hours, replayed with the same id and nothing that says so;
errors as ``{"statusCode", "name", "message"}``. It takes the rules in :mod:`sendonce.testing.http_misbehaviour`.
"""

from __future__ import annotations

import json
import re

from sendonce.testing.http_request import (
    HttpAnswer,
    HttpRequest,
    Known,
    Posted,
    named_error,
    posted_by_name,
)
from sendonce.testing.http_server import HttpServer

_TAG = re.compile(r"[A-Za-z0-9_-]{1,256}")


class ResendServer(HttpServer):
    """The server; set :attr:`verified` to have From domains that are not verified."""

    path = "/emails"
    id_prefix = "re-"
    verified: frozenset[str] | None = None
    """The From domains that are verified; None: all."""

    def forbidden(self, request: HttpRequest) -> HttpAnswer | None:
        """By bearer token; the answer to a wrong one is 401 where mail is sent."""
        authorization = request.headers.get("authorization")
        if authorization is None:
            return named_error(401, "missing_api_key", message="Missing API Key")
        if self.api_key is not None and authorization != f"Bearer {self.api_key}":
            return named_error(401, "validation_error", message="API key is invalid")
        if not 0 < len(request.headers.get("idempotency-key", "-")) <= 256:
            return named_error(400, "invalid_idempotency_key")
        return None

    def other(self, request: HttpRequest) -> HttpAnswer:
        """No other endpoint is played."""
        if request.path == self.path:
            return named_error(405, "method_not_allowed")
        return named_error(404, "not_found")

    def read(self, request: HttpRequest) -> Posted | HttpAnswer:
        """Somebody in ``to``, at most 50; a body; tags of its alphabet; a verified From domain."""
        try:
            posted = posted_by_name(request)
            to = posted.content["to"]
            tags = [tag[half] for tag in posted.content.get("tags", []) for half in ("name", "value")]
            files = [(file["filename"], file["content"]) for file in posted.content.get("attachments", [])]
        except (ValueError, AttributeError, TypeError, KeyError):
            return named_error(422, "validation_error")
        if not to or "subject" not in posted.content or not {"html", "text"} & posted.content.keys():
            return named_error(422, "missing_required_field")
        if not isinstance(to, list) or len(to) > 50 or not all(map(_TAG.fullmatch, tags)):
            return named_error(422, "validation_error")
        if any(not name or not data for name, data in files):
            return named_error(422, "invalid_attachment")
        if self.verified is not None and posted.sender.rpartition("@")[2] not in self.verified:
            return named_error(403, "validation_error", message="The domain is not verified.")
        return posted

    def accepted(self, posted: Posted, provider_id: str) -> tuple[int, bytes]:  # noqa: ARG002 - others show more of it
        """An id."""
        return 200, json.dumps({"id": provider_id}).encode()

    def again(self, known: Known, *, same: bool) -> HttpAnswer:
        """The stored answer as it was."""
        if not same:
            return named_error(409, "invalid_idempotent_request")
        if known.answer is None:
            return named_error(409, "concurrent_idempotent_requests")
        return (*known.answer, ())
