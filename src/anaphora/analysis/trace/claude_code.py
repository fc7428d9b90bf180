"""Session files of Claude Code: `~/.claude/projects/*/*.jsonl`.

Each line is one block of a message, linked to the one before it by `parentUuid`. The blocks of a
reply are on lines of their own that share the message's id and repeat its usage. The results of
parallel tool calls are linked to the lines of their calls. So the lines are a tree; every path from
a root to a leaf is a conversation, and a call belongs to the first that contains it. System prompt
and tools are not in the file.
"""

from __future__ import annotations

from typing import Any

import msgspec

from .format import Trace, TraceCall, TraceMessage, TraceUsage
from .log_lines import BranchBudget, FoundTrace, TraceEntry, count, reported_count, seconds

_TYPES = ("user", "assistant", "system", "summary", "attachment", "progress")


class SessionNode(msgspec.Struct, eq=False):
    """One message: a reply, a user message, or the results of a reply's tools."""

    parent: SessionNode | None
    role: str
    place: str
    contents: list[Any] = []
    ended: float | None = None
    usage: TraceUsage | None = None
    model: str = ""
    results: SessionNode | None = None
    """Of a reply: the results of its tools."""
    is_leaf: bool = True
    depth: int = 1
    """The messages up to here."""
    _message: TraceMessage | None = None
    """One object for all conversations that contain it, from when the file is read."""

    def add(self, content: Any, at: float | None) -> None:
        self.contents += content if isinstance(content, list) else [content]
        self.ended = at if at is not None else self.ended

    def message(self) -> TraceMessage:
        if self._message is None:
            only = self.contents[0] if len(self.contents) == 1 else None
            content = only if isinstance(only, str) else list(self.contents)
            self._message = TraceMessage(role=self.role, content=content)
        return self._message


class ClaudeCodeSession:
    missing = "no reply with usage"

    @staticmethod
    def recognises(fields: dict[str, Any]) -> bool:
        return fields.get("type") in _TYPES and ("sessionId" in fields or "parentUuid" in fields)

    def __init__(self) -> None:
        self.id = ""
        self.nodes: list[SessionNode] = []
        self._by_uuid: dict[str, SessionNode | None] = {}
        """The node that each line became part of, or follows."""
        self._replies: dict[str, SessionNode] = {}
        self._last: SessionNode | None = None

    def read(self, place: str, fields: dict[str, Any]) -> None:
        self.id = self.id or str(fields.get("sessionId") or "")
        node = self._last if "uuid" not in fields else None
        if "parentUuid" in fields:
            parent = fields["parentUuid"]
            node = self._by_uuid.get(parent) if isinstance(parent, str) else None
        message, at = fields.get("message"), seconds(fields.get("timestamp"))
        if isinstance(message, dict):
            if fields.get("type") == "user":
                content = message.get("content")
                node = self._user_message(place, content, node)
                node.add("" if content is None else content, at)
            elif fields.get("type") == "assistant" and message.get("model") != "<synthetic>":
                node = self._reply(place, message, node)
                node.add(message.get("content") or [], at)
        uuid = fields.get("uuid")
        if isinstance(uuid, str):
            self._by_uuid[uuid] = node
        self._last = node

    def traces(self, file: str) -> list[TraceEntry]:
        taken: set[int] = set()
        leaves = [node for node in self.nodes if node.is_leaf]
        branches = BranchBudget()
        branches.add(len(self.nodes))
        longest = sorted(leaves, key=lambda leaf: -leaf.depth)
        kept = {id(leaf) for leaf in longest if branches.take(leaf.depth)}
        found = [_conversation(leaf, self.id or file, taken) for leaf in leaves if id(leaf) in kept]
        return [*(one for one in found if one is not None), *branches.problems(file)]

    def _user_message(self, place: str, content: object, parent: SessionNode | None) -> SessionNode:
        blocks = content if isinstance(content, list) else []
        types = [block.get("type") for block in blocks if isinstance(block, dict)]
        if "tool_result" in types and parent is not None:
            # Results of one reply are sent together, whichever line each is linked to.
            reply = parent if parent.role == "assistant" else parent.parent
            if reply is not None and reply.role == "assistant":
                if reply.results is None:
                    reply.results = self._new(reply, "user", place)
                return reply.results
        return self._new(parent, "user", place)

    def _reply(
        self, place: str, message: dict[str, Any], parent: SessionNode | None
    ) -> SessionNode:
        id = message.get("id")
        node = self._replies.get(id) if isinstance(id, str) else None
        usage = _usage(message.get("usage"))
        if node is None:
            node = self._new(parent, "assistant", place)
            node.model = str(message.get("model") or "")
            if isinstance(id, str):
                self._replies[id] = node
        if usage is not None:
            node.usage = usage  # the last line has the whole output
        return node

    def _new(self, parent: SessionNode | None, role: str, place: str) -> SessionNode:
        node = SessionNode(parent, role, place)
        self.nodes.append(node)
        if parent is not None:
            parent.is_leaf = False
            node.depth = parent.depth + 1
        return node


def _conversation(leaf: SessionNode, session: str, taken: set[int]) -> FoundTrace | None:
    """The path from the root to a leaf, with the calls that no earlier path has."""
    path: list[SessionNode] = []
    node: SessionNode | None = leaf
    while node is not None:
        path.append(node)
        node = node.parent
    path.reverse()
    replies = [
        (index, node)
        for index, node in enumerate(path)
        if node.role == "assistant" and node.usage is not None and id(node) not in taken
    ]
    if not replies:
        return None
    taken.update(id(node) for _, node in replies)
    first = replies[0][1]
    calls = tuple(
        TraceCall(
            messages=index,
            t=path[index - 1].ended if index else None,
            t_end=node.ended,
            usage=node.usage,
            model=node.model if node.model != first.model else None,
        )
        for index, node in replies
    )
    trace = Trace(
        id=f"{session}@{leaf.place.rpartition(':')[2]}",
        provider="anthropic",
        model=first.model,
        calls=calls,
        messages=tuple(node.message() for node in path),
        group=session,
        source="claude_code",
        system_tokens_unknown=True,
    )
    return FoundTrace(first.place, trace)


def _usage(usage: object) -> TraceUsage | None:
    if not isinstance(usage, dict):
        return None
    written = count(usage, "cache_creation_input_tokens")
    split = usage.get("cache_creation")
    hour = count(split, "ephemeral_1h_input_tokens") if isinstance(split, dict) else 0
    details = usage.get("output_tokens_details")
    found = TraceUsage(
        input=count(usage, "input_tokens"),
        cache_read=count(usage, "cache_read_input_tokens"),
        cache_write_5m=max(0, written - hour),
        cache_write_1h=hour,
        output=count(usage, "output_tokens"),
        reasoning=(
            reported_count(details, "thinking_tokens") if isinstance(details, dict) else None
        ),
    )
    return found if found.total else None
