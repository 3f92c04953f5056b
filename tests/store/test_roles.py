"""Each role logs in by itself and does its work, and nothing beside it."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.types.json import Jsonb

from sendonce import OutgoingEmail, cancel, enqueue, enqueue_many, status, take_events
from sendonce.outcome import Accepted, Reply
from sendonce.retention import Retention
from sendonce.store import Store, erasure, open_pool, roles
from sendonce.store.naming import Person
from tests.conftest import Run

from .conftest import LANE, Bench

SECRET = "ann@example.org"
MESSAGE = {"key": "k", "sender": "shop@example.com", "to": SECRET, "text": "Hi"}


@pytest.fixture
def names(database_url: str) -> Iterator[roles.Roles]:
    """Three roles that may log in, with the rights that ``sendonce grants`` gives."""
    mark = uuid.uuid4().hex[:10]
    names = roles.Roles(f"App {mark}", f"worker_{mark}", f"operator_{mark}")
    roles.apply(database_url, roles.grants(names, create=True))
    with psycopg.connect(database_url, autocommit=True) as connection:
        made = [sql.Identifier(name) for name in (names.app, names.worker, names.operator) if name]
        for role in made:
            connection.execute(sql.SQL("ALTER ROLE {} LOGIN PASSWORD 'pass word'").format(role))
        yield names
        for role in made:
            connection.execute(sql.SQL("DROP OWNED BY {}").format(role))
            connection.execute(sql.SQL("DROP ROLE {}").format(role))


Connect = Callable[..., psycopg.Connection[Any]]


@pytest.fixture
def connect(database_url: str) -> Iterator[Connect]:
    opened: list[psycopg.Connection[Any]] = []

    def connect(role: str | None) -> psycopg.Connection[Any]:
        assert role
        opened.append(psycopg.connect(as_role(database_url, role)))
        return opened[-1]

    yield connect
    for connection in opened:
        connection.close()


def as_role(url: str, role: str) -> str:
    return make_conninfo(url, user=role, password="pass word")


def mail(key: str = "k", **fields: Any) -> OutgoingEmail:
    return OutgoingEmail(**{**MESSAGE, "key": key, **fields})


def test_business_code_calls_functions_and_sees_no_table(names: roles.Roles, connect: Connect) -> None:
    app = connect(names.app)
    created = enqueue(app, mail())
    assert [one.created for one in enqueue_many(app, [mail(), mail("b", html="<p>x", attachments=[])])] == [False, True]
    app.commit()
    found = status(app, "k")
    assert found is not None
    assert (found.id, found.stage) == (created.id, "pending")
    assert take_events(app) == []
    assert cancel(app, "b").outcome == "cancelled"
    app.commit()
    # Who asked, when nobody said it, is the login; not the owner of the function.
    assert names.operator is not None
    operator = connect(names.operator)
    log = operator.execute("SELECT cause, actor FROM sendonce.transition ORDER BY id").fetchall()
    assert log == [("enqueued", names.app), ("enqueued", names.app), ("cancelled", names.app)]


def test_business_code_is_refused_everything_else(names: roles.Roles, connect: Connect) -> None:
    app = connect(names.app)
    enqueue(app, mail())
    app.commit()
    with app.cursor() as cursor:
        cursor.execute("SELECT relname FROM pg_class WHERE relnamespace = 'sendonce'::regnamespace AND relkind = 'r'")
        tables = [sql.Identifier("sendonce", name) for (name,) in cursor.fetchall()]
    assert len(tables) > 15
    for table in tables:
        for statement in ("SELECT FROM {}", "DELETE FROM {}", "INSERT INTO {} DEFAULT VALUES", "TRUNCATE {}"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                app.execute(sql.SQL(statement).format(table))
            app.rollback()
    forged = "INSERT INTO sendonce.email_key VALUES ('default', 'forged', gen_random_uuid(), '', now())"
    for statement in (
        forged,
        "UPDATE sendonce.email SET stage = 'sent'",
        "SELECT content FROM sendonce.email_content",
        "SELECT sendonce.clock()",
        "CREATE TABLE sendonce.mine (id integer)",
        "ALTER FUNCTION sendonce.cancel SECURITY INVOKER",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            app.execute(statement.encode())
        app.rollback()
    # Columns that the function does not know are no way in either.
    for member in ({"stage": "sent"}, {"id": str(uuid.uuid4())}, {"created_at": "2020-01-01T00:00:00Z"}):
        answer = app.execute("SELECT status FROM sendonce.enqueue(%s)", [Jsonb({**MESSAGE, **member})]).fetchone()
        assert answer == (f"invalid:{next(iter(member))}",)


def test_nobody_else_may_call_anything(names: roles.Roles, database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        open_to_all = connection.execute(
            "SELECT oid::regprocedure::text FROM pg_proc WHERE pronamespace = 'sendonce'::regnamespace"
            " AND (proacl IS NULL OR EXISTS (SELECT FROM aclexplode(proacl) a WHERE a.grantee = 0))"
        ).fetchall()
        definers = connection.execute(
            "SELECT proname, proconfig FROM pg_proc WHERE pronamespace = 'sendonce'::regnamespace AND prosecdef"
        ).fetchall()
        tables = connection.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = 'sendonce'::regnamespace AND relkind = 'r'"
        ).fetchall()
    assert open_to_all == []
    assert {name for name, _ in definers} == {*roles.APP_FUNCTIONS, "tell_final", "open_transactions"}
    assert all("search_path=pg_catalog, pg_temp" in config for _, config in definers)
    # A new table is somebody's to think about.
    assert {name for (name,) in tables} == roles.WORKER.keys() == roles.OPERATOR.keys()


def test_every_statement_is_somebodys_right() -> None:
    """What the store's code writes, a worker or an operator may write."""
    text = "".join(path.read_text() for path in Path(roles.__file__).parent.glob("*.py"))
    written = set(re.findall(r"(DELETE|INSERT|UPDATE)(?: FROM| INTO)? sendonce\.(\w+)", text))
    assert len(written) > 20
    granted = {
        (verb, table)
        for tables in (roles.WORKER, roles.OPERATOR, roles.UPKEEP)
        for table in tables
        for verb in tables[table].split(", ")
    }
    # The owner's, when it migrates.
    assert written - granted == {("INSERT", "schema_version")}


HOSTILE = """
CREATE SCHEMA trap;
CREATE FUNCTION trap.evil(jsonb, text) RETURNS text LANGUAGE plpgsql AS
    $$ BEGIN EXECUTE 'CREATE TABLE trap.taken AS SELECT session_user AS s, current_user AS c'; RETURN 'evil'; END $$;
CREATE OPERATOR trap.->> (LEFTARG = jsonb, RIGHTARG = text, FUNCTION = trap.evil);
CREATE FUNCTION trap.lower(text) RETURNS text LANGUAGE sql AS $$ SELECT 'evil' $$;
CREATE FUNCTION trap.sha256(bytea) RETURNS bytea LANGUAGE sql AS $$ SELECT ''::bytea $$;
CREATE FUNCTION trap.gen_random_uuid() RETURNS uuid LANGUAGE sql AS
    $$ SELECT '00000000-0000-0000-0000-000000000000'::uuid $$;
CREATE FUNCTION trap.pg_notify(text, text) RETURNS void LANGUAGE sql AS $$ SELECT $$;
CREATE TABLE trap.email_key (trap integer);
CREATE TEMP TABLE email_key (trap integer);
CREATE TEMP TABLE email (trap integer);
CREATE TEMP TABLE installation (id uuid, notify boolean);
CREATE DOMAIN pg_temp.uuid AS text CHECK (false);
SET search_path = trap, pg_temp, pg_catalog, sendonce;
SET standard_conforming_strings = off;
SET escape_string_warning = off;
SET transform_null_equals = on;
SET backslash_quote = on;
SET quote_all_identifiers = on;
"""


def test_what_a_caller_shadows_or_sets_does_not_reach_the_owners_rights(
    names: roles.Roles, connect: Connect, database_url: str
) -> None:
    assert names.app is not None
    with psycopg.connect(database_url) as owner:
        name = owner.info.dbname
        owner.execute(
            sql.SQL("GRANT CREATE, TEMPORARY ON DATABASE {} TO {}").format(
                sql.Identifier(name), sql.Identifier(names.app)
            )
        )
    app = connect(names.app)
    app.execute(HOSTILE.encode())
    app.commit()
    message = {**MESSAGE, "to": 'A "b\\"c" <Ann@EXAMPLE.org>', "headers": {"X-A": "b\\c"}, "requested_by": "me"}
    for expected in ("created", "exists"):
        row = app.execute("SELECT status FROM sendonce.enqueue(%s)", [Jsonb(message)]).fetchone()
        assert row == (expected,)
    bad = app.execute("SELECT status FROM sendonce.enqueue(%s)", [Jsonb({**MESSAGE, "subject": "a\u0001"})]).fetchone()
    assert bad == ("invalid:subject",)
    assert app.execute("SELECT status, stage FROM sendonce.status('k')").fetchone() == ("found", "pending")
    row = app.execute("SELECT status FROM sendonce.cancel('k', requested_by => 'a\u2028b')").fetchone()
    assert row == ("invalid:requested_by",)
    assert app.execute("SELECT status FROM sendonce.cancel('k')").fetchone() == ("cancelled",)
    app.execute("SELECT FROM sendonce.take_events()")
    app.commit()
    with psycopg.connect(database_url) as owner:
        assert owner.execute("SELECT to_regclass('trap.taken')").fetchone() == (None,)
        assert owner.execute("SELECT mailbox FROM sendonce.recipient").fetchall() == [("Ann@example.org",)]
        assert owner.execute("SELECT count(*) FROM sendonce.email WHERE id::text LIKE '00000000%'").fetchone() == (0,)


@pytest.mark.parametrize(
    ("who", "statement"),
    [
        ("worker", "INSERT INTO sendonce.email_key VALUES ('default', 'x', gen_random_uuid(), '', now())"),
        ("worker", "UPDATE sendonce.email_content SET content = '{}'"),
        ("worker", "DELETE FROM sendonce.email"),
        ("worker", "DELETE FROM sendonce.transition"),
        ("worker", "UPDATE sendonce.transition SET actor = 'x'"),
        ("worker", "UPDATE sendonce.installation SET id = gen_random_uuid()"),
        ("worker", "SELECT sendonce.enqueue('{}')"),
        ("worker", "SELECT sendonce.take_events()"),
        ("operator", "DELETE FROM sendonce.evidence"),
        ("operator", "UPDATE sendonce.transition SET actor = 'x'"),
        ("operator", "UPDATE sendonce.email_content SET content = '{}'"),
        ("operator", "SELECT sendonce.take_events()"),
    ],
)
def test_workers_and_operators_cannot_forge(names: roles.Roles, connect: Connect, who: str, statement: str) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        connect(getattr(names, who)).execute(statement.encode())


async def test_who_runs_the_upkeep_may_empty_and_erase(names: roles.Roles, bench: Bench, database_url: str) -> None:
    assert names.worker
    both = roles.Roles(worker=names.worker, upkeep=names.worker)
    roles.apply(database_url, roles.grants(both))
    # The test's own clock is a table.
    await bench.run("GRANT SELECT ON public.test_clock TO PUBLIC")
    await bench.enqueue("old", to=[SECRET])
    await bench.attempt(Accepted(Reply(250)), "old")
    await bench.enqueue("new", to=[SECRET])
    await bench.advance(40 * 86400)
    await bench.attempt(Accepted(Reply(250, "", f"queued for {SECRET}")), "new")
    pool = open_pool(as_role(database_url, names.worker), name="upkeep", max_size=1)
    await pool.open()
    try:
        store = Store(pool)
        done, _ = await store.upkeep(Retention(), {"default": LANE}, actor="upkeep", leave=lambda: False)
        assert done
        async with pool.connection() as conn:
            person = Person.of(SECRET)
            named = await erasure.search(conn, person)
            await erasure.erase(conn, person, named, lanes={"default": LANE}, actor="olga", because=None, withdraw=True)
    finally:
        await pool.close()
    assert [row["key"] for row in await bench.rows("SELECT key FROM sendonce.email")] == ["new"]
    assert await bench.rows("SELECT FROM sendonce.recipient WHERE mailbox = %s", [SECRET]) == []


def test_the_command_prints_and_applies(run: Run, database_url: str, names: roles.Roles) -> None:
    assert names.app is not None
    url = {"SENDONCE_DATABASE_URL": database_url}
    shown = run("grants", "--app", names.app, **url)
    assert (shown.code, shown.out.count("GRANT EXECUTE")) == (0, len(roles.APP_FUNCTIONS))
    assert f'TO "{names.app}";' in shown.out
    with psycopg.connect(database_url) as owner:
        # What a hand has given beyond what is needed is taken back.
        owner.execute(sql.SQL("GRANT SELECT ON sendonce.email_content TO {}").format(sql.Identifier(names.app)))
    assert run("grants", "--app", names.app, "--apply", **url).code == 0
    with psycopg.connect(database_url) as owner:
        asked = "SELECT has_table_privilege(%s, 'sendonce.email_content', 'SELECT')"
        assert owner.execute(asked, [names.app]).fetchone() == (False,)
    missing = run("grants", "--worker", "no-such-role", "--apply", **url)
    assert missing.code == 2
    assert 'role "no-such-role" does not exist' in missing.err
    assert run("grants", **url).code == 2
    # What is printed is what psql runs.
    assert run("grants", "--worker", "w", "--create", **url).out.splitlines()[0] == 'CREATE ROLE "w" NOLOGIN;'


async def test_cancelling_what_was_offered_is_a_request(bench: Bench) -> None:
    """Begin and cancellation meet at the row's lock: whichever comes first counts."""
    await bench.enqueue("tried")
    claimed = await bench.claim("tried")
    rows = await bench.rows("SELECT status, stage FROM sendonce.cancel('tried', requested_by => 'shop')")
    assert rows == [{"status": "requested", "stage": "claimed"}]
    refused = await bench.begin(claimed)
    assert getattr(refused, "why", "") == "cancelled"
    await bench.store.release(claimed.email_id, claimed.attempt_id, why="cancelled", actor="w1")
    await bench.ask("tried")
    assert (await bench.email("tried"))["stage"] == "cancelled"

    await bench.enqueue("offered")
    claimed = await bench.claim("offered")
    await bench.begin(claimed)
    rows = await bench.rows("SELECT status, stage FROM sendonce.cancel('offered')")
    assert rows == [{"status": "requested", "stage": "transmitting"}]
    await bench.settle(claimed, Accepted(Reply(250, "2.0.0", "queued"), "Q1"))
    assert (await bench.email("offered"))["stage"] == "sent"
    rows = await bench.rows("SELECT status, stage FROM sendonce.cancel('offered')")
    assert rows == [{"status": "finished", "stage": "sent"}]
    log = await bench.rows("SELECT cause, actor FROM sendonce.transition WHERE cause LIKE 'cancel%' ORDER BY id")
    assert [(row["cause"], row["actor"]) for row in log] == [
        ("cancel_requested", "shop"),
        ("cancelled", "w1"),
        ("cancel_requested", "postgres"),
    ]
    # Both workflows are to be woken.
    assert {row.key for row in await bench.store.take_wakes()} == {"tried", "offered"}


async def test_a_wish_to_wake_that_is_fulfilled_meanwhile_is_made_again(bench: Bench, database_url: str) -> None:
    """Somebody else's wish is there, and is taken before this transaction commits: nobody would see what it did."""
    email_id = await bench.enqueue()
    await bench.claim()
    await bench.run("INSERT INTO sendonce.wake (email_id) VALUES (%s)", [email_id])
    async with await psycopg.AsyncConnection.connect(database_url) as business:
        cursor = await business.execute("SELECT status FROM sendonce.cancel('k1')")
        assert await cursor.fetchone() == ("requested",)
        early = await bench.store.take_wakes()
    late = await bench.store.take_wakes()
    assert [row.key for row in early + late] == ["k1"]
    assert late
