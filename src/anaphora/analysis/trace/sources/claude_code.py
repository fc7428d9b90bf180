"""Session files of Claude Code: `~/.claude/projects/*/*.jsonl`.

Each line is one block of a message, tied to the one before it by `parentUuid`. An answer's blocks
come on lines of their own that share the message's id and repeat its usage. The results of parallel
tool calls hang on the lines of their calls. So the lines are a tree; every way from a root to a
leaf is a conversation, and a call belongs to the first that it stands in. System prompt and tools
are not in the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from anaphora.analysis.trace.form import Trace, TraceCall, TraceMessage, TraceUsage

from .lines import Entry, Line, Problem, Source, count, objects, seconds

_KINDS = ("user", "assistant", "system", "summary", "attachment", "progress")


def recognises(one: dict[str, Any]) -> bool:
    return one.get("type") in _KINDS and ("sessionId" in one or "parentUuid" in one)


class Node:
    """What one side said: an answer, a user's words, or the results of an answer's tools."""

    def __init__(self, parent: Node | None, role: str, place: str) -> None:
        self.parent = parent
        self.role = role
        self.place = place
        self.contents: list[Any] = []
        self.began: float | None = None
        self.ended: float | None = None
        self.usage: TraceUsage | None = None
        self.model = ""
        self.results: Node | None = None
        """Of an answer: what its tools said."""
        self.children = 0
        if parent is not None:
            parent.children += 1

    def add(self, content: Any, at: float | None) -> None:
        self.contents += content if isinstance(content, list) else [content]
        self.began = at if self.began is None else self.began
        self.ended = at if at is not None else self.ended

    def message(self) -> TraceMessage:
        only = self.contents[0] if len(self.contents) == 1 else None
        return TraceMessage(
            role=self.role, content=only if isinstance(only, str) else list(self.contents)
        )


class _Reader:
    def __init__(self) -> None:
        self.session = ""
        self._of: dict[str, Node | None] = {}
        """The node that each line became part of, or stands behind."""
        self._answers: dict[str, Node] = {}
        self.nodes: list[Node] = []
        self._last: Node | None = None

    def line(self, place: str, one: dict[str, Any]) -> None:
        self.session = self.session or str(one.get("sessionId") or "")
        parent = self._parent(one)
        node = self._node(place, one, parent)
        uuid = one.get("uuid")
        if isinstance(uuid, str):
            self._of[uuid] = node
        self._last = node

    def _parent(self, one: dict[str, Any]) -> Node | None:
        if "parentUuid" not in one:
            return self._last if "uuid" not in one else None
        named = one["parentUuid"]
        return self._of.get(named) if isinstance(named, str) else None

    def _node(self, place: str, one: dict[str, Any], parent: Node | None) -> Node | None:
        message = one.get("message")
        kind = one.get("type")
        if kind not in ("user", "assistant") or not isinstance(message, dict):
            return parent
        at = seconds(one.get("timestamp"))
        if kind == "user":
            return self._said(place, message, parent, at)
        if message.get("model") == "<synthetic>":
            return parent  # the client's own words, which no model said
        return self._answer(place, message, parent, at)

    def _said(
        self, place: str, message: dict[str, Any], parent: Node | None, at: float | None
    ) -> Node:
        content = message.get("content")
        results = isinstance(content, list) and any(
            isinstance(block, dict) and block.get("type") == "tool_result" for block in content
        )
        if results and parent is not None:
            # Whichever result the line hangs on: they go out together.
            answer = parent if parent.role == "assistant" else parent.parent
            if answer is not None and answer.role == "assistant":
                if answer.results is None:
                    answer.results = self._new(answer, "user", place)
                answer.results.add(content, at)
                return answer.results
        node = self._new(parent, "user", place)
        node.add(content if content is not None else "", at)
        return node

    def _answer(
        self, place: str, message: dict[str, Any], parent: Node | None, at: float | None
    ) -> Node:
        id = message.get("id")
        node = self._answers.get(id) if isinstance(id, str) else None
        usage = _usage(message.get("usage"))
        if node is None:
            node = self._new(parent, "assistant", place)
            node.model = str(message.get("model") or "")
            if isinstance(id, str):
                self._answers[id] = node
        if usage is not None:
            node.usage = usage  # the last line's holds the whole output
        node.add(message.get("content") or [], at)
        return node

    def _new(self, parent: Node | None, role: str, place: str) -> Node:
        node = Node(parent, role, place)
        self.nodes.append(node)
        return node


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
    taken: set[int] = set()
    found = False
    for leaf in [node for node in reader.nodes if not node.children]:
        source = _conversation(leaf, reader.session or file, taken)
        if source is not None:
            found = True
            yield source
    if file and not found:
        yield Problem(file, "no answer with a usage in it")


def _conversation(leaf: Node, session: str, taken: set[int]) -> Source | None:
    """The way from the root to a leaf, with those calls that no earlier one has."""
    way: list[Node] = []
    node: Node | None = leaf
    while node is not None:
        way.append(node)
        node = node.parent
    way.reverse()
    answers = [
        (index, node)
        for index, node in enumerate(way)
        if node.role == "assistant" and node.usage is not None and id(node) not in taken
    ]
    if not answers:
        return None
    taken.update(id(node) for _, node in answers)
    first = answers[0][1]
    calls = tuple(
        TraceCall(
            messages=index,
            t=way[index - 1].ended if index else None,
            t_end=node.ended,
            usage=node.usage,
            model=node.model if node.model != first.model else None,
        )
        for index, node in answers
    )
    trace = Trace(
        id=f"{session}@{leaf.place.rpartition(':')[2]}",
        provider="anthropic",
        model=first.model,
        calls=calls,
        messages=tuple(node.message() for node in way),
        group=session,
        source="claude_code",
        system_tokens_unknown=True,
    )
    return Source(first.place, trace)


def _usage(usage: object) -> TraceUsage | None:
    if not isinstance(usage, dict):
        return None
    written = count(usage, "cache_creation_input_tokens")
    split = usage.get("cache_creation")
    hour = count(split, "ephemeral_1h_input_tokens") if isinstance(split, dict) else 0
    found = TraceUsage(
        input=count(usage, "input_tokens"),
        cache_read=count(usage, "cache_read_input_tokens"),
        cache_write_5m=max(0, written - hour),
        cache_write_1h=hour,
        output=count(usage, "output_tokens"),
    )
    return found if found.total else None
