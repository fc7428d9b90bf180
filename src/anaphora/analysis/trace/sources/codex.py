"""Session files of Codex: `~/.codex/sessions/**/rollout-*.jsonl`.

Lines are `{timestamp, type, payload}`. `response_item` is what was said, `turn_context` names the
model, and an `event_msg` of type `token_count` follows each answer with what it was billed; it may
come twice. After `compacted` another conversation begins. Instructions and tools are not in the
file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from anaphora.analysis.trace.form import Trace, TraceCall, TraceMessage, TraceUsage

from .lines import Entry, Line, Problem, Source, count, objects, seconds

_KINDS = ("session_meta", "response_item", "event_msg", "turn_context", "compacted")

#: Items that the model says; their results come from elsewhere.
_SPOKEN = (
    "reasoning",
    "function_call",
    "custom_tool_call",
    "local_shell_call",
    "web_search_call",
    "image_generation_call",
    "tool_search_call",
)


def recognises(one: dict[str, Any]) -> bool:
    return one.get("type") in _KINDS and isinstance(one.get("payload"), dict)


class _Conversation:
    """What has been said since the session began, or was compacted."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.messages: list[TraceMessage] = []
        self.calls: list[TraceCall] = []
        self.model = ""
        self._asked: float | None = None
        self._answer: int | None = None
        """Where the answer that is not billed yet begins."""
        self._began: float | None = None

    def item(self, payload: dict[str, Any], at: float | None) -> None:
        kind = payload.get("type")
        role = payload.get("role")
        spoken = kind in _SPOKEN or role == "assistant"
        if spoken and self._answer is None:
            self._answer, self._began = len(self.messages), self._asked
        if not spoken:
            self._asked = at
        self.messages.append(_message(payload, spoken))

    def billed(self, usage: TraceUsage, model: str, at: float | None) -> None:
        self.model = self.model or model
        sent = len(self.messages) if self._answer is None else self._answer
        call = TraceCall(
            messages=sent,
            t=self._asked if self._answer is None else self._began,
            t_end=at,
            usage=usage,
            model=model if model != self.model else None,
        )
        self.calls.append(call)
        self._answer = None


class _Reader:
    def __init__(self) -> None:
        self.session = ""
        self.provider = "openai"
        self.model = ""
        self.conversations: list[_Conversation] = []
        self._totals: Any = None

    def line(self, place: str, one: dict[str, Any]) -> None:
        payload = one.get("payload")
        if not isinstance(payload, dict):
            return
        at = seconds(one.get("timestamp"))
        kind = one.get("type")
        if kind == "session_meta":
            self.session = self.session or str(payload.get("id") or "")
            self.provider = str(payload.get("model_provider") or self.provider)
            self.model = str(payload.get("model") or self.model)
        elif kind == "turn_context":
            self.model = str(payload.get("model") or self.model)
        elif kind == "compacted":
            self._compacted(place, payload, at)
        elif kind == "response_item":
            self._current(place).item(payload, at)
        elif kind == "event_msg" and payload.get("type") == "token_count":
            self._count(place, payload, at)

    def _current(self, place: str) -> _Conversation:
        if not self.conversations:
            self.conversations.append(_Conversation(place))
        return self.conversations[-1]

    def _compacted(self, place: str, payload: dict[str, Any], at: float | None) -> None:
        after = _Conversation(place)
        self.conversations.append(after)
        history = payload.get("replacement_history")
        for item in history if isinstance(history, list) else ():
            if isinstance(item, dict):
                after.messages.append(_message(item, item.get("role") == "assistant"))
        if not after.messages and payload.get("message"):
            after.item({"type": "message", "role": "user", "content": payload["message"]}, at)

    def _count(self, place: str, payload: dict[str, Any], at: float | None) -> None:
        info = payload.get("info")
        last = info.get("last_token_usage") if isinstance(info, dict) else None
        if not isinstance(info, dict) or not isinstance(last, dict):
            return
        totals = info.get("total_token_usage")
        if totals is not None and totals == self._totals:
            return  # told again
        self._totals = totals
        usage = _usage(last)
        if usage is not None:
            self._current(place).billed(usage, self.model, at)


def read(lines: Iterator[Line]) -> Iterator[Entry]:
    reader = _Reader()
    file = ""
    for one in objects(lines):
        if isinstance(one, Problem):
            yield one
            continue
        place, line = one
        file = file or place.rpartition(":")[0]
        try:
            reader.line(place, line)
        except ValueError as problem:
            yield Problem(place, str(problem))
    told = [one for one in reader.conversations if one.calls]
    for index, conversation in enumerate(told):
        yield Source(
            conversation.place, _trace(conversation, reader, reader.session or file, index)
        )
    if file and not told:
        yield Problem(file, "no token counts in it")


def _trace(conversation: _Conversation, reader: _Reader, session: str, index: int) -> Trace:
    return Trace(
        id=f"{session}#{index}",
        provider=reader.provider,
        model=conversation.model,
        calls=tuple(conversation.calls),
        messages=tuple(conversation.messages),
        group=session,
        source="codex",
        system_tokens_unknown=True,
    )


def _message(payload: dict[str, Any], spoken: bool) -> TraceMessage:
    kind = str(payload.get("type") or "message")
    if kind == "message":
        return TraceMessage(role=str(payload.get("role") or "user"), content=payload.get("content"))
    if not spoken:
        return TraceMessage(
            role="tool",
            content=payload.get("output"),
            tool_call_id=str(payload.get("call_id") or ""),
        )
    if kind == "reasoning":
        return TraceMessage(role="assistant", content=[payload])
    return TraceMessage(role="assistant", tool_calls=[payload])


def _usage(last: dict[str, Any]) -> TraceUsage | None:
    """Its input holds what was read and written."""
    total, read = count(last, "input_tokens"), count(last, "cached_input_tokens")
    written = count(last, "cache_write_input_tokens")
    if read + written > total:
        raise ValueError(f"{read} read and {written} written of {total} input tokens")
    found = TraceUsage(
        input=total - read - written,
        cache_read=read,
        cache_write_30m=written,
        output=count(last, "output_tokens"),
    )
    return found if total else None
