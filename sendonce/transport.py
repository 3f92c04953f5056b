"""What a transport of your own is made of: one coroutine that makes one API call. See docs/own-transport.md."""

from sendonce.activities.transports.base import Capability, Question, Recipient
from sendonce.activities.transports.simple import SimpleTransport
from sendonce.activities.transports.simple_contract import (
    AccountError,
    MaybeTaken,
    NotSent,
    PermanentError,
    RetryLater,
    SendError,
    SimpleMail,
    SimpleSettings,
)

__all__ = [
    "AccountError",
    "Capability",
    "MaybeTaken",
    "NotSent",
    "PermanentError",
    "Question",
    "Recipient",
    "RetryLater",
    "SendError",
    "SimpleMail",
    "SimpleSettings",
    "SimpleTransport",
]
