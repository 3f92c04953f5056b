"""A small Django project on a real database: its mail is part of its transactions."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from io import StringIO
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from django.core.mail import EmailMessage, send_mail, send_mass_mail
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection, connections, transaction
from django.test import Client, override_settings
from psycopg.conninfo import conninfo_to_dict
from temporalio.client import Client as TemporalClient

from sendonce import ConfigurationError, IdempotencyConflict, InvalidEmail, StoreNotReady
from sendonce.django import EmailBackend, options
from sendonce.embedded import EmbeddedTemporal

if TYPE_CHECKING:
    from tests.integrations.conftest import Witness

RULES = "shop_rules"
"""The module of the project; see conftest.py."""


SILENT = EmailBackend(fail_silently=True)


def _use(url: str) -> None:
    parts = conninfo_to_dict(url)
    connections["default"].settings_dict.update(
        NAME=parts["dbname"],
        USER=parts["user"],
        PASSWORD=parts.get("password", ""),
        HOST=parts["host"],
        PORT=str(parts["port"]),
    )


@pytest.fixture
def project(shop_url: str) -> Iterator[None]:
    """Django on this test's database."""
    _use(shop_url)
    yield
    connections.close_all()


pytestmark = pytest.mark.usefixtures("project")


def message(key: str | None = "order-1", body: str = "Thank you.", **more: Any) -> EmailMessage:
    headers = {"X-Sendonce-Key": key} if key else {}
    return EmailMessage("Your order", body, "shop@example.com", ["ann@example.org"], headers=headers, **more)


def stored(url: str) -> list[Any]:
    with psycopg.connect(url) as looking:
        return looking.execute("SELECT key, lane, account FROM sendonce.email ORDER BY key").fetchall()


# Transactions ------------------------------------------------------------------------------------------------------


def test_committed_means_sent_rolled_back_means_never(witness: Witness) -> None:
    with transaction.atomic():
        assert message().send() == 1
        assert witness.committed() == []
    assert witness.committed() == ["order-1"]
    with suppress(ZeroDivisionError), transaction.atomic():
        message("order-2").send()
        raise ZeroDivisionError
    assert witness.committed() == ["order-1"]


def test_outside_of_a_transaction_it_is_its_own(witness: Witness) -> None:
    assert message().send() == 1
    assert witness.committed() == ["order-1"]


def test_savepoints(witness: Witness) -> None:
    with transaction.atomic():
        message("before").send()
        with suppress(ZeroDivisionError), transaction.atomic():
            message("within").send()
            raise ZeroDivisionError
        with transaction.atomic():
            message("released").send()
    assert witness.committed() == ["before", "released"]


@pytest.mark.parametrize(("query", "status", "keys"), [("", 201, ["order-7"]), ("?fail", 500, [])])
def test_atomic_requests(witness: Witness, query: str, status: int, keys: list[str]) -> None:
    connections["default"].settings_dict["ATOMIC_REQUESTS"] = True
    try:
        answer = Client(raise_request_exception=False).get(f"/orders/7/{query}")
    finally:
        connections["default"].settings_dict["ATOMIC_REQUESTS"] = False
    assert answer.status_code == status
    assert witness.committed() == keys


def test_a_transaction_that_is_broken_takes_no_mail(witness: Witness) -> None:
    with transaction.atomic():
        transaction.set_rollback(True)
        with pytest.raises(transaction.TransactionManagementError):
            message().send()
        transaction.set_rollback(True)
    assert witness.committed() == []


def test_manual_transaction_management(witness: Witness) -> None:
    transaction.set_autocommit(False)
    try:
        message().send()
        assert witness.committed() == []
        transaction.commit()
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)
    assert witness.committed() == ["order-1"]


# Keys --------------------------------------------------------------------------------------------------------------


def test_the_same_mail_again_is_one_mail(witness: Witness) -> None:
    assert message().send() == 1
    assert message().send() == 1
    assert witness.committed() == ["order-1"]


def test_other_content_under_the_key_is_a_conflict_and_the_transaction_goes_on(witness: Witness) -> None:
    message().send()
    with transaction.atomic():
        with pytest.raises(IdempotencyConflict, match="order-1"):
            message(body="Another.").send()
        message("order-2").send()
    assert witness.committed() == ["order-1", "order-2"]


def test_without_a_key_it_says_why_and_what_to_do(witness: Witness) -> None:
    with pytest.raises(ConfigurationError, match=r"second of two rightful mails .* a random one .*X-Sendonce-Key"):
        send_mail("Hello", "Text", None, ["ann@example.org"])
    # It is no mishap that a caller may wave aside.
    with pytest.raises(ConfigurationError):
        SILENT.send_messages([message(None)])
    assert witness.committed() == []


def test_an_attribute_gives_key_and_lane(shop_url: str) -> None:
    mail = message(None)
    mail.sendonce = {"key": "code-1", "lane": "critical", "account": "codes", "requested_by": "shop"}
    assert mail.send() == 1
    assert stored(shop_url) == [("code-1", "critical", "codes")]


@pytest.mark.parametrize("wrong", [{"kye": "a"}, {"key": "a", "to": "b@example.org"}, "order-1"])
def test_an_attribute_that_cannot_be(wrong: Any) -> None:
    mail = message()
    mail.sendonce = wrong
    with pytest.raises(ConfigurationError, match=r"message\.sendonce"):
        mail.send()


def test_the_key_travels_not_with_the_mail(shop_url: str) -> None:
    message().send()
    with psycopg.connect(shop_url) as looking:
        (found,) = looking.execute("SELECT to_jsonb(c)::text FROM sendonce.email_content c").fetchone() or ()
    assert "Sendonce" not in found


@override_settings(SENDONCE={"KEY": f"{RULES}.key_of", "LANE": "critical", "ACCOUNT": "codes"})
def test_the_password_reset_of_django_goes_through_it(shop_url: str) -> None:
    call_command("migrate", verbosity=0)
    from django.contrib.auth.models import User

    User.objects.create_user("ann", "ann@example.org", "correct horse")
    answer = Client().post("/reset/", {"email": "ann@example.org"})
    assert (answer.status_code, answer["Location"]) == (302, "/done/")
    ((key, lane, account),) = stored(shop_url)
    assert key.startswith("reset-")
    assert (lane, account) == ("critical", "codes")
    # Asked for again later, it is another token and another mail.
    User.objects.update(last_login="2026-01-01T00:00:00Z")
    Client().post("/reset/", {"email": "ann@example.org"})
    assert len(stored(shop_url)) == 2
    # What the rule does not know has no key.
    with pytest.raises(ConfigurationError, match="no key"):
        send_mail("Hello", "Text", None, ["ann@example.org"])


# Many at once, and silently ---------------------------------------------------------------------------------------


def test_the_messages_of_a_call_are_written_all_or_none(witness: Witness) -> None:
    message("taken").send()
    backend = EmailBackend()
    assert backend.send_messages([message("b"), message("a"), message("taken")]) == 3
    assert backend.send_messages([]) == 0
    with transaction.atomic():
        with pytest.raises(IdempotencyConflict):
            backend.send_messages([message("c"), message("taken", "Another.")])
        with pytest.raises(InvalidEmail):
            backend.send_messages([message("d"), message("not a key")])
    assert witness.committed() == ["a", "b", "taken"]


def test_nobody_to_write_to_is_no_mail(witness: Witness) -> None:
    empty = EmailMessage("Hello", "Text", None, [], headers={"X-Sendonce-Key": "a"})
    assert EmailBackend().send_messages([empty, message("b")]) == 1
    assert witness.committed() == ["b"]


def test_silently_each_by_itself(witness: Witness, caplog: pytest.LogCaptureFixture) -> None:
    message("taken").send()
    wrong_address = EmailMessage("Hi", "Text", None, ["no address"], headers={"X-Sendonce-Key": "wrong"})
    mails = [message("a"), message("taken", "Another."), wrong_address, message("b")]
    with transaction.atomic():
        assert SILENT.send_messages(mails) == 2
        # And the transaction goes on.
        message("c").send()
    assert witness.committed() == ["a", "b", "c", "taken"]
    assert [record.getMessage() for record in caplog.records if record.name == "sendonce.django.backend"] == [
        "a mail was not enqueued: key=taken IdempotencyConflict",
        "a mail was not enqueued: InvalidEmail",
    ]


def test_a_schema_that_is_missing(empty_database_url: str) -> None:
    connections.close_all()
    _use(empty_database_url)
    with transaction.atomic():
        with pytest.raises(StoreNotReady, match="sendonce migrate"):
            message().send()
        assert SILENT.send_messages([message()]) == 0
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
            assert cursor.fetchone() == (1,)


def test_a_database_that_is_away(free_port: int) -> None:
    connections.close_all()
    connections["default"].settings_dict["PORT"] = str(free_port)
    with pytest.raises(OperationalError):
        message().send()
    assert SILENT.send_messages([message()]) == 0


def test_a_connection_that_broke_is_renewed(shop_url: str, witness: Witness) -> None:
    connection.ensure_connection()
    pid = connection.connection.info.backend_pid
    with psycopg.connect(shop_url, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
    with pytest.raises(OperationalError):
        message().send()
    # As after any request of Django's.
    connection.close_if_unusable_or_obsolete()
    assert message().send() == 1
    assert witness.committed() == ["order-1"]


def test_nothing_of_a_mail_is_logged_as_a_statement(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    with override_settings(DEBUG=True):
        message(body="A secret code").send()
        assert not [query for query in connection.queries if "ann@" in query["sql"] or "secret" in query["sql"]]
    assert "ann@" not in caplog.text
    assert "secret" not in caplog.text


# Starting ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def temporal_options(temporal: EmbeddedTemporal) -> Iterator[Callable[[], None]]:
    """SENDONCE names a real server; the fixture's value closes the process's starter."""

    def close() -> None:
        if options._running is not None:
            options._running[1].close()
            options._running = None

    with override_settings(SENDONCE={"TEMPORAL": {"target_host": temporal.target}}):
        yield close
        close()


async def test_workflows_are_started_after_the_commit(
    temporal_options: Callable[[], None], temporal_client: TemporalClient
) -> None:
    import asyncio

    keys = [f"django-{uuid.uuid4().hex}" for _ in range(3)]

    def work() -> None:
        with transaction.atomic():
            message(keys[0]).send()
            with suppress(ZeroDivisionError), transaction.atomic():
                message(keys[1]).send()
                raise ZeroDivisionError
        with suppress(ZeroDivisionError), transaction.atomic():
            message(keys[2]).send()
            raise ZeroDivisionError
        connections.close_all()
        temporal_options()

    await asyncio.to_thread(work)
    found = [execution.id async for execution in temporal_client.list_workflows() if execution.id in keys]
    assert found == [keys[0]]


# Checks and the command -------------------------------------------------------------------------------------------


def checked(*arguments: str) -> str:
    errors = StringIO()
    try:
        call_command("check", *arguments, stdout=StringIO(), stderr=errors)
    except Exception as error:
        return str(error)
    return errors.getvalue()


def test_a_project_that_is_in_order() -> None:
    assert checked() == ""
    assert checked("--database", "default") == ""


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"KYE": "a"}, "'KYE'"),
        ({"KEY": "nowhere.rule"}, "'nowhere.rule'"),
        ({"KEY": f"{RULES}.NOT_CALLABLE"}, "not callable"),
        ({"DATABASE": "other"}, "'other'"),
        ({"TEMPORAL": "localhost:7233"}, "dictionary"),
        ("key", "dictionary"),
    ],
)
def test_settings_that_cannot_be(value: Any, why: str) -> None:
    with override_settings(SENDONCE=value):
        said = checked()
        assert "sendonce.E001" in said
        assert why in said
        with pytest.raises(ConfigurationError):
            message().send()


@override_settings(SENDONCE={"DATABASE": "lite"})
def test_another_database_is_found_out() -> None:
    assert "sendonce.E002" in checked("--database", "lite")
    with pytest.raises(ConfigurationError, match="psycopg 3"):
        message().send()


def test_a_missing_schema_is_found_out_and_the_command_brings_it(empty_database_url: str) -> None:
    connections.close_all()
    _use(empty_database_url)
    assert checked() == ""
    assert "sendonce.W001" in checked("--database", "default")
    said = [StringIO(), StringIO()]
    for one in said:
        call_command("sendonce_migrate", stdout=one)
    assert [one.getvalue().split(" ")[2] for one in said] == ["went", "is"]
    assert checked("--database", "default") == ""
    assert message().send() == 1


def test_the_command_says_what_is_wrong(shop_url: str) -> None:
    with psycopg.connect(shop_url) as other:
        other.execute("UPDATE sendonce.schema_version SET version_num = '9999'")
        other.execute("UPDATE sendonce.installation SET oldest_revision = '9998'")
    with pytest.raises(CommandError, match="upgrade the package"):
        call_command("sendonce_migrate")


def test_an_html_alternative_through_send_mail_and_mass_mail(shop_url: str) -> None:
    with override_settings(SENDONCE={"KEY": f"{RULES}.key_of"}):
        body = "/reset/MQ/abc-1/"
        assert send_mail("Reset", body, None, ["ann@example.org"], html_message="<p>Reset</p>") == 1
        mails = [("Reset", f"/reset/MQ/abc-{n}/", None, ["ann@example.org"]) for n in (2, 3)]
        assert send_mass_mail(mails) == 2
    assert len(stored(shop_url)) == 3
    with EmailBackend() as backend:
        assert backend.send_messages([message("within")]) == 1
