"""A transaction that has been open for long is an alarm while it lasts, whoever's it is."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from sendonce.store import Store, open_pool, roles
from sendonce.store.transactions import hidden, old
from sendonce.watching.transactions import OldTransactions

if TYPE_CHECKING:
    from tests.store.conftest import Bench

LIMIT = 0.05
CANARY = "ann@example.org"


@pytest.fixture
def left_open(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    """Business code that has forgotten its transaction, for longer than the limit by the server's clock."""
    with psycopg.connect(database_url, application_name="shop web") as connection:
        connection.execute("SELECT pg_sleep(%s), %s", [LIMIT, CANARY])
        yield connection


async def alarms(bench: Bench) -> list[dict[str, Any]]:
    return await bench.rows("SELECT kind, account, detail FROM sendonce.alarm ORDER BY id")


async def test_it_is_alarmed_once_and_until_it_has_ended(
    bench: Bench, left_open: psycopg.Connection[Any], database_url: str
) -> None:
    watched = OldTransactions(bench.store, LIMIT)
    for _ in range(2):
        await watched.judge()
    (alarm,) = await alarms(bench)
    pid = left_open.info.backend_pid
    whose, _, rest = alarm["detail"].partition(": open for ")
    assert (alarm["kind"], alarm["account"], whose) == ("old_transaction", None, f"pid {pid}")
    assert re.fullmatch(r"\d seconds, application_name 'shop web', idle in transaction", rest)
    assert await bench.open_alarms() == ["old_transaction"]
    left_open.rollback()
    # The same session's next transaction is another one.
    left_open.execute("SELECT pg_sleep(%s)", [LIMIT])
    await watched.judge()
    assert await bench.open_alarms() == ["old_transaction"]
    assert [one["detail"] for one in (await alarms(bench))[1:]] == [alarm["detail"], f"pid {pid}: it has ended"]
    left_open.close()
    while await bench.rows("SELECT 1 FROM pg_stat_activity WHERE pid = %s", [pid]):
        pass
    await watched.judge()
    assert await bench.open_alarms() == []


async def test_a_prepared_one_and_a_name_that_is_an_address(bench: Bench, database_url: str) -> None:
    gid = f"prepared for {CANARY}"
    with psycopg.connect(database_url, application_name=CANARY) as connection:
        connection.execute("SELECT pg_current_xact_id()")
        connection.execute(sql.SQL("PREPARE TRANSACTION {}").format(sql.Literal(gid)))
        connection.execute("SELECT pg_sleep(%s)", [LIMIT])
        pid = connection.info.backend_pid
        watched = OldTransactions(bench.store, LIMIT)
        await watched.judge()
        details = [one["detail"] for one in await alarms(bench)]
    assert [one.partition(": ")[0] for one in details] == [
        "prepared transaction", f"pid {pid}"
    ]  # fmt: skip
    assert all("@" not in one and "application_name" not in one for one in details)
    await bench.run(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(gid)).as_string())
    await watched.judge()
    assert await bench.open_alarms() == []


async def test_short_ones_and_none_at_all(bench: Bench, left_open: psycopg.Connection[Any]) -> None:
    await OldTransactions(bench.store, 3600).judge()
    assert await alarms(bench) == []
    await OldTransactions(bench.store, LIMIT).judge()
    assert await bench.open_alarms() == ["old_transaction"]
    # Turned off: what is open is nobody's business any more.
    await OldTransactions(bench.store, 0).judge()
    assert await bench.open_alarms() == []


async def test_a_worker_with_few_rights_sees_it_as_far_as_the_schemas_owner_does(
    bench: Bench, left_open: psycopg.Connection[Any], database_url: str
) -> None:
    worker, owner = (f"{name}_{uuid.uuid4().hex[:10]}" for name in ("worker", "owner"))
    roles.apply(database_url, roles.grants(roles.Roles(worker=worker), create=True))
    await bench.run(f"ALTER ROLE {worker} LOGIN PASSWORD 'pass word'; GRANT SELECT ON public.test_clock TO {worker}")
    await bench.run(f"CREATE ROLE {owner}")
    try:
        async with open_pool(make_conninfo(database_url, user=worker, password="pass word"), name="worker") as pool:
            await OldTransactions(Store(pool), LIMIT).judge()
            assert await bench.open_alarms() == ["old_transaction"]
            async with pool.connection() as conn:
                assert await hidden(conn) == 0
                # An owner that is nobody: others' sessions are counted, and not looked into.
                await bench.run(
                    f"GRANT CREATE, USAGE ON SCHEMA sendonce TO {owner};"
                    f" ALTER FUNCTION sendonce.open_transactions OWNER TO {owner}"
                )
                assert await old(conn, 0) == []
                assert await hidden(conn) >= 2
                await bench.run(f"GRANT pg_read_all_stats TO {owner}")
                assert await hidden(conn) == 0
                assert [one.application for one in await old(conn, LIMIT)] == ["shop web"]
    finally:
        await bench.run(f"DROP FUNCTION sendonce.open_transactions; DROP OWNED BY {worker}, {owner};"
                        f" DROP ROLE {worker}, {owner}")  # fmt: skip
