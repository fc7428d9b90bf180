"""Session files of GitHub Copilot CLI: `~/.copilot/session-state/<id>/events.jsonl`.

Lines are events `{type, data, id, parentId, timestamp}`, each after the one that it names. A
`session.usage_record` has the bill of the `assistant.message` with the same `apiCallId`. Versions
before 1.0.100 wrote only `session.shutdown`, with the sums since the session began: a bill if
there was one reply. After `session.compaction_complete` another conversation begins, and
`session.snapshot_rewind` removes messages. Events of a subagent name the tool call that started it.
The system prompt is in the file; tools are not.
"""

from __future__ import annotations

from typing import Any

import msgspec

from anaphora.analysis.trace.answers import answer_of
from anaphora.analysis.trace.format import TraceCall, TraceMessage, TraceUsage
from anaphora.analysis.trace.log_lines import (
    LineOrder,
    Problem,
    TraceEntry,
    count,
    reported_count,
    seconds,
)
from anaphora.wording import counted

from .recorded import RecordedSession, served_by, usage_of

_Event = tuple[str, dict[str, Any], dict[str, Any]]
"""Place, event and data."""


class _Reply(msgspec.Struct):
    """A reply that has no bill yet."""

    place: str
    api_id: str
    message_id: str
    model: str
    messages: int
    at: float | None
    began: float | None
    content: object


class _Bill(msgspec.Struct):
    place: str
    usage: TraceUsage
    served: tuple[str, str]
    at: float | None
    duration: float | None
    first: float | None
    """Seconds until the first token."""


class _Agent(RecordedSession):
    """The main agent or a subagent."""

    def __init__(self) -> None:
        super().__init__()
        self.bills: dict[str, _Bill] = {}
        """By the id of the call, until its reply comes."""
        self.unbilled: dict[str, _Reply] = {}
        """By the id of the call, or the place."""
        self.asked: float | None = None
        """When the last turn began."""
        self.users: dict[str, int] = {}
        """The messages before each event of a user."""
        self.lost = 0
        """Replies without a bill in a history that was replaced."""

    def restart(self, messages: list[TraceMessage], began_by: str) -> None:
        super().restart(messages, began_by)
        self.lost += len(self.unbilled)
        self.unbilled.clear()
        self.users.clear()


class CopilotSession:
    missing = "no reply with token counts; before 1.0.100 Copilot CLI records only their sums"

    @staticmethod
    def recognises(fields: dict[str, Any]) -> bool:
        kind = fields.get("type")
        is_event = isinstance(kind, str) and "." in kind and "parentId" in fields
        return is_event and isinstance(fields.get("data"), dict)

    def __init__(self) -> None:
        self.id = ""
        self.model = ""
        self.provider = ""
        """The provider of the last bill, if a key of the user's own was used."""
        self._agents: dict[str, _Agent] = {}
        self._order: LineOrder[_Event] = LineOrder()
        self._sums: dict[str, dict[str, int]] = {}
        """The sums of each model at the last shutdown."""
        self._since: dict[str, list[tuple[_Agent, str]]] = {}
        """The replies of each model since then that had no bill."""
        self._problems: list[Problem] = []

    def read(self, place: str, fields: dict[str, Any]) -> Problem | None:
        data = fields.get("data")
        event = place, fields, data if isinstance(data, dict) else {}
        for one in self._order.add(fields.get("id"), fields.get("parentId"), event):
            self._try(one)
        return self._problems.pop() if self._problems else None

    def traces(self, file: str) -> list[TraceEntry]:
        for event in self._order.rest():
            self._try(event)
        self._problems += self._order.problems(file)
        found: list[TraceEntry] = []
        unbilled = 0
        for number, (name, agent) in enumerate(self._agents.items()):
            for id, bill in agent.bills.items():
                agent.side_call(
                    _call(0, bill, None), _answer(id, bill, ()), bill.served, bill.place
                )
            session = self.id or file
            own = f"{session}@{number}" if name else session
            found += agent.found(own, "copilot", session, file)
            unbilled += len(agent.unbilled) + agent.lost
        if unbilled and found:
            reason = f"{counted(unbilled, 'reply', 'replies')} without token counts"
            self._problems.append(Problem(file, reason, "not_compared"))
        return [*self._problems, *found]

    def _try(self, event: _Event) -> None:
        try:
            self._read(*event)
        except ValueError as error:
            self._problems.append(Problem(event[0], str(error)))

    def _read(self, place: str, fields: dict[str, Any], data: dict[str, Any]) -> None:
        kind, at = fields.get("type"), seconds(fields.get("timestamp"))
        name = fields.get("agentId") or data.get("agentId") or data.get("parentToolCallId")
        agent = self._agents.setdefault(str(name or ""), _Agent())
        if kind in ("session.start", "session.resume", "session.model_change"):
            self.id = self.id or str(data.get("sessionId") or "")
            self.model = str(data.get("selectedModel") or data.get("newModel") or self.model)
            if kind == "session.resume":
                agent.began_by = agent.began_by or "resume"
        elif kind == "system.message":
            _system(agent, TraceMessage(role="system", content=data.get("content")))
        elif kind == "user.message":
            agent.users[str(fields.get("id"))] = len(agent.messages)
            content = data.get("transformedContent") or data.get("content")
            agent.add(TraceMessage(role="user", content=content))
        elif kind == "assistant.turn_start":
            agent.asked = at
        elif kind == "assistant.message":
            self._reply(agent, place, data, at)
        elif kind in ("session.usage_record", "assistant.usage"):
            usage = data.get("usage")
            self._bill(agent, place, usage if isinstance(usage, dict) else data, at)
        elif kind == "tool.execution_complete":
            agent.add(_result(data))
        elif kind == "session.compaction_complete" and data.get("success") is not False:
            self._compacted(agent, place, data, at)
        elif kind == "session.snapshot_rewind":
            kept_messages = agent.users.get(str(data.get("upToEventId")), len(agent.messages))
            agent.restart(agent.messages[:kept_messages], "edit")
        elif kind == "session.shutdown":
            self._shutdown(data, place)

    def _reply(self, agent: _Agent, place: str, data: dict[str, Any], at: float | None) -> None:
        message = _message(data)
        api_id = str(data.get("apiCallId") or "")
        reply = _Reply(
            place,
            api_id,
            str(data.get("messageId") or ""),
            str(data.get("model") or self.model),
            len(agent.messages),
            at,
            agent.asked,
            [message.content, message.tool_calls],
        )
        agent.add(message)
        bill = agent.bills.pop(api_id, None)
        if bill is None:
            agent.unbilled[api_id or place] = reply
            self._since.setdefault(reply.model, []).append((agent, api_id or place))
        else:
            _add_call(agent, reply, bill)

    def _bill(self, agent: _Agent, place: str, usage: dict[str, Any], at: float | None) -> None:
        bill = self._read_bill(place, usage, at)
        if bill is None:
            return
        api_id = str(usage.get("apiCallId") or "")
        reply = agent.unbilled.pop(api_id, None)
        if reply is not None:
            _add_call(agent, reply, bill)
            return
        agent.bills[api_id or f"#{place}"] = bill

    def _read_bill(self, place: str, usage: dict[str, Any], at: float | None) -> _Bill | None:
        served = served_by(usage.get("modelProvider") or self.provider, usage.get("model"))
        self.provider = str(usage.get("modelProvider") or self.provider)
        billed = usage_from(usage, served[0])
        if billed is None:
            return None
        times = (usage.get(name) for name in ("duration", "timeToFirstTokenMs"))
        duration, first = (one / 1000 if isinstance(one, int | float) else None for one in times)
        return _Bill(place, billed, served, at, duration, first)

    def _compacted(self, agent: _Agent, place: str, data: dict[str, Any], at: float | None) -> None:
        """The bill of the summary is in the event itself."""
        usage, messages = data.get("compactionTokensUsed"), agent.messages
        if isinstance(usage, dict):
            bill = self._read_bill(place, usage, at)
            if bill is not None:
                call = _call(len(messages), bill, None)
                answer = _answer(str(data.get("requestId") or ""), bill, data.get("summaryContent"))
                agent.bill(call, answer, bill.served, place)
        kept = [one for one in messages[:1] if one.role == "system"]
        summary = TraceMessage(role="user", content=data.get("summaryContent"))
        agent.restart([*kept, summary], "compaction")

    def _shutdown(self, data: dict[str, Any], place: str) -> None:
        """The sums are a bill if one reply of a model has none."""
        metrics = data.get("modelMetrics")
        for model, metric in metrics.items() if isinstance(metrics, dict) else ():
            since, self._sums[model] = sums_of(metric, self._sums.get(model, {}))
            replies = [
                (agent, key) for agent, key in self._since.pop(model, ()) if key in agent.unbilled
            ]
            served = served_by("", model)
            billed = usage_from(since, served[0])
            if len(replies) == since["count"] == 1 and billed is not None:
                ((agent, key),) = replies
                reply = agent.unbilled.pop(key)
                _add_call(agent, reply, _Bill(place, billed, served, reply.at, None, None))


def sums_of(metric: object, before: dict[str, int]) -> tuple[dict[str, int], dict[str, int]]:
    """The tokens and calls of a model since its sums were `before`, and its sums now."""
    usage, requests = (
        one if isinstance(one := _part(metric, name), dict) else {}
        for name in ("usage", "requests")
    )
    sums = {name: count(usage, name) for name in usage if name.endswith("Tokens")}
    sums["count"] = count(requests, "count")
    since = {name: sums[name] - before.get(name, 0) for name in sums}
    return (sums if min(since.values()) < 0 else since), sums


def _part(value: object, name: str) -> object:
    return value.get(name) if isinstance(value, dict) else None


def _system(agent: _Agent, message: TraceMessage) -> None:
    """The system prompt comes first, though it may be written after the user's message. Another
    one begins another conversation."""
    messages = agent.messages
    known = bool(messages) and messages[0].role == "system"
    if known and messages[0].content == message.content:
        return
    changed = [message, *messages[known:]]
    if agent.current.calls:
        agent.restart(changed, "edit")
    else:
        agent.current.messages = changed
        agent.users = {id: number + (not known) for id, number in agent.users.items()}


def _add_call(agent: _Agent, reply: _Reply, bill: _Bill) -> None:
    answer = _answer(reply.api_id or reply.message_id, bill, reply.content)
    call = _call(reply.messages, bill, reply)
    agent.bill(call, answer, bill.served, reply.place)


def _answer(id: str, bill: _Bill, content: object) -> Any:
    return answer_of("" if id.startswith("#") else id, bill.at, bill.usage, content)


def _call(messages: int, bill: _Bill, reply: _Reply | None) -> TraceCall:
    end = bill.at
    began = None if reply is None else reply.began
    if end is not None and bill.duration is not None:
        began = end - bill.duration
    if began is not None and end is not None and began > end:
        began = None
    first = None if began is None or bill.first is None else began + bill.first
    return TraceCall(messages=messages, t=began, t_end=end, t_first=first, usage=bill.usage)


def _message(data: dict[str, Any]) -> TraceMessage:
    content: list[Any] = []
    blocks = data.get("reasoningBlocks")
    reasoning = blocks.get("blocks") if isinstance(blocks, dict) else None
    if isinstance(reasoning, list):
        content += reasoning
    elif data.get("reasoningText") or data.get("reasoningOpaque"):
        texts = {"thinking": data.get("reasoningText"), "signature": data.get("reasoningOpaque")}
        content.append({"type": "thinking", **{k: v for k, v in texts.items() if v}})
    if data.get("content"):
        content.append({"type": "text", "text": data["content"]})
    requests = data.get("toolRequests")
    names = ("toolCallId", "name", "arguments")
    calls = [
        {name: one.get(name) for name in names}
        for one in (requests if isinstance(requests, list) else ())
        if isinstance(one, dict)
    ]
    return TraceMessage(role="assistant", content=content, tool_calls=calls or None)


def _result(data: dict[str, Any]) -> TraceMessage:
    result = data.get("result")
    content = result.get("content") if isinstance(result, dict) else data.get("error")
    return TraceMessage(
        role="tool", content=content, tool_call_id=str(data.get("toolCallId") or "")
    )


def usage_from(usage: dict[str, Any], provider: str) -> TraceUsage | None:
    """The input includes reads and writes."""
    read, written = count(usage, "cacheReadTokens"), count(usage, "cacheWriteTokens")
    return usage_of(
        provider,
        uncached=count(usage, "inputTokens") - read - written,
        read=read,
        written=written,
        output=reported_count(usage, "outputTokens"),
        reasoning=reported_count(usage, "reasoningTokens"),
    )
