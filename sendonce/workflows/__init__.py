"""Durable waiting: one workflow per mail. Nothing here does I/O, and nothing here knows an address."""

from sendonce.workflows.delivery import EmailDelivery

__all__ = ["EmailDelivery"]
