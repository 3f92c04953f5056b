"""Notifications as servers write them, and a store that may be away."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import pytest

from sendonce.dsn.proof import Proof
from sendonce.dsn.reader import Unproven
from sendonce.dsn.run import handler
from sendonce.dsn.sources import Handle
from sendonce.events import Event

Sample = Callable[..., bytes]


@pytest.fixture
def email_id() -> UUID:
    return UUID("0f8fad5b-d9cb-469f-a165-70867728950e")


@pytest.fixture
def proof() -> Proof:
    return Proof([b"the present key, 32 octets long.", b"an older key, 29 octets long."])


@pytest.fixture
def return_path(proof: Proof, email_id: UUID) -> str:
    return proof.return_path(email_id, "bounces@shop.example")


@pytest.fixture
def sample(proof: Proof, email_id: UUID, return_path: str) -> Sample:
    """The notification of that name, about our mail; ``envelope_id`` and ``return_path`` to say otherwise."""

    def make(name: str, envelope_id: str = proof.envelope_id(email_id), return_path: str = return_path) -> bytes:
        text = (Path(__file__).parent / "samples" / f"{name}.eml").read_text(encoding="utf-8")
        return text.replace("@ENVELOPE_ID@", envelope_id).replace("@RETURN_PATH@", return_path).encode()

    return make


@dataclass
class Ledger:
    """Keeps what is recorded and parked, each event once; raises while it is away."""

    proof: Proof
    events: dict[str, Event] = field(default_factory=dict)
    parked: dict[str, Unproven] = field(default_factory=dict)
    calls: int = 0
    away: bool = False

    async def record(self, events: Sequence[Event]) -> None:
        self.calls += 1
        if self.away:
            raise ConnectionError("the store is away")
        self.events |= {event.event_id: event for event in events}

    async def park(self, unproven: Sequence[Unproven]) -> None:
        self.calls += 1
        if self.away:
            raise ConnectionError("the store is away")
        self.parked |= {one.event.event_id: one for one in unproven}

    def handle(self) -> Handle:
        return handler(self.proof, self.record, self.park)

    def kinds(self) -> dict[str, str]:
        """The kind of each recorded event, by its recipient."""
        return {event.recipient: event.kind for event in self.events.values()}


@pytest.fixture
def ledger(proof: Proof) -> Ledger:
    return Ledger(proof)
