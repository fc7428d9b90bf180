"""Session files of Codex and Gemini CLI, whose lines are one conversation after the other. System
prompt, instructions and tools are not in them.

Codex, `~/.codex/sessions/**/rollout-*.jsonl`: lines are `{timestamp, type, payload}`.
`response_item` is an item of the conversation, `turn_context` names the model, and an `event_msg`
of type `token_count` follows each reply with its bill, sometimes twice. After `compacted` another
conversation begins.

Gemini CLI, `~/.gemini/tmp/<project>/chats/session-*.json` and `.jsonl`: the older form is one
object with all messages. The newer one has a line with the session's data and then a line for each
message, which is repeated when its tokens or tool calls are added; `{"$rewindTo": id}` removes that
message and all after it, `{"$set": {"messages": …}}` replaces the history. A `gemini` message with
`tokens` is a call. Its tool calls hold their results, which the next call sends.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from anaphora.wording import counted

from .format import Trace, TraceCall, TraceMessage, TraceUsage
from .log_lines import BranchBudget, FoundTrace, Problem, TraceEntry, count, reported_count, seconds

# ── Codex ────────────────────────────────────────────────────────────────────────────────────────

_LINE_TYPES = ("session_meta", "response_item", "event_msg", "turn_context", "compacted")
#: Items that the model writes; their results come from elsewhere.
_MODEL_ITEMS = (
    "reasoning function_call custom_tool_call local_shell_call web_search_call"
    " image_generation_call tool_search_call"
).split()


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

    @staticmethod
    def recognises(fields: dict[str, Any]) -> bool:
        return fields.get("type") in _LINE_TYPES and isinstance(fields.get("payload"), dict)

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
        usage = _codex_usage(last)
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


def _codex_usage(last: dict[str, Any]) -> TraceUsage | None:
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


# ── Gemini CLI ───────────────────────────────────────────────────────────────────────────────────

#: Messages of the conversation; others (info, error, warning) are only shown to the user.
_MESSAGE_TYPES = ("user", "gemini")


class _Record(msgspec.Struct, frozen=True):
    """A message of the file, read once for all conversations that contain it."""

    from_model: bool
    model: str
    usage: TraceUsage | None
    at: float | None
    complete: float | None
    """When it and the results of its tools were there."""
    messages: tuple[TraceMessage, ...]
    answered: tuple[str, ...]
    """The tool calls whose results it contains."""


class GeminiCliSession:
    missing = "no reply with token counts"

    @staticmethod
    def recognises(fields: dict[str, Any]) -> bool:
        return "sessionId" in fields and "projectHash" in fields

    def __init__(self) -> None:
        self.id = ""
        self._history: dict[str, _Record] = {}
        """The messages by id, in order."""
        self._places: dict[str, str] = {}
        self._taken: set[str] = set()
        """Replies that are calls of a conversation already."""
        self._found: list[FoundTrace] = []
        self._unbilled: set[str] = set()
        self._unnamed = 0
        self._branches = BranchBudget()
        self._has_new = False
        """Whether the messages may have a call that no conversation has."""

    def read(self, place: str, fields: dict[str, Any]) -> Problem | None:
        self.id = self.id or str(fields.get("sessionId") or "")
        update = fields.get("$set")
        history = update if isinstance(update, dict) else fields
        if "$rewindTo" in fields:
            self._rewind(fields["$rewindTo"])
        elif isinstance(history.get("messages"), list):
            return self._replace(place, history["messages"])
        elif fields.get("type") in _MESSAGE_TYPES:
            self._add(place, fields, self._history)
        return None

    def traces(self, file: str) -> list[TraceEntry]:
        self._close(file)
        found: list[TraceEntry] = [*self._found, *self._branches.problems(file)]
        if self._found and self._unbilled:
            reason = f"{counted(len(self._unbilled), 'reply', 'replies')} without token counts"
            found.append(Problem(file, reason, "not_compared"))
        return found

    def _add(self, place: str, message: dict[str, Any], history: dict[str, _Record]) -> None:
        record = _record(message)  # raises for an invalid one
        self._unnamed += "id" not in message
        id = str(message["id"]) if "id" in message else f"#{self._unnamed}"
        history[id] = record
        self._has_new |= record.usage is not None and id not in self._taken
        self._branches.add(1)
        if record.from_model:
            (self._unbilled.add if record.usage is None else self._unbilled.discard)(id)
        self._places.setdefault(id, place)

    def _replace(self, place: str, messages: list[Any]) -> Problem | None:
        """All messages at once: the older form, or a history that was edited."""
        history: dict[str, _Record] = {}
        problem = None
        for index, message in enumerate(messages):
            try:
                if not isinstance(message, dict):
                    raise ValueError("is not an object")
                if message.get("type") in _MESSAGE_TYPES:
                    self._add(place, message, history)
            except ValueError as error:
                problem = Problem(place, f"messages[{index}]: {error}")
        changed = (
            id not in history or history[id].messages != record.messages
            for id, record in self._history.items()
        )
        if any(changed):
            self._close_branch()
            self._has_new = True
        self._history = history
        return problem

    def _rewind(self, id: object) -> None:
        """Without the message and all after it; without any, where it is not known."""
        self._close_branch()
        while self._history:
            last, _ = self._history.popitem()
            if last == id:
                return

    def _close_branch(self) -> None:
        """The messages so far are a conversation, before some are removed."""
        if self._has_new and self._branches.take(len(self._history)):
            self._has_new = False
            self._close("")

    def _close(self, file: str) -> None:
        """The messages so far are a conversation, with the calls that no earlier one has."""
        messages: list[TraceMessage] = []
        calls: list[tuple[str, TraceCall]] = []
        model = ""
        sent: float | None = None
        """When the newest message was complete."""
        answered = {id for record in self._history.values() for id in record.answered}
        for id, record in self._history.items():
            usage, at = record.usage, record.at
            if record.from_model and usage is not None and id not in self._taken:
                began = None if sent is None or at is None or sent > at else sent
                model = model or record.model
                call = TraceCall(
                    messages=len(messages),
                    t=began,
                    t_end=at,
                    usage=usage,
                    model=record.model if record.model != model else None,
                )
                calls.append((id, call))
            # A result that is a message of its own is sent once.
            messages += (one for one in record.messages if one.tool_call_id not in answered)
            sent = sent if record.complete is None else record.complete
        if not calls:
            return
        self._taken.update(id for id, _ in calls)
        trace = Trace(
            id=f"{self.id or file}#{len(self._found)}",
            provider="google",
            model=model,
            calls=tuple(call for _, call in calls),
            messages=tuple(messages),
            group=self.id or file,
            source="gemini_cli",
            system_tokens_unknown=True,
        )
        self._found.append(FoundTrace(self._places[calls[0][0]], trace))


def _record(message: dict[str, Any]) -> _Record:
    at = seconds(message.get("timestamp"))
    moments = (at, *(seconds(one.get("timestamp")) for one in _tool_calls(message)))
    from_model = message["type"] != "user"
    return _Record(
        from_model=from_model,
        model=str(message.get("model") or ""),
        usage=_gemini_usage(message.get("tokens")),
        at=at,
        complete=max((one for one in moments if one is not None), default=None),
        messages=tuple(_messages(message)),
        answered=tuple(
            str(part["functionResponse"].get("id") or "")
            for part in (() if from_model else _parts(message.get("content")))
            if isinstance(part.get("functionResponse"), dict)
        ),
    )


def _messages(message: dict[str, Any]) -> Iterator[TraceMessage]:
    """The messages that a record stands for: its own content, and the results of its tools."""
    parts = _parts(message.get("content"))
    if message["type"] == "user":
        results = any("functionResponse" in part for part in parts)
        yield TraceMessage(role="tool" if results else "user", content=parts)
        return
    calls = _tool_calls(message)
    content = [part for part in parts if not ("functionCall" in part and calls)]
    called = [
        {"id": call.get("id"), "name": call.get("name"), "args": call.get("args")} for call in calls
    ]
    yield TraceMessage(role="assistant", content=content, tool_calls=called or None)
    for call in calls:
        id = str(call.get("id") or "")
        if call.get("result") is not None:
            yield TraceMessage(role="tool", content=_parts(call["result"]), tool_call_id=id)


def _parts(content: Any) -> list[dict[str, Any]]:
    """The parts of a content, which may be one part, or a text."""
    several = content if isinstance(content, list) else [content]
    texts = ({"text": part} if isinstance(part, str) else part for part in several)
    return [part for part in texts if isinstance(part, dict) and part != {"text": ""}]


def _tool_calls(message: dict[str, Any]) -> list[dict[str, Any]]:
    calls = message.get("toolCalls")
    return [one for one in calls if isinstance(one, dict)] if isinstance(calls, list) else []


def _gemini_usage(tokens: object) -> TraceUsage | None:
    """The input includes what was read; tool prompts and thoughts are counted beside it."""
    if not isinstance(tokens, dict):
        return None
    total, read = count(tokens, "input") + count(tokens, "tool"), count(tokens, "cached")
    if read > total:
        raise ValueError(f"{read} cached of {total} input tokens")
    output = count(tokens, "output") + count(tokens, "thoughts")
    return TraceUsage(input=total - read, cache_read=read, output=output) if total else None
