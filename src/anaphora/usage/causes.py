"""What each call of a session lost, and why.

    for found in losses(entries, prices):       # the conversations of one session
        found is a Loss, or a Problem with its place

The verdicts are those of `analysis.trace.verdicts`. A verdict counts only tokens that were surely
paid again; here every cached token that was sent and not read counts, under the cause of the
verdict, and under "unknown" if the file does not show it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from decimal import Decimal

from msgspec.structs import replace

from anaphora.analysis.trace.format import unsupported
from anaphora.analysis.trace.log_lines import FoundTrace, Problem, TraceEntry
from anaphora.analysis.trace.verdicts import judge_bills
from anaphora.cache.learned_steps import LearnedSteps
from anaphora.cache.verdict import CauseKind, Verdict
from anaphora.cache.verdict.prediction import lost_usd
from anaphora.catalog import Price
from anaphora.catalog.pricing import PriceBook
from anaphora.values import Usage

from .records import Loss, LossCause

#: By the cause of the verdict. A change of bytes is named by its section.
CAUSES: dict[CauseKind, LossCause] = {
    "expired": "idle",
    "changed": "system_changed",
    "history_edited": "history_edited",
    "images_changed": "history_edited",
    "thinking_dropped": "history_edited",
    "compaction": "compaction",
    "resumed": "resumed",
    "model_changed": "model_switched",
    "parameter_changed": "model_switched",
    "other_key": "model_switched",
    "other_route": "model_switched",
    "below_minimum": "below_minimum",
    "no_marker": "no_marker",
    "marker_on_volatile": "no_marker",
    "marker_on_trailing_system": "no_marker",
    "lookback_exceeded": "no_marker",
    "not_yet_visible": "provider_side",
    "not_persisted": "provider_side",
    "above_maximum": "provider_side",
    "evicted": "provider_side",
    "provider_side": "provider_side",
    "unknown": "unknown",
}


def losses(
    entries: Iterable[TraceEntry], prices: PriceBook, steps: LearnedSteps | None = None
) -> Iterator[Loss | Problem]:
    """The losses in the conversations of one session, after `AnswerIndex.once`. `steps` holds rules
    learned from other sessions, and learns from this one."""
    found: dict[str, FoundTrace] = {}
    for entry in entries:
        if isinstance(entry, Problem):
            yield entry
        elif (reason := unsupported(entry.trace.provider, entry.trace.model)) is not None:
            yield Problem(entry.place, reason, "not_compared")
        else:
            id = f"{entry.trace.id} {len(found)}"  # files of subagents may repeat an id
            found[id] = entry._replace(trace=replace(entry.trace, id=id))
    traces = (entry.trace for entry in found.values())
    for judged in judge_bills(traces, prices.price, steps):
        answers, usage = found[judged.trace.id].answers, judged.trace.calls[judged.call].usage
        assert usage is not None
        key = answers[judged.call].key if answers else b""
        yield from losses_of(judged.verdict, key, judged.gap, usage.usage(), judged.price)


def losses_of(
    verdict: Verdict, key: bytes, idle: float | None, usage: Usage, price: Price | None
) -> Iterator[Loss]:
    """A loss for each cause of the verdict that explains a part of it."""
    shares = _shares(verdict)
    sentence = verdict.describe(excerpts=False) if shares else ""
    tokens = sum(shares.values())
    usd = verdict.cost_usd if tokens == verdict.lost else lost_usd(usage, tokens, price)
    left = None if usd is None else round(usd * 10**9)
    for number, (cause, share) in enumerate(shares.items(), 1):
        nano = None
        if left is not None and usd is not None:
            last = number == len(shares)
            nano = left if last else round(usd * 10**9 * Decimal(share) / tokens)
            left -= nano
        yield Loss(key, cause, share, nano, sentence, idle)


def _shares(verdict: Verdict) -> dict[LossCause, int]:
    """The tokens that were cached, sent again and not read, by cause."""
    shares: dict[LossCause, int] = {}
    for kind, tokens in verdict.losses.items():
        cause = _cause(verdict, kind)
        shares[cause] = shares.get(cause, 0) + tokens
    kind_ = verdict.cause
    if shares or kind_ is None or kind_ == "side_call" or verdict.result == "hit":
        return shares
    total, read = verdict.total or 0, verdict.billed or 0
    # After a compaction nothing is compared: what it did not read is written anew.
    most = total if kind_ == "compaction" and verdict.left is None else verdict.left or 0
    missed = min(most, total) - read
    return {_cause(verdict, kind_): missed} if missed > 0 else {}


def _cause(verdict: Verdict, kind: CauseKind) -> LossCause:
    if kind == "changed":
        code = "" if verdict.diagnosis is None else verdict.diagnosis.code
        section = code if verdict.change is None else verdict.change.section
        return "tools_changed" if section.startswith("tools") else "system_changed"
    return CAUSES[kind]
