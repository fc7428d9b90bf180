"""The daemon on PostgreSQL: what the ledger costs, and what more nodes bring.

    python bench/nodes.py [--rounds 5] [--requests 1500] [--seconds 3]

PostgreSQL (with fsync) runs on this machine, on a Unix socket. Requests are those of `daemon.py`:
42 messages and 40 KB on average, of one app, so that all of them change one grant; any connection
sends any turn of a conversation, as without a balancer that routes by token. What is compared runs
in turns of one run; the medians of the ratios are reported.

- `cpu_vs_no_ledger`: CPU of the daemon a request, over that of the same daemon that neither holds
  nor settles (`_lent.py`; no setting of the daemon does that).
- `three_vs_one`: requests a second of three nodes, over those of one, at 64 connections.
- `hold_p99_ms`: until a hold is durable, at 64 callers of one node and one app; the median of the
  rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _bytecode import compiled
from _lent import node_homes, raw_requests
from _served import Child, child, load
from ledger import Case, measure

from anaphora.daemon.store.postgres import PostgresStore
from anaphora.postgres.address import PostgresAddress
from anaphora.wording import counted

sys.path.append(str(Path(__file__).parent.parent / "tests"))

from support.servers import PostgresServer

PROGRAM = "_lent.py"
NODES = 3
CONNECTIONS = 64


class Cluster:
    """The nodes, and the servers they share."""

    def __init__(
        self,
        nodes: list[Child],
        without: Child,
        token: str,
        postgres: PostgresServer,
    ) -> None:
        self.nodes, self.without = nodes, without
        self.postgres = postgres
        self._requests = raw_requests({"authorization": f"Bearer {token}"})
        self._sent = 0

    def load(self, servers: list[Child], total: int) -> dict[str, float]:
        """Requests a second, and milliseconds of CPU a request by who used them."""
        before = _family_cpu(self.postgres.pid)
        result = load(servers, self._requests, CONNECTIONS, total, self._sent)
        after = _family_cpu(self.postgres.pid)
        self._sent += total
        if result["statuses"] != {"200": total}:
            raise SystemExit(f"not everything was answered: {result['statuses']}")
        return {
            "rate": total / result["seconds"],
            "p50_ms": result["p50_ms"],
            "p99_ms": result["p99_ms"],
            "daemon_cpu_ms": result["server_cpu"] / total * 1e3,
            "postgres_cpu_ms": (after - before) / total * 1e3,
        }


def _family_cpu(pid: int) -> float:
    """Seconds of CPU of a process and its children, those that have ended included."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return _cpu(pid, ended=True) + sum(_cpu(int(child)) for child in children)


def _cpu(pid: int, *, ended: bool = False) -> float:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:  # it ended just now
        return 0.0
    return sum(map(int, stat[11 : 15 if ended else 13])) / 100


@contextlib.contextmanager
def cluster() -> Iterator[Cluster]:
    with contextlib.ExitStack() as stack:
        postgres = stack.enter_context(PostgresServer(settings={"fsync": "on"}))
        upstream = stack.enter_context(child("upstream", PROGRAM))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = postgres.create_database()
        servers = {"store": url}
        token, (without, *homes) = node_homes(folder, upstream.port, servers, NODES + 1)
        nodes = [stack.enter_context(child("daemon", PROGRAM, str(home))) for home in homes]
        unlimited = stack.enter_context(child("no_ledger", PROGRAM, str(without)))
        yield Cluster(nodes, unlimited, token, postgres)


def served(rounds: int, requests: int) -> dict[str, Any]:
    """The daemon under load: one node, one without a ledger, two and three nodes, in turns."""
    found: dict[str, list[dict[str, float]]] = {}
    with cluster() as started:
        ways = {"no ledger": [started.without]}
        ways |= {counted(count, "node"): started.nodes[:count] for count in range(1, NODES + 1)}
        for servers in ways.values():
            started.load(servers, requests // 2)
        for _ in range(rounds):
            for name, servers in ways.items():
                result = started.load(servers, requests)
                found.setdefault(name, []).append(result)
                _print_row(name, result)
    return found


def hold_times(rounds: int, seconds: float) -> list[dict[str, float]]:
    """Pairs of a hold and a settlement in one process, 64 callers of one app."""
    found = []
    with PostgresServer(settings={"fsync": "on"}) as postgres, tempfile.TemporaryDirectory() as tmp:
        for number in range(rounds):
            url = postgres.create_database()
            found.append(asyncio.run(_held(url, Path(tmp) / f"journal{number}", seconds)))
            print("  ".join(f"{name} {value:,}" for name, value in found[-1].items()), flush=True)
    return found


async def _held(url: str, journal: Path, seconds: float) -> dict[str, float]:
    address = PostgresAddress.parse(url, None)
    store = await PostgresStore.open(address, node="bench", version="0", journal=journal)
    await store.recover()
    return await measure(Case("one app"), store, seconds)


def _ratio(found: dict[str, list[dict[str, float]]], name: str, one: str, other: str) -> float:
    """The median of the rounds' ratios."""
    pairs = zip(found[one], found[other], strict=True)
    return statistics.median(mine[name] / theirs[name] for mine, theirs in pairs)


def _median(rows: list[dict[str, float]]) -> dict[str, float]:
    return {name: round(statistics.median(row[name] for row in rows), 3) for name in rows[0]}


def _print_row(name: str, row: dict[str, float]) -> None:
    print(
        f"{name:10}{row['rate']:8.0f} a second   p50 {row['p50_ms']:6.1f} ms   p99"
        f" {row['p99_ms']:6.1f} ms   CPU a request: daemon {row['daemon_cpu_ms']:.3f} ms,"
        f" PostgreSQL {row['postgres_cpu_ms']:.3f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="repetitions; medians are reported")
    parser.add_argument("--requests", type=int, default=1500, help="of a round")
    parser.add_argument("--seconds", type=float, default=3.0, help="of holds, a round")
    chosen = parser.parse_args()
    compiled()
    found = served(chosen.rounds, chosen.requests)
    holds = hold_times(chosen.rounds, chosen.seconds)
    result = {
        "cpu_vs_no_ledger": round(_ratio(found, "daemon_cpu_ms", "1 node", "no ledger"), 3),
        "three_vs_one": round(_ratio(found, "rate", "3 nodes", "1 node"), 3),
        "hold_p99_ms": _median(holds)["hold_p99_ms"],
        "holds": _median(holds),
        "served": {name: _median(rows) for name, rows in found.items()},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
