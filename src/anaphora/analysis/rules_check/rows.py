"""All calls, summed up by row: a figure as it is written in the catalog."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable
from typing import Any, NamedTuple, get_args

import msgspec

from anaphora.catalog import CacheRules, Figure, Knob

from . import changes, lasting, lengths, marks
from .evidence import Ask
from .seen import Seen

#: The share of conclusive calls that may contradict a row before it is called contradicted.
THRESHOLD = 0.05

#: Missing an entry has many reasons. A lifetime is in doubt when most of them are missed.
_MOSTLY = 0.5


class Check(NamedTuple):
    figure: str
    ask: Ask
    tolerance: float = 0.0
    """The share that other causes explain."""
    is_share: bool = False
    """The figure itself says how many calls go wrong."""


_CACHE_PARAMS: tuple[Knob, ...] = get_args(Knob)

CHECKS: tuple[Check, ...] = (
    Check("mechanism", marks.mechanism),
    Check("minimum_tokens", lengths.minimum_tokens),
    Check("granule_tokens", lengths.granule_tokens),
    Check("output_cached", lengths.output_cached),
    Check("uncached_tail", lengths.uncached_tail),
    Check("lookback_positions", marks.lookback_positions),
    Check("lookback_unit", marks.lookback_unit),
    Check("ttls", marks.ttls),
    Check("default_ttl", lasting.default_ttl, tolerance=_MOSTLY),
    Check("lifetime", lasting.lifetime),
    Check("reads_refresh", lasting.reads_refresh),
    Check("visibility_delay", lasting.visibility_delay),
    Check("missed", lasting.missed, is_share=True),
    Check("cut_short", lasting.cut_short, is_share=True),
    *(Check(f"invalidates.{param}", changes.invalidates(param)) for param in _CACHE_PARAMS),
)


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """One call that contradicts a row."""

    trace: str
    call: int
    billed: str
    says: str
    place: str = ""
    """The file and line of the conversation, where somebody knows."""


class Other(msgspec.Struct, frozen=True, kw_only=True):
    """Another published value, and how it fares with the same calls."""

    value: Any
    source: str
    looked_at: int
    contradicting: int

    @property
    def fits(self) -> bool:
        """No call speaks against it."""
        return self.contradicting == 0


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One figure, and the calls that speak of it."""

    provider: str
    models: tuple[str, ...]
    figure: str
    value: Any
    """None where the rules do not state it; then the counts stand for themselves."""
    source: str
    date: datetime.date | None
    verified: bool
    looked_at: int
    """Calls that could tell."""
    supporting: int
    contradicting: int
    tolerance: float
    """The share that may contradict it for other reasons."""
    contradicted: bool
    examples: tuple[Example, ...]
    disputed: tuple[Other, ...] = ()

    @property
    def share(self) -> float:
        return self.contradicting / self.looked_at


def held(calls: Iterable[Seen], *, threshold: float = THRESHOLD, examples: int = 3) -> list[Row]:
    """Every row that some call speaks of, the contradicted first."""
    sums: dict[tuple[str, str, bytes], _Sum] = {}
    for call in calls:
        for check in CHECKS:
            _note(sums, check, call, examples)
    rows = [one.row(threshold) for one in sums.values() if one.looked_at]
    return sorted(rows, key=lambda row: (not row.contradicted, not row.verified, -row.share))


class _Sum:
    def __init__(self, provider: str, check: Check, figure: Figure[Any] | None) -> None:
        self._provider = provider
        self._check = check
        self._figure = figure
        self.models: dict[str, None] = {}
        self.supporting = 0
        self.contradicting = 0
        self.examples: list[Example] = []
        self.others = [[0, 0] for _ in (figure.disputed if figure is not None else ())]

    @property
    def looked_at(self) -> int:
        return self.supporting + self.contradicting

    def row(self, threshold: float) -> Row:
        figure, check, looked = self._figure, self._check, self.looked_at
        tolerance = max(threshold, check.tolerance)
        if check.is_share and figure is not None:
            tolerance = max(threshold, _likely(figure.value, looked))
        return Row(
            provider=self._provider,
            models=tuple(self.models),
            figure=check.figure,
            value=None if figure is None else figure.value,
            source="not stated" if figure is None else figure.source,
            date=None if figure is None else figure.date,
            verified=figure is not None and figure.verified,
            looked_at=looked,
            supporting=self.supporting,
            contradicting=self.contradicting,
            tolerance=tolerance,
            contradicted=figure is not None and self.contradicting > tolerance * looked,
            examples=tuple(self.examples),
            disputed=tuple(
                Other(value=other.value, source=other.source, looked_at=of, contradicting=wrong)
                for other, (of, wrong) in zip(self._disputed, self.others, strict=True)
            ),
        )

    @property
    def _disputed(self) -> tuple[Any, ...]:
        return () if self._figure is None else self._figure.disputed


def _note(
    sums: dict[tuple[str, str, bytes], _Sum], check: Check, call: Seen, examples: int
) -> None:
    figure = _figure(call.rules, check.figure)
    if figure is None and not check.is_share:
        return
    told = check.ask(call, None if figure is None else figure.value)
    disputed = figure.disputed if figure is not None else ()
    asked = [check.ask(call, other.value) for other in disputed]
    if told is None and not any(asked):
        return
    # The same figure of several models is one row.
    key = call.provider, check.figure, msgspec.json.encode(figure)
    if key not in sums:
        sums[key] = _Sum(call.provider, check, figure)
    one = sums[key]
    for count, other in zip(one.others, asked, strict=True):
        count[0] += other is not None
        count[1] += other is not None and not other.holds
    if told is None:
        return
    one.models[call.model] = None
    one.supporting += told.holds
    one.contradicting += not told.holds
    if not told.holds and len(one.examples) < examples:
        example = Example(trace=call.trace, call=call.call, billed=told.billed, says=told.says)
        one.examples.append(example)


def _figure(rules: CacheRules, name: str) -> Figure[Any] | None:
    field, _, param = name.partition(".")
    found: Any = getattr(rules, field)
    figure: Figure[Any] | None = found.get(param) if param else found
    return figure


def _likely(share: float, calls: int) -> float:
    """What a stated share may come to in so many calls, chance included."""
    return share + 3 * math.sqrt(share * (1 - share) / calls) if calls else share
