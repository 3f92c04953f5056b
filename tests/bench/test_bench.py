"""The benchmark itself: what it reads, what it makes of it, and one run of everything at a tiny size."""

from __future__ import annotations

import io
import json
import os
import smtplib
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from asyncio import to_thread
from pathlib import Path

import psycopg
import pytest
from rich.console import Console

from bench import latency, reuse, scale, soak, stack, steps, store, throughput
from bench.goals import RATIOS, Measured, goals, ratios
from bench.grow import grow
from bench.latency import Latencies
from bench.mail import message
from bench.measure import (
    Meter,
    Stat,
    busy_ticks,
    memory_mb,
    parse_kilobytes,
    parse_stat,
    percentile,
    short,
    spread,
    tree,
)
from bench.part import Part, PartFailed
from bench.peers import PEERS, Peer
from bench.report import as_json, show, write
from bench.reuse import Reuse, Sent
from bench.scale import Way
from bench.sink import sink
from bench.soak import SHORT, STEPS, Soak
from bench.steps import Steps
from bench.store import StoreTimes
from bench.throughput import FLOOR, NAIVE, OURS, RELAY, Round, Throughput, arrived

# /proc ------------------------------------------------------------------------------------------------------------


def test_a_process_whose_name_looks_like_fields() -> None:
    line = "42 (tmux: S 1 2) x) S 7 42 42 0 -1 4194560 900 1 0 0 11 22 33 44 20 0 1 0 5 100 200"
    assert parse_stat(line) == Stat(42, 7, 11 + 22 + 33 + 44)


def test_a_family_is_found_whatever_the_order() -> None:
    stats = [Stat(9, 5, 1), Stat(5, 3, 1), Stat(3, 1, 1), Stat(4, 1, 1), Stat(1, 0, 1)]
    assert [one.pid for one in tree(stats, 3)] == [3, 5, 9]
    assert tree(stats, 77) == []


def test_kilobytes() -> None:
    status = "Name:\tx\nVmHWM:\t  2048 kB\nVmRSS:\t  1024 kB\n"
    assert (parse_kilobytes(status, "VmHWM"), parse_kilobytes(status, "VmSwap")) == (2048, 0)


def test_waiting_and_stolen_time_are_nobodys_work() -> None:
    assert busy_ticks("cpu  1 2 4 1000 1000 8 16 1000 0 0\ncpu0 9 9 9 9 9 9 9 9 9 9\n") == 31


def test_a_meter_tells_a_process_from_the_noise_of_others() -> None:
    burn = "import sys,time\nwhile time.process_time() < 0.4: pass\nprint(flush=True)\nsys.stdin.read()"
    command = [sys.executable, "-S", "-c", burn]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        meter = Meter({"burner": process.pid})
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdout.readline()
        usage = meter.read()
        process.stdin.close()
    assert 0.3 < usage.by_part["burner"] < 0.6
    assert usage.wall >= 0.3
    assert 0 <= usage.foreign_share <= 1.1


def test_memory_of_this_process() -> None:
    resident = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20
    assert memory_mb(os.getpid()) > resident / 3


# Statistics -------------------------------------------------------------------------------------------------------


def test_median_with_least_and_greatest() -> None:
    assert str(spread([3.0, 1.0, 2.0])) == "2.00 (1.00-3.00)"
    with pytest.raises(ValueError, match="nothing was measured"):
        spread([])


@pytest.mark.parametrize(("value", "text"), [(1234.5, "1234"), (52.14, "52.1"), (0.01234, "0.0123"), (0.0, "0.00")])
def test_three_digits_that_count(value: float, text: str) -> None:
    assert short(value) == text


@pytest.mark.parametrize(("part", "value"), [(0.0, 1), (0.5, 50), (0.99, 99), (1.0, 100)])
def test_percentiles_are_values_that_were_measured(part: float, value: int) -> None:
    assert percentile(list(range(100, 0, -1)), part) == value


# What is made of it -----------------------------------------------------------------------------------------------


def rounds(*per_second: float, **cpu: float) -> list[Round]:
    return [Round(rate, cpu, dict.fromkeys(cpu, 100.0), 0.1) for rate in per_second]


@pytest.fixture
def measured() -> Measured:
    """A run as it might have been: ours are slower than the floor and dearer than they should be."""
    found = Throughput(
        {
            FLOOR: rounds(100.0, 120.0, 80.0, Temporal=8.0, worker=2.0),
            OURS: rounds(70.0, 90.0, 80.0, store=2.0, Temporal=8.4, worker=8.0, enqueueing=1.5, relay=50.0),
            NAIVE: rounds(35.0, 40.0, 20.0, Temporal=20.0, worker=17.8, enqueueing=2.0, relay=50.0),
        },
        {"DBOS": "dbos is not installed"},
    )
    times = StoreTimes()
    for size, factor in (("10k", 1.0), ("1m", 1.1)):
        for operation, seconds in (("claim", 0.002), (store.LOOK, 0.0005)):
            times.add(size, operation, [seconds * factor] * 3)
    times.add("10k", "settle", [0.001])
    times.add("1m", "settle", [0.0015])
    latencies = Latencies({"alone critical": [[0.010, 0.020], [0.030]], "flood critical": [[0.045]], "bare": [[0.006]]})
    soaked = Soak(
        SHORT, [50.0] * 4 + [100.0] * (STEPS - 8) + [103.0] * 4, 120.0, [12] * STEPS, [900.0] * STEPS, (2.0, 2.2)
    )
    one = [scale.Round(rate, {"store": 2.0, "worker": 8.0, "relay": 50.0}, 0.1) for rate in (40.0, 44.0)]
    two = [scale.Round(45.0, {"store": 2.5, "worker": 9.0, "starter": 3.0}, 0.1)]
    scaled = {"1 worker": Way(one, 265, 265, [1.0]), "2 workers, 2 starters": Way(two, 1290, 1291, [0.55, 0.45])}
    reused = Reuse(100, {"SMTP: kept": [Sent(1.5, 1.0, 0.5, 1)], "SMTP: one each": [Sent(2.5, 1.8, 0.9, 100)]})
    stepped = Steps({steps.EMPTY: [7.0, 8.0, 9.0], steps.ATTRIBUTES: [10.0]})
    return Measured(found, latencies, [0.03], times, soaked, scaled, reused, stepped)


def test_ratios_are_complete_and_compare_within_rounds(measured: Measured) -> None:
    assert ratios(measured) == {
        "engine_cpu_vs_empty": 1.05,
        "throughput_vs_empty": 0.75,  # of 0.7, 0.75 and 1.0; the medians' quotient is 0.8
        "throughput_vs_naive": 2.25,
        "throughput_vs_dbos": None,
        "cpu_vs_naive": 0.5,  # 19.9 of 39.8: the relay is somebody else's machine
        "own_cpu_s_per_1000": 9.5,
        "idle_p50_ms": 20.0,
        "idle_p99_ms": 30.0,
        "flood_p99_over_idle_p99": 1.5,
        "store_1m_over_10k": 1.5,  # of all operations the worst
        "soak_rss_growth": 0.03,
        "worker_rss_mb": 120.0,
    }


def test_what_was_not_measured_is_said_to_be_so() -> None:
    assert ratios(Measured()) == dict.fromkeys(RATIOS)
    assert {goal.met for goal in goals(Measured())} == {None}


def test_goals(measured: Measured) -> None:
    missed = [goal.what for goal in goals(measured) if goal.met is False]
    assert missed == [
        "CPU of worker, starter and store client, s per 1,000",
        "latency alone, p99, of that of the bare path",
        "store with 1,000,000 mails, of that with 10,000",
    ]
    assert [goal.what for goal in goals(measured) if goal.met is None] == ["throughput, of DBOS"]


def test_the_report(measured: Measured, tmp_path: Path) -> None:
    write(measured, tmp_path / "results", "latest")
    body = json.loads((tmp_path / "results" / "latest.json").read_text(encoding="utf-8"))
    assert list(body["ratios"]) == list(RATIOS)
    assert body["ratios"] == ratios(measured)
    assert body["measured"]["throughput"]["rounds"][OURS][1]["per_second"] == 90
    assert body["machine"]["cores"] == os.cpu_count()
    assert body["scale"]["1 worker"] == {
        "per_second": 42,
        "cpu": 10,  # the relay is somebody else's machine here too
        "used_by_others": 0.1,
        "mails": 265,
        "attempts": 265,
        "shares": [1],
    }
    assert body["steps"] == {steps.EMPTY: 8.0, steps.ATTRIBUTES: 10.0}
    assert body["reuse"]["SMTP: one each"] == {"ms": 2.5, "cpu_ms": 1.8, "server_cpu_ms": 0.9, "connections": 100}
    picture = ElementTree.parse(tmp_path / "results" / "latest.svg")
    texts = [text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert {FLOOR, OURS, NAIVE, "19.9"} <= set(texts)


def test_a_partial_run_draws_no_picture_of_what_it_lacks(measured: Measured, tmp_path: Path) -> None:
    write(Measured(soak=measured.soak), tmp_path, "partial")
    assert [path.name for path in tmp_path.iterdir()] == ["partial.json"]
    body = json.loads((tmp_path / "partial.json").read_text(encoding="utf-8"))
    assert (body["scale"], body["reuse"], body["steps"]) == (None, None, None)


def test_tables_for_people(measured: Measured) -> None:
    output = io.StringIO()
    show(measured, Console(width=200, file=output))
    text = output.getvalue()
    assert "skipped: DBOS: dbos is not installed" in text
    assert "80.0 (70.0-90.0)" in text
    for row in ("alone critical", "beside a stalled relay", "settle", "open connections", "SMTP: one each"):
        assert row in text
    (row,) = (line for line in text.splitlines() if "2 workers, 2 starters" in line)
    assert [cell.strip() for cell in row.split("│")[2:-1]] == [
        *("45.0 (45.0-45.0)", "14.5 (14.5-14.5)", "2.50", "9.00", "", "3.00", "1,290", "1,291", "55 + 45", "10%")
    ]
    assert f"All of it shares {os.cpu_count()} cores" in text
    assert "1,000,000 mails" in text


def test_everything_is_json(measured: Measured) -> None:
    assert json.loads(json.dumps(as_json(measured)))["goals"][0]["met"] is True


def test_a_peer_that_is_not_there_says_what_is_missing() -> None:
    enter = PEERS["pgqueuer"].enter
    assert Peer("no_such_queue", None, enter).missing() == "no_such_queue is not installed (make bench does it)"
    assert Peer("json", "no-such-server", enter).missing() == "no-such-server is not installed"
    assert Peer("json", None, enter).missing() is None


# The sink ---------------------------------------------------------------------------------------------------------


async def test_the_sink_takes_mail_and_knows_when() -> None:
    async with sink(stall_seconds=0.2) as ask:
        port = await ask({"port": True})

        def send() -> float:
            with smtplib.SMTP("127.0.0.1", port) as connection:
                connection.send_message(message("one"))
                begun = time.monotonic()
                connection.send_message(message("stalled-1"))
                return time.monotonic() - begun

        stalled = await to_thread(send)
        assert await ask({"wait": 2, "seconds": 5}) == 2
        taken = await ask({"take": True})
    assert [to for to, _ in taken] == ["one@example.org", "stalled-1@example.org"]
    assert taken[0][1] < taken[1][1] <= time.monotonic()
    assert stalled >= 0.2


async def test_the_sink_says_how_many_came_when_too_few_do() -> None:
    async with sink() as ask:
        assert await ask({"wait": 1, "seconds": 0.01}) == 0


async def test_a_mail_that_came_twice_ends_the_measurement(tmp_path: Path) -> None:
    async with await Part.start("bench.sink:sink", tmp_path) as part:
        port = await part.call(port=True)

        def send(*keys: str) -> None:
            with smtplib.SMTP("127.0.0.1", port) as connection:
                for key in keys:
                    connection.send_message(message(key))

        await to_thread(send, "one-0", "one-1")
        await arrived(part, "one", 2)
        await to_thread(send, "two-0", "two-0", "two-1")
        with pytest.raises(PartFailed, match="2 mails were handed over, and 2 arrived in 3 copies"):
            await arrived(part, "two", 2)


# Kept connections -------------------------------------------------------------------------------------------------


async def test_a_connection_is_kept_or_there_is_one_for_each_mail(tmp_path: Path) -> None:
    async with reuse.servers(str(tmp_path)) as playing, reuse.sender() as sending:
        ports, ca_file = await playing({"ports": True})
        before = dict.fromkeys(reuse.SERVERS, 0)
        for number, (server, how) in enumerate(reuse.WAYS):
            where = {"server": server, "how": how, "port": ports[server], "ca_file": ca_file}
            times, used = await sending({"prefix": f"m{number}", "number": 3, **where})
            taken, connections, _ = await playing({"taken": server})
            assert sorted(taken) == [f"m{number}-{n}@example.org" for n in range(3)]
            assert connections - before[server] == (1 if how == reuse.KEPT else 3), f"{server}, {how}"
            before[server] = connections
            assert len(times) == 3
            assert used > 0


# What the engine is given --


@pytest.mark.slow
@pytest.mark.usefixtures("scrubbed_environment")
async def test_workflows_with_one_thing_more_each_run_and_are_measured(tmp_path: Path) -> None:
    said: list[str] = []
    found = await steps.run(tmp_path, 1, said.append, workflows=30)
    assert tuple(found.cpu) == steps.WAYS
    assert all(rounds[0] > 0 for rounds in found.cpu.values())
    assert said == ["steps: round 1 of 1"]


# A big store ------------------------------------------------------------------------------------------------------


def test_a_store_grows_by_real_mails(database_url: str) -> None:
    grow(database_url, 20, 10)
    with psycopg.connect(database_url) as connection:
        stages = connection.execute(
            "SELECT stage, started_at IS NULL, count(*) FROM sendonce.email GROUP BY 1, 2 ORDER BY 1, 2"
        ).fetchall()
        # The originals are there too.
        assert stages == [("pending", False, 6), ("pending", True, 6), ("sent", False, 21)]
        per_mail = connection.execute(
            "SELECT count(DISTINCT e.id), count(DISTINCT a.id), count(DISTINCT k.key), count(DISTINCT r.mailbox),"
            " count(DISTINCT t.id) FROM sendonce.email e JOIN sendonce.attempt a ON a.email_id = e.id"
            " JOIN sendonce.email_key k ON k.email_id = e.id JOIN sendonce.recipient r ON r.email_id = e.id"
            " JOIN sendonce.transition t ON t.email_id = e.id WHERE e.stage = 'sent'"
        ).fetchone()
        assert per_mail == (21, 21, 21, 21, 4 * 21)
        due = connection.execute(
            "SELECT FROM sendonce.email WHERE next_attempt_at < now() + interval '1 hour'"
        ).fetchall()
        assert len(due) == 1, "of what is for later only the original is near"
        indexes = connection.execute("SELECT FROM pg_indexes WHERE indexname = 'ix_email_unstarted'").fetchall()
        assert len(indexes) == 1


# Everything -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("scrubbed_environment")
async def test_everything_at_a_tiny_size() -> None:
    said: list[str] = []
    found = Measured()
    async with stack.machine() as machine:
        found.throughput = await throughput.run(machine, 10, 1, said.append)
        found.latencies = await latency.run(machine, 1, 20.0, said.append, alone=2, half_seconds=0.5, flood=50, codes=3)
        found.neighbour = await latency.slow_relay(machine, said.append, stalled=5, stall_seconds=2.0, beside=2)
        found.store = await store.run(
            machine, 1, said.append, sizes={"10k": (50, 0), "1m": (100, 20)}, turns=1, warm_turns=1
        )
        found.soak = await soak.run(machine, 40, said.append)
    assert {FLOOR, OURS, NAIVE} <= found.throughput.rounds.keys()
    assert found.throughput.rounds.keys() | found.throughput.skipped.keys() >= PEERS.keys()
    (ours,) = found.throughput.rounds[OURS]
    assert ours.cpu.keys() == {"store", "Temporal", "worker", "enqueueing", RELAY}
    values = ratios(found)
    if "DBOS" in found.throughput.skipped:
        del values["throughput_vs_dbos"]
    assert None not in values.values()
    assert all(goal.met is not None for goal in goals(found) if "DBOS" not in goal.what)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("scrubbed_environment")
async def test_several_processes_and_kept_connections_at_a_tiny_size() -> None:
    said: list[str] = []
    async with stack.machine() as machine:
        scaled = await scale.run(machine, said.append, mails=10, rounds=1)
        reused = await reuse.run(machine, 1, said.append, mails=5)
    assert scaled.keys() == scale.WAYS.keys()
    for name, (workers, starters) in scale.WAYS.items():
        way = scaled[name]
        assert way.attempts >= way.mails == scale.WARM_UP * workers + 10
        assert len(way.shares) <= workers
        assert sum(way.shares) == pytest.approx(1)
        (one,) = way.rounds
        assert one.cpu.keys() == {
            "store",
            "Temporal",
            "enqueueing",
            RELAY,
            "worker",
            *(["starter"] if starters else []),
        }
    assert reused.summary().keys() == {f"{server}: {how}" for server, how in reuse.WAYS}
    assert len(said) == len(scale.WAYS) + 1
