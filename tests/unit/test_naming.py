"""What names an address, and what names another one."""

from __future__ import annotations

import base64
import json
import quopri
from email.message import EmailMessage

import pytest

from sendonce.store.naming import Person

ANN = Person.of("ann.lee@example.org")
TEXT = "Dear <Ann.Lee@Example.ORG>, thank you."


def encoded(cte: str) -> bytes:
    message = EmailMessage()
    message["To"] = TEXT.partition(",")[0].removeprefix("Dear ")
    message.set_content(f"Grüße. {TEXT}", cte=cte)
    return message.as_bytes()


@pytest.mark.parametrize(
    "content",
    [
        TEXT,
        "ann.lee@example.org",
        "...ann.lee@example.org.",
        "mailto:ann.lee@example.org?subject=x",
        "an ann.lee@example.org's",
        "邮箱ann.lee@example.org，",
        quopri.encodestring(TEXT.encode()),
        b"=61nn.lee=40example.org",
        b"x-to=ann.lee%40example.org&n=1",
        json.dumps({"to": "ann.lee@example.org"}).replace("@", "\\u0040"),
        TEXT.encode("utf-16"),
        base64.b64encode(TEXT.encode()),
        b"=?utf-8?b?" + base64.b64encode(b"ann.lee@example.org") + b"?=",
        b"=?utf-8?q?ann=2Elee=40example=2Eorg?=",
        base64.encodebytes(b"\x89PNG\x00\x01" * 30 + TEXT.encode() + b"\xff" * 90),
        json.dumps({"raw": base64.b64encode(encoded("base64")).decode()}),
        json.dumps({"raw": base64.b64encode(encoded("quoted-printable")).decode()}),
        b"\x00\x01\xff" * 100 + b"ann.lee@example.org" + b"\x00\xfe" * 100,
    ],
)
def test_it_stands_there(content: str | bytes) -> None:
    assert ANN.named_in(content)


@pytest.mark.parametrize(
    "content",
    [
        "joann.lee@example.org",
        "jo.ann.lee@example.org",
        "jo-ann.lee@example.org",
        "ann.lee@example.org.uk",
        "ann.lee@example.organic",
        "annxlee@example.org",
        "ann.lee@sub.example.org",
        "ann.lee at example.org",
        base64.b64encode(b"joann.lee@example.org and ann.lee@example.org.uk"),
        b"",
    ],
)
def test_somebody_else_does(content: str | bytes) -> None:
    assert not ANN.named_in(content)


def test_a_domain_has_two_spellings() -> None:
    for spelling in ("jo@bücher.example", "JO@xn--bcher-kva.example", "jo@BÜCHER.example"):
        person = Person.of(spelling)
        assert person.named_in("jo@BÜCHER.example")
        assert person.named_in("jo@XN--BCHER-KVA.example")
        assert not person.named_in("jo@bucher.example")


def test_what_is_no_address_is_refused() -> None:
    with pytest.raises(ValueError, match="mailbox"):
        Person.of("ann")
