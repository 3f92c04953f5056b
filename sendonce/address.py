"""Mailboxes with their names, as callers write them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from sendonce.checked import Checked, short_line
from sendonce.checks import envelope_mailbox
from sendonce.errors import InvalidEmail


def _checked_mailbox(email: str) -> str:
    envelope_mailbox(email)
    return email


class Address(Checked):
    """A mailbox and the name shown with it. A plain string ``"Ann <ann@example.org>"`` is taken wherever one fits.

    Raises :class:`~sendonce.errors.InvalidEmail` for a mailbox that RFC 5321 does not allow, and for a name of more
    than one line. Local parts outside ASCII are allowed: the next hop decides whether it takes them (RFC 6531).
    """

    email: Annotated[str, AfterValidator(_checked_mailbox)]
    """``local-part@domain``; the domain may be internationalised. At most 64, 255 and 254 octets (RFC 5321 4.5.3.1)."""
    name: Annotated[str, short_line(700)] = ""
    """What mail programs show. One line, at most 700 octets as encoded."""

    if TYPE_CHECKING:

        def __init__(self, *, email: str, name: str = "") -> None: ...

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read ``"ann@example.org"``, ``"Ann <ann@example.org>"`` or ``'"Ann, B." <ann@example.org>'``.

        >>> Address.parse('"Ann, B." <ann@example.org>').name
        'Ann, B.'
        """
        text = text.strip(" \t")
        before, bracket, inside = text.rpartition("<")
        if not bracket or not inside.endswith(">"):
            return cls(email=text)
        name = before.strip(" \t")
        if len(name) > 1 and name[0] == name[-1] == '"':
            name = re.sub(r"\\(.)", r"\1", name[1:-1], flags=re.DOTALL)
        return cls(email=inside[:-1].strip(" \t"), name=name)

    @property
    def mailbox(self) -> str:
        """The mailbox for the envelope: the local part as it is, the domain lower-case in A-labels (RFC 5321 2.4).

        >>> Address(email="Ann@BÜCHER.example").mailbox
        'Ann@xn--bcher-kva.example'
        """
        return envelope_mailbox(self.email)

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        return ()


def _address(value: object) -> Address:
    if isinstance(value, Address):
        return value
    try:
        if isinstance(value, str):
            return Address.parse(value)
        if isinstance(value, Mapping):
            return Address(**value)
    except InvalidEmail as error:
        raise ValueError(error.reason if error.field == "email" else str(error)) from None
    raise ValueError('must be an Address or a string such as "Ann <ann@example.org>"')


def _addresses(value: object) -> tuple[Address, ...]:
    if value is None:
        return ()
    if isinstance(value, (str, Address, Mapping)):
        value = (value,)
    if not isinstance(value, Iterable):
        raise ValueError("must be an address or a list of them")  # noqa: TRY004
    found = []
    for number, one in enumerate(value, 1):
        try:
            found.append(_address(one))
        except ValueError as error:
            raise ValueError(f"address {number}: {error}") from None
    return tuple(found)


OneAddress = Annotated[Address, BeforeValidator(_address)]
Addresses = Annotated[tuple[Address, ...], BeforeValidator(_addresses)]

if TYPE_CHECKING:
    AddressLike = Address | str
    AddressList = AddressLike | Iterable[AddressLike]
