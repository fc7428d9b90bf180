"""Several nodes on this machine, each a process of its own, behind nginx or a small relay.

    with Cluster(folder, store=database_url, provider=emu.url) as cluster:
        with cluster.balancer() as url:
            anthropic.Anthropic(base_url=url, api_key=cluster.tokens["demo"])
            cluster.nodes[0].kill()

Used by tests/daemon/nodes and by scripts/cluster.py, the program of `make cluster`.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import msgspec
from support.daemon import GRANT, KEY, llm_yaml
from support.servers import (
    ROOT,
    NginxServer,
    ServerFailed,
    ServerMissing,
    find_program,
    free_port,
    start_process,
)
from support.waiting import PATIENCE, wait_until

from anaphora.daemon.home import init

NGINX_CONF = ROOT / "deploy" / "nginx" / "anaphora.conf"
#: A node's answer to a request without a body: seconds.
_ASK_SECONDS = 5.0


#: Forks a node for each line on standard input, `HOME PORT`, and prints its process id. Nodes have
#: their modules and tables from here: reading them is most of a start.
_FORKS = """
import importlib, os, signal, sys
from pathlib import Path
from anaphora import wire
from anaphora.daemon.home.settings import ServeOptions
from anaphora.daemon.server import serve

for name in (
    "aiohttp.web", "asyncpg", "prometheus_client", "yaml",
    "ctypes", "encodings.idna", "anaphora.client.observe.prometheus",
    "anaphora.client.transport.over_aiohttp", "anaphora.daemon.calls.delegation",
    "anaphora.daemon.endpoints.service", "anaphora.daemon.endpoints.stored",
    "anaphora.daemon.nodes.administration", "anaphora.daemon.nodes.membership",
    "anaphora.daemon.rpc.service",
    "anaphora.daemon.store.postgres", "anaphora.daemon.ui.mount",
    "anaphora.serving.listening",
):
    importlib.import_module(name)
for name in wire.WIRES:
    wire.get(name)

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
children = []
for line in sys.stdin:
    home, port = line.split()
    child = os.fork()
    if not child:
        try:
            os.setsid()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            log = os.open(f"{home}/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            for number in (1, 2):
                os.dup2(log, number)
            serve(ServeOptions(home=Path(home), port=int(port)))
            os._exit(0)
        except BaseException as problem:
            os.write(2, repr(problem).encode())
        finally:
            os._exit(1)
    children.append(child)
    os.write(1, b"%d\\n" % child)
for child in children:
    try:
        os.kill(child, signal.SIGKILL)
    except ProcessLookupError:
        pass
"""


class NodeForks:
    """Starts nodes in a tenth of the time of the command."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def start(self, home: Path, port: int) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{home} {port}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


class Node:
    """`anaphora serve` on a home of its own. May be killed, paused and started again."""

    def __init__(self, home: Path, forks: NodeForks | None = None) -> None:
        self.home = home
        self.name = home.name
        self.port = free_port()
        self.status_port = free_port()
        self.pid = 0
        self._forks = forks
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    @property
    def log(self) -> str:
        path = self.home / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def running(self) -> bool:
        if self._process is not None:
            return self._process.poll() is None
        return bool(self.pid) and self._send(0)

    def spawn(self) -> None:
        """Start the process; `wait_ready` returns when it accepts calls."""
        if self._forks is not None:
            self.pid = self._forks.start(self.home, self.port)
            return
        command = [sys.executable, "-m", "anaphora", "serve"]
        with open(self.home / "log", "ab") as log:
            self._process = start_process(
                [*command, "--home", str(self.home), "--port", str(self.port)],
                "TERM",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the program that started it
            )
        self.pid = self._process.pid

    def wait_ready(self) -> None:
        try:
            wait_until(self._ready_or_ended, f"{self.name} is ready")
        except TimeoutError as error:
            raise ServerFailed(f"{error}\n{self.log[-2000:]}") from None

    def start(self) -> None:
        self.spawn()
        self.wait_ready()

    def readiness(self) -> tuple[int, dict[str, Any]]:
        """Status and content of `/readyz`; status 0 where nothing answers."""
        return self.page("/readyz")

    def page(self, path: str) -> tuple[int, Any]:
        """Of the status port."""
        connection = http.client.HTTPConnection("127.0.0.1", self.status_port, timeout=_ASK_SECONDS)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        except (OSError, http.client.HTTPException):
            return 0, {}
        finally:
            connection.close()

    def signal(self, number: signal.Signals) -> None:
        if self.running:
            self._send(number)

    def kill(self) -> None:
        """kill -9, as a machine that is gone."""
        self.signal(signal.SIGKILL)
        self._wait()

    def stop(self) -> None:
        """SIGTERM: running calls may end."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        self._wait()

    def command(self, *words: str) -> str:
        """The output of an `anaphora` command on this node's home."""
        done = subprocess.run(
            [sys.executable, "-m", "anaphora", *words],
            env={**os.environ, "ANAPHORA_HOME": str(self.home)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        if done.returncode:
            raise ServerFailed(f"anaphora {' '.join(words)}: {done.stderr or done.stdout}")
        return done.stdout

    def rpc(self, method: str, params: Mapping[str, Any] | None = None) -> Any:
        """A method of an administrator, on this node's socket: quicker than a command."""
        from anaphora.cli.daemon_connection import DaemonConnection

        connection = DaemonConnection(self.home / "anaphora.sock")
        return connection.call(method, dict(params or {}))

    def _send(self, number: int) -> bool:
        """Whether there is such a process."""
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True

    def _wait(self) -> None:
        wait_until(lambda: not self.running, f"{self.name} ends")

    def _ready_or_ended(self) -> bool:
        if not self.running:
            raise ServerFailed(f"{self.name} did not start\n{self.log[-2000:]}")
        return self.readiness()[0] == 200


class Cluster:
    """Nodes on one store, with the same keys and tokens. `provider` is the address of an emulator of
    every provider; `providers` and `daemon` are further fields of llm.yaml, `extensions` the
    grants. With `fork`, nodes are forks of one process that has everything imported."""

    def __init__(
        self,
        folder: Path,
        *,
        store: str,
        provider: str,
        providers: Mapping[str, Any] | None = None,
        nodes: int = 3,
        extensions: Mapping[str, Any] | None = None,
        daemon: Mapping[str, Any] | None = None,
        fork: bool = False,
    ) -> None:
        self._forks = NodeForks() if fork else None
        self.grants = {"demo": GRANT} if extensions is None else dict(extensions)
        self.nodes = [
            Node(folder / f"node-{number}", self._forks) for number in range(1, nodes + 1)
        ]
        self.tokens: dict[str, str] = {}
        first = self.nodes[0].home
        for node in self.nodes:
            llm = llm_yaml(provider)
            for id, fields in (providers or {}).items():
                llm["providers"][id] = {"key": {"secret": "PROVIDER_KEY"}, **fields}
            llm["daemon"] = {
                "store": store,
                "node": node.name,
                "status_port": node.status_port,
                "drain_delay": 0,
                **(daemon or {}),
            }
            _write_home(node.home, llm, self.grants, None if node.home == first else first)

    def __enter__(self) -> Self:
        try:
            self.nodes[0].start()  # it creates the tables
            for node in self.nodes[1:]:
                node.spawn()
            for app in self.grants:
                self.tokens[app] = self.nodes[0].rpc("admin.apps.add", {"app": app})["token"]
            for node in self.nodes[1:]:
                node.wait_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        for node in self.nodes:
            node.signal(signal.SIGCONT)
            node.signal(signal.SIGTERM)
        for node in self.nodes:
            with contextlib.suppress(TimeoutError):
                node._wait()
            node.kill()
        if self._forks is not None:
            self._forks.close()

    def start_missing(self) -> None:
        """Start the nodes that do not run."""
        missing = [node for node in self.nodes if not node.running]
        for node in missing:
            node.spawn()
        for node in missing:
            node.wait_ready()

    @contextlib.contextmanager
    def balancer(self, *, relay: bool = False) -> Iterator[str]:
        """The address of nginx in front of the nodes; where it is not installed, of a relay."""
        if not relay and has_nginx():
            with NginxServer(nginx_http([node.address for node in self.nodes])) as nginx:
                yield nginx.url
        else:
            with Relay(self.nodes) as found:
                yield found.url


def _write_home(
    home: Path, llm: Mapping[str, Any], grants: Mapping[str, Any], first: Path | None
) -> None:
    home.mkdir(mode=0o700, parents=True)
    (home / "llm.yaml").write_bytes(msgspec.json.encode(llm))  # JSON is YAML
    (home / "extensions.yaml").write_bytes(msgspec.json.encode(grants))
    init(home)
    copied = {"secrets/PROVIDER_KEY.txt": f"{KEY}\n"}
    if first is not None:
        copied["tokens.key"] = (first / "tokens.key").read_text()
    for name, text in copied.items():
        (home / name).touch(mode=0o600)
        (home / name).write_text(text)


# ── Balancers ────────────────────────────────────────────────────────────────────────────────────


def has_nginx() -> bool:
    try:
        find_program(NginxServer.names, NginxServer.folders)
    except ServerMissing:
        return False
    return True


def nginx_http(addresses: list[str]) -> str:
    """deploy/nginx/anaphora.conf for these nodes: without TLS, on a port of this machine."""
    text = NGINX_CONF.read_text()
    servers = iter(addresses)
    lines = []
    for line in text.splitlines():
        if re.match(r"\s*(ssl_certificate|access_log|http2|#)", line):
            continue
        if re.match(r"\s*server \d", line):
            if address := next(servers, ""):
                lines.append(re.sub(r"server [\d.:]+", f"server {address}", line))
            continue
        lines.append(line.replace("listen 443 ssl;", "listen 127.0.0.1:{port};"))
    more = "".join(f"    server {address};\n" for address in servers)
    return "\n".join(lines).replace("    keepalive 64;", f"{more}    keepalive 64;")


class Relay:
    """Passes each connection to the next node that accepts calls. Knows nothing of HTTP: where a
    node dies, the caller's connection ends."""

    #: Seconds between two looks at `/readyz` of the nodes.
    LOOK = 0.2

    def __init__(self, nodes: list[Node]) -> None:
        self.port = 0
        self._nodes = nodes
        self._ready = list(nodes)
        self._turns = itertools.count()
        self._started = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._stopped = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(PATIENCE), "the relay does not start"
        return self

    def __exit__(self, *exception: object) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(PATIENCE)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            started = await asyncio.start_server(self._relay, "127.0.0.1", 0)
            self.port = started.sockets[0].getsockname()[1]
            looking = tasks.create_task(self._look())
            self._started.set()
            await self._stopped.wait()
            started.close()
            looking.cancel()
        # A connection that was accepted a moment ago gets its task in the next turns of the loop.
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in others:
                task.cancel()
            await asyncio.wait(others)
            await asyncio.sleep(0)

    async def _look(self) -> None:
        while True:
            states = await asyncio.gather(
                *(asyncio.to_thread(node.readiness) for node in self._nodes)
            )
            # Where none is ready, its own answer is better than none.
            found = [
                node for node, state in zip(self._nodes, states, strict=True) if state[0] == 200
            ]
            self._ready = found or list(self._nodes)
            await asyncio.sleep(self.LOOK)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError, asyncio.CancelledError):
            if (found := await self._connect()) is None:
                return
            node_reader, node_writer = found
            with contextlib.closing(node_writer):
                passing = [
                    asyncio.create_task(_pass_on(reader, node_writer)),
                    asyncio.create_task(_pass_on(node_reader, writer)),
                ]
                try:
                    await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for task in passing:
                        task.cancel()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        turn, ready = next(self._turns), self._ready
        for number in range(len(ready)):
            node = ready[(turn + number) % len(ready)]
            with contextlib.suppress(OSError):
                return await asyncio.open_connection("127.0.0.1", node.port)
        return None


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while piece := await reader.read(65536):
            writer.write(piece)
            await writer.drain()
