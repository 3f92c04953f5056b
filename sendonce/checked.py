"""The base of what callers pass: frozen, strict, and failing with one kind of error."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from sendonce.checks import header_text
from sendonce.errors import InvalidEmail


def short_line(limit: int) -> AfterValidator:
    """One line for a header, at most ``limit`` octets as encoded."""
    return AfterValidator(lambda text: header_text(text, limit))


def matching(pattern: re.Pattern[str], what: str) -> AfterValidator:
    """Text that matches as a whole; ``what`` it must be, in words."""

    def check(text: str) -> str:
        if not pattern.fullmatch(text):
            raise ValueError(f"must be {what}")
        return text

    return AfterValidator(check)


class Checked(BaseModel):
    """Frozen, strict, and raising :class:`InvalidEmail` itself, so that callers never meet pydantic's errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)

    if not TYPE_CHECKING:  # subclasses declare what they take; this is how all of them fail

        def __init__(self, **values: Any) -> None:
            try:
                super().__init__(**values)
            except ValidationError as error:
                problem = error.errors(include_url=False, include_input=False)[0]
            else:
                return
            # Raised outside the handler: the error that callers see keeps no pydantic error as its context.
            raise _invalid(problem)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:  # noqa: ARG002
        """A copy with other values, checked like a new one (pydantic's own does not check)."""
        return type(self)(**{**dict(self), **(update or {})})


def _invalid(problem: Any) -> InvalidEmail:
    cause = problem.get("ctx", {}).get("error")
    field = str(problem["loc"][0]) if problem["loc"] else "message"
    if problem["type"] == "extra_forbidden":
        # The name itself may come from anywhere: it is shown when it looks like a field's.
        return InvalidEmail(field if re.fullmatch("[a-z_]{1,30}", field) else "message", "is not a known field")
    if problem["type"] == "missing":
        return InvalidEmail(field, "is required")
    if isinstance(cause, InvalidEmail):
        return InvalidEmail(field, f"{cause.field}: {cause.reason}") if problem["loc"] else cause
    return InvalidEmail(field, str(cause) if cause else problem["msg"].replace("Input should", "must"))
