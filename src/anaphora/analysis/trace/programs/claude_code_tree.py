"""Messages of a session of Claude Code as a tree, and its paths as conversations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from anaphora.analysis.trace.answers import answer_of
from anaphora.analysis.trace.format import Trace, TraceCall, TraceMessage, TraceUsage
from anaphora.analysis.trace.log_lines import FoundTrace
from anaphora.cache.verdict import Diagnosis


class Prompt(NamedTuple):
    """The settings of a message that is not the result of a tool."""

    version: str
    thinking: str | None
    mode: str | None
    is_skill: bool


class SessionNode(msgspec.Struct, eq=False):
    """One message: a reply, a user message, or the results of a reply's tools."""

    parent: SessionNode | None
    role: str
    place: str
    contents: list[Any] = []
    ended: float | None = None
    usage: TraceUsage | None = None
    model: str = ""
    effort: str | None = None
    agent: str | None = None
    """The kind of subagent that wrote it."""
    is_main: bool = True
    prompt: Prompt | None = None
    diagnosis: Diagnosis | None = None
    id: str = ""
    """Of a reply: the message's id, or that of the request."""
    began_by: Any = None
    """What happened to the history before it."""
    results: SessionNode | None = None
    """Of a reply: the results of its tools."""
    taken_by: SessionNode | None = None
    """The message that its contents were merged into."""
    is_leaf: bool = True
    depth: int = 1
    """The messages up to here."""
    _times: list[float] = []
    """The times of the contents, if all are known."""
    _message: TraceMessage | None = None
    """One object for all conversations that contain it, from when the file is read."""

    def add(self, content: Any, at: float | None) -> None:
        added = content if isinstance(content, list) else [content]
        self.contents += added
        if at is not None:
            before = None if self.role == "assistant" else self.ended
            self.ended = at if before is None else max(before, at)
            self._times += [at] * len(added)

    def take(self, other: SessionNode) -> None:
        """Merges another message into this one."""
        self.contents += other.contents
        self._times += other._times
        self.is_leaf, other.is_leaf, other.taken_by = True, False, self

    def sort(self) -> None:
        """The results of tools by their times, as their lines were out of order."""
        if self.role == "user" and len(self._times) == len(self.contents):
            order = sorted(range(len(self.contents)), key=self._times.__getitem__)
            self.contents = [self.contents[index] for index in order]

    def message(self) -> TraceMessage:
        if self._message is None:
            only = self.contents[0] if len(self.contents) == 1 else None
            content = only if isinstance(only, str) else list(self.contents)
            self._message = TraceMessage(role=self.role, content=content)
        return self._message


def conversation(
    leaf: SessionNode, session: str, taken: set[int], with_thinking: set[str]
) -> FoundTrace | None:
    """The path from the root to a leaf, with the calls that no earlier path has."""
    path = [*_up(leaf)][::-1]
    calls: list[TraceCall] = []
    replies: list[SessionNode] = []
    began_by: Any = None
    thinking: str | None = None
    mode: str | None = None
    skill = False
    for index, node in enumerate(path):
        began_by = node.began_by or began_by
        if (prompt := node.prompt) is not None:
            recorded = prompt.version in with_thinking
            thinking = prompt.thinking or ("none" if recorded else None)
            mode, skill = prompt.mode or mode, skill or prompt.is_skill
        if node.role != "assistant" or node.usage is None:
            continue
        if id(node) in taken:
            began_by = "edit"  # a branch: another conversation continues that message differently
            continue
        first = (replies or [node])[0]
        call = TraceCall(
            messages=index,
            t=path[index - 1].ended if index else None,
            t_end=node.ended,
            usage=node.usage,
            model=node.model if node.model != first.model else None,
            began_by=began_by,
            effort=node.effort,
            thinking=thinking,
            permission_mode=mode,
            loaded_skill=skill,
            diagnosis=node.diagnosis,
        )
        replies.append(node)
        calls.append(call)
        began_by, skill = None, False
    if not replies:
        return None
    taken.update(map(id, replies))
    trace = Trace(
        id=f"{session}@{leaf.place.rpartition(':')[2]}",
        provider="anthropic",
        model=replies[0].model,
        calls=tuple(calls),
        messages=tuple(node.message() for node in path),
        group=session,
        agent=replies[0].agent,
        source="claude_code",
        system_tokens_unknown=True,
    )
    answers = (
        answer_of(node.id, node.ended, call.usage or TraceUsage(), node.contents)
        for node, call in zip(replies, calls, strict=True)
    )
    return FoundTrace(replies[0].place, trace, tuple(answers))


def _up(leaf: SessionNode) -> Iterator[SessionNode]:
    node: SessionNode | None = leaf
    while node is not None:
        yield node
        node = node.parent
