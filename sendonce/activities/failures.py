"""What Temporal and the logs may learn of a failure: its type and codes, never its text."""

from __future__ import annotations

import re
import traceback
from pathlib import PurePath
from typing import Any

from temporalio.api.failure.v1 import Failure
from temporalio.client import GrpcCompression
from temporalio.converter import DataConverter, DefaultFailureConverter, PayloadCodec, PayloadConverter
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from sendonce.stages import FINAL
from sendonce.workflows.port import INVALID, NO_SUCH_ROW, REFUSED

ENDINGS = frozenset({str(stage) for stage in FINAL} | {NO_SUCH_ROW, REFUSED, INVALID})
"""Failure types of :class:`~sendonce.workflows.EmailDelivery` and its updates: their messages are built from codes and
fixed words only."""

_QUOTED = re.compile(r'"([^"]{1,100})"')


def said_of(error: Exception) -> str:
    """Why Temporal could not be reached or asked, in a few words: the status's name, or what the SDK's client quotes.

    A failed connection is a ``RuntimeError`` whose text is the Rust client's debugging output, such as
    ``tonic::transport::Error(… "tcp connect error", … message: "Connection refused" …)``.

    >>> said_of(RuntimeError('Error(Transport, E("tcp connect error", Os { message: "Connection refused" }))'))
    'tcp connect error: Connection refused'
    """
    if isinstance(error, RPCError):
        return error.status.name
    said = ": ".join(dict.fromkeys(_QUOTED.findall(str(error))))
    return said or " ".join(str(error).split())[:200] or type(error).__name__


_CODE = re.compile(r"[A-Za-z0-9._:\[\]-]{0,100}")


class CodesOnlyFailureConverter(DefaultFailureConverter):
    """Keeps a failure's type and drops its message, stack trace and details, and those of its causes.

    The message of a delivery's own ending, and of a refused update, is kept: the workflow builds it from codes.
    """

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        """Convert ``exception``, then take out everything that could quote data."""
        super().to_failure(exception, payload_converter, failure)
        ending = isinstance(exception, ApplicationError) and exception.type in ENDINGS
        _strip(failure, keep_message=ending)


def _strip(failure: Failure, *, keep_message: bool = False) -> None:
    if not keep_message:
        failure.message = failure.application_failure_info.type or failure.WhichOneof("failure_info") or "failure"
    failure.stack_trace = ""
    failure.ClearField("encoded_attributes")
    if failure.HasField("application_failure_info"):
        failure.application_failure_info.ClearField("details")
    if failure.HasField("timeout_failure_info"):
        failure.timeout_failure_info.ClearField("last_heartbeat_details")
    if failure.HasField("canceled_failure_info"):
        failure.canceled_failure_info.ClearField("details")
    if failure.HasField("cause"):
        _strip(failure.cause)


def client_options(codec: PayloadCodec | None = None) -> dict[str, Any]:
    """What every Temporal client of Sendonce is connected with: ``Client.connect(..., **client_options())``.

    ``codec``: that of ``[temporal] payload_codec``, if there is one.

    The failure converter keeps personal data out of histories. gRPC is not compressed: payloads are a few ids, and
    packing them costs more than it saves.
    """
    return {
        "data_converter": DataConverter(payload_codec=codec, failure_converter_class=CodesOnlyFailureConverter),
        "grpc_compression": GrpcCompression.NONE,
    }


def safe_code(text: str) -> str:
    """``text`` if it looks like a status or an error name, else ``""``: what a provider says is not ours to pass on.

    >>> safe_code("5.1.1"), safe_code("Unknown mailbox ann@example.org")
    ('5.1.1', '')
    """
    return text if _CODE.fullmatch(text) else ""


def where(error: BaseException) -> str:
    """Type and place of an error for the log: no message, no values, as both may quote a mail.

    For example ``KeyError at attempt.py:120 render.py:33``: the last frames, innermost last.
    """
    frames = traceback.extract_tb(error.__traceback__)[-4:]
    places = " ".join(f"{PurePath(frame.filename).name}:{frame.lineno}" for frame in frames)
    return f"{type(error).__name__} at {places or 'unknown place'}"
