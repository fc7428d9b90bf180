"""Check the catalog's figures against bills: which figures each billed call supports or
contradicts.

    for row in rules_check.check_rules(billed_calls(traces)):
        row.figure, row.contradicting, row.looked_at, row.examples

A prediction may be wrong for many reasons; here each figure is tested alone, by the calls that are
conclusive for it.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, get_args

import msgspec

from anaphora import catalog
from anaphora.catalog import CacheParam, Figure

from . import checks
from .billed_calls import BilledTraceCall
from .checks import CheckFunction, Evidence

#: The share of conclusive calls that may contradict a figure before it counts as contradicted.
THRESHOLD = 0.05
#: An entry is missed for many reasons. A TTL is contradicted when most are missed.
_MOSTLY = 0.5


class Check(NamedTuple):
    figure: str
    function: CheckFunction
    tolerance: float = 0.0
    """The share of contradicting calls that other causes explain."""
    is_share: bool = False
    """The figure itself is a share of calls that miss."""


_CACHE_PARAMS: tuple[CacheParam, ...] = get_args(CacheParam)

CHECKS: tuple[Check, ...] = (
    Check("mechanism", checks.mechanism),
    Check("minimum_tokens", checks.minimum_tokens),
    Check("granule_tokens", checks.granule_tokens),
    Check("output_cached", checks.output_cached),
    Check("visible_output_cached", checks.visible_output_cached),
    Check("uncached_tail", checks.uncached_tail),
    Check("lookback_positions", checks.lookback_positions),
    Check("lookback_unit", checks.lookback_unit),
    Check("ttls", checks.ttls),
    Check("default_ttl", checks.default_ttl, tolerance=_MOSTLY),
    Check("lifetime", checks.lifetime),
    Check("ttl_from", checks.ttl_from),
    Check("reads_refresh", checks.reads_refresh),
    Check("visibility_delay", checks.visibility_delay),
    Check("late_writes", checks.late_writes, is_share=True),
    Check("missed", checks.missed, is_share=True),
    Check("cut_short", checks.cut_short, is_share=True),
    *(Check(f"invalidates.{param}", checks.invalidates(param)) for param in _CACHE_PARAMS),
)


class Example(msgspec.Struct, frozen=True, kw_only=True):
    trace: str
    call: int
    billed: str
    says: str
    place: str = ""
    """The file and line of the conversation, if known."""


class DisputedFigure(msgspec.Struct, frozen=True, kw_only=True):
    """Another published value, tested with the same calls."""

    value: Any
    source: str
    looked_at: int
    contradicting: int

    @property
    def fits(self) -> bool:
        return self.contradicting == 0


class CheckedFigure(msgspec.Struct, frozen=True, kw_only=True):
    """One figure, and the calls that are conclusive for it."""

    provider: str
    models: tuple[str, ...]
    figure: str
    value: Any
    """None if the rules do not state it."""
    row: str
    """The file and row of the catalog that state it."""
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
            field, _, param = check.figure.partition(".")
            figure: Any = getattr(call.rules, field)
            if param:
                figure = figure.get(param)
            if figure is None and not check.is_share:
                continue
            values = (
                [None] if figure is None else [figure.value, *(o.value for o in figure.disputed)]
            )
            evidence = [check.function(call, value) for value in values]
            if any(evidence):
                # The same figure of several models is one row.
                key = call.provider, check.figure, msgspec.json.encode(figure)
                if key not in sums:
                    sums[key] = _Sum(call, check, figure)
                sums[key].add(call, evidence, examples)
    rows = [one.row(threshold) for one in sums.values() if any(one.counts[0])]
    return sorted(rows, key=lambda row: (not row.contradicted, not row.verified, -row.share))


class _Sum:
    def __init__(self, call: BilledTraceCall, check: Check, figure: Figure[Any] | None) -> None:
        self._provider = call.provider
        self._row = catalog.shipped().row_of(call.provider, call.model, check.figure, call.wire)
        self._check = check
        self._figure = figure
        self._disputed = figure.disputed if figure is not None else ()
        self.counts = [[0, 0] for _ in range(1 + len(self._disputed))]
        """Calls that contradict and that support the value, then each disputed one."""
        self._models: dict[str, None] = {}
        self._examples: list[Example] = []

    def add(self, call: BilledTraceCall, evidence: Sequence[Evidence | None], most: int) -> None:
        for counts, one in zip(self.counts, evidence, strict=True):
            if one is not None:
                counts[one.holds] += 1
        found = evidence[0]
        if found is None:
            return
        self._models[call.model] = None
        if not found.holds and len(self._examples) < most:
            example = Example(
                trace=call.trace, call=call.call, billed=found.billed, says=found.rule
            )
            self._examples.append(example)

    def row(self, threshold: float) -> CheckedFigure:
        figure, check, (contradicting, supporting) = self._figure, self._check, self.counts[0]
        looked_at = contradicting + supporting
        tolerance = max(threshold, check.tolerance)
        if check.is_share and figure is not None:
            # The highest share that is still plausible by chance in this number of calls.
            chance = 3 * math.sqrt(figure.value * (1 - figure.value) / looked_at)
            tolerance = max(threshold, figure.value + chance)
        return CheckedFigure(
            provider=self._provider,
            models=tuple(self._models),
            figure=check.figure,
            value=None if figure is None else figure.value,
            row=self._row,
            source="not stated" if figure is None else figure.source,
            date=None if figure is None else figure.date,
            verified=figure is not None and figure.verified,
            looked_at=looked_at,
            supporting=supporting,
            contradicting=contradicting,
            tolerance=tolerance,
            contradicted=figure is not None and contradicting > tolerance * looked_at,
            examples=tuple(self._examples),
            disputed=tuple(
                DisputedFigure(
                    value=other.value,
                    source=other.source,
                    looked_at=sum(counts),
                    contradicting=counts[0],
                )
                for other, counts in zip(self._disputed, self.counts[1:], strict=True)
            ),
        )
