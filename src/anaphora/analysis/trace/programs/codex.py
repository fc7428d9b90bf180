"""Session files of Codex: `~/.codex/sessions/**/rollout-*.jsonl`.

Lines are `{timestamp, type, payload}`. `response_item` is an item of the conversation,
`turn_context` names the model, and an `event_msg` of type `token_count` follows each reply with its
bill, sometimes twice. Newer versions also write a `token_usage_record` with the response's id, and
number the lines (`ordinal`). After `compacted` another conversation begins. A fork is a file of its
own whose `session_meta` names the other session: it repeats its lines with new times, or, with
`history_base`, has only new lines.
System prompt, instructions and tools are not read.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

import msgspec

from anaphora.analysis.trace.answers import answer_of, digest
from anaphora.analysis.trace.format import Trace, TraceCall, TraceMessage, TraceUsage
from anaphora.analysis.trace.log_lines import (
    Answer,
    FoundTrace,
    Problem,
    TraceEntry,
    count,
    reported_count,
    seconds,
)

from .recorded import usage_of

_LINE_TYPES = (
    "session_meta response_item event_msg turn_context compacted token_usage_record world_state"
).split()
#: Items that the model writes; their results come from elsewhere.
_MODEL_ITEMS = (
    "reasoning function_call custom_tool_call local_shell_call web_search_call"
    " image_generation_call tool_search_call"
).split()
#: Minimum length of a unique id of a tool call, or of an encrypted text.
_RANDOM = 16
#: The end of an encrypted text that identifies it.
_SECRET = 64

ItemId: TypeAlias = str
"""The type of an item, the id of its tool call, and the end of its encrypted text."""


class _Conversation(msgspec.Struct):
    """The items since the session began, or was compacted."""

    place: str
    began_by: Any = None
    messages: list[TraceMessage] = []
    calls: list[TraceCall] = []
    answers: list[Answer] = []
    model: str = ""
    _items: list[ItemId] = []
    """Items of the reply that is not billed yet."""
    _last_input: float | None = None
    _reply: int | None = None
    """Index of the first message of the reply that is not billed yet."""
    _began: float | None = None
    _item_at: float | None = None
    _ended: float | None = None
    """When its last item came, if its bill follows the results of its tools."""

    def add(self, payload: dict[str, Any], at: float | None) -> None:
        from_model = is_from_model(payload.get("type"), payload.get("role"))
        if from_model and self._reply is None:
            self._reply, self._began = len(self.messages), self._last_input
        if from_model:
            ids = (payload.get(name) for name in ("call_id", "encrypted_content"))
            self._items.append(item_id(payload.get("type"), *ids))
            self._item_at, self._ended = at, None
        else:
            self._last_input, self._ended = at, self._item_at
        self.messages.append(_message(payload, from_model))

    def sent(self, at: float | None) -> None:
        """The input of the next call was complete at this time."""
        self._last_input = at

    def billed(
        self,
        usage: TraceUsage,
        model: str,
        effort: str | None,
        at: float | None,
        answer: Callable[..., Answer],
    ) -> None:
        """`answer` makes the answer from the items that the model wrote."""
        self.model = self.model or model
        call = TraceCall(
            messages=len(self.messages) if self._reply is None else self._reply,
            t=self._last_input if self._reply is None else self._began,
            t_end=at if self._ended is None else self._ended,
            usage=usage,
            model=model if model != self.model else None,
            began_by=self.began_by,
            effort=effort,
        )
        self.calls.append(call)
        self.answers.append(answer(self._items))
        self._reply = self._item_at = self._ended = self.began_by = None
        self._items = []


def is_from_model(type: object, role: object) -> bool:
    return type in _MODEL_ITEMS or role == "assistant"


def item_id(type: object, call_id: object, encrypted: object) -> ItemId:
    """Identifies an item that a model wrote."""
    call = call_id if isinstance(call_id, str) else ""
    secret = encrypted[-_SECRET:] if isinstance(encrypted, str) else ""
    return f"{type} {call} {secret}"


def answer_with(
    usage: TraceUsage, totals: Any, at: float | None, items: list[ItemId], *, copied: bool
) -> Answer:
    """Identifies an answer. A copy has the ids of tool calls, the encrypted reasoning and all
    counts of the original, but not its time."""
    untimed = digest([*items, totals], msgspec.to_builtins(usage))
    if any(map(_is_random, items)):
        return Answer(untimed)
    return answer_of("", at, usage, [*items, totals])._replace(untimed=untimed, copied=copied)


def _is_random(item: ItemId) -> bool:
    """Whether an item has a unique id. Some providers only number tool calls."""
    _, *texts = item.split(" ")
    return any(len(text) >= _RANDOM and ":" not in text and "." not in text for text in texts)


class CodexSession:
    missing = "no token counts"

    @staticmethod
    def recognises(fields: dict[str, Any]) -> bool:
        return fields.get("type") in _LINE_TYPES and isinstance(fields.get("payload"), dict)

    def __init__(self) -> None:
        self.id = ""
        self.provider = "openai"
        self.model = ""
        self._effort: str | None = None
        self.conversations: list[_Conversation] = []
        self._copied = False
        """The file begins with the lines of another session."""
        self._totals: Any = None
        self._records = False
        """The bills are `token_usage_record`s, which have ids."""
        self._lines: list[tuple[float, str, dict[str, Any]]] = []
        """With the number or the time of each, or of the one before it."""
        self._ordinals: set[int] = set()
        self._results: set[str] = set()
        """Tool calls whose results came before them."""
        self._called: set[str] = set()
        self._in_order = True

    def read(self, place: str, fields: dict[str, Any]) -> None:
        payload, kind = fields.get("payload"), fields.get("type")
        if not isinstance(payload, dict):
            return
        at = seconds(fields.get("timestamp"))
        time = at if at is not None else self._lines[-1][0] if self._lines else 0.0
        self._check_order(fields.get("ordinal"), payload, time)
        self._lines.append((time, place, fields))
        if kind == "session_meta":
            self._meta(payload)
        elif kind == "turn_context":
            self.model = str(payload.get("model") or self.model)
            effort = payload.get("effort")
            self._effort = effort if isinstance(effort, str) else None
        elif kind == "compacted":
            self._compacted(place, payload, at)
        elif kind == "response_item":
            self._current(place).add(payload, at)
        elif kind == "token_usage_record":
            self._record(place, payload, at)
        elif kind == "event_msg" and payload.get("type") == "token_count":
            self._count(place, payload, at)

    def traces(self, file: str) -> list[TraceEntry]:
        if self._in_order:
            return self._found(file)
        ordered = CodexSession()
        numbered = len(self._ordinals) == len(self._lines)
        lines = sorted(self._lines, key=lambda line: line[2]["ordinal"] if numbered else line[0])
        for _, place, fields in lines:
            with suppress(ValueError):  # problems were reported at the first reading
                ordered.read(place, fields)
        by = "numbers" if numbered else "times"
        return [
            Problem(file, f"lines out of order: put in order of their {by}", "notice"),
            *ordered._found(file),
        ]

    def _found(self, file: str) -> list[TraceEntry]:
        billed = [conversation for conversation in self.conversations if conversation.calls]
        found: list[TraceEntry] = []
        for index, conversation in enumerate(billed):
            trace = Trace(
                id=f"{self.id or file}#{index}",
                provider=self.provider,
                model=conversation.model,
                calls=tuple(conversation.calls),
                messages=tuple(conversation.messages),
                group=self.id or file,
                source="codex",
                system_tokens_unknown=True,
            )
            found.append(FoundTrace(conversation.place, trace, tuple(conversation.answers)))
        return found

    def _check_order(self, ordinal: object, payload: dict[str, Any], time: float) -> None:
        """Checks the order by line numbers. Without them, a tool's result before its call, with a
        later time, shows that lines were moved; a clock that stepped back does not change the
        order."""
        if isinstance(ordinal, int) and ordinal not in self._ordinals:
            before = self._lines[-1][2].get("ordinal") if self._lines else None
            self._ordinals.add(ordinal)
            if isinstance(before, int) and ordinal < before:
                self._in_order = False
        id = payload.get("call_id")
        if not isinstance(id, str):
            return
        if payload.get("type") in _MODEL_ITEMS:
            self._called.add(id)
            if id in self._results and self._lines and time < self._lines[-1][0]:
                self._in_order = False
        elif id not in self._called:
            self._results.add(id)

    def _meta(self, payload: dict[str, Any]) -> None:
        id = str(payload.get("id") or "")
        self._copied |= bool(payload.get("forked_from_id")) or self.id not in ("", id)
        if isinstance(payload.get("history_base"), dict):
            self._current("").began_by = "fork"
        self.id = self.id or id
        self.provider = str(payload.get("model_provider") or self.provider)
        self.model = str(payload.get("model") or self.model)

    def _current(self, place: str) -> _Conversation:
        if not self.conversations:
            self.conversations.append(_Conversation(place))
        return self.conversations[-1]

    def _compacted(self, place: str, payload: dict[str, Any], at: float | None) -> None:
        after = _Conversation(place, "compaction")
        after.sent(at)
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
        if self._records or (totals is not None and totals == self._totals):
            return  # repeated
        self._totals = totals
        usage = usage_from(last)
        if usage is not None:
            answer = partial(answer_with, usage, totals, at, copied=self._copied)
            self._bill(place, usage, at, answer)

    def _record(self, place: str, payload: dict[str, Any], at: float | None) -> None:
        self._records = True
        billed, id = payload.get("usage"), payload.get("response_id")
        usage = usage_from(billed) if isinstance(billed, dict) else None
        if usage is not None:
            self._bill(place, usage, at, partial(answer_of, id, at, usage))

    def _bill(
        self, place: str, usage: TraceUsage, at: float | None, answer: Callable[..., Answer]
    ) -> None:
        conversation = self._current(place)
        conversation.place = conversation.place or place
        conversation.billed(usage, self.model, self._effort, at, answer)


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


def usage_from(last: dict[str, Any]) -> TraceUsage | None:
    """The input includes reads and writes."""
    read, written = count(last, "cached_input_tokens"), count(last, "cache_write_input_tokens")
    return usage_of(
        "openai",
        uncached=count(last, "input_tokens") - read - written,
        read=read,
        written=written,
        output=count(last, "output_tokens"),
        reasoning=reported_count(last, "reasoning_output_tokens"),
    )
