"""Texts and JSON of `anaphora ask`: the answer's summary, errors, previews, the list."""

from __future__ import annotations

import datetime
from typing import Any

from anaphora.cache.verdict import format_usd
from anaphora.client.session.preview import Preview
from anaphora.errors import (
    AnaphoraError,
    ContentRefused,
    ContextOverflow,
    Forbidden,
    InvalidConfig,
    InvalidRequest,
    MissingSecret,
    NotFound,
    Overloaded,
    Parse,
    QuotaExhausted,
    RateLimited,
    Timeout,
    TooLarge,
    Transport,
    Unauthenticated,
    Upstream,
)
from anaphora.values import Notice

from . import ask_store
from .ask_chat import AskResult, one_line
from .ask_provider import ProviderChoice
from .ask_store import StoredConversation
from .common import FOUND, MISMATCH, UNMET, USAGE

_EARLY_STOPS = {
    "length": "cut off at the output limit; raise it with --max-tokens",
    "refusal": "the model refused to answer",
    "turns": "stopped at --max-turns; resume with `anaphora ask --continue {id}`",
}
#: Characters of a question in the list, and of a provider's error message.
_QUESTION, _ERROR = 60, 500

_ADVICE: tuple[tuple[type[AnaphoraError], str], ...] = (
    (Unauthenticated, "check the key ({keys})"),
    (Forbidden, "the key ({keys}) lacks the permission"),
    (QuotaExhausted, "check the account's limits, or use another provider with -p"),
    (RateLimited, "wait a moment, or use another provider with -p"),
    (Overloaded, "try again in a moment, or use another provider with -p"),
    (NotFound, "choose another model with -m; `anaphora models` lists the known ones"),
    (ContextOverflow, "send less: fewer files, or a new conversation"),
    (TooLarge, "send less: fewer or smaller files, or a new conversation"),
    (ContentRefused, "rephrase it, or use another provider with -p"),
    (Transport, "check that {hosts} is the right address and can be reached"),
    (Timeout, "raise `timeouts` in llm.yaml, or ask for a shorter answer"),
)  # fmt: skip

_COUNTS = {
    "input": "input",
    "uncached": "uncached",
    "read": "read",
    "written": "written_total",
    "output": "output",
    "reasoning": "reasoning",
}


# ── The result ───────────────────────────────────────────────────────────────────────────────────


def summary_line(result: AskResult, stored: StoredConversation | None) -> str:
    """anthropic/claude-sonnet-5-5 · Hit: 2,847 of 2,920 tokens read, saved $0.0076. · $0.0019"""
    last = result.last
    parts = [f"{last.record.provider}/{last.record.model}", str(last.verdict or "no verdict")]
    if result.run.turns > 1:
        parts.append(f"{result.run.turns} turns")
    cost = result.run.cost_usd
    parts.append("price unknown" if cost is None else format_usd(cost))
    if stored is not None and result.stored:
        parts.append(stored.id)
    return " · ".join(parts)


def early_stop(result: AskResult, stored: StoredConversation | None) -> str | None:
    """Why the answer is incomplete, and what to do about it."""
    reason = result.run.stop_reason
    text = _EARLY_STOPS.get(reason if reason in _EARLY_STOPS else result.last.reply.stop_reason)
    return None if text is None else text.format(id="ID" if stored is None else stored.id)


def notices(result: AskResult) -> list[str]:
    """Each notice once."""
    return list(dict.fromkeys(f"note: {notice} [{notice.code}]" for notice in _notices(result)))


def _notices(result: AskResult) -> list[Notice]:
    own = [notice for response in result.run.responses for notice in response.notices]
    return [*own, *result.run.failures]


def result_fields(
    result: AskResult, stored: StoredConversation | None, *, schema: bool
) -> dict[str, Any]:
    """The object of --json: the sums of all turns, and the verdict of the last."""
    responses, last = result.run.responses, result.last
    verdict = last.verdict
    fields: dict[str, Any] = {"answer": last.text}
    if schema:
        fields["parsed"] = last.parsed
    return fields | {
        "stop": last.reply.stop_reason,
        "stop_reason": result.run.stop_reason,
        "provider": last.record.provider,
        "model": last.record.model,
        "served_model": last.reply.model,
        "turns": result.run.turns,
        "tools": [
            {"name": call.name, "arguments": call.arguments}
            for response in responses
            for call in response.tool_calls
        ],
        "usage": {name: _total(result, attribute) for name, attribute in _COUNTS.items()},
        "verdict": None
        if verdict is None
        else {"result": verdict.result, "sentence": str(verdict)},
        "cost_usd": result.run.cost_usd,
        "attempts": [attempt for response in responses for attempt in response.attempts],
        "notices": _notices(result),
        "conversation": stored.id if stored is not None and result.stored else None,
    }


def _total(result: AskResult, attribute: str) -> int | None:
    """The sum of a usage count; None when it was never reported."""
    counts = [getattr(response.usage, attribute) for response in result.run.responses]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def preview_lines(preview: Preview) -> list[str]:
    lines = [f"{preview.provider}/{preview.model}: {preview.size:,} bytes", str(preview)]
    if preview.cost_usd is None:
        lines.append("the price is unknown")
    elif preview.uncached_cost_usd is not None:
        lines.append(f"{format_usd(preview.uncached_cost_usd)} if nothing were cached")
    lines += [f"marker: {marker}" for marker in preview.markers]
    lines += [f"note: {notice} [{notice.code}]" for notice in preview.notices]
    return [*lines, "Nothing was sent."]


# ── Errors ───────────────────────────────────────────────────────────────────────────────────────


def error_line(problem: AnaphoraError, choice: ProviderChoice) -> str:
    """Provider, problem, attempts and advice in one line, without any key."""
    line = one_line(str(problem), _ERROR)
    if isinstance(problem, Upstream | Transport | Timeout):
        provider = problem.attempts[-1].provider if problem.attempts else choice.name
        status = getattr(problem, "status", None)
        line = f"{provider}: {line}" + (f" ({status})" if status else "")
        if len(problem.attempts) > 1:
            line += f", after {len(problem.attempts)} attempts"
    advice = next((text for kind, text in _ADVICE if isinstance(problem, kind)), "")
    if advice:
        keys = ", ".join(str(one.provider.key or "none") for one in choice.providers.values())
        hosts = ", ".join(one.base_url for one in choice.providers.values())
        line = f"{line.rstrip('.')}; {advice.format(keys=keys, hosts=hosts)}"
    return without_secrets(line, choice)


def without_secrets(text: str, choice: ProviderChoice) -> str:
    for secret in choice.secrets:
        text = text.replace(secret, "<secret>")
    return text


def exit_code(problem: AnaphoraError, *, schema: bool) -> int:
    if isinstance(problem, MissingSecret | Unauthenticated):
        return UNMET
    if isinstance(problem, InvalidRequest | InvalidConfig):
        return USAGE
    return MISMATCH if schema and isinstance(problem, Parse) else FOUND


# ── Stored conversations ─────────────────────────────────────────────────────────────────────────


def listing() -> list[dict[str, Any]]:
    """All conversations, the newest first."""
    return [
        {
            "id": stored.id,
            "at": datetime.datetime.fromtimestamp(stored.path.stat().st_mtime).astimezone(),
            "provider": stored.settings and stored.settings.provider,
            "model": stored.settings and stored.settings.model,
            "emulated": stored.settings is not None and stored.settings.emulated,
            "messages": len(stored.messages),
            "question": _question(stored),
            "readable": stored.settings is not None,
        }
        for stored in ask_store.every()
    ]


def _question(stored: StoredConversation) -> str:
    """The first question: attached files come before it in the message."""
    for message in stored.messages:
        if message.role == "user":
            texts = [part.text for part in message.parts if hasattr(part, "text")]
            return one_line(texts[-1], _QUESTION) if texts else ""
    return ""
