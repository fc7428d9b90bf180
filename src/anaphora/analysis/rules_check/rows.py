"""The evidence of all calls, summed up by figure of the catalog."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable
from typing import Any, NamedTuple, get_args

import msgspec

from anaphora.catalog import CacheParam, CacheRules, Figure

from . import checks, lifetime_checks
from .billed_calls import BilledTraceCall
from .checks import CheckFunction

#: The share of conclusive calls that may contradict a figure before it counts as contradicted.
THRESHOLD = 0.05
#: An entry is missed for many reasons. A TTL is in doubt when most are missed.
_MOSTLY = 0.5


class Check(NamedTuple):
    figure: str
    function: CheckFunction
    tolerance: float = 0.0
    """The share that other causes explain."""
    is_share: bool = False
    """The figure itself is a share of calls that go wrong."""


_CACHE_PARAMS: tuple[CacheParam, ...] = get_args(CacheParam)

CHECKS: tuple[Check, ...] = (
    Check("mechanism", checks.mechanism),
    Check("minimum_tokens", checks.minimum_tokens),
    Check("granule_tokens", checks.granule_tokens),
    Check("output_cached", checks.output_cached),
    Check("uncached_tail", checks.uncached_tail),
    Check("lookback_positions", checks.lookback_positions),
    Check("lookback_unit", checks.lookback_unit),
    Check("ttls", checks.ttls),
    Check("default_ttl", lifetime_checks.default_ttl, tolerance=_MOSTLY),
    Check("lifetime", lifetime_checks.lifetime),
    Check("reads_refresh", lifetime_checks.reads_refresh),
    Check("visibility_delay", lifetime_checks.visibility_delay),
    Check("missed", lifetime_checks.missed, is_share=True),
    Check("cut_short", lifetime_checks.cut_short, is_share=True),
    *(Check(f"invalidates.{param}", checks.invalidates(param)) for param in _CACHE_PARAMS),
)


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """One call that contradicts a figure."""

    trace: str
    call: int
    billed: str
    says: str
    place: str = ""
    """The file and line of the conversation, where known."""


class DisputedFigure(msgspec.Struct, frozen=True, kw_only=True):
    """Another published value, tested with the same calls."""

    value: Any
    source: str
    looked_at: int
    contradicting: int

    @property
    def fits(self) -> bool:
        """Whether no call contradicts it."""
        return self.contradicting == 0


class CheckedFigure(msgspec.Struct, frozen=True, kw_only=True):
    """One figure, and the calls that are conclusive for it."""

    provider: str
    models: tuple[str, ...]
    figure: str
    value: Any
    """None where the rules do not state it."""
    source: str
    date: datetime.date | None
    verified: bool
    looked_at: int
    """Conclusive calls."""
    supporting: int
    contradicting: int
    tolerance: float
    """The share that may contradict it for other reasons."""
    contradicted: bool
    examples: tuple[Example, ...]
    disputed: tuple[DisputedFigure, ...] = ()

    @property
    def share(self) -> float:
        return self.contradicting / self.looked_at


def check_rules(
    calls: Iterable[BilledTraceCall], *, threshold: float = THRESHOLD, examples: int = 3
) -> list[CheckedFigure]:
    """Every figure for which some call is conclusive, contradicted ones first."""
    sums: dict[tuple[str, str, bytes], _Sum] = {}
    for call in calls:
        for check in CHECKS:
            _count(sums, check, call, examples)
    rows = [one.row(threshold) for one in sums.values() if one.looked_at]
    return sorted(rows, key=lambda row: (not row.contradicted, not row.verified, -row.share))


class _Sum:
    def __init__(self, provider: str, check: Check, figure: Figure[Any] | None) -> None:
        self._provider = provider
        self._check = check
        self._figure = figure
        self._disputed = figure.disputed if figure is not None else ()
        self.models: dict[str, None] = {}
        self.supporting = 0
        self.contradicting = 0
        self.examples: list[Example] = []
        self.others = [[0, 0] for _ in self._disputed]

    @property
    def looked_at(self) -> int:
        return self.supporting + self.contradicting

    def row(self, threshold: float) -> CheckedFigure:
        figure, check, looked_at = self._figure, self._check, self.looked_at
        tolerance = max(threshold, check.tolerance)
        if check.is_share and figure is not None:
            # What a stated share may come to in so many calls, chance included.
            share = figure.value
            chance = 3 * math.sqrt(share * (1 - share) / looked_at) if looked_at else 0.0
            tolerance = max(threshold, share + chance)
        return CheckedFigure(
            provider=self._provider,
            models=tuple(self.models),
            figure=check.figure,
            value=None if figure is None else figure.value,
            source="not stated" if figure is None else figure.source,
            date=None if figure is None else figure.date,
            verified=figure is not None and figure.verified,
            looked_at=looked_at,
            supporting=self.supporting,
            contradicting=self.contradicting,
            tolerance=tolerance,
            contradicted=figure is not None and self.contradicting > tolerance * looked_at,
            examples=tuple(self.examples),
            disputed=tuple(
                DisputedFigure(
                    value=other.value, source=other.source, looked_at=of, contradicting=wrong
                )
                for other, (of, wrong) in zip(self._disputed, self.others, strict=True)
            ),
        )


def _count(
    sums: dict[tuple[str, str, bytes], _Sum], check: Check, call: BilledTraceCall, examples: int
) -> None:
    figure = _figure(call.rules, check.figure)
    if figure is None and not check.is_share:
        return
    evidence = check.function(call, None if figure is None else figure.value)
    disputed = figure.disputed if figure is not None else ()
    others = [check.function(call, other.value) for other in disputed]
    if evidence is None and not any(others):
        return
    # The same figure of several models is one row.
    key = call.provider, check.figure, msgspec.json.encode(figure)
    if key not in sums:
        sums[key] = _Sum(call.provider, check, figure)
    total = sums[key]
    for counts, other in zip(total.others, others, strict=True):
        counts[0] += other is not None
        counts[1] += other is not None and not other.holds
    if evidence is None:
        return
    total.models[call.model] = None
    total.supporting += evidence.holds
    total.contradicting += not evidence.holds
    if not evidence.holds and len(total.examples) < examples:
        example = Example(
            trace=call.trace, call=call.call, billed=evidence.billed, says=evidence.rule
        )
        total.examples.append(example)


def _figure(rules: CacheRules, name: str) -> Figure[Any] | None:
    field, _, param = name.partition(".")
    value: Any = getattr(rules, field)
    figure: Figure[Any] | None = value.get(param) if param else value
    return figure
