"""Bills in session files of GitHub Copilot CLI: `<folder>/session-state/<id>/events.jsonl`.

A `session.usage_record` has the bill of a call. Versions before 1.0.100 wrote only the sums since
the session began, in `session.shutdown`: they are divided among the replies. Until then, or if the
program was killed, a reply counts with its output: its input is not in the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from anaphora.analysis.trace.answers import answer_of
from anaphora.analysis.trace.format import TraceUsage
from anaphora.analysis.trace.log_lines import Answer
from anaphora.analysis.trace.programs.copilot import sums_of, usage_from
from anaphora.usage.records import CallBill, moment

from .lines import BillReader, decoder, fields

#: The beginning of an event without a bill: its type comes first.
_NO_BILL = re.compile(
    rb'\{"type":"(?!session\.(?:start|resume|model_change|usage_record|compaction_complete|shutdown)"'
    rb'|assistant\.(?:message|usage)")'
).match
_USAGE = ("session.usage_record", "assistant.usage")


_Data = fields(
    "agentId parentToolCallId sessionId selectedModel newModel model apiCallId messageId requestId"
    " usage modelProvider compactionTokensUsed success modelMetrics outputTokens",
    context=fields("cwd"),
)
_decode = decoder(fields("type timestamp agentId", data=_Data))
_decode_flat = decoder(fields(data=dict[str, Any]))

_Reply = tuple[str, float | None]
_NOTHING = TraceUsage(input=0, cache_read=0)


class CopilotState(msgspec.Struct, array_like=True):
    id: str = ""
    project: str = ""
    model: str = ""
    provider: str = ""
    """The provider of the last bill, if a key of the user's own was used."""
    records: bool = False
    """Calls have bills of their own."""
    sums: dict[str, dict[str, int]] = {}
    """Of each model at the last shutdown."""
    replies: dict[str, list[_Reply]] = {}
    """Of each model since then: the ids and times."""


class CopilotBills(BillReader):
    def __init__(self) -> None:
        super().__init__(CopilotState())

    def read(self, line: bytes, number: int) -> Iterable[CallBill]:
        if _NO_BILL(line) is not None:
            return ()
        event, known = _decode(line), self.known
        kind, data, at = event.type, event.data, moment(event.timestamp)
        if data is None:
            return ()
        subagent = bool(event.agentId or data.agentId or data.parentToolCallId)
        if kind in ("session.start", "session.resume", "session.model_change"):
            known.id = known.id or str(data.sessionId or "")
            known.model = str(data.selectedModel or data.newModel or known.model)
            if data.context is not None:
                known.project = str(data.context.cwd or known.project)
        elif kind == "assistant.message" and not known.records:
            reply = str(data.apiCallId or data.messageId or ""), at
            model = str(data.model or known.model)
            known.replies.setdefault(model, []).append(reply)
            return self._unbilled(reply, model, data.outputTokens, number, subagent=subagent)
        elif kind in _USAGE:
            known.records, known.replies = True, {}
            nested = isinstance(data.usage, dict)
            usage = data.usage if nested else _decode_flat(line).data
            return self._bill(usage, usage.get("apiCallId"), at, number, subagent)
        elif kind == "session.compaction_complete" and data.success is not False:
            if isinstance(data.compactionTokensUsed, dict):
                summary = data.compactionTokensUsed
                return self._bill(summary, data.requestId, at, number, subagent)
        elif kind == "session.shutdown" and not known.records:
            return self._shutdown(data.modelMetrics, at, number)
        return ()

    def _bill(
        self, usage: dict[str, Any], id: object, at: float | None, number: int, subagent: bool
    ) -> Iterable[CallBill]:
        known, provider = self.known, usage.get("modelProvider")
        by = self.served(provider or known.provider, usage.get("model"))
        known.provider = str(provider or known.provider)
        billed = usage_from(usage, by[0])
        if billed is None:
            return ()
        answer = answer_of(id, at, billed, ())
        return (self.call(answer, billed, by, at, number, subagent=subagent),)

    def _unbilled(
        self, reply: _Reply, model: str, output: object, line: int, *, subagent: bool
    ) -> Iterable[CallBill]:
        """A reply before its bill."""
        if not isinstance(output, int) or not 0 < output <= 2**53:
            return ()
        key, by = self._key(reply, model), self.served("", model)
        bill = self.call(Answer(key), _NOTHING, by, reply[1], line, subagent=subagent)
        return (msgspec.structs.replace(bill, output=output, partial=True),)

    def _key(self, reply: _Reply, model: str) -> bytes:
        id, at = reply
        return answer_of(id, at, _NOTHING, [self.known.id, model]).key

    def _shutdown(self, metrics: Any, at: float | None, number: int) -> Iterator[CallBill]:
        known = self.known
        for model, metric in metrics.items() if isinstance(metrics, dict) else ():
            since, known.sums[model] = sums_of(metric, known.sums.get(model, {}))
            replies = known.replies.pop(model, [])
            by = self.served("", model)
            billed = usage_from(since, by[0])
            if billed is None:
                continue
            for reply, part in zip(replies, _parts(billed, len(replies)), strict=True):
                yield self.call(Answer(self._key(reply, model)), part, by, reply[1], number)
            if not replies:
                answer = answer_of("", at, billed, [known.id, model, 0])
                yield self.call(answer, billed, by, at, number)


def _parts(usage: TraceUsage, number: int) -> Iterator[TraceUsage]:
    """The sums, divided evenly."""
    counts = {name: count or 0 for name, count in msgspec.structs.asdict(usage).items()}
    for index in range(number):
        part = {n: count // number + (index < count % number) for n, count in counts.items()}
        yield TraceUsage(**part)
