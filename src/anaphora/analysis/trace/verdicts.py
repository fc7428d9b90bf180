"""Verdicts on recorded conversations: each call against the one before it that was billed.

A recording has one list of messages that only grows, and often lacks the system prompt. So what
broke is seldom to be seen in it; what was billed is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import replace

from anaphora import catalog
from anaphora.cache.verdict import Cause, SentCall, Verdict, judge
from anaphora.canonical import dumps
from anaphora.catalog import CacheRules, Price
from anaphora.rendered import ChunkLog, ChunkRun, Envelope, Kind, LogAppend, Mark, Plan, Rendered
from anaphora.values import CachePolicy, SegmentRole, Ttl

from .causes import MEANING
from .form import Trace, TraceCall
from .notes import Parameters
from .predict import Predicted, Predictor

_KINDS = {
    "image": Kind.IMAGE,
    "image_url": Kind.IMAGE,
    "input_image": Kind.IMAGE,
    "document": Kind.DOCUMENT,
    "tool_use": Kind.TOOL_CALL,
    "tool_result": Kind.TOOL_RESULT,
    "thinking": Kind.THINKING,
    "redacted_thinking": Kind.THINKING,
    "reasoning": Kind.THINKING,
}

#: Asked with provider, model, the moment and the wire.
Pricing: TypeAlias = Callable[[str, str, float | None, str | None], Price | None]


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a recording."""

    trace: str
    call: int
    provider: str
    model: str
    at: float | None
    gap: float | None
    in_loop: bool
    verdict: Verdict


def judge_traces(traces: Iterable[Trace], price: Pricing | None = None) -> Iterator[Judged]:
    """A verdict for every call that was billed, in the order in which they happened. `price` is
    asked for what a model cost at the time."""
    listed = {trace.id: _Said(trace) for trace in traces}
    for found in Predictor().play([said.trace for said in listed.values()]):
        if found.billed is not None:
            yield listed[found.trace].judged(found, price)


class _Said:
    """A recording as chunks, all calls of which look into one log."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._parameters = Parameters(trace)
        self._log, self._chunks = _log(trace)
        self._tools = _tools(trace)
        self._before: SentCall | None = None

    def judged(self, found: Predicted, price: Pricing | None) -> Judged:
        call = self.trace.calls[found.call]
        cache_params = self._parameters.after(call, in_loop=found.in_loop)
        model = self._parameters.model
        rules = catalog.rules(found.provider, model, found.wire)
        profile = catalog.profile(found.provider, model)
        cache_params["model"] = rules.model.encode()
        rendered = self._rendered(call, model, cache_params, profile.bytes_per_token.value)
        billed = call.usage
        assert billed is not None
        sent = SentCall(
            rendered=rendered,
            plan=self._plan(call, rendered, rules),
            at=call.at,
            usage=billed.usage(),
            complete=False,  # messages are recorded, not the bytes that were sent
        )
        cost = None if price is None else price(found.provider, model, call.at, found.wire)
        verdict = judge(
            self._before, sent, rules, outcome=found.outcome, price=cost, profile=profile
        )
        self._before = sent
        return Judged(
            trace=found.trace,
            call=found.call,
            provider=found.provider,
            model=model,
            at=call.at,
            gap=found.gap,
            in_loop=found.in_loop,
            verdict=_explained(verdict, found),
        )

    def _rendered(
        self, call: TraceCall, model: str, cache_params: dict[str, bytes], ratio: float
    ) -> Rendered:
        runs = [] if self._tools is None else [self._tools]
        if call.messages:
            runs.append(
                ChunkRun(
                    "messages",
                    self._log,
                    self._chunks[call.messages - 1],
                    role=SegmentRole.CONVERSATION,
                    source=self.trace.messages[: call.messages],
                )
            )
        return Rendered(
            wire="recorded",
            model=model,
            runs=tuple(run for run in runs if run.count),
            cacheable=sum(run.count for run in runs),
            envelope=Envelope(
                source=None,
                path="",
                head=b"",
                tail=b"",
                cache_params=tuple(sorted(cache_params.items())),
            ),
            markers={},
            bytes_per_token=ratio,
        )

    def _plan(self, call: TraceCall, rendered: Rendered, rules: CacheRules) -> Plan | None:
        """The markers that were sent; behind the last block where nobody recorded them."""
        if rules.automatic_breakpoint.value == "last_message" and rules.default_ttl is not None:
            return Plan(automatic=rules.default_ttl.value)
        if rules.mechanism.value != "explicit" or not len(rendered):
            return Plan()
        before = 0 if self._tools is None else self._tools.count
        last = len(rendered) - 1
        marks: dict[int, Ttl] = {}
        for where, ttl in call.breakpoints or ():
            lifetime: Ttl = ttl if ttl in rules.ttls.value else "5m"
            if where == "tools":
                marks[max(0, before - 1)] = lifetime
            elif isinstance(where, int) and where < len(self._chunks):
                marks[min(last, before + self._chunks[where] - 1)] = lifetime
        if call.breakpoints is None:
            marks[last] = "5m"
        return Plan(marks=tuple(Mark(chunk, marks[chunk]) for chunk in sorted(marks)))


def _explained(verdict: Verdict, found: Predicted) -> Verdict:
    """With the likely cause that the bills tell, where nothing else is known."""
    if verdict.cause != "unexplained" or found.cause in (None, "unexplained"):
        return verdict
    assert found.cause is not None
    said = f"{MEANING[found.cause]} (likely, by the bills)"
    return replace(verdict, causes=(Cause(kind="unexplained", text=said),))


def _log(trace: Trace) -> tuple[ChunkLog, list[int]]:
    """All messages, a chunk for each block, and how many chunks there are up to each message."""
    out = LogAppend()
    ends: list[int] = []
    for index, message in enumerate(trace.messages):
        opening = b'{"role":' + dumps(message.role) + b',"content":['
        blocks: list[Any] = message.content if isinstance(message.content, list) else []
        if isinstance(message.content, str):
            blocks = [{"type": "text", "text": message.content}]
        blocks = [*blocks, *(message.tool_calls or ())] or [{}]
        out.open("user" if message.role == "tool" else message.role)
        for at, block in enumerate(blocks):
            lead = b"," if at else (b"]}," if index else b"") + opening
            kind = _KINDS.get(str(_type(block)), Kind.TEXT)
            if message.role == "tool":
                kind = Kind.TOOL_RESULT
            elif at >= len(blocks) - len(message.tool_calls or ()):
                kind = Kind.TOOL_CALL
            out.chunk(kind, lead + dumps(block), -1)
        out.end_message(f"m{index}")
        ends.append(len(out.pieces))
    return ChunkLog().append(out), ends


def _tools(trace: Trace) -> ChunkRun | None:
    if not trace.tools:
        return None
    out = LogAppend()
    for index, tool in enumerate(trace.tools):
        out.chunk(Kind.TOOL, (b"," if index else b"") + dumps(tool), -1)
    labels = [f"tool {index}" for index in range(len(trace.tools))]
    log = ChunkLog.of(out, labels, [CachePolicy.NONE] * len(labels))
    return ChunkRun("tools", log, len(log), lead=b'"tools":[', source=tuple(labels))


def _type(block: Any) -> Any:
    return block.get("type") if isinstance(block, dict) else None
