"""What one machine carries: the table of docs/daemon/capacity.md.

    python bench/daemon.py --carry [--rounds 3] [--page docs/daemon/capacity.md]

For each size of a request, calls a second with as many connections as keep the daemon busy, the CPU
of a call, the first byte of a stream on an idle daemon, and the daemon's memory afterwards.
"""

from __future__ import annotations

import contextlib
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from _lent import KEY, create_home, raw_requests
from _load import request_at
from _served import Child, child, load
from proxy import Asking

_PROGRAM = "_lent.py"
_CONNECTIONS = 32
#: Streams asked for the first byte, and the first turn of a conversation that the load has not
#: reached.
_ASKED, _FIRST = 100, 90_000_000
#: Kilobytes of a request, on average over the turns of a conversation, and its messages.
_SIZES = {1: 1, 40: 42, 400: 42}
_LIVE = 100
#: The line before the table begins with it.
_MEASURED = "Measured on "
_HEAD = (
    "| request | calls per second | of a core | CPU, ms | p99, ms | first byte, ms |"
    " memory, MB |\n|---|---|---|---|---|---|---|"
)


class Carried(NamedTuple):
    kilobytes: int
    rate: float
    cpu_ms: float
    p99_ms: float
    first_byte_ms: float
    memory_mb: float

    def row(self) -> str:
        """A row of the table; the third column is what a core carries that does nothing else."""
        return (
            f"| {self.kilobytes} KB | {self.rate:,.0f} | {1e3 / self.cpu_ms:,.0f} "
            f"| {self.cpu_ms:.2f} | {self.p99_ms:,.0f} | {self.first_byte_ms:.1f} "
            f"| {self.memory_mb:,.0f} |"
        )


def carry(rounds: int, page: Path | None = None) -> dict[str, Any]:
    """Prints the table, and returns its figures. The table in `page` is replaced."""
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    found: list[Carried] = []
    with child("upstream", _PROGRAM) as upstream:
        for kilobytes in _SIZES:
            with _daemon(upstream) as (daemon, token):
                found.append(_measured(upstream, daemon, token, kilobytes, rounds))
    table = "\n".join((_HEAD, *(each.row() for each in found)))
    print(machine, table, sep="\n")
    if page is not None:
        before, _, rest = page.read_text().partition(_MEASURED)
        after = rest.partition(_HEAD)[2].partition("\n\n")[2]
        about = f"{_MEASURED}{time.strftime('%Y-%m-%d')}: {machine}."
        page.write_text(f"{before}{about}\n\n{table}\n\n{after}")
    return {"machine": machine, "carry": [each._asdict() for each in found]}


@contextlib.contextmanager
def _daemon(upstream: Child) -> Iterator[tuple[Child, str]]:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        token = create_home(home, upstream.port)
        with child("daemon", _PROGRAM, str(home)) as daemon:
            yield daemon, token


def _measured(upstream: Child, daemon: Child, token: str, kilobytes: int, rounds: int) -> Carried:
    headers = {"authorization": f"Bearer {token}"}
    messages, size = _SIZES[kilobytes], kilobytes * 1000
    requests = raw_requests(headers, messages=messages, size=size)
    total, results = _LIVE * len(requests), []
    for number in range(rounds + 1):  # the first one is not counted
        result = load([daemon], requests, _CONNECTIONS, total, number * total, _LIVE)
        if result["statuses"] != {"200": total}:
            raise SystemExit(f"not everything was answered: {result['statuses']}")
        results.append(
            (total / result["seconds"], result["server_cpu"] / total * 1e3, result["p99_ms"])
        )
    memory = daemon.memory_mb
    rate, cpu, p99 = (statistics.median(each) for each in zip(*results[1:], strict=True))
    first = _first_byte(daemon, headers, messages, size) - _first_byte(
        upstream, {"authorization": f"Bearer {KEY}"}, messages, size
    )
    return Carried(kilobytes, rate, cpu, p99, first, memory)


def _first_byte(server: Child, headers: dict[str, str], messages: int, size: int) -> float:
    streams = raw_requests(headers, stream=True, messages=messages, size=size)
    asking = Asking(server.port)
    times = [asking.first_byte(request_at(streams, _FIRST + at, 1)) for at in range(_ASKED)]
    return statistics.median(times)
