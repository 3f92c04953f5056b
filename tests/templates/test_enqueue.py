"""Rendering when the mail is enqueued: a fault comes up at the caller, and a mended template is no conflict."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from sendonce import ConfigurationError, OutgoingEmail, TemplateFault, Templates, enqueue, enqueue_many

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def templates(tmp_path: Path) -> Templates:
    folder = tmp_path / "order"
    folder.mkdir()
    (folder / "subject.txt").write_text("Order {{ number }}")
    (folder / "body.txt").write_text("Thank you for {{ number }}.")
    return Templates(tmp_path)


def mail(key: str = "k", **parameters: object) -> OutgoingEmail:
    return OutgoingEmail(
        key=key, sender="shop@example.com", to="ann@example.org", template="order", parameters=parameters
    )


def contents(connection: psycopg.Connection) -> list[dict[str, object]]:
    return [row[0] for row in connection.execute("SELECT content FROM sendonce.email_content")]


def test_rendered_now_the_row_holds_what_will_be_sent(database_url: str, templates: Templates) -> None:
    with psycopg.connect(database_url) as connection:
        assert enqueue(connection, mail(number=7), render="now", templates=templates).created
        (content,) = contents(connection)
    assert (content["subject"], content["text"], content["rendered"]) == ("Order 7", "Thank you for 7.", True)
    assert (content["template"], content["parameters"]) == ("order", {"number": 7})


def test_a_fault_comes_up_at_the_caller_and_nothing_is_written(database_url: str, templates: Templates) -> None:
    with psycopg.connect(database_url) as connection:
        with pytest.raises(TemplateFault, match=r"order/subject\.txt:1: UndefinedError: 'number' is not given"):
            enqueue_many(connection, [mail("a", number=1), mail("b")], render="now", templates=templates)
        assert contents(connection) == []
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS


def test_the_same_request_after_a_template_was_mended_is_the_same_mail(
    database_url: str, templates: Templates, tmp_path: Path
) -> None:
    with psycopg.connect(database_url) as connection:
        first = enqueue(connection, mail(number=7), render="now", templates=templates)
        (tmp_path / "order" / "body.txt").write_text("Mended: {{ number }}.")
        again = enqueue(connection, mail(number=7), render="now", templates=Templates(tmp_path))
        assert (again.created, again.id) == (False, first.id)
        later = enqueue(connection, mail(number=7))
        assert (later.created, later.id) == (False, first.id), "when it is rendered makes no other mail"


def test_rendering_now_needs_templates(database_url: str) -> None:
    with psycopg.connect(database_url) as connection, pytest.raises(ConfigurationError, match="needs templates"):
        enqueue(connection, mail(number=7), render="now")
