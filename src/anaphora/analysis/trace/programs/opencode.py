"""Sessions of opencode: objects `{info, messages: [{info, parts}]}`, as `opencode export` writes
them. Its database (`~/.local/share/opencode/opencode.db`) and the tree of files of older versions
(`~/.local/share/opencode/storage`) are read as such objects.

A message of the assistant is a call, or several in older versions: each `step-finish` part has the
bill of one. The results of tools are in the parts that call them, and are sent by the next call. A
reply with `summary` replaces the history before it. A fork is a session of its own that repeats the
messages with their times, under new ids. System prompt and tools are not recorded.
"""

from __future__ import annotations

import math
from typing import Any

from msgspec.structs import replace

from anaphora.analysis.trace.answers import digest
from anaphora.analysis.trace.format import TraceCall, TraceMessage, TraceUsage
from anaphora.analysis.trace.log_lines import (
    Answer,
    FoundTrace,
    Problem,
    TraceEntry,
    count,
    reported_count,
    seconds,
)

from .recorded import RecordedSession, served_by, usage_of

#: Parts that are sent to a model.
_SENT = ("text", "file", "reasoning")


class OpencodeSessions:
    missing = "no reply with token counts"

    @staticmethod
    def recognises(fields: dict[str, Any]) -> bool:
        info, messages = fields.get("info"), fields.get("messages")
        if not isinstance(info, dict) or not isinstance(messages, list):
            return False
        return "id" in info and all(isinstance(one, dict) and "info" in one for one in messages[:1])

    def __init__(self) -> None:
        self._found: list[TraceEntry] = []

    def read(self, place: str, fields: dict[str, Any]) -> Problem | None:
        info, messages = fields.get("info"), fields.get("messages")
        if not isinstance(info, dict) or not isinstance(messages, list):
            return Problem(place, "no session of opencode")
        session, problem = _Session(), None
        for index, message in enumerate(sorted(messages, key=_order)):
            try:
                session.read(place, message)
            except (TypeError, ValueError) as error:
                problem = Problem(place, f"messages[{index}]: {error}")
        id = str(info.get("id") or place)
        began = seconds(_of(info, "time").get("created")) or session.began
        for entry in session.found(id, "opencode", id, place.rpartition(":")[0]):
            if isinstance(entry, FoundTrace):
                agent = session.agent if info.get("parentID") else None
                entry = entry._replace(began=began, trace=replace(entry.trace, agent=agent))
            self._found.append(entry)
        return problem

    def traces(self, file: str) -> list[TraceEntry]:
        del file  # each session has its own place
        return self._found


class _Session(RecordedSession):
    def __init__(self) -> None:
        super().__init__()
        self.began: float | None = None
        self.agent: str | None = None
        """The name of the agent that replied first."""

    def read(self, place: str, message: Any) -> None:
        if not isinstance(message, dict) or not isinstance(message.get("info"), dict):
            raise ValueError("is not a message")
        info, parts = message["info"], message.get("parts")
        parts = [one for one in parts if isinstance(one, dict)] if isinstance(parts, list) else []
        created = seconds(_of(info, "time").get("created"))
        self.began = created if self.began is None else self.began
        if info.get("role") == "user":
            sent = [part for part in map(_sent, parts) if part is not None]
            self.add(TraceMessage(role="user", content=sent))
        elif info.get("role") == "assistant":
            agent = info.get("agent") or info.get("mode")
            self.agent = self.agent or (agent if isinstance(agent, str) else None)
            self._reply(place, info, parts)

    def _reply(self, place: str, info: dict[str, Any], parts: list[dict[str, Any]]) -> None:
        served = served_by(info.get("providerID"), info.get("modelID"))
        before, times = len(self.messages), _of(info, "time")
        began, completed = seconds(times.get("created")), seconds(times.get("completed"))
        for index, (step, tokens) in enumerate(_steps(info, parts)):
            reply, *results = _messages(step)
            usage = usage_from(tokens, served[0], reasons=_reasons(step))
            if usage is not None:
                call = TraceCall(
                    messages=len(self.messages),
                    t=None if index else began,
                    t_end=_ended(step) or completed,
                    usage=usage,
                )
                self.bill(call, answer_at(began, index, usage), served, place)
            for message in (reply, *results):
                self.add(message)
        if info.get("summary") is True:
            # The request for the summary, and the summary.
            self.restart(self.messages[max(0, before - 1) :], "compaction")


def answer_at(began: float | None, step: int, usage: TraceUsage) -> Answer:
    """Identifies an answer. A fork repeats it with its time, under another id."""
    counts = usage.input, usage.cache_read, usage.written, usage.output
    return Answer(digest("opencode", began, step, counts))


def _order(message: Any) -> tuple[float, str]:
    info = _of(message, "info")
    created = seconds(_of(info, "time").get("created"))
    return math.inf if created is None else created, str(info.get("id") or "")


def _steps(
    info: dict[str, Any], parts: list[dict[str, Any]]
) -> list[tuple[list[dict[str, Any]], Any]]:
    """The parts of each call of a reply, and its tokens."""
    steps: list[tuple[list[dict[str, Any]], Any]] = []
    current: list[dict[str, Any]] = []
    for part in parts:
        if part.get("type") == "step-finish":
            steps.append((current, part.get("tokens")))
            current = []
        elif part.get("type") in (*_SENT, "tool"):
            current.append(part)
    if current or not steps:
        steps.append((current, None if steps else info.get("tokens")))
    return steps


def _messages(parts: list[dict[str, Any]]) -> list[TraceMessage]:
    """The reply, and the results of its tools."""
    tools = [part for part in parts if part.get("type") == "tool"]
    inputs = (_of(tool, "state").get("input") for tool in tools)
    calls = [
        {"id": tool.get("callID"), "name": tool.get("tool"), "input": input}
        for tool, input in zip(tools, inputs, strict=True)
    ]
    content = [part for part in map(_sent, parts) if part is not None]
    messages = [TraceMessage(role="assistant", content=content, tool_calls=calls or None)]
    for tool in tools:
        state = _of(tool, "state")
        result = state.get("output") if "output" in state else state.get("error")
        id = str(tool.get("callID") or "")
        messages.append(TraceMessage(role="tool", content=result, tool_call_id=id))
    return messages


def _sent(part: dict[str, Any]) -> dict[str, Any] | None:
    """A part as a model gets it; None if it is not sent."""
    kind = part.get("type")
    if kind not in _SENT or part.get("ignored"):
        return None
    if kind == "file":
        return {"type": "file", "mime": part.get("mime"), "data": part.get("url")}
    if kind == "text":
        return {"type": "text", "text": part.get("text")}
    if signed := _of(_of(part, "metadata"), "anthropic"):
        return {"type": "thinking", "thinking": part.get("text"), **signed}
    return {"type": "reasoning", "text": part.get("text"), "metadata": part.get("metadata")}


def _reasons(parts: list[dict[str, Any]]) -> bool:
    return any(part.get("type") == "reasoning" for part in parts)


def _ended(parts: list[dict[str, Any]]) -> float | None:
    """When a reply was complete, before its tools ran."""
    ends = [_of(part, "time").get("end") for part in parts]
    ends += [_of(_of(part, "state"), "time").get("start") for part in parts]
    return max((time for time in map(seconds, ends) if time is not None), default=None)


def usage_from(tokens: object, provider: str, *, reasons: bool = False) -> TraceUsage | None:
    """Reads and writes are not part of the input. The output is without the reasoning if
    the total says so, and in versions without a total with it. A reasoning of 0 tokens in a reply
    that has some was not reported."""
    if not isinstance(tokens, dict):
        return None
    uncached, output = count(tokens, "input"), count(tokens, "output")
    reasoning, cache = reported_count(tokens, "reasoning"), _of(tokens, "cache")
    read, written = count(cache, "read"), count(cache, "write")
    total = reported_count(tokens, "total")
    if total is not None and total > uncached + read + written + output:
        output += reasoning or 0
    return usage_of(
        provider,
        uncached=uncached,
        read=read,
        written=written,
        output=output,
        reasoning=None if reasons and not reasoning else reasoning,
    )


def _of(value: Any, name: str) -> dict[str, Any]:
    """A nested object; an empty one if it is missing."""
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}
