"""What Anaphora itself costs: import, CPU of a call and of a stream, rendering, memory.

CPU time throughout, in rounds that alternate with what it is compared with: a POST by hand, the
official SDKs, `json.dumps` of the same body. bench/client.py, wire.py and render.py measure more of
the same.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _bytecode import compiled

from .progress import Progress

BENCH = Path(__file__).resolve().parents[1]
#: Who calls on which wire, and how many times fewer calls they make.
CALLERS = [
    *((who, wire, 1) for wire in ("anthropic", "openai_chat") for who in ("raw", "one-shot")),
    *((who, wire, 1) for wire in ("anthropic", "openai_chat") for who in ("session",)),
    ("anthropic SDK", "anthropic", 3),
    ("openai SDK", "openai_chat", 10),
]
IMPORTS, CALL_ROUNDS, CALLS, STREAM_ROUNDS, RENDER_ROUNDS = 15, 5, 60, 5, 3
MEMORY_CALLS, SIMULATED_CALLS = 100_000, 1_000_000
QUICK_IMPORTS, QUICK_ROUNDS, QUICK_CALLS = 3, 1, 20
QUICK_MEMORY_CALLS, QUICK_SIMULATED_CALLS = 2_000, 200_000
#: Simulated calls after which memory is compared.
SIMULATED_BEFORE = 100_000
#: Turns of a conversation at which a turn's CPU is measured; 1 KB each.
TURNS = (20, 100, 500, 2000)


def imports(runs: int) -> dict[str, Any]:
    from _client_import import importing

    found: dict[str, Any] = {"runs": runs}
    for other in ("anthropic", "openai"):
        ours, theirs, ratio = importing("anaphora", other, runs)
        found["anaphora_ms"] = round(ours * 1e3, 1)
        found[other] = {"ms": round(theirs * 1e3, 1), "times": round(1 / ratio, 1)}
    return found


def calls(rounds: int, count: int) -> dict[str, Any]:
    """Microseconds of CPU of a call of 42 messages and 40 KB, and times those of a raw POST."""
    from _client_contest import contest
    from _client_contest import rounds as measured
    from _client_same import same_documents
    from _served import child
    from client import Figures

    same_documents(("anthropic", "openai_chat"))
    with (
        child("fixed", "_client_answers.py") as server,
        contest(f"http://127.0.0.1:{server.port}", CALLERS, "") as contestants,
    ):
        figures = Figures(measured(contestants, rounds, count))
    return {
        wire: {
            who: {
                "us": round(figures.cpu(who, wire)),
                "vs_raw": round(figures.ratio(who, "raw", wire), 2),
                "vs_session": round(figures.ratio(who, "session", wire), 1),
            }
            for who, on, _ in CALLERS
            if on == wire
        }
        for wire in ("anthropic", "openai_chat")
    }


def streams(rounds: int) -> dict[str, Any]:
    """CPU of reading a stream of 2,000 events, and how many times that an SDK takes."""
    import wire
    from _wire_streams import EVENTS
    from _wire_streams import streams as every

    found: dict[str, Any] = {"events": EVENTS}
    for name, rival, pieces, theirs in every():

        def read(name: str = name, pieces: list[bytes] = pieces) -> None:
            wire.ours(name, pieces)

        mine, sdk, ratio = wire.beside(read, theirs(pieces), rounds, (5, 1))
        found[rival] = {
            "ours_ms": round(mine * 1e3, 2),
            "sdk_ms": round(sdk * 1e3, 2),
            "times": round(ratio, 1),
        }
    return found


def _dumping(body: Any) -> float:
    """Seconds of CPU to serialise a body."""
    begin = time.process_time()
    json.dumps(body)
    return time.process_time() - begin


def renders(rounds: int) -> dict[str, Any]:
    """CPU of a turn at each length of a conversation, and of `json.dumps` of its body."""
    import render

    from anaphora.cache.plan import AppMemory, Planner
    from anaphora.values import Conversation, Message

    grown = [render.grow(TURNS[-1] + 10) for _ in range(rounds)]
    added = list(render.turns(TURNS[-1]))
    found: dict[str, Any] = {}
    for turn in TURNS:
        conversation = Conversation([Message.user("Make the suite green.")])
        for messages in added[:turn]:
            conversation = conversation.append(*messages)
        planner = Planner(AppMemory(render.RULES))
        _, request = render.take_turn(render.call_for(conversation, turn), None, planner)
        data = request.body.join()
        body = json.loads(data)
        dumps = statistics.median(_dumping(body) for _ in range(9))
        own = statistics.median(render.around(joined, turn) for _, joined, _ in grown)
        found[str(turn)] = {
            "kilobytes": round(len(data) / 1e3),
            "turn_us": round(own * 1e6),
            "dumps_us": round(dumps * 1e6),
            "times": round(dumps / own, 1),
        }
    return found


_SIMULATE = (
    "import resource, simulator; simulator.blocks({});"
    " print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
)


def simulated(count: int) -> float:
    """The most memory of a process that simulates so many calls, in MB."""
    words = [sys.executable, "-c", _SIMULATE.format(count)]
    run = subprocess.run(words, cwd=BENCH, stdout=subprocess.PIPE, check=True)
    return int(run.stdout.split()[-1]) / 1e3


def memory(count: int, simulations: int) -> dict[str, Any]:
    """The growth of a client's process over so many calls that a transport answers from memory, and
    of the cache simulator's over so many simulated calls."""
    words = [sys.executable, str(BENCH / "_client_memory.py"), str(count)]
    run = subprocess.run(words, stdout=subprocess.PIPE, check=True)
    grown = json.loads(run.stdout)
    return {
        "calls": count,
        "growth_mb": grown["growth"],
        "trimmed_mb": grown["trimmed"],
        "simulated_calls": simulations,
        "simulated_growth_mb": round(simulated(simulations) - simulated(SIMULATED_BEFORE), 1),
    }


def run(progress: Progress, quick: bool) -> dict[str, Any]:
    from importlib.metadata import version

    compiled()
    rounds = QUICK_ROUNDS if quick else CALL_ROUNDS
    stream_rounds = QUICK_ROUNDS if quick else STREAM_ROUNDS
    memory_calls = (
        (QUICK_MEMORY_CALLS, QUICK_SIMULATED_CALLS) if quick else (MEMORY_CALLS, SIMULATED_CALLS)
    )
    steps: dict[str, Callable[[], dict[str, Any]]] = {
        "import": lambda: imports(QUICK_IMPORTS if quick else IMPORTS),
        "calls": lambda: calls(rounds, QUICK_CALLS if quick else CALLS),
        "streams": lambda: streams(stream_rounds),
        "render": lambda: renders(QUICK_ROUNDS if quick else RENDER_ROUNDS),
        "memory": lambda: memory(*memory_calls),
    }
    progress.total(len(steps))
    found: dict[str, Any] = {}
    # The modules print tables of their own.
    with contextlib.redirect_stdout(sys.stderr), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, measure in steps.items():
            found[name] = measure()
            progress.step(name)
    packages = ("anthropic", "openai", "google-genai")
    return {**found, "versions": {f"{name} (streams)": version(name) for name in packages}}


def headline(found: dict[str, Any]) -> dict[str, Any]:
    last = str(TURNS[-1])
    return {
        "import_ms": found["import"]["anaphora_ms"],
        "session_vs_raw": max(each["session"]["vs_raw"] for each in found["calls"].values()),
        "one_shot_vs_raw": max(each["one-shot"]["vs_raw"] for each in found["calls"].values()),
        "render_vs_dumps": found["render"][last]["times"],
        "memory_growth_mb": found["memory"]["growth_mb"],
    }
