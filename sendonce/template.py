"""Typed parameters: a class for each template, checked when a mail is made."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from sendonce.checked import Checked
from sendonce.errors import InvalidEmail


class Template(Checked):
    """The parameters of one template, as a pydantic model: its fields are what the template's files may use.

    ::

        class OrderConfirmation(sendonce.Template):
            number: str
            total: Decimal

    belongs to the template ``order_confirmation``; ``class OrderConfirmation(Template, template="shop/order")`` names
    another. Pass an instance as ``OutgoingEmail(template=…)``. Values are checked strictly, and frozen. What is wrong
    raises :class:`~sendonce.errors.InvalidEmail`, which names the template and the fields and never repeats a value.
    """

    template_name: ClassVar[str] = ""
    """The template's name."""

    def __init_subclass__(cls, *, template: str | None = None, **others: Any) -> None:
        super().__init_subclass__(**others)
        cls.template_name = template or _snake(cls.__name__)

    if not TYPE_CHECKING:  # subclasses declare what they take

        def __init__(self, **values: Any) -> None:
            try:
                # Past Checked, which tells of one field only.
                super(Checked, self).__init__(**values)
            except ValidationError as error:
                wrong = error.errors(include_url=False, include_input=False, include_context=False)
            else:
                return
            # Raised outside the handler: what callers see keeps no pydantic error as its context.
            raise InvalidEmail("parameters", f"template {self.template_name!r}: {_told(wrong)}")

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        return []  # the values are personal data

    def parameters(self) -> dict[str, Any]:
        """The fields as JSON values: a date as ISO 8601, a Decimal as text."""
        return self.model_dump(mode="json")

    @classmethod
    def from_sample(cls, values: Mapping[str, Any]) -> Self:
        """From a file of JSON or TOML, which has no dates or Decimals: text stands for them. Raises InvalidEmail."""
        made = cls.__new__(cls)
        try:
            cls.__pydantic_validator__.validate_python(dict(values), strict=False, self_instance=made)
        except ValidationError as error:
            wrong = error.errors(include_url=False, include_input=False, include_context=False)
        else:
            return made
        raise InvalidEmail("parameters", f"template {cls.template_name!r}: {_told(wrong)}")

    @classmethod
    def sample(cls) -> Self:
        """An instance to try the template with, for ``sendonce templates check`` and ``preview``.

        Each field has its first example, ``Field(examples=[…])``, else its default. Override it for anything else.
        Raises :class:`~sendonce.errors.InvalidEmail` for a field that has neither.
        """
        examples = {name: field.examples[0] for name, field in cls.model_fields.items() if field.examples}
        lacking = [name for name, field in cls.model_fields.items() if _lacks(field)]
        if lacking:
            raise InvalidEmail(
                "parameters",
                f"template {cls.template_name!r}: {', '.join(lacking)}: no example; write Field(examples=[…])",
            )
        return cls(**examples)


def _lacks(field: FieldInfo) -> bool:
    return field.is_required() and not field.examples


def known(base: type[Template] = Template) -> dict[str, type[Template]]:
    """Every class that was defined, by its template's name; of two with the same name the later one."""
    found: dict[str, type[Template]] = {}
    for one in base.__subclasses__():
        found |= {one.template_name: one} | known(one)
    return found


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def _told(wrong: list[Any]) -> str:
    """Fields and kinds of errors: pydantic's own words may quote what was given."""
    told: dict[str, str] = {}
    for one in wrong:
        field = str(one["loc"][0]) if one["loc"] else "all together"
        if one["type"] == "missing" and len(one["loc"]) == 1:
            why = "is required"
        elif one["type"] == "extra_forbidden" and len(one["loc"]) == 1:
            field, why = (field if re.fullmatch("[A-Za-z_][A-Za-z0-9_]{0,50}", field) else "a name"), "is no field"
        else:
            why = f"is not valid ({one['type']})"
        told.setdefault(field, why)
    return "; ".join(f"{field} {why}" for field, why in told.items())
