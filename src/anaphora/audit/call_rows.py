"""From a call to its row: names and figures, and digests of the prompt's blocks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

from blake3 import blake3

from anaphora.bounded import BoundedMap
from anaphora.cache.verdict import Verdict
from anaphora.cache.verdict.changes import joined_names
from anaphora.catalog.prices import nano_usd
from anaphora.client.observe import EndedCall, OwnBill
from anaphora.client.observe.export import (
    block_label,
    known_block_label,
    label,
    outcome,
    queued,
    word,
)
from anaphora.client.response import Record
from anaphora.rendered import Plan, Rendered
from anaphora.rendered.chunks import ChunkRun
from anaphora.rendered.log import ChunkLog
from anaphora.tokens import Counts
from anaphora.values import Ttl, Usage

from .envelope import AuditBlock, AuditEnvelope, AuditUsage, OwnFigures, code

#: Longer runs have one block between two markers.
_MOST_BLOCKS = 32
#: Hex digits are twice as many.
_DIGEST_BYTES = 16
#: Digests of prefixes kept for one log: more than a row needs.
_MOST_DIGESTS = 2 * _MOST_BLOCKS
#: Logs whose hash can go on; a state takes 2 KB. Others are hashed again if they grow.
_MOST_STATES = 512

_labels: ContextVar[tuple[str, ...]] = ContextVar("labels", default=())


@contextmanager
def labelled(*labels: str) -> Iterator[None]:
    """Labels of the calls made in this block, in addition to those of enclosing blocks."""
    token = _labels.set((*_labels.get(), *(label(text) for text in labels)))
    try:
        yield
    finally:
        _labels.reset(token)


def current_labels() -> tuple[str, ...]:
    return _labels.get()


class _LogDigests:
    """Digests of one log; its bytes are hashed once."""

    __slots__ = ("chunks", "reached", "state", "upto")

    def __init__(self) -> None:
        self.state: blake3 | None = None
        self.reached = 0
        self.upto = BoundedMap[int, str](_MOST_DIGESTS)
        self.chunks: dict[int, str] = {}


class BlockDigests:
    """Keyed digests: without the key, a short text cannot be guessed from them."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._logs: WeakKeyDictionary[ChunkLog, _LogDigests] = WeakKeyDictionary()
        self._hashing = BoundedMap[int, _LogDigests](_MOST_STATES, on_drop=_drop_state)
        self._lock = threading.Lock()

    def of_bytes(self, data: bytes) -> str:
        return blake3(data, key=self._key).hexdigest()

    def of_chunk(self, log: ChunkLog, chunk: int) -> str:
        """Digest of one chunk of tools or system blocks, whose log does not change."""
        with self._lock:
            known = (self._logs.get(log.base) or self._new(log.base)).chunks
            if chunk not in known:
                data = log.slice(log.start(chunk), log.ends[chunk])
                known[chunk] = blake3(data, key=self._key).hexdigest(length=_DIGEST_BYTES)
            return known[chunk]

    def upto(self, log: ChunkLog, count: int) -> str:
        """Digest of the first chunks of a log that may still grow."""
        with self._lock:
            base = log.base
            known = self._logs.get(base) or self._new(base)
            digest = known.upto.get(count)
            if digest is not None:
                return digest
            state, begin = known.state, known.reached
            if state is None or count < begin:  # an end before the last one, such as in a fork
                state, begin = blake3(key=self._key), 0
            log.update(state, begin, count)
            if count >= known.reached:
                known.state, known.reached = state, count
                self._hashing[id(known)] = known
            digest = known.upto[count] = state.hexdigest(length=_DIGEST_BYTES)
            return digest

    def _new(self, log: ChunkLog) -> _LogDigests:
        known = self._logs[log] = _LogDigests()
        return known


def _drop_state(_: int, known: _LogDigests) -> None:
    known.state = None


def blocks_of(rendered: Rendered, plan: Plan, digests: BlockDigests) -> tuple[AuditBlock, ...]:
    """The blocks of a prompt; long runs and messages are split at markers only."""
    marks: dict[int, Ttl] = {}
    for mark in plan.marks:
        marks[mark.chunk] = mark.ttl
    counts, blocks = Counts(rendered), list[AuditBlock]()
    first = done = 0
    for run in rendered.runs:
        begin = 0
        for end in _ends(run, marks, first):
            before, done = done, counts.tokens(first + end)
            single = run.section != "messages" and end - begin == 1
            ttl = marks.get(first + end - 1)
            label = run.section if run.role is None else run.role.value
            block = AuditBlock(
                label=known_block_label(run.log.labels[begin], run.section) if single else label,
                kind=run.log.kinds[begin].value if single else run.section,
                chunks=end - begin,
                tokens=done - before,
                marker=ttl is not None,
                ttl=ttl,
                digest=digests.of_chunk(run.log, begin) if single else digests.upto(run.log, end),
            )
            blocks.append(block)
            begin = end
        first += run.count
    return tuple(blocks)


def _ends(run: ChunkRun, marks: dict[int, Ttl], first: int) -> list[int]:
    """Ends of the blocks of a run, counted in it."""
    if run.section != "messages" and run.count <= _MOST_BLOCKS:
        return list(range(1, run.count + 1))
    marked = [chunk - first + 1 for chunk in marks if first <= chunk < first + run.count]
    # An app may place any number of markers: more than any provider accepts, and each takes time.
    return sorted({*sorted(marked)[: _MOST_BLOCKS - 1], run.count})


def prompt_digest(rendered: Rendered, digests: BlockDigests) -> str:
    """Equal for equal prompts with equal parameters, regardless of markers."""
    parts, params = list[str](), list[bytes]()
    for run in rendered.runs:
        parts.append(f"{run.section} {digests.upto(run.log, run.count)}")
    for name, value in rendered.envelope.cache_params:
        params.append(f"{name} ".encode() + value)
    return digests.of_bytes("\n".join(parts).encode() + b"\n" + b"\n".join(params))


def usage_row(usage: Usage) -> AuditUsage:
    return AuditUsage(
        uncached=usage.uncached,
        read=usage.read,
        written=None if usage.written is None else dict(usage.written.items()),
        output=usage.output,
        reasoning=usage.reasoning,
    )


def row_of_record(
    record: Record,
    *,
    app: str,
    node: str,
    epoch: int,
    call: EndedCall,
    labels: tuple[str, ...],
    blocks: tuple[AuditBlock, ...],
    prompt_hash: str,
) -> AuditEnvelope:
    """The row of a call of the client. Texts of the record never reach it: only names, codes and
    figures."""
    verdict, plan = record.verdict, call.plan
    return AuditEnvelope(
        at=round(record.at, 6),
        epoch=epoch,
        app=_known_label(call.app) or app,
        group=_known_label(call.group),
        budget=call.budget,
        budget_label=_known_label(call.budget_label),
        node=node,
        adapter=call.adapter,
        call_id=word(call.call_id) if call.call_id else "",
        method=_known_label(call.method),
        ignored=tuple(map(label, call.ignored)),
        provider=_known_label(record.provider),
        system=_known_word(record.system),
        wire=_known_word(record.wire),
        model=_known_word(record.model),
        answered_by=_known_word(record.answered_by) if record.answered_by else None,
        request_id=word(record.request_id) if record.request_id else None,
        response_id=word(record.response_id) if record.response_id else None,
        operation=record.operation,
        prompt_hash=call.prompt_hash or prompt_hash,
        raw_hash=call.raw_hash,
        outcome=outcome(record.error),
        status=record.attempts[-1].status if record.attempts else None,
        stop_reason=record.stop_reason,
        streamed=record.streamed,
        attempts=len(record.attempts),
        first=None if record.first is None else round(record.first, 6),
        seconds=round(record.seconds, 6),
        queued=round(queued(record), 6),
        usage=usage_row(record.usage),
        predicted=record.predicted,
        cost_nano_usd=nano_usd(record.cost_usd),
        output_nano_usd=None if record.cost_usd is None else nano_usd(call.output_usd),
        saved_nano_usd=nano_usd(record.saved),
        unbilled_nano_usd=call.unbilled_nano_usd,
        own=None if call.own is None else own_figures(call.own),
        **({} if verdict is None else verdict_fields(verdict)),
        notices=tuple([code(notice.code) for notice in record.notices]) if record.notices else (),
        labels=labels,
        automatic=None if plan is None else plan.automatic,
        conversation=word(call.conversation) if call.conversation else "",
        turn=call.turn,
        blocks=blocks,
    )


def verdict_fields(verdict: Verdict) -> dict[str, Any]:
    """The fields of a row that a verdict fills."""
    broke = verdict.broke
    change = verdict.change if broke else None
    changed = None if change is None else block_label(change.label, change.section)
    if verdict.tool_fields:
        changed = label(joined_names(verdict.tool_fields))
    return {
        "verdict": verdict.result,
        "cause": verdict.cause,
        "broke": broke,
        "change": None if change is None else code(change.kind),
        "changed": changed,
        "lost": verdict.lost,
        "lost_nano_usd": nano_usd(verdict.cost_usd),
    }


#: Names that stay the same from call to call, unlike ids.
_known_word = lru_cache(maxsize=512)(word)
_known_label = lru_cache(maxsize=512)(label)


def own_figures(bill: OwnBill) -> OwnFigures:
    return OwnFigures(
        usage=usage_row(bill.usage),
        cost_nano_usd=nano_usd(bill.cost_usd),
        saved_nano_usd=nano_usd(bill.saved),
        unbilled_nano_usd=bill.unbilled_nano_usd,
    )
