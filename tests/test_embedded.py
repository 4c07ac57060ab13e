"""The embedded PostgreSQL, with real processes and real kills, each test on a throw-away server of its own."""

import os
import pwd
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import dj_database_url
import psutil
import psycopg
import pytest

from durable_site import embedded

PROJECT = Path(__file__).resolve().parent.parent
HOLD = "from durable_site import embedded; print(embedded.database_url(), flush=True); input()"
NOBODY = pwd.getpwnam("nobody")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A throw-away place, named to us and our children by DURABLE_RUNS_DATA; nothing is left of it."""
    place = tmp_path / "place"
    monkeypatch.setenv("DURABLE_RUNS_DATA", str(place))
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    yield place
    embedded.remove()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The place of one throw-away server for all tests that need no new one; it runs when a test begins."""
    place = tmp_path_factory.mktemp("embedded") / "place"
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("DURABLE_RUNS_DATA", str(place))
        environment.setenv("PYTHONPATH", str(PROJECT))
        yield place
        embedded.remove()


@pytest.fixture
def url(running: Path) -> str:
    return embedded.database_url()


def home() -> Path:
    return embedded.EmbeddedServer().home


def postgres_processes(inside: Path) -> list[psutil.Process]:
    """Every PostgreSQL process that works inside this folder; zombies do not work."""
    found = []
    for process in psutil.process_iter(["name"]):
        with suppress(psutil.Error):
            if process.info["name"] == "postgres" and process.cwd().startswith(str(inside)):
                found.append(process)
    return found


def parents_of(processes: list[psutil.Process]) -> list[int]:
    parents = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # a backend that ended meanwhile
            parents.append(process.ppid())
    return parents


def main_process() -> psutil.Process:
    return psutil.Process(int((home() / "data" / "postmaster.pid").read_text().split()[0]))


def begin(*command: str) -> subprocess.Popen[str]:
    """A process of ours, in a session of its own so that its whole group can be killed."""
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=PROJECT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run(*command: str) -> subprocess.CompletedProcess[str]:
    process = begin(*command)
    said, complained = process.communicate(timeout=60)
    return subprocess.CompletedProcess(command, process.returncode, said, complained)


def ask(url: str, question: str = "SELECT 1") -> object:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(question)
        return cursor.fetchone()[0] if cursor.description else None


def wait_until(true: Callable[[], object], seconds: float = 20) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.001)


def test_the_first_call_makes_a_durable_postgresql_18_that_django_finds(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DURABLE_RUNS_FSYNC", raising=False)
    url = embedded.database_url()

    wanted = {
        "server_version_num": lambda value: value.startswith("18"),
        "fsync": lambda value: value == "on",
        "listen_addresses": lambda value: value == "",
        "max_connections": lambda value: value == "200",
        "server_encoding": lambda value: value == "UTF8",
    }
    assert [name for name, right in wanted.items() if not right(ask(url, f"SHOW {name}"))] == []
    django = dj_database_url.parse(url)
    assert django["NAME"] == "durable_runs"
    assert django["USER"] == pwd.getpwuid(os.geteuid()).pw_name
    assert Path(django["HOST"], f".s.PGSQL.{django['PORT']}").is_socket()
    assert str(home()) in (folder / "durable-runs" / "README").read_text()


def test_a_server_of_throw_away_data_may_not_wait_for_the_disk_and_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DURABLE_RUNS_FSYNC", "off")
    url = embedded.database_url()
    assert [ask(url, f"SHOW {name}") for name in ("fsync", "full_page_writes")] == ["off", "off"]
    monkeypatch.delenv("DURABLE_RUNS_FSYNC")
    embedded.stop()
    assert ask(embedded.database_url(), "SHOW fsync") == "on"


def test_six_processes_at_once_on_an_empty_folder_find_one_server(folder: Path) -> None:
    processes = [begin("-c", HOLD) for _ in range(6)]
    urls = {process.stdout.readline().strip() for process in processes}
    endings = [(process.communicate("\n", timeout=60)[1], process.returncode) for process in processes]

    assert endings == [("", 0)] * 6
    assert len(urls) == 1
    assert ask(urls.pop()) == 1
    assert len([parent for parent in parents_of(postgres_processes(home())) if parent != main_process().pid]) == 1


@pytest.mark.parametrize(("delay", "whole_group"), [(0.2, True), (0.35, False), (0.5, True), (0.7, False)])
def test_a_process_killed_during_the_first_start_leaves_nothing_that_hinders_the_next(
    folder: Path, delay: float, whole_group: bool
) -> None:
    process = begin("-m", "durable_site.embedded", "url")
    time.sleep(delay)
    kill(process, whole_group)

    assert ask(embedded.database_url()) == 1


@pytest.mark.parametrize(
    ("moment", "whole_group"),
    [("data.unfinished/PG_VERSION", True), ("data.unfinished/PG_VERSION", False), ("data/postmaster.pid", False)],
)
def test_a_process_killed_at_a_known_moment_of_the_first_start_is_made_good(
    folder: Path, moment: str, whole_group: bool
) -> None:
    process = begin("-m", "durable_site.embedded", "url")
    wait_until((home() / moment).exists)
    kill(process, whole_group)
    if moment.startswith("data.unfinished"):
        assert not (home() / "data").exists()

    assert ask(embedded.database_url()) == 1
    assert not (home() / "data.unfinished").exists()


def kill(process: subprocess.Popen[str], whole_group: bool) -> None:
    with suppress(ProcessLookupError):
        (os.killpg if whole_group else os.kill)(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)


def test_a_killed_server_comes_back_with_all_that_was_committed(url: str) -> None:
    ask(url, "CREATE TABLE paid (claim text)")
    ask(url, "INSERT INTO paid VALUES ('claim-0042')")
    busy = threading.Thread(target=compute_for_ever, args=[url])
    busy.start()
    wait_until(lambda: ask(url, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'DO %' AND state = 'active'"))
    main_process().kill()

    assert embedded.database_url() == url
    assert ask(url, "SELECT claim FROM paid") == "claim-0042"
    busy.join(timeout=20)
    assert not busy.is_alive()


def compute_for_ever(url: str) -> None:
    """Keeps one server process busy, so that it does not notice that its main process has died."""
    with suppress(psycopg.OperationalError):
        ask(url, "DO 'BEGIN LOOP PERFORM 1; END LOOP; END'")


def test_a_number_left_by_a_dead_server_is_not_taken_for_a_live_one(url: str) -> None:
    rest = (home() / "data" / "postmaster.pid").read_text().split("\n", 1)[1]
    embedded.stop()
    who = {"user": NOBODY.pw_uid, "group": NOBODY.pw_gid} if os.geteuid() == 0 else {}
    stranger = subprocess.Popen(["sleep", "60"], cwd="/", **who)
    try:
        (home() / "data" / "postmaster.pid").write_text(f"{stranger.pid}\n{rest}")
        assert embedded.status() is None
        assert ask(embedded.database_url()) == 1
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_server_outlives_the_process_group_that_started_it(url: str, number: signal.Signals) -> None:
    embedded.stop()
    process = begin("-c", HOLD)
    url = process.stdout.readline().strip()
    server = main_process()
    os.killpg(process.pid, number)
    process.communicate(timeout=60)

    assert process.returncode != 0
    assert ask(url) == 1
    assert main_process() == server
    assert os.getsid(server.pid) != process.pid


def test_stop_keeps_the_data_and_a_dropped_database_is_made_again(url: str) -> None:
    ask(url, "CREATE TABLE kept AS SELECT 7 AS number")
    embedded.stop()
    assert embedded.status() is None
    assert postgres_processes(home()) == []

    assert ask(embedded.database_url(), "SELECT number FROM kept") == 7
    ask(url.replace("/durable_runs", "/postgres"), "DROP DATABASE durable_runs WITH (FORCE)")
    assert ask(embedded.database_url()) == 1


def test_two_places_have_two_servers_and_remove_leaves_nothing_of_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, first = embedded.database_url(), home()
    other = folder.parent / ("a long name with 'spaces', $HOME and \"quotes\" " * 4)
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("DURABLE_RUNS_DATA", str(other))
        second, sockets = home(), embedded.EmbeddedServer().socket.parent
        try:
            other_url = embedded.database_url()
            assert other_url != url
            assert ask(other_url) == 1
            assert postgres_processes(second) != []
        finally:
            embedded.remove()
        embedded.remove()
        left = [path for path in (second, sockets, other) if path.exists()]

    assert left == []
    assert postgres_processes(second) == []
    assert postgres_processes(first) != []
    assert ask(url) == 1


def test_the_command_line_tells_the_truth_by_its_exit_codes(folder: Path) -> None:
    module = ("-m", "durable_site.embedded")
    assert run(*module, "status").returncode == 3
    url = run(*module, "url")
    assert (url.returncode, ask(url.stdout.strip())) == (0, 1)
    assert run(*module, "status").returncode == 0
    assert run(*module, "stop").returncode == 0
    assert run(*module, "status").returncode == 3
    with (home() / "data" / "postgresql.conf").open("a") as settings:
        settings.write("no_such_setting = 1\n")

    refused = run(*module, "url")

    assert (refused.returncode, refused.stdout) == (1, "")
    assert "did not start" in refused.stderr
    assert "no_such_setting" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert run(*module, "remove").returncode == 0
    assert run(*module, "remove").returncode == 0
    assert not home().exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to play another user")
def test_other_users_of_the_machine_do_not_get_in_and_no_folder_is_opened_to_them(folder: Path) -> None:
    folder.mkdir()
    guarded = [folder, *folder.parents, *Path(psycopg.__file__).parents]
    before = [path.stat().st_mode for path in guarded]
    url = embedded.database_url()

    for stranger in (NOBODY.pw_uid, 1):
        assert "connection to server" in as_user(stranger, url)
    assert as_user(0, url) == "let in"
    assert [path.stat().st_mode for path in guarded] == before


def as_user(uid: int, url: str) -> str:
    """What the server says to a user: tried in a forked child, since only a process as a whole can change its user."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setuid(uid)
            psycopg.connect(url).close()
            os.write(writer, b"let in")
        except BaseException as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as answer:
        return answer.read()


UNPRIVILEGED = """
import os, psycopg
from durable_site import embedded
os.environ["DURABLE_RUNS_DATA"] += "/" + "long name " * 12
assert os.geteuid() != 0
url = embedded.database_url()
try:
    assert psycopg.connect(url).execute("SELECT current_user").fetchone()[0] == os.environ["USER"]
    server = embedded.EmbeddedServer()
    assert server.home == server.place and server.data.stat().st_uid == os.geteuid()
    assert str(server.socket).startswith("/tmp/durable-runs-"), server.socket
    assert embedded.database_url() == url
finally:
    embedded.remove()
assert embedded.status() is None and not server.home.exists() and not server.socket.parent.exists()
print("an unprivileged user had a server")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="every other test of this file is already run by an unprivileged user")
def test_a_user_who_is_not_root_has_a_server_in_the_place_itself() -> None:
    python = python_for(NOBODY)
    own = Path(tempfile.mkdtemp(prefix="embedded-", dir="/tmp"))
    try:
        os.chown(own, NOBODY.pw_uid, NOBODY.pw_gid)
        environment = environment_of(NOBODY) | {"HOME": str(own), "DURABLE_RUNS_DATA": str(own)}
        done = subprocess.run(
            [python, "-c", UNPRIVILEGED],
            cwd=own,
            env=environment,
            user=NOBODY.pw_uid,
            group=NOBODY.pw_gid,
            extra_groups=[],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    finally:
        shutil.rmtree(own)
    assert (done.stdout, done.returncode) == ("an unprivileged user had a server\n", 0), done.stderr


def environment_of(user: pwd.struct_passwd) -> dict[str, str]:
    packages = sysconfig.get_path("platlib")
    return {"PATH": "/usr/bin:/bin", "USER": user.pw_name, "PYTHONPATH": f"{PROJECT}{os.pathsep}{packages}"}


def python_for(user: pwd.struct_passwd) -> str:
    """A Python of our version that this user may run and that finds our packages; skips where there is none."""
    check = f"import sys, durable_site, psycopg; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})"
    how = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": [], "env": environment_of(user)}
    for python in (sys.executable, shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin")):
        with suppress(PermissionError, TypeError):
            if subprocess.run([python, "-c", check], cwd="/", capture_output=True, check=False, **how).returncode == 0:
                return python
    return pytest.skip(f"{user.pw_name} can run no Python {sys.version_info[:2]} or cannot read {PROJECT}")
