"""What is told of attempts to whoever measures them. This one does nothing: measuring is optional."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from sendonce.outcome import AttemptResult
from sendonce.store.records import Claimed, Standing

_NOTHING: AbstractContextManager[None] = nullcontext()


class Observer:
    """Called on the way of every mail: quick, and never raises."""

    def settled(self, claimed: Claimed, result: AttemptResult, standing: Standing) -> None:
        """The attempt was recorded."""

    def no_slot(self, account: str, lane: str) -> None:
        """A mail that is due has to wait for a slot of its account's or its destination's rates."""

    def attempting(self, claimed: Claimed) -> AbstractContextManager[None]:  # noqa: ARG002
        """Around the whole attempt, from the claim to its record."""
        return _NOTHING

    def transmitting(self, claimed: Claimed) -> AbstractContextManager[None]:  # noqa: ARG002
        """Around what is said to the provider; inside :meth:`attempting`."""
        return _NOTHING
