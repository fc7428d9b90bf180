"""What the emulator costs beside a bare Granian handler, under the same load in one run.

    python bench/emulator.py [--rounds 3] [--requests 1500] [--longer 6000]

64 connections from a process of their own; four wires, streams and single answers mixed: agents'
requests of about 8 KB. The bare handler reads the same requests and returns a fixed body. Both
servers are one process with one event loop; rounds alternate, so that whatever else the machine
does falls on both. `vs_bare` is the median of the ratios of requests a second. What else ran
on the machine is in the seconds; `by CPU` is the same ratio in seconds of the servers' own CPU.

The 800 requests come again, as a conversation's messages do with every turn, and what came before
is not cut anew. `vs_bare_new` is for requests of which every message is new; tools, system prompt
and parameters are those of an app, and come again.
"""

from __future__ import annotations

import argparse
import json
import statistics
from typing import Any

from _bytecode import compiled
from _requests import WIRES, mixed
from _served import Child, child

CONNECTIONS = 64
#: The bare handler gets more requests, to run for about as long.
_MORE = 8


def loaded(server: Child, requests: list[bytes], total: int) -> dict[str, Any]:
    result = server.load(requests, CONNECTIONS, total)
    if result["statuses"] != {"200": total}:
        raise SystemExit(f"not everything was answered: {result['statuses']}")
    return result


def line(name: str, result: dict[str, Any]) -> None:
    count = result["requests"]
    print(
        f"{name:12} {count:6} requests {count / result['seconds']:8.0f} a second"
        f"   server CPU {result['server_cpu'] / count * 1e3:6.3f} ms each"
        f"   client CPU {result['client_cpu'] / count * 1e3:6.3f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="repetitions; medians are reported")
    parser.add_argument("--requests", type=int, default=1500, help="of a round, to the emulator")
    parser.add_argument("--longer", type=int, default=6000, help="requests that memory is held to")
    chosen = parser.parse_args()
    compiled()
    requests = mixed(800)
    ratios, by_cpu, ratios_new = [], [], []
    with child("bare") as bare, child("emulator") as emulator:
        loaded(bare, requests, 500)
        loaded(emulator, requests, 500)
        for turn in range(1, chosen.rounds + 1):
            fixed = loaded(bare, requests, _MORE * chosen.requests)
            ours = loaded(emulator, requests, chosen.requests)
            others = mixed(chosen.requests, first=turn * 1_000_000)
            new = loaded(emulator, others, chosen.requests)
            line("bare", fixed)
            line("emulator", ours)
            line("all new", new)
            ratios.append(_MORE * ours["seconds"] / fixed["seconds"])
            ratios_new.append(_MORE * new["seconds"] / fixed["seconds"])
            by_cpu.append(_MORE * ours["server_cpu"] / max(fixed["server_cpu"], 0.01))
        for name in WIRES:
            line(name, loaded(emulator, mixed(400, (name,)), chosen.requests // 3))
        # Stored answers and caches still fill here; that memory is flat then is for `make soak`.
        before = emulator.rss_mb
        line("longer", loaded(emulator, requests, chosen.longer))
        growth = emulator.rss_mb - before
    slower = statistics.median(ratios)
    print(f"the bare handler is {slower:.1f} times as fast, {statistics.median(by_cpu):.1f} by CPU")
    result = {
        "vs_bare": round(1 / slower, 4),
        "vs_bare_new": round(1 / statistics.median(ratios_new), 4),
        "rss_growth_mb": round(growth, 1),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
