"""Verdicts in words: the outcome of a call in an audit log, and why tokens were billed again."""

from __future__ import annotations

from anaphora.audit.envelope import AuditEnvelope
from anaphora.cache.verdict.advice import cause_name
from anaphora.wording import counted

_RESULTS = {
    "first": "First call: nothing cached yet.",
    "hit": "Read what was cached.",
    "partial": "Read a part of what was cached",
    "miss": "Read nothing of what was cached",
    "unknown": "Read less than was cached, and the recording does not show why.",
}


def sentence_of(call: AuditEnvelope) -> str:
    """The verdict or the error in words. A row has only codes and names, so it cannot contain text
    of a prompt."""
    if call.outcome != "ok":
        return _error(call)
    if call.verdict is None:
        return ""
    if call.verdict == "first" and call.changed:
        return f"Not cached: tools differ from the call before: {call.changed}."
    text = _RESULTS.get(call.verdict, call.verdict.replace("_", " ").capitalize())
    reason = _reason(call)
    if not call.lost and not call.broke:
        if call.verdict == "miss":
            text = f"Not cached: {reason}" if reason else "Not cached"
        return text if text.endswith(".") else f"{text}."
    paid = f"; {counted(call.lost, 'token')} billed again" if call.lost else ""
    return f"{text.removesuffix('.')}{f': {reason}' if reason else ''}{paid}."


def _reason(call: AuditEnvelope) -> str:
    if call.broke and call.changed:
        return f"{cause_name(call.change or 'block_changed')} in {call.changed}"
    return cause_name(call.cause) if call.cause else ""


def _error(call: AuditEnvelope) -> str:
    text = call.outcome if call.status is None else f"{call.outcome} (status {call.status})"
    if call.repeats != 1:
        text += f", {call.repeats:,} times within a minute"
    elif call.attempts > 1:
        text += f" after {counted(call.attempts, 'attempt')}"
    return f"{text}."
