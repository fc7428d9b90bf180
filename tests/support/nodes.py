"""Several nodes in one process: daemons with homes of their own, on one store in PostgreSQL.

with running_nodes(tmp_path, emu, database_url, count=2) as (first, second):
    second.client("demo").post("/v1/messages", json=...)
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from anaphora.client.config.secrets import Secret
from anaphora.daemon.home.settings import ServeOptions
from anaphora.daemon.monitoring import JsonLog
from anaphora.daemon.server import running
from anaphora.daemon.store.postgres import PostgresStore

from .daemon import TestedDaemon, create_home, llm_yaml
from .emulated_client import Serving
from .waiting import PATIENCE


def node_yaml(url: str, database_url: str, name: str, **section: Any) -> dict[str, Any]:
    """llm.yaml of a node, with every wire at an emulator."""
    return {
        **llm_yaml(url),
        "daemon": {
            "port": 0,
            "status_port": 0,
            "drain_delay": 0,
            "store": database_url,
            "node": name,
            "ui": {"enabled": False},
        }
        | section,
    }


def create_node_homes(
    folder: Path,
    emulator: Serving,
    database_url: str,
    count: int = 2,
    *,
    extensions: Mapping[str, Any] | None = None,
    **section: Any,
) -> tuple[list[Path], dict[str, Secret]]:
    """Homes of nodes with the same key of token hashes, and the tokens of apps and an administrator."""
    homes: list[Path] = []
    tokens: dict[str, Secret] = {}
    for number in range(1, count + 1):
        home = folder / f"node-{number}"
        llm = node_yaml(emulator.url, database_url, home.name, **section)
        if homes:
            create_home(home, emulator, extensions={}, llm=llm, tokens=False)
            for name in ("extensions.yaml", "tokens.key"):
                (home / name).write_bytes((homes[0] / name).read_bytes())
        else:
            tokens = create_home(home, emulator, extensions=extensions, llm=llm)
        homes.append(home)
    return homes, tokens


@contextlib.contextmanager
def running_node(
    home: Path, tokens: Mapping[str, Secret], **options: Any
) -> Iterator[TestedDaemon]:
    """A node in a thread, on a home of `create_node_homes`."""
    log = JsonLog(home / "daemon.log")
    try:
        with running(ServeOptions(home=home, **options), log) as daemon:
            yield TestedDaemon(daemon, tokens)
    finally:
        log.close()


def take_others_for_dead(node: TestedDaemon) -> None:
    """A node takes over from all others now, and not once they were silent for some seconds: on a
    busy machine a living one may be as well."""
    store = node.daemon.services.store
    assert isinstance(store, PostgresStore)
    keeper = store._nodes
    before, keeper._silent = keeper._silent, 0.0
    try:
        sweep = asyncio.run_coroutine_threadsafe(keeper.sweep(), node.daemon._loop)
        sweep.result(PATIENCE)
    finally:
        keeper._silent = before


@contextlib.contextmanager
def running_nodes(
    folder: Path,
    emulator: Serving,
    database_url: str,
    count: int = 2,
    *,
    extensions: Mapping[str, Any] | None = None,
    **section: Any,
) -> Iterator[list[TestedDaemon]]:
    """Nodes node-1, node-2, … with an app `demo`; `section` adds to their `daemon` sections."""
    homes, tokens = create_node_homes(
        folder, emulator, database_url, count, extensions=extensions, **section
    )
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(running_node(home, tokens)) for home in homes]
