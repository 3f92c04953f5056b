"""Durable waiting: one workflow per mail. Nothing here does I/O, and nothing here knows an address."""

from sendonce.workflows.delivery import EmailDelivery
from sendonce.workflows.outcome import EmailOutcome

__all__ = ["EmailDelivery", "EmailOutcome"]
