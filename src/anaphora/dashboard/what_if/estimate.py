"""The cost of the same calls in other scenarios, with the range of each estimate.

    result = what_if(calls, model=ProviderModel("openai", "gpt-5.2"))
    result.rows[0].cost.low, result.rows[0].cost.estimate, result.rows[0].cost.high

The calls are first simulated as they were sent, and compared with their bills: the difference is
the simulation's error, and each range is at least as wide. Ranges are wider for random misses of a
provider, another tokenizer, conversations that began before the first call here, and calls that
were not simulated.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence, Set
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from anaphora import catalog
from anaphora.audit.envelope import AuditEnvelope
from anaphora.cache.simulator.chances import estimate
from anaphora.catalog.pricing import PriceBook
from anaphora.dashboard.figures import plain_name
from anaphora.values import Ttl
from anaphora.wording import counted

from .prompts import AuditedCall, Link, PromptReader
from .scenarios import PlayedCall, ProviderModel, Scenario, ScenarioRun, takes_markers
from .selection import BilledCall, LeftOut, SelectedCalls, select

TtlChoice: TypeAlias = Ttl | Literal["none"]
"""The TTL of all markers; `none`: without caching."""

#: Minimum width of a range to either side, as a share of the estimate, for rounding and timing.
_LEAST_ERROR = 0.01
#: If a bill differs from the listed price by more than this share, the call had another price.
_OTHER_PRICE = 0.001
_NANO = 10**9
#: Models whose tokens are compared in the notes.
_MOST_NOTES = 3
_UNAFFECTED = "changes no call: all markers already have it, or no model offers it"


class CostEstimate(msgspec.Struct, frozen=True):
    """Nano-dollars."""

    low: int
    estimate: int
    high: int

    def less(self, amount: int) -> CostEstimate:
        return CostEstimate(self.low - amount, self.estimate - amount, self.high - amount)


class ScenarioRow(msgspec.Struct, frozen=True, kw_only=True):
    scenario: Scenario
    cost: CostEstimate | None = None
    """None if unknown: see `unavailable`."""
    difference: CostEstimate | None = None
    """Difference to the bill; negative if cheaper."""
    read_share: float | None = None
    affected: int = 0
    """Calls that the scenario changes."""
    notes: tuple[str, ...] = ()
    unavailable: str = ""


class SimulationCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The calls simulated as they were sent, compared with their bills. Excludes calls that
    continue calls which are not among these: ranges cover all that they may cost."""

    billed_nano_usd: int
    simulated_nano_usd: int
    error: float | None
    """The differences call by call, as a share of the bill; None if nothing was billed."""
    width: float
    """The share by which ranges are wider because of it, to either side."""


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    calls: int
    """Calls that the amounts cover: with blocks, reported tokens and a known price."""
    left_out: dict[LeftOut, int]
    played: int
    """Of `calls`, those simulated; fewer if the conversations are a sample."""
    groups: int
    """Conversations; calls of an unknown conversation are grouped by their beginning."""
    played_groups: int
    links: dict[Link, int]
    """How the calls that others continue were recognised."""
    began_before: int
    """Calls that continue calls which are not among these."""
    billed_nano_usd: int
    read_share: float | None
    other_price: int
    """Calls billed at another price than the listed one."""
    check: SimulationCheck
    rows: Sequence[ScenarioRow]

    @property
    def sampled(self) -> bool:
        return self.played < self.calls


class _Base(NamedTuple):
    """A call as billed, and as simulated with its own markers."""

    billed: BilledCall
    factor: float
    """The billed price as a share of the listed one."""
    call: AuditedCall
    played: PlayedCall


def what_if(
    calls: Iterable[AuditEnvelope],
    *,
    model: ProviderModel | None = None,
    ttl: TtlChoice | None = None,
    most_played: int | None = None,
) -> WhatIf:
    """The cost of the calls without caching, with each TTL that their models offer, with placed
    markers, and on another model. With a `ttl`, only that. The order of the calls does not matter.
    If there are more calls than `most_played`, a sample of whole conversations is simulated."""
    prices = PriceBook(time.time())
    selected = select(calls, prices, most_played)
    base, unpriced = _play_as_sent(selected.sample, prices)
    if unpriced:
        selected = selected.without(unpriced)
    check = _check(base)
    billed = selected.calls
    scenarios = _scenarios({one.model for one in billed}, model, ttl)
    return WhatIf(
        calls=len(billed),
        left_out=selected.left_out,
        played=len(base),
        groups=selected.groups,
        played_groups=selected.sample_groups,
        links=dict(Counter(one.call.link for one in base)),
        began_before=sum(one.call.began_before for one in base),
        billed_nano_usd=sum(one.row.cost_nano_usd or 0 for one in billed),
        read_share=_share(
            sum(one.row.usage.read or 0 for one in billed),
            sum(one.row.usage.input for one in billed),
        ),
        other_price=sum(abs(one.factor - 1) > _OTHER_PRICE for one in base),
        check=check,
        rows=[_row(scenario, base, prices, check, selected) for scenario in scenarios],
    )


def _scenarios(
    models: Set[ProviderModel], model: ProviderModel | None, ttl: TtlChoice | None
) -> Iterator[Scenario]:
    lifetime = None if ttl == "none" else ttl
    if lifetime is None:
        yield Scenario(title="Without caching", caching="none")
    else:
        yield _with_ttl(lifetime)
    if ttl is None:
        rules = [catalog.rules(*one) for one in sorted(models, key=str)]
        offered = [one.ttls.value[::-1] for one in rules if takes_markers(one)]
        yield from map(_with_ttl, dict.fromkeys(itertools.chain(*offered)))
        yield Scenario(title="With Anaphora's markers", caching="placed")
    if model is not None:
        name = f"On {_name(model)}"
        if ttl != "none":
            title = name if lifetime is None else f"{name}, TTL {lifetime}"
            yield Scenario(title=title, ttl=lifetime, model=model)
        yield Scenario(title=f"{name}, without caching", caching="none", model=model)


def _with_ttl(ttl: Ttl) -> Scenario:
    return Scenario(title=f"All markers with a TTL of {ttl}", ttl=ttl)


def _play_as_sent(
    sample: Sequence[BilledCall], prices: PriceBook
) -> tuple[list[_Base], list[AuditEnvelope]]:
    """The calls with their simulated cost, and those whose cost is unknown."""
    reader = PromptReader()
    run = ScenarioRun(Scenario(title="As sent"), prices)
    base: list[_Base] = []
    unpriced: list[AuditEnvelope] = []
    for billed in sample:
        call = reader.read(billed.row)
        played = run.play(call, billed.model)
        listed = run.listed(billed.row, billed.model)
        if played is None or listed is None:
            unpriced.append(billed.row)
            continue
        factor = billed.cost / listed if listed else 1.0
        base.append(_Base(billed, factor, call, played))
    return base, unpriced


def _check(base: Sequence[_Base]) -> SimulationCheck:
    # Entries cached before the first call here are not an error of the simulation.
    base = [one for one in base if not one.call.began_before] or base
    billed = sum(one.billed.cost for one in base)
    simulated = [one.played.cost * one.factor for one in base]
    difference = sum(abs(cost - one.billed.cost) for cost, one in zip(simulated, base, strict=True))
    error = difference / billed if billed else None
    return SimulationCheck(
        billed_nano_usd=_nano(billed),
        simulated_nano_usd=_nano(sum(simulated)),
        error=error,
        width=(error or 0.0) + max(_LEAST_ERROR, 1 / len(base) if base else 1.0),
    )


def _row(
    scenario: Scenario,
    base: Sequence[_Base],
    prices: PriceBook,
    check: SimulationCheck,
    selected: SelectedCalls,
) -> ScenarioRow:
    if not base:
        return ScenarioRow(scenario=scenario, unavailable="there are no calls to compare")
    if (reason := _not_offered(scenario)) is not None:
        return ScenarioRow(scenario=scenario, unavailable=reason)
    run = ScenarioRun(scenario, prices)
    played: list[PlayedCall] = []
    for one in base:
        call = run.play(one.call, one.billed.model)
        if call is None:
            reason = f"no price is known for {_name(scenario.model or one.billed.model)}"
            return ScenarioRow(scenario=scenario, unavailable=reason)
        played.append(call)
    affected = sum(call.affected for call in played)
    if not affected:
        return ScenarioRow(scenario=scenario, unavailable=_UNAFFECTED)
    if scenario.model is None:
        costs, low, high = _same_model(scenario, base, played, check)
    else:
        costs, low, high = _moved(scenario, played, check)
        fewer, more = _token_bounds(base, costs, run)
        low, high = low * fewer, high * more
    by_group: dict[Hashable, float] = {}
    bills: dict[Hashable, float] = {}
    for one, dollars in zip(base, costs, strict=True):
        by_group[one.billed.group] = by_group.get(one.billed.group, 0.0) + dollars
        bills[one.billed.group] = bills.get(one.billed.group, 0.0) + one.billed.cost
    margin, scale = selected.margin(by_group, bills), selected.scale
    cost = CostEstimate(
        _nano(max(0.0, low * scale - margin)),
        _nano(sum(costs) * scale),
        _nano(high * scale + margin),
    )
    return ScenarioRow(
        scenario=scenario,
        cost=cost,
        difference=cost.less(_nano(sum(bills.values()) * scale)),
        read_share=_played_share(scenario, base, played),
        affected=affected,
        notes=tuple(_notes(scenario, base, run)),
    )


def _not_offered(scenario: Scenario) -> str | None:
    """Why a model does not offer this TTL."""
    if scenario.model is None or scenario.ttl is None:
        return None
    rules, name = catalog.rules(*scenario.model), _name(scenario.model)
    if not takes_markers(rules):
        return f"{name} caches automatically: there is no TTL to choose"
    if scenario.ttl in rules.ttls.value:
        return None
    return f"{name} offers {' and '.join(rules.ttls.value[::-1])}, not {scenario.ttl}"


def _same_model(
    scenario: Scenario,
    base: Sequence[_Base],
    played: Sequence[PlayedCall],
    check: SimulationCheck,
) -> tuple[list[float], float, float]:
    """The costs, and the range of their sum. The part common to both simulations is taken from the
    bill."""
    pairs = list(zip(base, played, strict=True))
    if scenario.caching == "none":
        costs = [one.factor * call.cost for one, call in pairs]
        # The counts are those of the bill; only an unlisted price is uncertain.
        doubt = sum(abs(one.factor - 1) * call.cost for one, call in pairs)
        total = sum(costs)
        return costs, total - doubt, total + doubt
    costs = [one.billed.cost + one.factor * (call.cost - one.played.cost) for one, call in pairs]
    total = max(0.0, sum(costs))
    less = sum(one.factor * (call.cost - call.least) for one, call in pairs)
    more = sum(one.factor * (call.greatest - call.cost) for one, call in pairs)
    return costs, total * (1 - check.width) - less, total * (1 + check.width) + more


def _moved(
    scenario: Scenario, played: Sequence[PlayedCall], check: SimulationCheck
) -> tuple[list[float], float, float]:
    """The same on another model, without bills to compare with."""
    costs = [sum(share * cost for share, cost in call.outcomes) for call in played]
    if scenario.caching == "none":
        return costs, sum(costs), sum(costs)
    spread = estimate(call.outcomes for call in played)
    lucky = sum(call.cost for call in played)
    less = sum(call.cost - call.least for call in played)
    more = sum(call.greatest - call.cost for call in played)
    low = min(spread.low, lucky) * (1 - check.width) - less
    return costs, max(0.0, low), max(spread.high, lucky) * (1 + check.width) + more


def _token_bounds(
    base: Sequence[_Base], costs: Sequence[float], run: ScenarioRun
) -> tuple[float, float]:
    """The factors of the least and the greatest cost by the bounds of the tokenizers, weighted by
    each call's cost."""
    low = high = total = 0.0
    for one, cost in zip(base, costs, strict=True):
        ratio = run.ratio(one.billed.model)
        low += cost * ratio.low / ratio.expected
        high += cost * ratio.high / ratio.expected
        total += cost
    return (low / total, high / total) if total else (1.0, 1.0)


def _played_share(
    scenario: Scenario, base: Sequence[_Base], played: Sequence[PlayedCall]
) -> float | None:
    read, total = sum(call.read for call in played), sum(call.input for call in played)
    if scenario.model is None and scenario.caching != "none":
        read += sum((one.billed.row.usage.read or 0) - one.played.read for one in base)
    return _share(min(max(read, 0.0), total), total)


def _notes(scenario: Scenario, base: Sequence[_Base], run: ScenarioRun) -> Iterator[str]:
    if scenario.model is None:
        return
    yield "replies of the same text are assumed"
    ratios = {one.billed.model: run.ratio(one.billed.model) for one in base}
    inexact = [(model, ratio) for model, ratio in ratios.items() if ratio.low != ratio.high]
    for model, ratio in inexact[:_MOST_NOTES]:
        yield f"one token of {_name(model)} is {ratio.low:.2f} to {ratio.high:.2f} there"
    if len(inexact) > _MOST_NOTES:
        yield f"the same for {counted(len(inexact) - _MOST_NOTES, 'other model')}"
    rules = catalog.rules(*scenario.model)
    if scenario.caching == "none":
        return
    if takes_markers(rules):
        yield "markers that the model takes stay as they were sent; others are placed"
    else:
        yield "that model caches automatically; markers are not carried over"
    if rules.missed is not None or rules.cut_short is not None:
        yield "the estimate allows for reads that this provider misses at random"


def _name(model: ProviderModel) -> str:
    """A name may come from a request, and be long or change the text direction."""
    return f"{model.provider}/{plain_name(model.model)}"


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _nano(dollars: float) -> int:
    return round(dollars * _NANO)
