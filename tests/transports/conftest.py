"""Servers and certificates for the transports' tests."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sendonce.testing.certificate import Certificate, self_signed
from sendonce.testing.http_gateway import HttpGateway
from sendonce.testing.smtp_server import SmtpServer


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """For 127.0.0.1 and localhost."""
    return self_signed(tmp_path_factory.mktemp("certificate"), "IP:127.0.0.1", "DNS:localhost")


@pytest.fixture(scope="session")
def foreign_certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """For another host."""
    return self_signed(tmp_path_factory.mktemp("foreign"), "DNS:elsewhere.test")


@pytest.fixture(params=[False, True], ids=["one by one", "pipelined"])
async def smtp(request: pytest.FixtureRequest) -> AsyncIterator[SmtpServer]:
    async with SmtpServer(pipelining=request.param) as server:
        yield server


@pytest.fixture
async def gateway() -> AsyncIterator[HttpGateway]:
    async with HttpGateway() as server:
        yield server


@pytest.fixture
def closed_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "mailbox"
