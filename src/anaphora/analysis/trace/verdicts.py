"""Verdicts on recorded conversations: each call against the billed call before it.

A recording has one list of messages that only grows, and often lacks the system prompt. So the
change that broke a prefix is seldom recorded: the cause of a loss is named if the clock, the rules
or the program itself (a resumed session, a compaction) show it, and otherwise unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

from msgspec.structs import replace

from anaphora import catalog
from anaphora.cache.learned_steps import LearnedSteps
from anaphora.cache.verdict import SentCall, Verdict, judge, side_call
from anaphora.canonical import dumps
from anaphora.catalog import CacheRules, Price
from anaphora.rendered import ChunkLog, ChunkRun, Envelope, Kind, LogAppend, Mark, Plan, Rendered
from anaphora.values import CachePolicy, SegmentRole, Ttl

from .format import BLOCK_KINDS, RecordedParams, Trace, TraceCall
from .predict import Predictor
from .predicted import Predicted

Pricing: TypeAlias = Callable[[str, str, float | None, str | None], Price | None]


class TraceVerdict(NamedTuple):
    predicted: Predicted
    model: str
    """The model of this call, which may have changed since the first."""
    verdict: Verdict


def judge_traces(
    traces: Iterable[Trace], price: Pricing | None = None, steps: LearnedSteps | None = None
) -> Iterator[TraceVerdict]:
    """A verdict for every billed call, in the order in which they happened. `steps` holds rules
    learned from bills of other conversations, and learns from these."""
    for _, judged in judge_calls(traces, Predictor(steps=steps), price):
        if judged is not None:
            yield judged


def judge_calls(
    traces: Iterable[Trace], predictor: Predictor, price: Pricing | None = None
) -> Iterator[tuple[Predicted, TraceVerdict | None]]:
    """Every call in the order in which they happened; those with a bill have a verdict."""
    rendered = {trace.id: _RenderedTrace(trace) for trace in traces}
    for predicted in predictor.play([each.trace for each in rendered.values()]):
        billed = predicted.billed is not None
        yield predicted, rendered[predicted.trace].judge(predicted, price) if billed else None


class _RenderedTrace:
    """A recording as chunks; all calls share one log."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._params = RecordedParams(trace)
        self._log, self._ends = _message_log(trace)
        self._tools = _tools_run(trace)
        self._before: SentCall | None = None
        self._ttl: Ttl | None = None
        """The TTL of writes by calls without recorded markers, by their bills."""

    def judge(self, predicted: Predicted, price: Pricing | None) -> TraceVerdict:
        call, provider = self.trace.calls[predicted.call], predicted.provider
        params = self._params.after(call, in_loop=predicted.in_loop)
        model = self._params.model
        rules = predicted.rules or catalog.rules(provider, model, predicted.wire)
        profile = catalog.profile(provider, model)
        params["model"] = rules.model.encode()
        rendered = self._rendered(call, model, params, profile.bytes_per_token.value)
        assert call.usage is not None
        sent = SentCall(
            rendered=rendered,
            plan=self._plan(call, rendered, rules),
            at=call.at,
            began=call.t_first,
            ended=call.ended,
            usage=call.usage.usage(),
            began_by=call.began_by,
            marks_recorded=call.breakpoints is not None,
            complete=False,  # the recording has messages, not the bytes that were sent
        )
        if self._is_side_call(predicted.call, rules):
            return TraceVerdict(predicted, model, side_call(sent))
        outcome, lapsed = predicted.outcome, predicted.lapsed
        if lapsed is not None and call.usage.cache_read <= lapsed.read:
            outcome = lapsed
        # After the clock stepped back, the time between the two is unknown.
        later = replace(sent, at=None, began=None, ended=None) if call.gap_unknown else sent
        verdict = judge(
            self._before,
            later,
            rules,
            outcome=outcome,
            price=None if price is None else price(provider, model, call.at, predicted.wire),
            profile=profile,
        )
        self._before = sent
        return TraceVerdict(predicted, model, verdict)

    def _is_side_call(self, index: int, rules: CacheRules) -> bool:
        """Whether the next call reads the entry of the call before this one, and this one did not:
        it was sent beside the conversation."""
        call, before = self.trace.calls[index].usage, self._before
        left = None if before is None or before.usage is None else before.usage
        calls = self.trace.calls
        following = (calls[at].usage for at in range(index + 1, len(calls)))
        after = next(filter(None, following), None)
        if call is None or left is None or after is None or left.input is None:
            return False
        cached = (left.read or 0) + (left.written_total or 0)
        if not rules.needs_marks:
            cached = max(cached, rules.whole_granules(left.input))
        return call.total < cached <= after.cache_read and call.cache_read < cached

    def _rendered(
        self, call: TraceCall, model: str, params: dict[str, bytes], per_token: float
    ) -> Rendered:
        runs = [] if self._tools is None else [self._tools]
        if call.messages:
            messages = ChunkRun(
                "messages",
                self._log,
                self._ends[call.messages - 1],
                role=SegmentRole.CONVERSATION,
                source=self.trace.messages[: call.messages],
            )
            runs.append(messages)
        cache_params = tuple(sorted(params.items()))
        return Rendered(
            wire="recorded",
            model=model,
            runs=tuple(run for run in runs if run.count),
            cacheable=sum(run.count for run in runs),
            envelope=Envelope(source=None, path="", head=b"", tail=b"", cache_params=cache_params),
            markers={},
            bytes_per_token=per_token,
        )

    def _written_for(self, call: TraceCall, rules: CacheRules) -> Ttl:
        """The TTL that the bills show: the longest of this call's, else that of the last one."""
        written = [] if call.usage is None else [*call.usage.by_ttl]
        self._ttl = next((ttl for ttl in rules.ttls.value if ttl in written), self._ttl)
        if self._ttl is not None:
            return self._ttl
        return "5m" if rules.default_ttl is None else rules.default_ttl.value

    def _plan(self, call: TraceCall, rendered: Rendered, rules: CacheRules) -> Plan | None:
        """The markers that were sent; one after the last block if none are recorded."""
        if rules.automatic_breakpoint.value == "last_message" and rules.default_ttl is not None:
            return Plan(automatic=rules.default_ttl.value)
        if rules.mechanism.value != "explicit" or not len(rendered):
            return Plan()
        tools = 0 if self._tools is None else self._tools.count
        last = len(rendered) - 1
        marks: dict[int, Ttl] = {}
        automatic: Ttl | None = None
        for where, ttl, tool in call.markers:
            lifetime: Ttl = ttl if ttl in rules.ttls.value else "5m"
            if where == "automatic":
                automatic = lifetime
            elif where == "tools":
                marks[max(0, tools - 1) if tool is None or not tools else tool] = lifetime
            elif isinstance(where, int) and where < len(self._ends):
                marks[min(last, tools + self._ends[where] - 1)] = lifetime
        if call.breakpoints is None:
            marks[last] = self._written_for(call, rules)
        placed = tuple(Mark(chunk, marks[chunk]) for chunk in sorted(marks))
        return Plan(marks=placed, automatic=automatic)


def _message_log(trace: Trace) -> tuple[ChunkLog, list[int]]:
    """All messages, one chunk for each block, and the number of chunks up to each message."""
    addition = LogAppend()
    ends: list[int] = []
    for index, message in enumerate(trace.messages):
        opening = b'{"role":' + dumps(message.role) + b',"content":['
        blocks: list[Any] = message.content if isinstance(message.content, list) else []
        if isinstance(message.content, str):
            blocks = [{"type": "text", "text": message.content}]
        calls = message.tool_calls or []
        blocks = [*blocks, *calls] or [{}]
        addition.open("user" if message.role == "tool" else message.role)
        for position, block in enumerate(blocks):
            lead = b"," if position else (b"]}," if index else b"") + opening
            name = block.get("type") if isinstance(block, dict) else None
            kind = BLOCK_KINDS.get(str(name), Kind.TEXT)
            if message.role == "tool":
                kind = Kind.TOOL_RESULT
            elif position >= len(blocks) - len(calls):
                kind = Kind.TOOL_CALL
            addition.chunk(kind, lead + dumps(block), -1)
        addition.end_message(f"m{index}")
        ends.append(len(addition.chunks))
    return ChunkLog().append(addition), ends


def _tools_run(trace: Trace) -> ChunkRun | None:
    if not trace.tools:
        return None
    addition = LogAppend()
    for index, tool in enumerate(trace.tools):
        addition.chunk(Kind.TOOL, (b"," if index else b"") + dumps(tool), -1)
    labels = [f"tool {index}" for index in range(len(trace.tools))]
    log = ChunkLog.of(addition, labels, [CachePolicy.NONE] * len(labels))
    return ChunkRun("tools", log, len(log), lead=b'"tools":[', source=tuple(labels))
