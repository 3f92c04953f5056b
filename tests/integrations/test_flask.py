"""A real Flask application with plain SQLAlchemy, as docs/integrations.md shows it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import psycopg
import pytest
from flask import Flask, Response, abort
from flask.testing import FlaskClient
from sqlalchemy import Engine, text
from sqlalchemy.orm import scoped_session, sessionmaker

from sendonce import OutgoingEmail, enqueue
from sendonce.sqlalchemy import start_after_commit

if TYPE_CHECKING:
    from tests.integrations.conftest import Witness

INSERT = text("INSERT INTO orders VALUES (:id, :number)")


def mail(key: str) -> OutgoingEmail:
    return OutgoingEmail(key=key, sender="shop@example.com", to="ann@example.org", text="Hi.")


@pytest.fixture
def browser(engine: Engine, witness: Witness) -> Iterator[FlaskClient]:
    app = Flask(__name__)
    session = scoped_session(sessionmaker(engine))

    @app.teardown_appcontext
    def close(_: BaseException | None) -> None:
        session.remove()

    @app.post("/orders/<int:number>/<outcome>")
    def order(number: int, outcome: str) -> Response:
        session.execute(INSERT, {"id": number + 100, "number": number})
        start_after_commit(session, witness, enqueue(session, mail(f"order-{number}")))
        if outcome == "refused":
            abort(409)
        if outcome == "forgotten":
            return Response(status=200)
        session.commit()
        if outcome == "broken":
            raise ZeroDivisionError
        return Response(status=201)

    with app.test_client() as client:
        yield client


@pytest.mark.parametrize(
    ("outcome", "status", "keys"),
    [("kept", 201, ["order-1"]), ("refused", 409, []), ("forgotten", 200, []), ("broken", 500, ["order-1"])],
)
def test_what_is_committed_is_started(
    browser: FlaskClient, witness: Witness, outcome: str, status: int, keys: list[str]
) -> None:
    assert browser.post(f"/orders/1/{outcome}").status_code == status
    assert (witness.take(), witness.committed()) == (keys, keys)
    # The next request begins afresh.
    assert browser.post("/orders/2/kept").status_code == 201
    assert witness.take() == ["order-2"]


def test_a_commit_that_fails(browser: FlaskClient, witness: Witness) -> None:
    with psycopg.connect(witness.url) as connection:
        connection.execute("INSERT INTO orders VALUES (1, 7)")
    assert browser.post("/orders/7/kept").status_code == 500
    assert (witness.take(), witness.committed()) == ([], [])
