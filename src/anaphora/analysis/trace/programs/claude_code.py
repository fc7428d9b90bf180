"""Session files of Claude Code: `~/.claude/projects/*/*.jsonl`.

Each line is one block of a message, linked to the one before it by `parentUuid`. The blocks of a
reply are on lines of their own that share the message's id and repeat its usage. The results of
parallel tool calls are linked to the lines of their calls. So the lines are a tree; every path from
a root to a leaf is a conversation, and a call belongs to the first that contains it. After
`compact_boundary` a message with `isCompactSummary` begins another tree. A resumed session goes on
in its file, after `/exit` or a `SessionStart:resume` hook, or in a file of its own that repeats all
lines. A line whose parent is not in the file follows the line before it: sometimes the last line of
a reply is left out. System prompt and tools are not in the file.

A typed prompt carries the permission mode and, as far as seen up to version 2.1.39, the thinking
setting; slash commands, plans and skills carry none, and are sent without thinking. A line with
`prompt_cache` is one for a status line, if a user logs it there: `last_miss_cause` is the program's
own diagnosis. Whether `last_miss_at` is the beginning or the end of the call is not documented.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

from anaphora.analysis.trace.format import TraceUsage
from anaphora.analysis.trace.log_lines import (
    BranchBudget,
    LineOrder,
    Problem,
    TraceEntry,
    count,
    reported_count,
    seconds,
)
from anaphora.cache.verdict import Diagnosis
from anaphora.cache.verdict.diagnosis import anthropic_diagnosis, claude_code_diagnosis
from anaphora.wording import counted

from .claude_code_tree import Prompt, SessionNode, conversation

#: Lines about a change of the history: all of it, or the results of tools in it.
_BOUNDARIES = {"compact_boundary": "compaction", "microcompact_boundary": "edit"}
_TYPES = ("user", "assistant", "system", "summary", "attachment", "progress")
#: What the program writes before a skill's text, and when a session ends.
_SKILL, _EXIT = "Base directory for this skill", "<command-name>/exit</command-name>"
#: Seconds by which times of the status line may differ from those of messages.
_ROUNDED = 1.0


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
        self._order: LineOrder[tuple[str, dict[str, Any]]] = LineOrder()
        self._boundaries: dict[str, str] = {}
        """By id, lines without a message after a boundary, and the kind of the boundary."""
        self._with_thinking: set[str] = set()
        """Versions of the program that record the thinking setting."""
        self._reported: dict[tuple[str, float], Diagnosis] = {}
        """The program's own diagnoses, by session and time of the miss."""
        self._repeated = 0
        self._problems: list[Problem] = []

    def read(self, place: str, fields: dict[str, Any]) -> Problem | None:
        uuid, parent = fields.get("uuid"), fields.get("parentUuid")
        aside = fields.get("isSidechain") is True
        for line in self._order.add(uuid, parent, (place, fields), aside=aside):
            self._read(*line)
        return self._problems.pop() if self._problems else None

    def _read(self, place: str, fields: dict[str, Any]) -> None:
        self.id = self.id or str(fields.get("sessionId") or "")
        uuid, parent = fields.get("uuid"), fields.get("parentUuid")
        if isinstance(uuid, str) and uuid in self._by_uuid:
            self._repeated += 1
            return
        node = self._last if "uuid" not in fields else None
        if "parentUuid" in fields:
            known = isinstance(parent, str)
            node = self._by_uuid.get(self._order.parent(parent)) if known else None
            node = node.taken_by or node if node is not None else None
        self._read_status(fields)
        boundary = _boundary(fields) or self._boundaries.get(str(parent))
        try:
            read = self._message(place, fields, node)
        except ValueError as error:
            self._problems.append(Problem(place, str(error)))
            read = None
        if read is not None:
            read.began_by = read.began_by or boundary
        elif boundary is not None:
            self._boundaries[str(uuid)] = boundary
        node = node if read is None else read
        if isinstance(uuid, str):
            self._by_uuid[uuid] = node
        self._last = node

    def _message(
        self, place: str, fields: dict[str, Any], parent: SessionNode | None
    ) -> SessionNode | None:
        """The message that a line is a part of, if any."""
        message, at = fields.get("message"), seconds(fields.get("timestamp"))
        if not isinstance(message, dict):
            return None
        if fields.get("type") == "user":
            content = message.get("content")
            node = self._user_message(place, content, parent)
            node.add("" if content is None else content, at)
            if fields.get("isCompactSummary"):
                node.began_by = "compaction"
            elif parent is None or node is not parent.results:
                node.prompt = self._prompt(fields, content)
                if isinstance(content, str) and content.startswith(_EXIT):
                    node.began_by = "resume"  # of the call that follows
            return node
        if fields.get("type") == "assistant" and message.get("model") != "<synthetic>":
            node = self._reply(place, message, parent)
            node.id = node.id or str(fields.get("requestId") or "")
            effort, agent = fields.get("effort"), fields.get("attributionAgent")
            node.effort = effort if isinstance(effort, str) else node.effort
            node.is_main = fields.get("isSidechain") is not True
            if not node.is_main and isinstance(agent, str):
                node.agent = agent
            node.add(message.get("content") or [], at)
            return node
        return None

    def _prompt(self, fields: dict[str, Any], content: object) -> Prompt:
        version, mode = str(fields.get("version") or ""), fields.get("permissionMode")
        thinking = _thinking(fields.get("thinkingMetadata"))
        if thinking is not None:
            self._with_thinking.add(version)
        first = content[0] if isinstance(content, list) and content else content
        text = str(first.get("text") if isinstance(first, dict) else first)
        is_skill = fields.get("isMeta") is True and text.startswith(_SKILL)
        known = isinstance(mode, str) and mode.isidentifier()
        return Prompt(version, thinking, mode if known else None, is_skill)

    def _read_status(self, fields: dict[str, Any]) -> None:
        """The program's own diagnosis of its last miss, in what it sends to a status line."""
        cache = fields.get("prompt_cache")
        if not isinstance(cache, dict):
            return
        found = claude_code_diagnosis(cache.get("last_miss_cause"))
        at = seconds(cache.get("last_miss_at"))
        if found is not None and at is not None:
            self._reported[str(fields.get("session_id") or ""), at] = found

    def _add_reported(self) -> None:
        """Adds the program's own diagnoses to the calls of the main conversation."""
        calls = [(one.ended or 0.0, one) for one in self.nodes if one.is_main and one.usage]
        calls.sort(key=lambda pair: pair[0])
        ends = [ended for ended, _ in calls]
        for (session, at), diagnosis in self._reported.items():
            for _, call in calls[(first := bisect_left(ends, at - _ROUNDED)) : first + 1]:
                sent = None if call.parent is None else call.parent.ended
                if session in ("", self.id) and sent is not None and sent <= at + _ROUNDED:
                    call.diagnosis = call.diagnosis or diagnosis

    def traces(self, file: str) -> list[TraceEntry]:
        for line in self._order.rest():
            self._read(*line)
        if self._order.moved:
            for node in self.nodes:
                node.sort()
        self._add_reported()
        self._problems += self._order.problems(file)
        if self._repeated:
            lines = f"{counted(self._repeated, 'line')} repeated in the same file: read once"
            self._problems.append(Problem(file, lines, "notice"))
        return [*self._problems, *self._conversations(file)]

    def _conversations(self, file: str) -> list[TraceEntry]:
        taken: set[int] = set()
        branches = BranchBudget()
        branches.add(len(self.nodes))
        leaves = branches.kept([node for node in self.nodes if node.is_leaf])
        id, versions = self.id or file, self._with_thinking
        found = [conversation(leaf, id, taken, versions) for leaf in leaves]
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
        node = self._replies.get(id) if isinstance(id, str) and id else None
        usage = usage_from(message.get("usage"))
        if node is None or not self._continues(node, parent):
            node = self._new(parent, "assistant", place)
            node.model = str(message.get("model") or "")
            if isinstance(id, str):
                node.id = id
                self._replies[id] = node
        if usage is not None:
            node.usage = usage  # the last line has the whole output
        diagnosis = anthropic_diagnosis(message.get("diagnostics"))
        if diagnosis is not None and diagnosis.conclusive:
            node.diagnosis = diagnosis
        edits = message.get("context_management")
        if isinstance(edits, dict) and edits.get("applied_edits"):
            node.began_by = node.began_by or "edit"
        return node

    def _continues(self, reply: SessionNode, parent: SessionNode | None) -> bool:
        """Whether a line belongs to a reply that begins before it, by its parent: a part of the
        reply, a message while its tools ran, or the message that it answers. Otherwise the reply
        was copied."""
        between: list[SessionNode] = []
        node = parent
        while node is not None and node.role == "user" and node.depth > reply.depth:
            between.append(node)
            node = node.parent and (node.parent.taken_by or node.parent)
        if node is not reply:
            return parent is reply.parent
        for one in reversed(between):
            reply.results = reply.results or one
            if one is not reply.results:
                reply.results.take(one)
        return True

    def _new(self, parent: SessionNode | None, role: str, place: str) -> SessionNode:
        node = SessionNode(parent, role, place)
        self.nodes.append(node)
        if parent is not None:
            parent.is_leaf = False
            node.depth = parent.depth + 1
        return node


def _boundary(fields: dict[str, Any]) -> str | None:
    """What a line without a message says about the history after it."""
    about = fields.get("data") or fields.get("attachment")
    if isinstance(about, dict) and about.get("hookName") == "SessionStart:resume":
        return "resume"
    return _BOUNDARIES.get(str(fields.get("subtype")))


def _thinking(metadata: object) -> str | None:
    """The thinking setting of a prompt: a budget in tokens, or a level in older versions."""
    if not isinstance(metadata, dict):
        return None
    setting = str(metadata.get("maxThinkingTokens", metadata.get("level", "")))
    if metadata.get("disabled") is True or setting == "0":
        return "none"
    return setting if setting.isalnum() and setting != "None" else None


def usage_from(usage: object) -> TraceUsage | None:
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
