"""A class for each template: checked before anything is written, never told with a value, and a sample of its own."""

from __future__ import annotations

import gc
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import psycopg
import pytest
from psycopg.rows import dict_row
from pydantic import BaseModel, Field, field_validator

from sendonce import InvalidEmail, OutgoingEmail, Template, Templates, enqueue
from sendonce.template import known

if TYPE_CHECKING:
    from tests.templates.conftest import Write

SECRET = "ann@example.org"
MAIL: dict[str, Any] = {"key": "k1", "sender": "shop@example.com", "to": "bob@example.org"}


class Book(BaseModel):
    """A value within values."""

    title: str


class TypedOrder(Template):
    """The parameters of the template typed_order."""

    number: str = Field(examples=["4711"])
    total: Decimal = Field(examples=[Decimal("12.50")])
    due: date = Field(examples=[date(2030, 1, 31)])
    books: tuple[Book, ...] = Field(examples=[(Book(title="Emma"),)])
    name: str = "customer"

    @field_validator("name")
    @classmethod
    def _polite(cls, value: str) -> str:
        if "@" in value:
            raise ValueError(f"{value} is no name")
        return value


class TypedElsewhere(Template, template="shop/typed_elsewhere"):
    """Another template's name than its own."""

    x: int


ORDER: dict[str, Any] = {
    "number": "7",
    "total": Decimal("3.10"),
    "due": date(2030, 2, 1),
    "books": (Book(title="Dracula"),),
}


@pytest.fixture
def named(folder: Path, write: Write) -> Templates:
    write("typed_order", subject="{{ number }}", text="{{ name }}: {{ total }} {{ due }} {{ books[0].title }}")
    return Templates(folder)


def test_a_mail_of_a_class_is_one_of_its_template_with_json_parameters() -> None:
    email = OutgoingEmail(template=TypedOrder(**ORDER), **MAIL)
    assert email.template == "typed_order"
    assert email.parameters == {
        "number": "7",
        "total": "3.10",
        "due": "2030-02-01",
        "books": [{"title": "Dracula"}],
        "name": "customer",
    }
    assert OutgoingEmail(template=TypedElsewhere(x=1), **MAIL).template == "shop/typed_elsewhere"


def test_the_same_mail_by_name_is_the_same_to_the_store(database_url: str, named: Templates) -> None:
    typed = named.email(TypedOrder(**ORDER), **MAIL)
    untyped = named.email("typed_order", parameters=typed.parameters, **MAIL)
    with psycopg.connect(database_url, row_factory=dict_row) as connection:
        assert enqueue(connection, typed).created
        assert not enqueue(connection, untyped).created
        assert enqueue(connection, named.fill(named.email(TypedOrder(**ORDER), **MAIL))).created is False
    assert named.fill(typed).text == "customer: 3.10 2030-02-01 Dracula"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"number": None}, "number is not valid (string_type)"),
        ({"number": 7, "total": SECRET}, "number is not valid (string_type); total is not valid (is_instance_of)"),
        ({"books": ({"title": SECRET, SECRET: 1}, {"nothing": SECRET})}, "books is not valid (missing)"),
        ({"name": SECRET}, "name is not valid (value_error)"),
        ({"nmae": SECRET}, "nmae is no field"),
        ({SECRET: 1}, "a name is no field"),
    ],
)
def test_what_is_wrong_names_template_and_fields_and_no_value(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidEmail) as caught:
        TypedOrder(**(ORDER | changes))
    error = caught.value
    assert str(error) == f"parameters: template 'typed_order': {told}"
    assert (error.__context__, error.__cause__) == (None, None)


def test_what_is_missing_is_named_all_of_it() -> None:
    with pytest.raises(InvalidEmail) as caught:
        TypedOrder(due=date(2030, 1, 1))  # type: ignore[call-arg]
    assert caught.value.reason == "template 'typed_order': number is required; total is required; books is required"


def test_a_class_shows_no_values_and_does_not_change() -> None:
    order = TypedOrder(**ORDER | {"name": "Ann"})
    assert "Ann" not in repr(order) + str(order)
    with pytest.raises(ValueError, match="frozen"):
        order.name = "Bob"  # type: ignore[misc]


def test_with_a_class_there_are_no_other_parameters() -> None:
    with pytest.raises(InvalidEmail, match="parameters: are those of the template's class"):
        OutgoingEmail(template=TypedOrder(**ORDER), parameters={"number": "8"}, **MAIL)


def test_the_sample_is_that_of_the_class_and_is_what_check_renders(named: Templates, write: Write) -> None:
    assert named.check() == []
    assert named.sample("typed_order")["books"] == [{"title": "Emma"}]
    # Nothing may be asked for that the class does not have.
    write("typed_order", html="{{ nmae }}")
    assert [fault.place for fault in named.check()] == ["typed_order/body.html:1: UndefinedError: 'nmae' is not given"]


def test_a_file_with_a_sample_comes_first_and_must_fit_the_class(named: Templates, write: Write) -> None:
    books = '"books": [{"title": "Emma"}]'
    write("typed_order", sample='{"number": "1", "total": "2.0", "due": "2030-01-31", ' + books + "}")
    assert (named.sample("typed_order")["number"], named.sample("typed_order")["due"]) == ("1", "2030-01-31")
    write("typed_order", sample='{"numbr": "1", "total": "x", "due": "2030-01-31", ' + books + "}")
    (fault,) = named.check()
    assert fault.place == (
        "typed_order: sample for class TypedOrder: number is required; total is not valid (decimal_parsing);"
        " numbr is no field"
    )


def test_a_class_without_examples_says_what_to_write(folder: Path, write: Write) -> None:
    write("shop/typed_elsewhere", subject="s", text="{{ x }}")
    (fault,) = Templates(folder).check()
    assert fault.place.endswith("x: no example; write Field(examples=[…])")


def test_a_sample_of_ones_own() -> None:
    class TypedSampled(Template):
        x: int

        @classmethod
        def sample(cls) -> Self:
            return cls(x=5)

    assert known()["typed_sampled"].sample().parameters() == {"x": 5}
    del TypedSampled
    gc.collect()


@pytest.mark.parametrize(
    ("name", "template"),
    [("Order", "order"), ("OrderConfirmation", "order_confirmation"), ("VATReport2", "vat_report2")],
)
def test_the_template_of_a_class(name: str, template: str) -> None:
    made: Any = type(name, (Template,), {"__module__": __name__})
    assert made.template_name == template
    del made
    gc.collect()
