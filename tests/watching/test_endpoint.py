"""The endpoint by itself: what it answers, to whom, and while the event loop hangs."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable, Iterator

import pytest

from sendonce.activities.pulse import Pulse
from sendonce.watching.endpoint import AT_ONCE, Answer, Endpoint
from sendonce.watching.health import HANG_SECONDS, Health


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pulse(clock: Clock) -> Pulse:
    pulse = Pulse(clock)
    pulse.ready = pulse.store_up = pulse.temporal_up = True
    return pulse


Ask = Callable[..., tuple[int, bytes]]


@pytest.fixture
def endpoint(clock: Clock, pulse: Pulse) -> Iterator[Endpoint]:
    health = Health(pulse, clock)
    routes = {"/healthz": health.alive, "/readyz": health.readiness, "/metrics": lambda: Answer(200, b"up 1\n")}
    endpoint = Endpoint("127.0.0.1", 0, routes)
    yield endpoint
    endpoint.close()


@pytest.fixture
def ask(endpoint: Endpoint) -> Ask:
    def ask(path: str, method: str = "GET") -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=10)
        connection.request(method, path)
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer.status, body

    return ask


def test_what_is_asked_is_answered_and_nothing_else(ask: Ask) -> None:
    assert ask("/metrics") == (200, b"up 1\n")
    assert ask("/metrics?name=x") == (200, b"up 1\n")
    assert ask("/metrics", "HEAD") == (200, b"")
    assert ask("/metrics/")[0] == 404
    assert ask("/../etc/passwd")[0] == 404
    assert ask("/metrics", "POST")[0] == 501


def test_alive_is_an_event_loop_that_turns(ask: Ask, clock: Clock) -> None:
    assert ask("/healthz")[0] == 200
    clock.now += HANG_SECONDS + 1
    status, body = ask("/healthz")
    assert (status, json.loads(body)["status"]) == (503, "hangs")


def test_ready_says_each_reason(ask: Ask, clock: Clock, pulse: Pulse) -> None:
    pulse.expect("sweeps", 60.0)
    assert ask("/readyz")[0] == 200
    pulse.store_up = pulse.temporal_up = False
    clock.now += 20
    assert reasons(ask) == ["store_away", "temporal_away"]
    pulse.store_up = pulse.temporal_up = True
    clock.now += 61
    assert reasons(ask) == ["hangs", "loop_dead:sweeps"]
    # Alive all the same, once the event loop turns: another process would be no better.
    pulse.beat("sweeps")
    pulse.stopping = True
    assert reasons(ask) == ["hangs", "stopping"]
    pulse.stopping = pulse.ready = False
    assert reasons(ask) == ["hangs", "starting"]


def reasons(ask: Ask) -> list[str]:
    status, body = ask("/readyz")
    assert status == 503
    found = json.loads(body)["reasons"]
    assert isinstance(found, list)
    return found


def test_clients_that_say_nothing_hold_up_nobody_for_long(endpoint: Endpoint, ask: Ask) -> None:
    silent = [socket.create_connection(("127.0.0.1", endpoint.port)) for _ in range(AT_ONCE - 2)]
    garbage = socket.create_connection(("127.0.0.1", endpoint.port))
    garbage.sendall(b"\x16\x03\x01 this is TLS\r\n\r\n")
    garbage.recv(1000)
    garbage.close()
    assert ask("/metrics")[0] == 200
    for one in silent:
        one.close()


def test_a_port_that_is_taken_is_said_at_once(endpoint: Endpoint) -> None:
    with pytest.raises(OSError, match="in use"):
        Endpoint("127.0.0.1", endpoint.port, {})
