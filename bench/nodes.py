"""The daemon on PostgreSQL and Redis: what the ledger costs, and what more nodes bring.

    python bench/nodes.py [--rounds 5] [--requests 1500] [--seconds 3] [--quick]

PostgreSQL (with fsync) and Redis run on this machine, each on a Unix socket. Requests are those of
`daemon.py`: 42 messages and 40 KB on average, of one app, so that all of them change one grant; any
connection sends any turn of a conversation, so that conversations move between the nodes. What is
compared runs in turns of one run; the medians of the ratios are reported.

- `cpu_vs_no_ledger`: CPU of the daemon a request, over that of the same daemon that neither holds
  nor settles (`_lent.py`; no setting of the daemon does that).
- `three_vs_one`: requests a second of three nodes, over those of one, at 64 connections.
- `hold_p99_ms`: until a hold is durable, at 64 callers of one node and one app; the median of the
  rounds.
- `bill_vs_one_node`: what the planner's families cost on three nodes when each call goes to a node
  at random, over what they cost on one; the mean of all families and providers.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import _families as made
from _bytecode import compiled
from _lent import node_homes, raw_requests
from _served import Child, child, load
from ledger import Case, measure
from planner import PROVIDERS

from anaphora.daemon.shared_state.redis import RedisState
from anaphora.daemon.store.postgres import PostgresStore
from anaphora.postgres.address import PostgresAddress
from anaphora.wording import counted

sys.path.append(str(Path(__file__).parent.parent / "tests"))

from support.routed_calls import Nodes
from support.servers import PostgresServer, RedisServer

PROGRAM = "_lent.py"
NODES = 3
#: When the families' conversations begin, in seconds since 1970.
START = 1_800_000_000.0
CONNECTIONS = 64


class Cluster:
    """The nodes, and the servers they share."""

    def __init__(
        self,
        nodes: list[Child],
        without: Child,
        token: str,
        postgres: PostgresServer,
        redis: RedisServer,
    ) -> None:
        self.nodes, self.without = nodes, without
        self.postgres, self.redis = postgres, redis
        self._requests = raw_requests({"authorization": f"Bearer {token}"})
        self._sent = 0

    def load(self, servers: list[Child], total: int) -> dict[str, float]:
        """Requests a second, and milliseconds of CPU a request by who used them."""
        before = self._server_cpu()
        result = load(servers, self._requests, CONNECTIONS, total, self._sent)
        after = self._server_cpu()
        self._sent += total
        if result["statuses"] != {"200": total}:
            raise SystemExit(f"not everything was answered: {result['statuses']}")
        return {
            "rate": total / result["seconds"],
            "p50_ms": result["p50_ms"],
            "p99_ms": result["p99_ms"],
            "daemon_cpu_ms": result["server_cpu"] / total * 1e3,
            **{f"{name}_cpu_ms": (after[name] - before[name]) / total * 1e3 for name in after},
        }

    def _server_cpu(self) -> dict[str, float]:
        return {
            "postgres": _family_cpu(self.postgres.pid),
            "redis": Child(self.redis.process, 0).cpu,  # type: ignore[arg-type]
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
        redis = stack.enter_context(RedisServer())
        upstream = stack.enter_context(child("upstream", PROGRAM))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = postgres.create_database()
        servers = {"store": url, "shared": redis.url}
        token, (without, *homes) = node_homes(folder, upstream.port, servers, NODES + 1)
        nodes = [stack.enter_context(child("daemon", PROGRAM, str(home))) for home in homes]
        unlimited = stack.enter_context(child("no_ledger", PROGRAM, str(without)))
        yield Cluster(nodes, unlimited, token, postgres, redis)


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


def bill_ratios(quick: bool) -> dict[str, float]:
    """By provider and family: the bill of three nodes over that of one."""
    found = {}
    seeds, shapes = made.families()
    with RedisServer() as redis:
        for name, (model, dialect) in PROVIDERS.items():
            for family, shape in shapes.items():
                bills = {1: 0.0, NODES: 0.0}
                for seed, count in itertools.product(seeds[: 1 if quick else 2], bills):
                    redis.flush()
                    calls = made.calls(shape, seed, model)
                    bills[count] += asyncio.run(_bill(redis.url, calls, count, dialect, seed))
                found[f"{name} {family}"] = bills[NODES] / bills[1]
                print(f"{name:16}{family:24}{found[f'{name} {family}']:8.4f}", flush=True)
    return found


async def _bill(url: str, calls: list[made.Sent], count: int, dialect: str, seed: int) -> float:
    """Of all calls, each by a node that is drawn."""
    shared = [RedisState.of(url, nodes=lambda: count) for _ in range(count)]
    for state in shared:
        await state.start()
    nodes, route, total = Nodes(shared, calls[0].call.model, dialect), random.Random(seed), 0.0
    for sent in calls:
        path, body = nodes.body(sent.call)
        total += (await nodes.call(route.randrange(count), path, body, START + sent.at)).cost
    for state in shared:
        await state.close()
    return total


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
        f" PostgreSQL {row['postgres_cpu_ms']:.3f}, Redis {row['redis_cpu_ms']:.3f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="repetitions; medians are reported")
    parser.add_argument("--requests", type=int, default=1500, help="of a round")
    parser.add_argument("--seconds", type=float, default=3.0, help="of holds, a round")
    parser.add_argument("--quick", action="store_true", help="one seed of the families, not five")
    chosen = parser.parse_args()
    compiled()
    found = served(chosen.rounds, chosen.requests)
    holds = hold_times(chosen.rounds, chosen.seconds)
    bills = bill_ratios(quick=chosen.quick)
    result = {
        "cpu_vs_no_ledger": round(_ratio(found, "daemon_cpu_ms", "1 node", "no ledger"), 3),
        "three_vs_one": round(_ratio(found, "rate", "3 nodes", "1 node"), 3),
        "hold_p99_ms": _median(holds)["hold_p99_ms"],
        "bill_vs_one_node": round(statistics.mean(bills.values()), 4),
        "worst_bill_vs_one_node": round(max(bills.values()), 4),
        "holds": _median(holds),
        "served": {name: _median(rows) for name, rows in found.items()},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
