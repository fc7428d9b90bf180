"""What is told of an answer: a dim line for people, an object for machines; and the list of
conversations."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import Any

import msgspec

from anaphora.cache.verdict import format_usd
from anaphora.client.response import Response
from anaphora.client.session.preview import Preview
from anaphora.values import Notice

from .conversations import Kept
from .talking import Outcome
from .voice import one_line

#: What a bound or an early end means, and what to do about it.
_STOPS = {
    "length": "cut off at max_tokens: --max-tokens allows more",
    "refusal": "the model declined",
    "turns": "stopped at --max-turns: `anaphora ask --continue {id}` goes on",
}
_QUESTION = 60


def line(outcome: Outcome, kept: Kept | None) -> str:
    """anthropic/claude-sonnet-5-5 · Hit: 2,847 of 2,920 tokens read, saved $0.0076. · $0.0019"""
    last = outcome.last
    said = [f"{last.record.provider}/{last.record.model}", str(last.verdict or "no verdict")]
    if len(outcome.answers) > 1:
        said.append(f"{len(outcome.answers)} turns")
    said.append("price unknown" if outcome.cost_usd is None else format_usd(outcome.cost_usd))
    if kept is not None and outcome.kept:
        said.append(kept.id)
    return " · ".join(said)


def ended(outcome: Outcome, kept: Kept | None) -> str | None:
    """What to say of an answer that ended early."""
    reason = outcome.stop_reason if outcome.stop_reason in _STOPS else outcome.last.reply.stop
    said = _STOPS.get(reason)
    return None if said is None else said.format(id="ID" if kept is None else kept.id)


def notices(outcome: Outcome) -> list[str]:
    """Each once, however many turns have it."""
    return list(dict.fromkeys(f"note: {notice} [{notice.code}]" for notice in _every(outcome)))


def _every(outcome: Outcome) -> list[Notice]:
    found = [notice for answered in outcome.answers for notice in answered.notices]
    return [*found, *outcome.failures]


def told(outcome: Outcome, kept: Kept | None, *, schema: bool) -> dict[str, Any]:
    """Everything, for machines: of several turns, their sums, and the verdict of the last."""
    answers, last = outcome.answers, outcome.last
    verdict = last.verdict
    said: dict[str, Any] = {"answer": last.text}
    if schema:
        said["parsed"] = last.parsed
    return said | {
        "stop": last.reply.stop,
        "stop_reason": outcome.stop_reason,
        "provider": last.record.provider,
        "model": last.record.model,
        "answered_by": last.reply.model,
        "turns": len(answers),
        "tools": [
            {"name": call.name, "arguments": call.arguments}
            for answered in answers
            for call in answered.tool_calls
        ],
        "usage": _usage(answers),
        "verdict": None if verdict is None else {"result": verdict.result, "said": str(verdict)},
        "cost_usd": outcome.cost_usd,
        "attempts": [attempt for answered in answers for attempt in answered.attempts],
        "notices": _every(outcome),
        "conversation": kept.id if kept is not None and outcome.kept else None,
    }


def preview_lines(preview: Preview) -> list[str]:
    said = [f"{preview.provider}/{preview.model}: {preview.size:,} bytes", str(preview)]
    if preview.cost_usd is None:
        said.append("the price is unknown")
    elif preview.uncached_cost_usd is not None:
        said.append(f"{format_usd(preview.uncached_cost_usd)} if nothing were cached")
    said += [f"marker: {marker}" for marker in preview.markers]
    said += [f"note: {notice} [{notice.code}]" for notice in preview.notices]
    return [*said, "Nothing was sent."]


def listing(found: Iterable[Kept]) -> list[dict[str, Any]]:
    """All conversations, the newest first."""
    return [
        {
            "id": kept.id,
            "at": datetime.datetime.fromtimestamp(kept.path.stat().st_mtime).astimezone(),
            "provider": kept.settings and kept.settings.provider,
            "model": kept.settings and kept.settings.model,
            "emulated": kept.settings is not None and kept.settings.emulated,
            "messages": len(kept.messages),
            "question": _question(kept),
            "readable": kept.settings is not None,
        }
        for kept in found
    ]


def _question(kept: Kept) -> str:
    """What it began with. Files come before the question, so it is the last of the parts."""
    for message in kept.messages:
        if message.role == "user":
            texts = [part.text for part in message.parts if hasattr(part, "text")]
            return one_line(texts[-1], _QUESTION) if texts else ""
    return ""


def _usage(answers: tuple[Response, ...]) -> dict[str, int | None]:
    """Sums; what nobody reported is None."""

    def total(of: str) -> int | None:
        known = [n for one in answers if (n := getattr(one.usage, of)) is not None]
        return sum(known) if known else None

    return {name: total(attribute) for name, attribute in _COUNTS.items()}


_COUNTS = {
    "input": "input",
    "uncached": "uncached",
    "read": "read",
    "written": "written_total",
    "output": "output",
    "reasoning": "reasoning",
}


def as_json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
