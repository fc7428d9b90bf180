"""Predictions held against bills, family by family, with a plain chain beside them.

A family is a program, a provider entry and a model. The chain is the simplest prediction: a call
reads what the previous call of its conversation sent, if that was within the TTL. It uses the rows
of the catalog and the previous bill, and learns nothing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from anaphora import catalog
from anaphora.analysis.trace.format import Trace, TraceMessage
from anaphora.analysis.trace.predict import Predictor
from anaphora.analysis.trace.predicted import Predicted
from anaphora.analysis.trace.verdicts import TraceVerdict, judge_calls
from anaphora.cache.read_history import WHOLE, ReadClass, read_class
from anaphora.cache.simulator.chances import Distribution, distribution
from anaphora.catalog import CacheRules
from anaphora.catalog.pricing import PriceBook
from anaphora.cli.log_files import gather
from anaphora.usage.causes import losses_of
from anaphora.usage.records import CallLoss
from anaphora.values import TTL_SECONDS, Usage

#: Billed calls of an entry and model before a call's range is judged.
LEAST_EARLIER = 10


class Family(NamedTuple):
    program: str
    entry: str
    model: str

    def __str__(self) -> str:
        return f"{self.program} · {self.entry} · {self.model}"


class Compared(NamedTuple):
    """A call: ours, and the chain's."""

    source: str
    call: Predicted
    family: Family
    chain: int | None
    """What it reads by the chain; None for a first call."""
    chain_cost: float | None
    """The cost of its input by the chain, which knows the billed total."""
    has_results: bool
    """Its conversation has tool results."""
    outcomes: Distribution
    """The shares of what it may read, and the cost of its input in each, in input tokens."""
    billed: float | None
    append_only: bool
    """Its conversation only ever grows."""
    ranged: bool
    """Ten earlier calls of the same entry and model were billed."""
    trace: Trace
    judged: TraceVerdict | None
    """The verdict on a billed call."""
    losses: tuple[CallLoss, ...]
    """What it was billed again, by cause."""

    @property
    def read(self) -> int:
        return 0 if self.call.billed is None else self.call.billed.cache_read

    @property
    def chain_class(self) -> ReadClass | None:
        if self.call.baseline is None or self.chain is None:
            return None
        return read_class(self.chain, self.call.baseline)

    @property
    def said_short(self) -> float:
        """The predicted chance of a short read."""
        expected = WHOLE * self.call.outcome.read
        return sum(one.share for one in self.call.chances if one.outcome.read < expected)

    @property
    def is_short(self) -> bool:
        return self.call.billed is not None and self.read < WHOLE * self.call.outcome.read

    @property
    def in_range(self) -> bool:
        span, billed = self.call.bill_range, self.billed
        return span is not None and billed is not None and span.low <= billed <= span.high


# ── Reading ──────────────────────────────────────────────────────────────────────────────────────


class Recorded:
    """The conversations of a file or a folder, which one account made."""

    def __init__(self, name: str, place: Path) -> None:
        found, problems = gather([place], None)
        self.name, self.place = name, str(place)
        self.traces = [one.trace for one in found]
        self.skipped = Counter(
            f"{problem.kind}: {problem.reason[:100]}"
            for problem in problems
            if problem.kind in ("skipped", "rejected")
        )


def recorded(traces: Iterable[Path], sessions: Iterable[Path]) -> Iterator[Recorded]:
    """Each trace file, and each folder of session files."""
    for folder in traces:
        for file in sorted(folder.glob("*.json*")):
            yield Recorded(file.name.partition(".")[0], file)
    for folder in sessions:
        places = [one for one in sorted(folder.iterdir()) if one.is_dir()]
        if any(_is_session(one) for one in folder.iterdir()):
            yield Recorded(folder.name, folder)
        else:
            yield from (Recorded(place.name, place) for place in places)


def _is_session(place: Path) -> bool:
    return place.is_file() and ".json" in "".join(place.suffixes)


# ── Comparing ────────────────────────────────────────────────────────────────────────────────────


def compare(source: Recorded) -> Iterator[Compared]:
    """Every call in the order in which they were made."""
    by_id = {one.id: one for one in source.traces}
    results = {one.id: any(map(_is_result, one.messages)) for one in source.traces}
    seen: Counter[tuple[str, str]] = Counter()
    prices = PriceBook(time.time())
    ttls: dict[str, float] = {}
    for call, judged in judge_calls(source.traces, Predictor(), prices.price):
        one = by_id[call.trace]
        family = _family(source, one, call)
        rules = catalog.rules(call.provider, call.model, call.wire)
        entry = family.entry, family.model
        billed = None if call.billed is None else rules.input_cost(call.billed.usage())
        chain = _chain(call, ttls.get(call.trace, _lifetime(rules)))
        yield Compared(
            source=source.place,
            call=call,
            family=family,
            chain=chain,
            chain_cost=chain_cost(call, chain, rules),
            has_results=results[call.trace],
            outcomes=outcomes(call, rules),
            billed=billed,
            append_only="mode baseline" not in (one.note or ""),
            ranged=seen[entry] >= LEAST_EARLIER,
            trace=one,
            judged=judged,
            losses=tuple(_losses(call, judged, prices)),
        )
        seen[entry] += call.billed is not None
        if call.billed is not None and (written := call.billed.by_ttl):
            ttls[call.trace] = float(max(TTL_SECONDS[t] for t in written if t != "unsplit"))


def _losses(call: Predicted, judged: TraceVerdict | None, prices: PriceBook) -> Iterator[CallLoss]:
    if judged is not None and call.billed is not None:
        price, before = prices.price(call.provider, call.model, call.at, call.wire), call.previous
        usage = call.billed.usage()
        yield from losses_of(judged.verdict, b"", call.gap, usage, price, before=before or 0)


def _is_result(message: TraceMessage) -> bool:
    return message.role == "tool" or "tool_result" in message.block_types


def _family(source: Recorded, one: Trace, call: Predicted) -> Family:
    program = source.name if "/" in one.source else one.source or source.name
    own = one.account not in (None, source.place)
    entry = f"{call.provider} ({one.account})" if own else call.provider
    return Family(program, entry, call.model)


def _lifetime(rules: CacheRules) -> float:
    ttls = rules.ttls.value
    ttl = ttls[0] if rules.default_ttl is None and ttls else rules.default_ttl
    if ttl is None:
        return float("inf")
    return float(TTL_SECONDS[ttl if isinstance(ttl, str) else ttl.value])


def _chain(call: Predicted, ttl: float) -> int | None:
    if call.baseline is None:
        return None
    return 0 if call.gap is not None and call.gap > ttl else call.baseline


# ── Bills ────────────────────────────────────────────────────────────────────────────────────────


def outcomes(call: Predicted, rules: CacheRules) -> Distribution:
    """What the input of a call may cost."""
    others = ((one.share, rules.input_cost(one.outcome.usage())) for one in call.chances)
    return distribution(rules.input_cost(call.outcome.usage()), others)


def chain_cost(call: Predicted, chain: int | None, rules: CacheRules) -> float | None:
    """What the chain expects: the billed total, of which its prediction is read."""
    if call.billed is None:
        return None
    total = call.billed.total
    read = min(total, chain or 0)
    usage = Usage(uncached=total - read, read=read)
    if not call.implicit and rules.default_ttl is not None:
        usage = Usage(uncached=0, read=read, written={rules.default_ttl.value: total - read})
    return rules.input_cost(usage)
