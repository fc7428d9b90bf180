"""Which calls of a log can be played, and a sample of them if there are too many."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias
from zlib import crc32

import msgspec

from anaphora.audit.envelope import AuditEnvelope
from anaphora.catalog import Price
from anaphora.catalog.pricing import PriceBook

from .scenarios import ProviderModel, model_of

LeftOut: TypeAlias = Literal["failed", "no_usage", "no_blocks", "no_price", "unknown_provider"]

LEFT_OUT_TEXTS: dict[LeftOut, str] = {
    "failed": "failed and have no bill",
    "no_usage": "did not report their tokens",
    "no_blocks": "have no blocks in the log",
    "no_price": "have no known price",
    "unknown_provider": "are of a provider whose rules are not known",
}

#: Standard deviations that cover nine cases in ten.
_DEVIATIONS = 1.645


class BilledCall(NamedTuple):
    row: AuditEnvelope
    model: ProviderModel
    cost: float
    """In dollars."""

    @property
    def group(self) -> Hashable:
        """Its conversation or, if unknown, a digest of its beginning."""
        row = self.row
        if row.conversation:
            return row.conversation
        return row.app, row.provider, row.model, row.blocks[0].digest


class SelectedCalls(msgspec.Struct, frozen=True, kw_only=True):
    calls: Sequence[BilledCall]
    """All that can be played, the oldest first."""
    left_out: dict[LeftOut, int]
    """The others, by the reason."""
    groups: int
    sample: Sequence[BilledCall]
    """Calls that are played: all, or those of some groups."""
    sample_groups: int

    @property
    def scale(self) -> float:
        """The bill of all calls divided by the bill of the played ones."""
        played = sum(call.cost for call in self.sample)
        return sum(call.cost for call in self.calls) / played if played else 1.0

    def without(self, rows: Sequence[AuditEnvelope]) -> SelectedCalls:
        """The same without these calls, which have no price."""
        missing = set(map(id, rows))
        left_out = {**self.left_out, "no_price": self.left_out.get("no_price", 0) + len(missing)}
        return msgspec.structs.replace(
            self,
            calls=[call for call in self.calls if id(call.row) not in missing],
            sample=[call for call in self.sample if id(call.row) not in missing],
            left_out=left_out,
        )

    def margin(self, costs: Mapping[Hashable, float], billed: Mapping[Hashable, float]) -> float:
        """By how many dollars the cost of all groups may differ from that of the sample scaled by
        the bills, in nine cases of ten. Costs and bills are by group."""
        count = self.sample_groups
        if len(self.sample) == len(self.calls):
            return 0.0
        if count < 2:  # one long conversation says nothing about others
            return abs(sum(costs.values()) - sum(billed.values())) * self.scale
        rate = sum(costs.values()) / (sum(billed.values()) or 1.0)
        squares = sum((costs[group] - rate * billed[group]) ** 2 for group in costs)
        missing = 1 - count / self.groups
        return _DEVIATIONS * self.groups * math.sqrt(missing / count * squares / (count - 1))


def select(calls: Iterable[AuditEnvelope], prices: PriceBook, most: int | None) -> SelectedCalls:
    """The calls with blocks, reported tokens and a known price; at most about `most` of them are
    played, in whole groups."""
    usable: list[BilledCall] = []
    left_out: Counter[LeftOut] = Counter()
    models: dict[tuple[str, str, str, str], ProviderModel | None] = {}
    for row in calls:
        names = row.system, row.provider, row.wire, row.model
        if names not in models:
            models[names] = model_of(row)
        model, reason = models[names], _unusable(row)
        if reason is not None or model is None:
            left_out[reason or "unknown_provider"] += row.repeats
        elif not _is_priced(row, prices.price(model.provider, model.model, row.at, model.wire)):
            left_out["no_price"] += row.repeats
        else:
            usable.append(BilledCall(row, model, (row.cost_nano_usd or 0) / 1e9))
    usable.sort(key=_order)
    groups: dict[Hashable, list[BilledCall]] = {}
    for call in usable:
        groups.setdefault(call.group, []).append(call)
    sample = usable if most is None or len(usable) <= most else _sample(groups, most)
    return SelectedCalls(
        calls=usable,
        left_out=dict(left_out),
        groups=len(groups),
        sample=sorted(sample, key=_order),
        sample_groups=len({call.group for call in sample}),
    )


def _order(call: BilledCall) -> tuple[float, str, str, str]:
    """By time; ties are broken in a fixed order."""
    row = call.row
    return row.at, row.prompt_hash, row.response_id or "", row.request_id or ""


def _unusable(row: AuditEnvelope) -> LeftOut | None:
    usage = row.usage
    if usage.uncached is None or usage.output is None or not usage.input:
        return "failed" if row.outcome != "ok" else "no_usage"
    if not row.blocks or not any(block.tokens for block in row.blocks):
        return "no_blocks"
    return "no_price" if row.cost_nano_usd is None else None


def _is_priced(row: AuditEnvelope, price: Price | None) -> bool:
    """Whether everything billed has a listed price."""
    if price is None:
        return False
    usage, rates = row.usage, price.at(row.usage.input)
    if (usage.read and rates.read is None) or (usage.output and rates.output is None):
        return False
    if usage.written is not None and (ttls := usage.written.keys() - {"unsplit"}):
        return rates.input is not None and all(ttl in rates.write for ttl in ttls)
    return rates.input is not None


def _sample(groups: Mapping[Hashable, list[BilledCall]], most: int) -> list[BilledCall]:
    """The calls of randomly chosen groups, always the same ones. A group that is too long is
    cut."""
    chosen: list[BilledCall] = []
    for group in sorted(groups, key=lambda group: crc32(repr(group).encode())):
        chosen += groups[group][: 2 * most - len(chosen)]
        if len(chosen) >= most:
            break
    return chosen
