"""``/metrics``, ``/healthz`` and ``/readyz`` over plain HTTP, answered by a thread: also while the event loop hangs.

No log-in and no TLS: listen on loopback, or inside a network that only your own machines reach.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

AT_ONCE = 8
"""Requests; more are turned away."""

REQUEST_SECONDS = 5.0
"""A client that is slower is dropped."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request gets."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


def said(code: int, **members: Any) -> Answer:
    """An answer in JSON."""
    return Answer(code, json.dumps(members).encode() + b"\n", "application/json")


class Endpoint:
    """A server in a thread of its own. ``routes``: by path, what makes the answer; called from other threads."""

    def __init__(self, host: str, port: int, routes: Mapping[str, Callable[[], Answer]]) -> None:
        """Binds at once; raises OSError when it cannot. ``port`` 0: a free one."""
        self._server = _Server(host, port, routes)
        self._thread = threading.Thread(target=self._server.serve_forever, name="sendonce endpoint", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stop; answers that are being written end by themselves."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 32

    def __init__(self, host: str, port: int, routes: Mapping[str, Callable[[], Answer]]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.routes = routes
        self._free = threading.BoundedSemaphore(AT_ONCE)
        super().__init__((host, port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away, or sent what is no HTTP: nothing to tell."""


class _Handler(BaseHTTPRequestHandler):
    timeout = REQUEST_SECONDS
    server: _Server

    def do_GET(self) -> None:  # the standard library's name
        self._answer()

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool = True) -> None:
        route = self.server.routes.get(self.path.partition("?")[0])
        answer = Answer(404, b"not found\n") if route is None else route()
        self.send_response_only(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if with_body:
            self.wfile.write(answer.body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Requests are not logged: there is one every few seconds."""
