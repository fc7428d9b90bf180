"""Session files of Gemini CLI: `~/.gemini/tmp/<project>/chats/session-*.json` and `.jsonl`.

The older form is one object with all messages. The newer one has a line with the session's data and
then a line for each message, which is repeated when its tokens or tool calls are added;
`{"$rewindTo": id}` removes that message and all after it, `{"$set": {"messages": …}}` replaces the
history. A `gemini` message with `tokens` is a call. Its tool calls hold their results, which the
next call sends. Its thoughts are shown to the user, not sent again. System prompt, instructions
and tools are not in the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from anaphora.analysis.trace.answers import answer_of
from anaphora.analysis.trace.format import Trace, TraceCall, TraceMessage, TraceUsage
from anaphora.analysis.trace.log_lines import (
    Answer,
    BranchBudget,
    FoundTrace,
    Problem,
    TraceEntry,
    count,
    reported_count,
    seconds,
)
from anaphora.wording import counted

from .recorded import usage_of

#: Messages of the conversation; others (info, error, warning) are only shown to the user.
REPLY = "gemini"
_MESSAGE_TYPES = ("user", REPLY)


class _Record(msgspec.Struct, frozen=True):
    """A message of the file, read once for all conversations that contain it."""

    from_model: bool
    model: str
    usage: TraceUsage | None
    at: float | None
    complete: float | None
    """When it and the results of its tools were complete."""
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
        """Whether the messages may contain a call that is in no conversation yet."""
        self._began: float | None = None
        self._began_by: Any = None
        """How the messages were changed since the last conversation."""

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
        timed = (one._replace(began=self._began) for one in self._found)
        found: list[TraceEntry] = [*timed, *self._branches.problems(file)]
        if self._found and self._unbilled:
            reason = f"{counted(len(self._unbilled), 'reply', 'replies')} without token counts"
            found.append(Problem(file, reason, "not_compared"))
        return found

    def _add(self, place: str, message: dict[str, Any], history: dict[str, _Record]) -> None:
        record = _record(message)  # raises for an invalid one
        self._unnamed += "id" not in message
        id = str(message["id"]) if "id" in message else f"#{self._unnamed}"
        history[id] = record
        self._began = record.at if self._began is None else self._began
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
            # A summary takes the place of the first messages.
            is_summary = next(iter(history), None) not in self._history
            self._began_by = "compaction" if is_summary else "edit"
        self._history = history
        return problem

    def _rewind(self, id: object) -> None:
        """Removes the message and all after it; all messages if it is not known."""
        self._close_branch()
        self._began_by = "edit"
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
                    began_by=None if calls else self._began_by,
                )
                calls.append((id, call))
            # A result that is a message of its own is sent once.
            messages += (one for one in record.messages if one.tool_call_id not in answered)
            sent = sent if record.complete is None else record.complete
        if not calls:
            return
        self._taken.update(id for id, _ in calls)
        self._began_by = None
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
        answers = tuple(self._answer(id) for id, _ in calls)
        self._found.append(FoundTrace(self._places[calls[0][0]], trace, answers))

    def _answer(self, id: str) -> Answer:
        record = self._history[id]
        usage = record.usage or TraceUsage()
        return answer_of("" if id.startswith("#") else id, record.at, usage, ())


def _record(message: dict[str, Any]) -> _Record:
    at = seconds(message.get("timestamp"))
    moments = (at, *(seconds(one.get("timestamp")) for one in _tool_calls(message)))
    from_model = message["type"] != "user"
    return _Record(
        from_model=from_model,
        model=str(message.get("model") or ""),
        usage=usage_from(message.get("tokens")),
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
    """The parts of a content: a list, one part, or a text."""
    several = content if isinstance(content, list) else [content]
    texts = ({"text": part} if isinstance(part, str) else part for part in several)
    return [part for part in texts if isinstance(part, dict) and part != {"text": ""}]


def _tool_calls(message: dict[str, Any]) -> list[dict[str, Any]]:
    calls = message.get("toolCalls")
    return [one for one in calls if isinstance(one, dict)] if isinstance(calls, list) else []


def usage_from(tokens: object) -> TraceUsage | None:
    """The input includes reads; tool prompts and thoughts are counted beside it."""
    if not isinstance(tokens, dict):
        return None
    total, read = count(tokens, "input") + count(tokens, "tool"), count(tokens, "cached")
    if read > total:
        raise ValueError(f"{read} cached of {total} input tokens")
    return usage_of(
        "google",
        uncached=total - read,
        read=read,
        output=count(tokens, "output") + count(tokens, "thoughts"),
        reasoning=reported_count(tokens, "thoughts"),
    )
