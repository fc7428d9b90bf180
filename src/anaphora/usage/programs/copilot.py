"""Bills in session files of GitHub Copilot CLI: `<folder>/session-state/<id>/events.jsonl`.

A `session.usage_record` has the bill of a call. Versions before 1.0.100 wrote only the sums since
the session began, in `session.shutdown`: they are divided among the replies.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from anaphora.analysis.trace.answers import answer_of
from anaphora.analysis.trace.format import TraceUsage
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
    " usage modelProvider compactionTokensUsed success modelMetrics",
    context=fields("cwd"),
)
_decode = decoder(fields("type timestamp agentId", data=_Data))
_decode_flat = decoder(fields(data=dict[str, Any]))

_Reply = tuple[str, float | None]


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
            known.replies.setdefault(str(data.model or known.model), []).append(reply)
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

    def _shutdown(self, metrics: Any, at: float | None, number: int) -> Iterator[CallBill]:
        known = self.known
        for model, metric in metrics.items() if isinstance(metrics, dict) else ():
            since, known.sums[model] = sums_of(metric, known.sums.get(model, {}))
            replies = known.replies.pop(model, [])
            by = self.served("", model)
            billed = usage_from(since, by[0])
            if billed is None:
                continue
            if len(replies) == since["count"] == 1:
                ((id, ended),) = replies
                yield self.call(answer_of(id, ended, billed, ()), billed, by, ended, number)
                continue
            for index, part in enumerate(_parts(billed, len(replies) or 1)):
                ended = replies[index][1] if replies else at
                answer = answer_of("", at, billed, [known.id, model, index])
                yield self.call(answer, part, by, ended, number)


def _parts(usage: TraceUsage, number: int) -> Iterator[TraceUsage]:
    """The sums, divided evenly."""
    counts = {name: count or 0 for name, count in msgspec.structs.asdict(usage).items()}
    for index in range(number):
        part = {n: count // number + (index < count % number) for n, count in counts.items()}
        yield TraceUsage(**part)
