"""Session files of Codex: `~/.codex/sessions/**/rollout-*.jsonl`.

Lines are `{timestamp, type, payload}`. `response_item` is an item of the conversation,
`turn_context` names the model, and an `event_msg` of type `token_count` follows each reply with its
bill, sometimes twice. After `compacted` another conversation begins. Instructions and tools are not
in the file.
"""

from __future__ import annotations

from typing import Any

import msgspec

from .format import (
    FoundTrace,
    Trace,
    TraceCall,
    TraceMessage,
    TraceUsage,
    count,
    reported_count,
    seconds,
)

_TYPES = ("session_meta", "response_item", "event_msg", "turn_context", "compacted")

#: Items that the model writes; their results come from elsewhere.
_MODEL_ITEMS = (
    "reasoning function_call custom_tool_call local_shell_call web_search_call"
    " image_generation_call tool_search_call"
).split()


def recognises(fields: dict[str, Any]) -> bool:
    return fields.get("type") in _TYPES and isinstance(fields.get("payload"), dict)


class _Conversation(msgspec.Struct):
    """The items since the session began, or was compacted."""

    place: str
    messages: list[TraceMessage] = []
    calls: list[TraceCall] = []
    model: str = ""
    _last_input: float | None = None
    _reply: int | None = None
    """Where the reply that is not billed yet begins."""
    _began: float | None = None

    def add(self, payload: dict[str, Any], at: float | None) -> None:
        from_model = payload.get("type") in _MODEL_ITEMS or payload.get("role") == "assistant"
        if from_model and self._reply is None:
            self._reply, self._began = len(self.messages), self._last_input
        if not from_model:
            self._last_input = at
        self.messages.append(_message(payload, from_model))

    def billed(self, usage: TraceUsage, model: str, at: float | None) -> None:
        self.model = self.model or model
        call = TraceCall(
            messages=len(self.messages) if self._reply is None else self._reply,
            t=self._last_input if self._reply is None else self._began,
            t_end=at,
            usage=usage,
            model=model if model != self.model else None,
        )
        self.calls.append(call)
        self._reply = None


class CodexSession:
    missing = "no token counts"

    def __init__(self) -> None:
        self.id = ""
        self.provider = "openai"
        self.model = ""
        self.conversations: list[_Conversation] = []
        self._totals: Any = None

    def read(self, place: str, fields: dict[str, Any]) -> None:
        payload, kind = fields.get("payload"), fields.get("type")
        if not isinstance(payload, dict):
            return
        at = seconds(fields.get("timestamp"))
        if kind == "session_meta":
            self.id = self.id or str(payload.get("id") or "")
            self.provider = str(payload.get("model_provider") or self.provider)
            self.model = str(payload.get("model") or self.model)
        elif kind == "turn_context":
            self.model = str(payload.get("model") or self.model)
        elif kind == "compacted":
            self._compacted(place, payload, at)
        elif kind == "response_item":
            self._current(place).add(payload, at)
        elif kind == "event_msg" and payload.get("type") == "token_count":
            self._count(place, payload, at)

    def traces(self, file: str) -> list[FoundTrace]:
        billed = [conversation for conversation in self.conversations if conversation.calls]
        return [
            FoundTrace(
                conversation.place,
                Trace(
                    id=f"{self.id or file}#{index}",
                    provider=self.provider,
                    model=conversation.model,
                    calls=tuple(conversation.calls),
                    messages=tuple(conversation.messages),
                    group=self.id or file,
                    source="codex",
                    system_tokens_unknown=True,
                ),
            )
            for index, conversation in enumerate(billed)
        ]

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
            after.add({"type": "message", "role": "user", "content": payload["message"]}, at)

    def _count(self, place: str, payload: dict[str, Any], at: float | None) -> None:
        info = payload.get("info")
        last = info.get("last_token_usage") if isinstance(info, dict) else None
        if not isinstance(info, dict) or not isinstance(last, dict):
            return
        totals = info.get("total_token_usage")
        if totals is not None and totals == self._totals:
            return  # repeated
        self._totals = totals
        usage = _usage(last)
        if usage is not None:
            self._current(place).billed(usage, self.model, at)


def _message(payload: dict[str, Any], from_model: bool) -> TraceMessage:
    kind = str(payload.get("type") or "message")
    if kind == "message":
        return TraceMessage(role=str(payload.get("role") or "user"), content=payload.get("content"))
    if not from_model:
        call_id = str(payload.get("call_id") or "")
        return TraceMessage(role="tool", content=payload.get("output"), tool_call_id=call_id)
    if kind == "reasoning":
        return TraceMessage(role="assistant", content=[payload])
    return TraceMessage(role="assistant", tool_calls=[payload])


def _usage(last: dict[str, Any]) -> TraceUsage | None:
    """The input includes what was read and written."""
    total, read = count(last, "input_tokens"), count(last, "cached_input_tokens")
    written = count(last, "cache_write_input_tokens")
    if read + written > total:
        raise ValueError(f"{read} read and {written} written of {total} input tokens")
    usage = TraceUsage(
        input=total - read - written,
        cache_read=read,
        cache_write_30m=written,
        output=count(last, "output_tokens"),
        reasoning=reported_count(last, "reasoning_output_tokens"),
    )
    return usage if total else None
