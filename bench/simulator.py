"""The simulator held against real bills, and what a call of it costs after a million others.

    python bench/simulator.py [--traces DIR] [--calls 1000000]

Each prediction uses only the calls before it. Beside ours stands the baseline: a call reads what
the call before it left in the cache, which is what that read and wrote at markers, or all of its
prompt in whole granules where there are none. A pair is a billed call with such a call before it;
hit, partial and miss show how much of that was read. `--calls 0` leaves the cost out.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator
from pathlib import Path

from anaphora import catalog
from anaphora.analysis.trace import read_traces
from anaphora.analysis.trace.differences import CAUSE_TEXTS
from anaphora.analysis.trace.format import Trace, unsupported
from anaphora.analysis.trace.log_lines import Problem, numbered
from anaphora.analysis.trace.predict import Predicted, Predictor
from anaphora.cache.simulator import Mark, Simulator, TokenRuns
from anaphora.catalog import CacheRules
from anaphora.values import Usage

TRACES = Path(__file__).parents[2] / "shared" / "traces"

#: A tool loop goes on while the shortest lifetime lasts.
LOOP = 300.0

#: Unexplained misses that are shown one by one.
SHOWN = 60


# ── Accuracy ─────────────────────────────────────────────────────────────────────────────────────


class Played:
    """One file of conversations."""

    def __init__(self, file: Path) -> None:
        self.name = file.name.partition(".")[0]
        self.skipped: Counter[str] = Counter()
        traces = list(self._read(file))
        self.notes = {trace.id: trace.note or "" for trace in traces}
        self.calls = list(Predictor().play(traces))

    def _read(self, file: Path) -> Iterator[Trace]:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as lines:
            for entry in read_traces(numbered(lines, file.name)):
                if isinstance(entry, Problem):
                    self.skipped[f"broken line ({entry})"] += 1
                elif (why := unsupported(entry.trace.provider, entry.trace.model)) is not None:
                    self.skipped[why] += 1
                else:
                    yield entry.trace


class Score:
    """How often the predictions were right, ours and the baseline's."""

    titles = ("pairs", "exact", "baseline", "class", "baseline", "read error", "baseline")

    def __init__(self, calls: list[Predicted]) -> None:
        pairs = [call for call in calls if call.is_pair]
        loops = [c for c in pairs if c.in_loop and c.gap is not None and c.gap < LOOP]
        self.pairs = len(pairs)
        self.exact = sum(call.exact for call in pairs)
        self.exact_baseline = sum(call.baseline == read_by(call) for call in pairs)
        self.classes = sum(call.expected == call.happened for call in pairs)
        self.classes_baseline = sum(call.baseline_class == call.happened for call in pairs)
        self.loops = len(loops)
        self.loops_exact = sum(call.exact for call in loops)
        reads = sum(map(read_by, pairs))
        self.reads = share(sum(abs(c.outcome.read - read_by(c)) for c in pairs), reads)
        self.reads_baseline = share(sum(abs((c.baseline or 0) - read_by(c)) for c in pairs), reads)

    def row(self, name: str) -> list[str]:
        return [
            name,
            f"{self.pairs:,}",
            f"{self.exact:,}",
            f"{self.exact_baseline:,}",
            f"{self.classes:,}",
            f"{self.classes_baseline:,}",
            percent(self.reads),
            percent(self.reads_baseline),
        ]


class Estimates:
    """The errors of predicted token counts, and of the bills of conversations of several calls. The
    baseline of a count is the prompt before, that of a bill is the billed total of which the
    baseline is read."""

    titles = (
        "first calls exact",
        "tokens: median",
        "p90",
        "p99",
        "baseline p99",
        "new tokens: median",
        "bill: median",
        "baseline",
    )

    def __init__(self, calls: list[Predicted]) -> None:
        first = [c for c in calls if c.billed is not None and c.previous is None]
        self.first, self.first_exact = len(first), sum(call.exact for call in first)
        self.tokens: list[float] = []
        self.tokens_baseline: list[float] = []
        self.new: list[float] = []
        ours: dict[str, float] = defaultdict(float)
        plain: dict[str, float] = defaultdict(float)
        billed: dict[str, float] = defaultdict(float)
        for call in calls:
            if call.billed is None or not call.billed.total:
                continue
            total = call.billed.total
            if call.previous is not None:
                self.tokens.append(abs(call.outcome.total - total) / total)
                self.tokens_baseline.append(abs(call.previous - total) / total)
                new, expected = total - call.previous, call.outcome.total - call.previous
                if new > 0:
                    self.new.append(abs(expected - new) / new)
            rules = catalog.rules(call.provider, call.model, call.wire)
            ours[call.trace] += expected_cost(call, rules)
            billed[call.trace] += input_cost(call.billed.usage(), rules)
            plain[call.trace] += input_cost(baseline_bill(call, total, rules), rules)
        several = {call.trace for call in calls if call.billed is not None and call.previous}
        costs = [(name, cost) for name, cost in billed.items() if name in several]
        self.bills = [abs(ours[name] - cost) / cost for name, cost in costs]
        self.bills_baseline = [abs(plain[name] - cost) / cost for name, cost in costs]

    def row(self, name: str) -> list[str]:
        return [
            name,
            f"{self.first_exact:,} of {self.first:,}",
            *(percent(quantile(self.tokens, part)) for part in (0.5, 0.9, 0.99)),
            percent(quantile(self.tokens_baseline, 0.99)),
            percent(quantile(self.new, 0.5)),
            percent(quantile(self.bills, 0.5)),
            percent(quantile(self.bills_baseline, 0.5)),
        ]


def input_cost(usage: Usage, rules: CacheRules) -> float:
    """The cost of the input, in input tokens."""
    cost = (usage.uncached or 0) + (usage.read or 0) * rules.read_price.value
    for ttl, tokens in (usage.written or {}).items():
        price = rules.write_price.get(ttl) if ttl != "unsplit" else None
        cost += tokens * (1.0 if price is None else price.value)
    return cost


def expected_cost(call: Predicted, rules: CacheRules) -> float:
    """The mean over what a call may read, by the shares that the rules state."""
    likeliest = input_cost(call.outcome.usage(), rules)
    others = ((one.share, input_cost(one.outcome.usage(), rules)) for one in call.chances)
    return likeliest + sum(share * (cost - likeliest) for share, cost in others)


def baseline_bill(call: Predicted, total: int, rules: CacheRules) -> Usage:
    read = min(total, call.baseline or 0)
    if call.implicit or rules.default_ttl is None:
        return Usage(uncached=total - read, read=read)
    return Usage(uncached=0, read=read, written={rules.default_ttl.value: total - read})


def quantile(values: list[float], part: float) -> float | None:
    """Between two values, in proportion."""
    if not values:
        return None
    ordered = sorted(values)
    low, rest = divmod(part * (len(ordered) - 1), 1)
    high = min(int(low) + 1, len(ordered) - 1)
    return ordered[int(low)] * (1 - rest) + ordered[high] * rest


def percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def read_by(call: Predicted) -> int:
    return 0 if call.billed is None else call.billed.cache_read


def append_only(files: list[Played]) -> list[Predicted]:
    """DeepSeek's calls of conversations that only ever grow, first ones too."""
    return [
        call
        for file in files
        for call in file.calls
        if call.provider == "deepseek"
        and call.billed is not None
        and "mode baseline" not in file.notes[call.trace]
    ]


def legal(call: Predicted) -> bool:
    """Whether a prediction is a value that OpenAI may bill: nothing, or whole granules, and no
    fewer than the minimum."""
    least = catalog.rules(call.provider, call.model).minimum_tokens.value
    read = call.outcome.read
    return read == 0 or (read % call.granule == 0 and read >= least)


def share(part: int, whole: int) -> float | None:
    return round(part / whole, 5) if whole else None


def worst(counts: Iterable[tuple[int, int, int]]) -> float | None:
    """The least that ours are better than the baseline in any file, as a share of its pairs."""
    gains = [round((ours - baseline) / pairs, 5) for ours, baseline, pairs in counts if pairs]
    return min(gains, default=None)


def rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 5)


def accuracy(files: list[Played]) -> dict[str, float | None]:
    """Prints the tables, and gives the figures."""
    every = [call for file in files for call in file.calls]
    of = {
        provider: [call for call in every if call.provider == provider]
        for provider in ("anthropic", "openai", "google")
    }
    total = Score(of["anthropic"])
    scores = [Score(file.calls) for file in files]
    rows = [score.row(file.name) for score, file in zip(scores, files, strict=True)]
    table(["file", *Score.titles], [*rows, Score(every).row("all")])
    print()
    estimates = Estimates(every)
    rows = [Estimates(file.calls).row(file.name) for file in files]
    table(["file", *Estimates.titles], [*rows, estimates.row("all")])
    print()

    deepseek = append_only(files)
    near = sum(abs(call.outcome.read - read_by(call)) <= call.granule for call in deepseek)
    lawful = sum(map(legal, of["openai"]))
    pairs = [call for call in of["google"] if call.is_pair]
    same = sum(call.expected == call.happened for call in pairs)
    table(
        ["provider", "what", "right", "of"],
        [
            ["Anthropic", "loops under 5 min, exact", f"{total.loops_exact:,}", f"{total.loops:,}"],
            ["DeepSeek", "append-only, within one granule", f"{near:,}", f"{len(deepseek):,}"],
            ["OpenAI", "predictions of a legal value", f"{lawful:,}", f"{len(of['openai']):,}"],
            ["Gemini", "hit, partial or miss (not tuned)", f"{same:,}", f"{len(pairs):,}"],
        ],
    )
    print()
    causes(of["anthropic"])
    skipped(files)
    return {
        "anthropic_loop_exact": share(total.loops_exact, total.loops),
        "worst_exact_gain": worst((one.exact, one.exact_baseline, one.pairs) for one in scores),
        "worst_class_gain": worst((one.classes, one.classes_baseline, one.pairs) for one in scores),
        "bill_error_median": rounded(quantile(estimates.bills, 0.5)),
        "tokens_p99": rounded(quantile(estimates.tokens, 0.99)),
        "deepseek_within_granule": share(near, len(deepseek)),
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


def skipped(files: list[Played]) -> None:
    lines = [(file.name, why, count) for file in files for why, count in file.skipped.items()]
    for name, why, count in lines:
        print(f"skipped in {name}: {count} × {why}")
    if lines:
        print()


def table(titles: list[str], rows: list[list[str]]) -> None:
    widths = [max(len(row[at]) for row in [titles, *rows]) for at in range(len(titles))]
    for row in [titles, ["-" * width for width in widths], *rows]:
        cells = [
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("| " + " | ".join(cells) + " |")


# ── Cost ─────────────────────────────────────────────────────────────────────────────────────────

#: Conversations that go on at the same time, turns of each, calls in a block that is timed.
AT_ONCE, TURNS, BLOCK = 100, 20, 1000


def prompt(conversation: int, turn: int) -> TokenRuns:
    blocks: list[tuple[Hashable, int]] = [("system", 2000), (conversation, 500)]
    blocks += [((conversation, at), 100) for at in range(turn)]
    return TokenRuns(blocks, markers=(Mark(0, "1h"), Mark(len(blocks) - 1, "5m")))


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
    parser.add_argument("--traces", type=Path, default=TRACES, help="a folder of trace files")
    parser.add_argument("--calls", type=int, default=1_000_000, help="0 leaves the cost out")
    options = parser.parse_args()
    found = sorted([*options.traces.glob("*.jsonl.gz"), *options.traces.glob("*.jsonl")])
    if not found:
        print(f"skipped: no recorded conversations at {options.traces}")
        print("{}")
        return
    figures = accuracy([Played(file) for file in found])
    calls = max(options.calls, 20 * BLOCK) if options.calls else 0
    figures["call_cost_growth"] = cost(calls) if calls else None
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
