"""The page of `anaphora explain`."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from decimal import Decimal

import msgspec
from msgspec.structs import replace

from anaphora.cache.learned_steps import LearnedRow
from anaphora.cache.verdict import Verdict
from anaphora.wording import counted, format_duration, format_loss

from .log_files import unpriced_note
from .terminal import RESULT_COLOURS, Line, detail_lines, learned_lines


class ExplainedCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call and its verdict."""

    place: str
    conversation: str
    turn: int
    """Counted within the conversation."""
    provider: str
    model: str
    at: float | None = None
    gap: float | None = None
    broke: bool = False
    sentence: str
    verdict: Verdict


class ExplainSummary(msgspec.Struct, frozen=True, kw_only=True):
    turns: int
    first: int
    hit: int
    partial: int
    miss: int
    not_cacheable: int
    """Below the provider's minimum."""
    unknown: int
    """Less was read, and nothing proves that more could have been."""
    broke: int
    """Those of `partial` and `miss` whose prefix broke."""
    lost: int
    """Tokens that could have been read and were not."""
    cost_usd: Decimal | None
    """None if a loss has no known price."""


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    turns: tuple[ExplainedCall, ...]
    summary: ExplainSummary
    problems: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    unpriced: tuple[str, ...] = ()
    """Models without a known price."""
    learned: tuple[LearnedRow, ...] = ()
    """Rows of the catalog that the bills contradict."""


def page_lines(
    explained: Explanation,
    *,
    everything: bool,
    excerpts: bool = True,
) -> Iterator[Line]:
    """`excerpts` shows the text before and after a change."""
    conversations = _conversations(explained.turns)
    for calls in conversations:
        if len(conversations) > 1:
            yield calls[0].conversation, "bold"
        for line in _conversation(calls, everything):
            if isinstance(line, ExplainedCall):
                yield from _call(line, excerpts=excerpts)
            else:
                yield line
    total = explained.summary
    hits = counted(total.hit, "hit")
    counts = f"{hits}, {total.partial} partial, {total.miss} missed, {total.first} first"
    if total.not_cacheable:
        counts += f", {total.not_cacheable} below the minimum"
    if total.unknown:
        counts += f", {total.unknown} unknown"
    yield f"{counted(total.turns, 'call')}: {counts}", "bold"
    if total.lost:
        yield f"{counted(total.lost, 'token')} not read: {_lost(explained)}"
    if total.broke:
        among = f"{total.broke} of {total.partial + total.miss}"
        yield f"partial or missed because the prefix broke: {among}", "red"
    for reason, count in Counter(map(_unproven, explained.turns)).items():
        if reason is not None:
            yield f"{count:,} unknown: {reason}"
    yield from learned_lines(explained.learned)
    if explained.unpriced:
        yield unpriced_note(explained.unpriced), "dim"


def _conversations(calls: Iterable[ExplainedCall]) -> list[list[ExplainedCall]]:
    """Each conversation whole, in the order in which they begin. Files may have the same names."""
    found: list[list[ExplainedCall]] = []
    by_name: dict[str, list[ExplainedCall]] = {}
    for call in calls:
        if call.turn == 1 or call.conversation not in by_name:
            by_name[call.conversation] = []
            found.append(by_name[call.conversation])
        by_name[call.conversation].append(call)
    return found


def _lost(explained: Explanation) -> str:
    """Cost of the losses; if only some have a known price, the cost of those."""
    lost = [call.verdict for call in explained.turns if call.verdict.lost]
    unpriced = sum(verdict.lost for verdict in lost if verdict.cost_usd is None)
    if unpriced in (0, explained.summary.lost):
        return format_loss(explained.summary.cost_usd)
    known = sum((verdict.cost_usd or Decimal(0) for verdict in lost), Decimal(0))
    return f"{format_loss(known)}, and {counted(unpriced, 'token')} at an unknown price"


def _unproven(call: ExplainedCall) -> str | None:
    """Advice on how to find the cause of an unknown result; printed once."""
    causes = call.verdict.causes
    return causes[0].text if call.verdict.result == "unknown" and causes else None


def _conversation(
    calls: list[ExplainedCall], everything: bool
) -> Iterator[ExplainedCall | list[str | tuple[str, str]]]:
    """The calls; consecutive hits share one line unless `everything` is set."""
    for is_hit, group in itertools.groupby(calls, key=lambda call: call.verdict.result == "hit"):
        same = list(group)
        if is_hit and len(same) > 1 and not everything:
            read = sum(call.verdict.billed or call.verdict.predicted or 0 for call in same)
            turns = f"  turns {same[0].turn} to {same[-1].turn}: "
            hits = f"{counted(len(same), 'hit')}, {counted(read, 'token')} read"
            yield [turns, (hits, RESULT_COLOURS["hit"])]
        else:
            yield from same


def _call(call: ExplainedCall, *, excerpts: bool) -> Iterator[Line]:
    verdict = call.verdict
    gap = f" (+{format_duration(call.gap)})" if call.gap is not None else ""
    shown = verdict if _unproven(call) is None else replace(verdict, causes=())
    yield [
        f"  turn {call.turn}{gap}: ",
        (shown.describe(excerpts=False), RESULT_COLOURS[verdict.result]),
    ]
    yield from detail_lines(verdict, excerpts=excerpts)
