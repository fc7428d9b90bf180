"""Session files of Gemini CLI: `~/.gemini/tmp/<project>/chats/session-*.json` and `.jsonl`.

The older form is one object with all messages. The newer one has a line with the session's data and
then a line for each message, which is repeated when its tokens or tool calls are added;
`{"$rewindTo": id}` removes that message and all after it, `{"$set": {"messages": …}}` replaces the
history. A `gemini` message with `tokens` is a call. Its tool calls hold their results, which the
next call sends. System prompt and tools are not in the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from anaphora.wording import counted

from .format import (
    FoundTrace,
    Problem,
    Trace,
    TraceCall,
    TraceEntry,
    TraceMessage,
    TraceUsage,
    count,
    seconds,
)

#: Messages of the conversation; others (info, error, warning) are only shown to the user.
_TYPES = ("user", "gemini")


def recognises(fields: dict[str, Any]) -> bool:
    return "sessionId" in fields and "projectHash" in fields


class GeminiCliSession:
    missing = "no reply with token counts"

    def __init__(self) -> None:
        self.id = ""
        self._history: dict[str, dict[str, Any]] = {}
        """The messages by id, in order."""
        self._places: dict[str, str] = {}
        self._taken: set[str] = set()
        """Replies that are calls of a conversation already."""
        self._found: list[FoundTrace] = []
        self._unbilled: set[str] = set()
        self._unnamed = 0

    def read(self, place: str, fields: dict[str, Any]) -> Problem | None:
        self.id = self.id or str(fields.get("sessionId") or "")
        update = fields.get("$set")
        history = update if isinstance(update, dict) else fields
        if "$rewindTo" in fields:
            self._rewind(fields["$rewindTo"])
        elif isinstance(history.get("messages"), list):
            return self._replace(place, history["messages"])
        elif fields.get("type") in _TYPES:
            self._add(place, fields, self._history)
        return None

    def traces(self, file: str) -> list[TraceEntry]:
        self._close(file)
        if not self._found or not self._unbilled:
            return [*self._found]
        reason = f"{counted(len(self._unbilled), 'reply', 'replies')} without token counts"
        return [*self._found, Problem(file, reason, "not_compared")]

    def _add(self, place: str, message: dict[str, Any], history: dict[str, dict[str, Any]]) -> None:
        usage = _usage(message.get("tokens"))  # raises for an invalid one
        self._unnamed += "id" not in message
        id = str(message["id"]) if "id" in message else f"#{self._unnamed}"
        history[id] = message
        if message["type"] != "user":
            (self._unbilled.add if usage is None else self._unbilled.discard)(id)
        self._places.setdefault(id, place)

    def _replace(self, place: str, messages: list[Any]) -> Problem | None:
        """All messages at once: the older form, or a history that was edited."""
        history: dict[str, dict[str, Any]] = {}
        problem = None
        for index, message in enumerate(messages):
            try:
                if not isinstance(message, dict):
                    raise ValueError("is not an object")
                if message.get("type") in _TYPES:
                    self._add(place, message, history)
            except ValueError as error:
                problem = Problem(place, f"messages[{index}]: {error}")
        kept = [id for id, one in self._history.items() if _same(one, history.get(id))]
        if len(kept) < len(self._history):
            self._close("")
        self._history = history
        return problem

    def _rewind(self, id: object) -> None:
        """Without the message and all after it; without any, where it is not known."""
        self._close("")
        while self._history:
            last, _ = self._history.popitem()
            if last == id:
                return

    def _close(self, file: str) -> None:
        """The messages so far are a conversation, with the calls that no earlier one has."""
        messages: list[TraceMessage] = []
        calls: list[tuple[str, TraceCall]] = []
        model = ""
        sent: float | None = None
        """When the newest message was complete."""
        answered = set(_answered(self._history.values()))
        for id, message in self._history.items():
            usage, at = _usage(message.get("tokens")), seconds(message.get("timestamp"))
            if message["type"] != "user" and usage is not None and id not in self._taken:
                began = None if sent is None or at is None or sent > at else sent
                name = str(message.get("model") or "")
                model = model or name
                call = TraceCall(
                    messages=len(messages),
                    t=began,
                    t_end=at,
                    usage=usage,
                    model=name if name != model else None,
                )
                calls.append((id, call))
            messages += _messages(message, answered)
            tools = [seconds(one.get("timestamp")) for one in _tool_calls(message)]
            sent = max((one for one in (at, *tools) if one is not None), default=sent)
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


def _same(one: dict[str, Any], other: dict[str, Any] | None) -> bool:
    if other is None:
        return False
    return [*_messages(one, set())] == [*_messages(other, set())]


def _answered(messages: Any) -> Iterator[str]:
    """The tool calls whose results are messages of their own."""
    for message in messages:
        if message["type"] == "user":
            for part in _parts(message.get("content")):
                if isinstance(part.get("functionResponse"), dict):
                    yield str(part["functionResponse"].get("id") or "")


def _messages(message: dict[str, Any], answered: set[str]) -> Iterator[TraceMessage]:
    """The messages that a record stands for: what was said, and the results of its tools."""
    parts = _parts(message.get("content"))
    if message["type"] == "user":
        results = any("functionResponse" in part for part in parts)
        yield TraceMessage(role="tool" if results else "user", content=parts)
        return
    calls = _tool_calls(message)
    said = [part for part in parts if not ("functionCall" in part and calls)]
    called = [
        {"id": call.get("id"), "name": call.get("name"), "args": call.get("args")} for call in calls
    ]
    yield TraceMessage(role="assistant", content=said, tool_calls=called or None)
    for call in calls:
        id = str(call.get("id") or "")
        if call.get("result") is not None and id not in answered:
            yield TraceMessage(role="tool", content=_parts(call["result"]), tool_call_id=id)


def _parts(content: Any) -> list[dict[str, Any]]:
    """The parts of a content, which may be one part, or a text."""
    several = content if isinstance(content, list) else [content]
    texts = ({"text": part} if isinstance(part, str) else part for part in several)
    return [part for part in texts if isinstance(part, dict) and part != {"text": ""}]


def _tool_calls(message: dict[str, Any]) -> list[dict[str, Any]]:
    calls = message.get("toolCalls")
    return [one for one in calls if isinstance(one, dict)] if isinstance(calls, list) else []


def _usage(tokens: object) -> TraceUsage | None:
    """The input includes what was read; tool prompts and thoughts are counted beside it."""
    if not isinstance(tokens, dict):
        return None
    total, read = count(tokens, "input") + count(tokens, "tool"), count(tokens, "cached")
    if read > total:
        raise ValueError(f"{read} cached of {total} input tokens")
    output = count(tokens, "output") + count(tokens, "thoughts")
    return TraceUsage(input=total - read, cache_read=read, output=output) if total else None
