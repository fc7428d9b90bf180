"""Session files of pi: `~/.pi/agent/sessions/*/*.jsonl`.

The first line is the session's header. The others are entries with an id and a `parentId`: a tree,
in which every path from the root to a leaf is a conversation, and a call belongs to the first that
contains it. Entries of version 1 have no ids and follow each other. `compaction` replaces the
history before `firstKeptEntryId` by a summary, `branch_summary` tells what another branch did. A
fork is a file of its own that repeats the entries. System prompt and tools are not in the file.
"""

from __future__ import annotations

from typing import Any

import msgspec

from anaphora.analysis.trace.answers import answer_of
from anaphora.analysis.trace.format import TraceCall, TraceMessage, TraceUsage
from anaphora.analysis.trace.log_lines import (
    BranchBudget,
    LineOrder,
    Problem,
    TraceEntry,
    count,
    reported_count,
    seconds,
)

from .recorded import RecordedSession, served_by, usage_of

_ROLES = ("user", "assistant", "toolResult", "bashExecution", "custom", "system")
#: Entries with the bill of a call whose messages are not in the file.
BILLED = ("usage", "compaction", "branch_summary")


class _Entry(msgspec.Struct, eq=False):
    """A message, or a summary that replaces several."""

    parent: _Entry | None
    place: str
    id: str
    fields: dict[str, Any]
    message: TraceMessage | None
    usage: TraceUsage | None = None
    served: tuple[str, str] = ("", "")
    began: float | None = None
    ended: float | None = None
    is_leaf: bool = True
    depth: int = 1


class PiSession:
    missing = "no reply with usage"

    @staticmethod
    def recognises(fields: dict[str, Any]) -> bool:
        if fields.get("type") == "session":
            return isinstance(fields.get("cwd"), str) and "timestamp" in fields
        message = fields.get("message")
        return (
            fields.get("type") == "message"
            and isinstance(message, dict)
            and message.get("role") in _ROLES
        )

    def __init__(self) -> None:
        self.id = ""
        self._entries: list[_Entry] = []
        self._by_id: dict[str, _Entry | None] = {}
        self._last: _Entry | None = None
        self._served: tuple[str, str] = ("", "")
        """The model that was chosen last."""
        self._order: LineOrder[tuple[str, dict[str, Any]]] = LineOrder()
        self._problems: list[Problem] = []

    def read(self, place: str, fields: dict[str, Any]) -> Problem | None:
        if fields.get("type") == "session":
            self.id = self.id or str(fields.get("id") or "")
            return None
        for line in self._order.add(fields.get("id"), fields.get("parentId"), (place, fields)):
            self._read(*line)
        return self._problems.pop() if self._problems else None

    def traces(self, file: str) -> list[TraceEntry]:
        for line in self._order.rest():
            self._read(*line)
        self._problems += self._order.problems(file)
        branches = BranchBudget()
        branches.add(len(self._entries))
        taken: set[int] = set()
        found: list[TraceEntry] = []
        for leaf in branches.kept([entry for entry in self._entries if entry.is_leaf]):
            name = f"{self.id or file}@{leaf.place.rpartition(':')[2]}"
            found += _conversations(leaf, taken).found(name, "pi", self.id or file, file)
        return [*self._problems, *found, *branches.problems(file)]

    def _read(self, place: str, fields: dict[str, Any]) -> None:
        id, parent = fields.get("id"), self._last
        if isinstance(id, str) and id in self._by_id:
            return
        if "parentId" in fields:
            above = fields["parentId"]
            known = isinstance(above, str)
            parent = self._by_id.get(self._order.parent(above)) if known else None
        entry: _Entry | None = None
        try:
            entry = self._entry(place, fields, parent)
        except ValueError as error:
            self._problems.append(Problem(place, str(error)))
        if entry is not None:
            self._entries.append(entry)
            if parent is not None:
                parent.is_leaf = False
                entry.depth = parent.depth + 1
        if isinstance(id, str):
            self._by_id[id] = entry or parent
        self._last = entry or parent

    def _entry(self, place: str, fields: dict[str, Any], parent: _Entry | None) -> _Entry | None:
        kind, at = fields.get("type"), seconds(fields.get("timestamp"))
        id = str(fields.get("id") or "")
        if kind == "model_change":
            self._served = served_by(fields.get("provider"), fields.get("modelId"))
        if kind == "custom_message":
            message = TraceMessage(role="user", content=fields.get("content"))
            return _Entry(parent, place, id, fields, message, ended=at)
        if kind in BILLED:
            named = fields.get("provider")
            served = served_by(named, fields.get("model")) if named else self._served
            usage = usage_from(fields.get("usage"), served[0])
            return _Entry(parent, place, id, fields, None, usage, served, ended=at)
        if kind == "context_edit":
            return _Entry(parent, place, id, fields, None)
        sent = fields.get("message")
        if kind != "message" or not isinstance(sent, dict) or sent.get("role") not in _ROLES:
            return None
        if sent.get("excludeFromContext"):
            return None
        made = _Entry(parent, place, id, fields, sent_message(sent), ended=at)
        if sent["role"] == "assistant":
            model = sent.get("responseModel") or sent.get("model")
            made.served = self._served = served_by(sent.get("provider"), model)
            made.usage = usage_from(sent.get("usage"), made.served[0])
            made.began = seconds(sent.get("timestamp"))
        return made


class _Branch(RecordedSession):
    """The path from the root to a leaf."""

    def __init__(self) -> None:
        super().__init__()
        self._ids: list[str] = []
        """Of the messages."""

    def follow(self, entry: _Entry, taken: set[int]) -> None:
        fields, kind = entry.fields, entry.fields.get("type")
        if kind == "context_edit":
            self._edit(str(fields.get("targetId")), fields.get("replacement"))
        elif kind in BILLED:
            if entry.usage is not None and id(entry) not in taken:
                taken.add(id(entry))
                content = [kind, fields.get("summary")]
                answer = answer_of("", entry.ended, entry.usage, content)
                call = TraceCall(messages=0, t_end=entry.ended, usage=entry.usage)
                self.side_call(call, answer, entry.served, entry.place)
            if kind != "usage":
                self._summarise(entry, kind == "compaction")
        elif entry.message is not None:
            if entry.usage is not None:
                self._call(entry, taken)
            self.add(entry.message)
            self._ids.append(entry.id)

    def _call(self, entry: _Entry, taken: set[int]) -> None:
        if id(entry) in taken:
            self.began_by = "edit"  # another branch continues that message differently
            return
        taken.add(id(entry))
        assert entry.usage is not None
        assert entry.message is not None
        call = TraceCall(
            messages=len(self.messages), t=entry.began, t_end=entry.ended, usage=entry.usage
        )
        content = [entry.message.content, entry.message.tool_calls]
        response = entry.fields["message"].get("responseId")
        answer = answer_of(response, entry.ended, entry.usage, content)
        self.bill(call, answer, entry.served, entry.place)

    def _summarise(self, entry: _Entry, compacted: bool) -> None:
        summary = TraceMessage(role="user", content=entry.fields.get("summary"))
        if not compacted:
            self.add(summary)
            self._ids.append(entry.id)
            return
        first = entry.fields.get("firstKeptEntryId")
        kept = self._ids.index(first) if first in self._ids else len(self._ids)
        self._ids = [entry.id, *self._ids[kept:]]
        self.restart([summary, *self.messages[kept:]], "compaction")

    def _edit(self, target: str, replacement: Any) -> None:
        if target not in self._ids:
            return
        at, messages = self._ids.index(target), [*self.messages]
        if isinstance(replacement, dict):
            messages[at] = msgspec.structs.replace(messages[at], content=replacement.get("content"))
        else:
            del messages[at], self._ids[at]
        self.restart(messages, "edit")


def _conversations(leaf: _Entry, taken: set[int]) -> _Branch:
    path: list[_Entry] = []
    entry: _Entry | None = leaf
    while entry is not None:
        path.append(entry)
        entry = entry.parent
    branch = _Branch()
    for entry in reversed(path):
        branch.follow(entry, taken)
    return branch


def sent_message(sent: dict[str, Any]) -> TraceMessage:
    role, content = sent["role"], sent.get("content")
    if role == "toolResult":
        return TraceMessage(
            role="tool", content=content, tool_call_id=str(sent.get("toolCallId") or "")
        )
    if role == "bashExecution":
        return TraceMessage(role="user", content=[sent.get("command"), sent.get("output")])
    if role != "assistant":
        return TraceMessage(role="system" if role == "system" else "user", content=content)
    calls: list[Any] = []
    others: list[Any] = []
    for block in content if isinstance(content, list) else [content]:
        is_call = isinstance(block, dict) and block.get("type") == "toolCall"
        (calls if is_call else others).append(block)
    return TraceMessage(role="assistant", content=others, tool_calls=calls or None)


def usage_from(usage: object, provider: str) -> TraceUsage | None:
    """Reads and writes are not part of the input; reasoning is part of the output."""
    if not isinstance(usage, dict):
        return None
    return usage_of(
        provider,
        uncached=count(usage, "input"),
        read=count(usage, "cacheRead"),
        written=count(usage, "cacheWrite"),
        written_1h=count(usage, "cacheWrite1h"),
        output=reported_count(usage, "output"),
        reasoning=reported_count(usage, "reasoning"),
    )
