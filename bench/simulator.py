"""Predictions held against real bills, and what a simulated call costs after a million others.

    python bench/simulator.py [--traces DIR]... [--sessions DIR]... [--calls 1000000]

Each prediction uses only the calls before it. Beside ours stands a plain chain: a call reads what
the call before it left in the cache, which is what that read and wrote at markers, or all of its
prompt in whole granules where there are none, if that was within the TTL. A pair is a billed call
with such a call before it; hit, partial and miss show how much of that was read. Losses are planted
in conversations with the emulator, and the verdicts on them counted. `--calls 0` leaves the cost
out, `--no-planted` the verdicts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import Counter
from collections.abc import Hashable
from pathlib import Path

from _planted import planted
from _prediction import Recorded, compare, recorded
from _prediction_tables import (
    Figures,
    bill_table,
    families,
    figures,
    read_table,
    summary_table,
    table,
)

from anaphora import catalog
from anaphora.analysis.trace.predicted import CAUSE_TEXTS, Predicted
from anaphora.cache.simulator import Mark, Simulator, TokenRuns

SHARED = Path(__file__).parents[2] / "shared"
TRACES = [SHARED / "traces", SHARED / "gateways"]
SESSIONS = [SHARED / "sessions", SHARED / "thinking"]

#: Unexplained misses that are shown one by one.
SHOWN = 60


# ── Accuracy ─────────────────────────────────────────────────────────────────────────────────────


def accuracy(sources: list[Recorded], *, verdicts: bool) -> Figures:
    """Prints the tables, and gives the figures."""
    every = [one for source in sources for one in compare(source)]
    scores = families(every)
    ours, chain = figures(every)
    if verdicts:
        wrong, missed, losses = planted(
            (one.trace, one.judged) for one in every if one.judged is not None
        )
        ours["wrong_loss_verdicts"] = wrong
        ours["missed_losses"] = missed / losses if losses else None
    summary_table(ours, chain)
    print()
    read_table(scores)
    print()
    bill_table(scores)
    print()
    causes([one.call for one in every if one.call.provider == "anthropic"])
    skipped(sources)
    return {
        name: value if value is None or isinstance(value, int) else round(value, 5)
        for name, value in ours.items()
    }


def causes(calls: list[Predicted]) -> None:
    """Why Anthropic's bills were not as predicted; the unexplained ones, one by one."""
    wrong = [call for call in calls if call.is_pair and call.cause is not None]
    found = Counter(call.cause for call in wrong if call.cause is not None)
    rows = [[CAUSE_TEXTS[cause], f"{count:,}"] for cause, count in found.most_common()]
    table(["Anthropic: reads that differ from the prediction", "pairs"], rows)
    print()
    misses = [call for call in wrong if call.cause == "unexplained"]
    if misses:
        print(f"{len(misses):,} unexplained misses:")
    for call in misses[:SHOWN]:
        gap = "gap unknown" if call.gap is None else f"{call.gap:.0f} s after the call before"
        print(f"  {call.trace} call {call.call}: {gap}, expected {call.outcome.read:,}")
    if len(misses) > SHOWN:
        print(f"  and {len(misses) - SHOWN:,} more")
    if misses:
        print()


def skipped(sources: list[Recorded]) -> None:
    lines = [(one.name, why, count) for one in sources for why, count in one.skipped.items()]
    for name, why, count in lines:
        print(f"skipped in {name}: {count} × {why}")
    if lines:
        print()


# ── Cost ─────────────────────────────────────────────────────────────────────────────────────────

#: Conversations that go on at the same time, turns of each, calls in a block that is timed.
AT_ONCE, TURNS, BLOCK = 100, 20, 1000


def prompt(conversation: int, turn: int) -> TokenRuns:
    blocks: list[tuple[Hashable, int]] = [("system", 2000), (conversation, 500)]
    blocks += [((conversation, at), 100) for at in range(turn)]
    return TokenRuns.given(blocks, markers=(Mark(0, "1h"), Mark(len(blocks) - 1, "5m")))


def blocks(calls: int) -> list[float]:
    """CPU seconds for each block of calls: one every tenth of a second, in many conversations."""
    simulator = Simulator(catalog.rules("anthropic", "claude-sonnet-4-5"))
    times: list[float] = []
    for first in range(0, calls, BLOCK):
        prompts = []
        for at in range(first, first + BLOCK):
            generation, within = divmod(at, AT_ONCE * TURNS)
            turn, which = divmod(within, AT_ONCE)
            prompts.append(prompt(generation * AT_ONCE + which, turn))
        begin = time.process_time()
        for at, one in enumerate(prompts, first):
            simulator.call(one, at=at / 10)
        times.append(time.process_time() - begin)
    print(f"{calls:,} calls, {len(simulator):,} things remembered at the end")
    return times


def cost(calls: int) -> float:
    """A call at the end over a call about the thousandth; medians of whole rounds of turns."""
    times = blocks(calls)
    reach = AT_ONCE * TURNS // BLOCK * 5
    early = statistics.median(times[1 : 1 + reach])
    late = statistics.median(times[-reach:])
    first, last = early / BLOCK * 1e6, late / BLOCK * 1e6
    print(f"call {BLOCK:,}: {first:.1f} µs, call {calls:,}: {last:.1f} µs\n")
    return round(late / early, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traces", type=Path, action="append", help="a folder of trace files")
    parser.add_argument("--sessions", type=Path, action="append", help="a folder of session files")
    parser.add_argument("--calls", type=int, default=1_000_000, help="0 leaves the cost out")
    parser.add_argument(
        "--planted", action=argparse.BooleanOptionalAction, default=True, help="plant losses"
    )
    options = parser.parse_args()
    named = options.traces is not None or options.sessions is not None
    traces = options.traces or ([] if named else TRACES)
    sessions = options.sessions or ([] if named else SESSIONS)
    sources = list(recorded(traces, sessions))
    if not any(source.traces for source in sources):
        print(f"skipped: no recorded conversations in {', '.join(map(str, [*traces, *sessions]))}")
        print("{}")
        return
    found = accuracy(sources, verdicts=options.planted)
    calls = max(options.calls, 20 * BLOCK) if options.calls else 0
    found["call_cost_growth"] = cost(calls) if calls else None
    print(json.dumps(found))


if __name__ == "__main__":
    main()
