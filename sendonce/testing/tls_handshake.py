"""A TLS server on loopback that shakes hands and no more, and says why it refuses.

It is made of blocking sockets: asyncio's server hangs up on a client that it refuses without the alert that OpenSSL has
written for it, which real mail servers send.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_SECONDS = 10.0
"""How long a client may say nothing."""


@contextmanager
def handshakes(context: ssl.SSLContext, *, starttls: bool) -> Iterator[int]:
    """Serve until the block ends; gives the port. ``starttls``: after greeting, EHLO and STARTTLS, else at once."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        serving = threading.Thread(target=_serve, args=(listener, context, starttls))
        serving.start()
        try:
            yield port
        finally:
            # Wakes accept(), which closing the socket does not.
            listener.shutdown(socket.SHUT_RDWR)
            serving.join()


def _serve(listener: socket.socket, context: ssl.SSLContext, starttls: bool) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with suppress(OSError):
            connection.settimeout(_SECONDS)
            with connection:
                if starttls:
                    _introduce(connection)
                _shake_hands(connection, context)


def _introduce(connection: socket.socket) -> None:
    with connection.makefile("rb") as lines:
        connection.sendall(b"220 loopback.test ESMTP\r\n")
        lines.readline()
        connection.sendall(b"250-loopback.test\r\n250 STARTTLS\r\n")
        lines.readline()
        connection.sendall(b"220 2.0.0 go ahead\r\n")


def _shake_hands(connection: socket.socket, context: ssl.SSLContext) -> None:
    tls = context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
    with suppress(ssl.SSLError):
        tls.do_handshake()
    with socket.socket(fileno=tls.detach()) as plain:
        # Closed with something unread it would be reset, and the alert lost.
        plain.settimeout(_SECONDS)
        plain.shutdown(socket.SHUT_WR)
        while plain.recv(4096):
            pass
