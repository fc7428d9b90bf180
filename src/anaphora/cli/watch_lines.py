"""Judged calls and their summary as lines for people, or as JSON lines for machines."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import msgspec

from anaphora.cache.verdict import Verdict, format_usd
from anaphora.cache.verdict.values import format_loss
from anaphora.traffic.calls import CallKind, JudgedCall
from anaphora.traffic.sums import WatchSummary
from anaphora.wording import counted, visible_json

from .log_files import unpriced_note
from .terminal import MISSED, RESULT_COLOURS, Line, Rows, detail_lines, one_line

#: How calls are counted that are not judged: one, and several.
_COUNTED: dict[CallKind, tuple[str, str]] = {
    "error": ("error", "errors"),
    "failed": ("without a complete answer", "without a complete answer"),
    "cancelled": ("cancelled", "cancelled"),
    "counts_tokens": ("counted tokens", "counted tokens"),
    "other": ("other request", "other requests"),
    "not_judged": ("not judged", "not judged"),
}


# ── One call ─────────────────────────────────────────────────────────────────────────────────────


def call_lines(call: JudgedCall) -> Iterator[Line]:
    """A call in a line; below it why something was not read."""
    clock = time.strftime("%H:%M:%S", time.localtime(call.at))
    start = f"#{call.number} {clock} "
    if call.verdict is None:
        yield _unjudged_line(start, call)
    else:
        yield _judged_line(start, call, call.verdict)
        if call.verdict.result in MISSED:
            sentence = one_line(call.verdict.describe(excerpts=False))
            yield f"    {sentence}", RESULT_COLOURS[call.verdict.result]
            yield from detail_lines(call.verdict)
        if call.reason:
            yield f"    no bill: {one_line(call.reason)}", "dim"
    for notice in call.notices:
        yield f"    {one_line(notice.message)}", "yellow"


def _judged_line(start: str, call: JudgedCall, verdict: Verdict) -> Line:
    usage = call.input_usage
    assert usage is not None
    total, read = usage.input or 0, usage.read or 0
    share = f" ({read / total:.0%})" if total else ""
    tokens = f"read {read:,} of {counted(total, 'token')}{share}"
    if call.predicted is not None:
        tokens += f", predicted: {'no bill' if call.usage is None else 'the bill has no reads'}"
    cost = "" if call.cost_usd is None else f", {format_usd(call.cost_usd)}"
    place = f"conversation {call.conversation}, turn {call.turn}"
    result = verdict.result.replace("_", " ")
    return [
        start,
        f"{one_line(call.model)} · {place} · ",
        (result, RESULT_COLOURS[verdict.result]),
        f" · {tokens}{cost}",
    ]


def _unjudged_line(start: str, call: JudgedCall) -> Line:
    what = one_line(call.model) or f"{call.method} {one_line(call.path)}"
    status = f" {call.status}" if call.status else ""
    style = "red" if call.kind in ("error", "failed") else "dim"
    kind = call.kind.replace("_", " ")
    reason = f": {one_line(call.reason)}" if call.reason else ""
    return [start, (f"{what} ·{status} {kind}{reason}", style)]


# ── The summary ──────────────────────────────────────────────────────────────────────────────────


def summary_lines(summary: WatchSummary) -> Iterator[Line]:
    judged, side = summary.judged, summary.side_calls
    yield _counts(summary), "bold"
    if summary.share_read is not None:
        share = f"{summary.share_read:.0%} of {counted(judged.reported, 'input token')}"
        yield f"{share} read from the cache"
    if judged.unreported:
        tokens = counted(judged.unreported, "input token")
        yield f"{tokens} in bills that do not say what was read, in no share", "dim"
    if summary.spent_usd is not None:
        yield _spent(summary)
    no_bill = judged.no_bill + side.no_bill
    if no_bill:
        calls = f"{counted(no_bill, 'call')} without a bill"
        yield f"{calls}: losses are predicted, and no other sum counts them", "yellow"
    if summary.unpriced:
        yield unpriced_note(summary.unpriced), "dim"
    if summary.lost:
        yield from _lost(summary)
    for call in summary.worst:
        verdict = call.verdict
        assert verdict is not None
        place = f"#{call.number} {one_line(call.model)}, conversation {call.conversation}"
        sentence = one_line(verdict.describe(excerpts=False))
        yield [f"  {place}, turn {call.turn}: ", (sentence, RESULT_COLOURS[verdict.result])]
        yield from detail_lines(verdict)
    if summary.savings.calls:
        yield str(summary.savings)


def _counts(summary: WatchSummary) -> str:
    if not summary.calls:
        return "no calls"
    parts = []
    if summary.judged.calls:
        conversations = counted(summary.conversations, "conversation")
        parts.append(f"{summary.judged.calls:,} in {conversations}")
    if summary.side_calls.calls:
        parts.append(counted(summary.side_calls.calls, "side call"))
    for kind, (one, several) in _COUNTED.items():
        if number := summary.kinds.get(kind, 0):
            parts.append(counted(number, one, several))
    return f"{counted(summary.calls, 'call')}: {', '.join(parts)}"


def _spent(summary: WatchSummary) -> str:
    assert summary.spent_usd is not None
    text = f"{format_usd(summary.spent_usd)} spent"
    if summary.side_calls.cost_usd:
        text += f", {format_usd(summary.side_calls.cost_usd)} of it by side calls"
    saved = summary.judged.saved_usd + summary.side_calls.saved_usd
    return f"{text}; the cache saved {format_usd(saved)}" if saved > 0 else text


def _lost(summary: WatchSummary) -> Iterator[Line]:
    tokens = counted(summary.lost, "token")
    were = "was" if summary.lost == 1 else "were"
    could = f"{tokens} could have been read and {were} not"
    yield f"{format_loss(summary.lost_usd)}: {could}", "red"
    rows = Rows(("  cause", "calls", "tokens", "cost"), right=("calls", "tokens", "cost"))
    for cause, losses in summary.losses.items():
        cost = "unknown" if losses.cost_usd is None else format_usd(losses.cost_usd)
        name = f"  {cause.replace('_', ' ')}"
        rows.add_row(name, f"{losses.calls:,}", f"{losses.tokens:,}", cost)
    yield rows


# ── JSON lines ───────────────────────────────────────────────────────────────────────────────────


def json_line(kind: str, fields: dict[str, Any]) -> str:
    return visible_json(msgspec.json.encode({"type": kind, **fields})).decode()


def summary_fields(summary: WatchSummary) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(summary)
    savings = summary.savings
    fields["savings"] |= {"saved_usd": str(savings.saved_usd), "share": savings.share}
    return fields | {"worst": [call.number for call in summary.worst]}
