"""A conversation between two sessions, as it is stored: what the planner remembers, the last call
at each provider, and the digests of the bytes that the next call should begin with.

The bytes themselves are stored beside it, in pieces (`rendered/stored.py`), and read only when a
prompt no longer begins with them, to name the byte. Values from a store are not trusted: they are
decoded strictly, and one that cannot be used starts the conversation anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Annotated

import msgspec
from blake3 import blake3
from msgspec import Meta

from anaphora.cache.plan.saved import SavedPlanner
from anaphora.cache.sent_call import SentCall
from anaphora.cache.simulator import Span
from anaphora.cache.simulator.slot_predictor import SavedSlotCall
from anaphora.cache.simulator.view import Position, SavedCache, Time
from anaphora.errors import Parse
from anaphora.prompt import Continuation, PromptIR
from anaphora.rendered import CacheHandle, ChunkRun, Mark, Plan, Rendered
from anaphora.rendered.stored import (
    NewPiece,
    PieceRef,
    StoredRun,
    match_run,
    message_digests,
    restore_run,
    store_run,
)
from anaphora.tokens import Bills
from anaphora.values import Conversation, Message, SegmentRole, Ttl, Usage

#: In front of every value: another version is not read.
_VERSION = b"anaphora conversation 1\n"
_HISTORY, _TAIL = SegmentRole.CONVERSATION, SegmentRole.VOLATILE_TAIL
_DYNAMIC, _STABLE = SegmentRole.DYNAMIC_CONTEXT, SegmentRole.STABLE_PREFIX


class SavedCall(msgspec.Struct, frozen=True, kw_only=True):
    """The last call at one provider."""

    at: Time
    began: Time
    usage: Usage
    marks: tuple[Mark, ...]
    automatic: Ttl | None
    only_marks: bool
    key: str | None
    held: CacheHandle | None
    spans: tuple[Span, ...]
    """The simulator's outcome."""
    cacheable: Position
    cache_params: tuple[tuple[str, bytes], ...]
    bills: Bills
    runs: tuple[StoredRun, ...]
    since: Time
    """When the oldest of its pieces was stored."""

    @property
    def plan(self) -> Plan:
        return Plan(
            marks=self.marks,
            automatic=self.automatic,
            only_marks=self.only_marks,
            key=self.key,
            held=self.held,
        )

    def run_like(self, run: ChunkRun) -> StoredRun | None:
        for stored in self.runs:
            if (stored.section, stored.role) == (run.section, run.role):
                return stored
        return None


class SavedHandle(msgspec.Struct, frozen=True):
    """A beginning of the prompt that the provider stores."""

    handle: CacheHandle
    tokens: Annotated[int, Meta(ge=0)]
    since: Time
    expires: Time


class SavedChain(msgspec.Struct, frozen=True):
    """A response that the provider stores, and what it continues."""

    messages: Position
    digest: bytes
    begins: bytes


class SavedState(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation at one provider."""

    provider: str
    model: str
    call: SavedCall
    planner: SavedPlanner
    cache: SavedCache
    bills: Bills
    slot: SavedSlotCall | None
    handle: SavedHandle | None
    reply_id: str | None
    chain: SavedChain | None
    prefix_change_expected: bool


class SavedCompaction(msgspec.Struct, frozen=True):
    """What was dropped of the app's history: it is dropped again when all of it is loaded."""

    parts: tuple[tuple[Position, bytes], ...]
    """How many messages were dropped at a time, and their digest."""
    summary: tuple[Message, ...]

    def dropped(self, history: Conversation) -> int:
        """How many messages of a history were dropped; 0 where it is another one."""
        first = 0
        for count, digest in self.parts:
            if messages_digest(history[first : first + count], ids=False) != digest:
                return 0
            first += count
        return first

    @classmethod
    def of(
        cls, earlier: SavedCompaction | None, before: Conversation, after: Conversation
    ) -> SavedCompaction | None:
        """`before` became `after`: a summary and the end of it; None where that is not so."""
        known = () if earlier is None else earlier.summary
        kept = 0
        while kept < min(len(before), len(after)) and before[-1 - kept] is after[-1 - kept]:
            kept += 1
        dropped = len(before) - kept
        if dropped < len(known) or before[: len(known)] != known:
            return None
        gone = before[len(known) : dropped]
        parts = () if earlier is None else earlier.parts
        if gone:
            parts = (*parts, (len(gone), messages_digest(gone, ids=False)))
        return cls(parts, after[: len(after) - kept])


class SavedConversation(msgspec.Struct, frozen=True, kw_only=True):
    process: str
    """The client that saved it: it still knows the conversation."""
    current: tuple[str, str]
    """The provider and model that answered last."""
    cost_usd: (
        Annotated[str, Meta(pattern=r"^-?[0-9]{1,20}(\.[0-9]{1,40})?(E-?[0-9]{1,3})?$")] | None
    )
    states: tuple[SavedState, ...]
    boundary: tuple[str, int | str | None] | None
    continuation: Continuation | None
    compaction: SavedCompaction | None

    def encode(self) -> bytes:
        return _VERSION + _encode(self)

    @classmethod
    def decode(cls, data: object) -> SavedConversation:
        """Raises `Parse`, or what msgspec raises, for a value that is none of ours."""
        if not isinstance(data, bytes):
            raise Parse(f"the store returned {type(data).__name__} instead of bytes")
        if not data.startswith(_VERSION):
            raise Parse("it was written by another version")
        return _decode(data[len(_VERSION) :])

    def pieces(self) -> set[bytes]:
        """The names of all pieces that are stored beside it."""
        refs = (ref for state in self.states for run in state.call.runs for ref in run.pieces)
        return {ref.digest for ref in refs if not ref.packed}


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(SavedConversation).decode


class PastCall:
    """The last call before this session, until the next one was answered."""

    def __init__(self, saved: SavedState) -> None:
        """Raises where the state contradicts itself."""
        for run in saved.call.runs:
            run.check()
        _check_bills(saved.bills)
        _check_bills(saved.call.bills)
        self.saved = saved
        self.pieces: dict[bytes, bytes] = {}
        """Those that were read from the store."""
        self.rendered: Rendered | None = None
        """The last prompt that was rendered: a later one continues it."""
        self._runs: list[ChunkRun | None] = [None] * len(saved.call.runs)
        self.sent: SentCall | None = None

    def references(self) -> list[PieceRef]:
        """All pieces that are stored beside it."""
        refs = (ref for run in self.saved.call.runs for ref in run.pieces)
        return [ref for ref in refs if not ref.packed and ref.digest not in self.pieces]

    def missing(self, rendered: Rendered) -> list[PieceRef]:
        """The pieces to read: those of the runs that this prompt no longer begins with."""
        refs: list[PieceRef] = []
        for index, stored in enumerate(self.saved.call.runs):
            if self._runs[index] is None:
                self._runs[index] = match_run(stored, rendered)
            if self._runs[index] is None:
                refs += [ref for ref in stored.pieces if not ref.packed]
        return [ref for ref in refs if ref.digest not in self.pieces]

    def resolve(self, rendered: Rendered) -> SentCall:
        """The last call. What this prompt still begins with is a view of it; the rest is made from
        the pieces, and raises where they are missing."""
        if self.sent is None:
            if self.missing(rendered):
                raise Parse("bytes of the last call are no longer in the store")
            call = self.saved.call
            runs = tuple(
                run or restore_run(stored, self.pieces)
                for run, stored in zip(self._runs, call.runs, strict=True)
            )
            chunks = sum(run.count for run in runs)
            if call.cacheable > chunks or any(mark.chunk >= chunks for mark in call.marks):
                raise Parse("its marks are behind its end")
            envelope = msgspec.structs.replace(
                rendered.envelope, source=None, cache_params=call.cache_params
            )
            earlier = msgspec.structs.replace(
                rendered,
                runs=runs,
                cacheable=call.cacheable,
                envelope=envelope,
                body_order=None,
                marks=(),
                bills=call.bills,
                notices=(),
            )
            self.sent = SentCall(
                rendered=earlier, plan=call.plan, at=call.at, began=call.began, usage=call.usage
            )
        return self.sent

    def limited(self, rendered: Rendered) -> Rendered:
        """The prompt, whose reusable part ends with the dynamic context that has changed since."""
        chunks = 0
        for run in rendered.runs:
            if run.role in (_HISTORY, _TAIL):
                break
            if run.role is _DYNAMIC:
                stored = self.saved.call.run_like(run)
                now, before = message_digests(run.source), () if stored is None else stored.sources
                same = _common(now, before)
                if same < len(now):
                    chunks += run.log.message_ends[same - 1] if same else 0
                    cacheable = min(rendered.cacheable, chunks)
                    return msgspec.structs.replace(rendered, cacheable=cacheable)
            chunks += run.count
        return rendered


def save_call(
    sent: SentCall, spans: tuple[Span, ...], before: SavedCall | None
) -> tuple[SavedCall, dict[int, NewPiece]]:
    """A call as it is stored, and the pieces that its runs lack, by the index of the run."""
    runs: list[StoredRun] = []
    new: dict[int, NewPiece] = {}
    for index, run in enumerate(sent.rendered.runs):
        stored, piece = store_run(run, None if before is None else before.run_like(run))
        runs.append(stored)
        if piece is not None:
            new[index] = piece
    plan, usage = sent.marks, sent.usage or Usage()
    call = SavedCall(
        at=sent.at or 0.0,
        began=sent.began or 0.0,
        usage=msgspec.structs.replace(usage, raw=None),
        marks=plan.marks,
        automatic=plan.automatic,
        only_marks=plan.only_marks,
        key=plan.key,
        held=plan.held,
        spans=spans,
        cacheable=sent.rendered.cacheable,
        cache_params=sent.rendered.envelope.cache_params,
        bills=sent.rendered.bills,
        runs=tuple(runs),
        since=before.since if before is not None else sent.at or 0.0,
    )
    return call, new


def with_piece(call: SavedCall, index: int, ref: PieceRef) -> SavedCall:
    """The call with the piece that the run at `index` lacked."""
    run = call.runs[index]
    run = msgspec.structs.replace(run, pieces=(*run.pieces, ref))
    return msgspec.structs.replace(call, runs=(*call.runs[:index], run, *call.runs[index + 1 :]))


def beginning_digest(prompt: PromptIR) -> bytes:
    """Of system prompt and stable prefix, which a stored response holds."""
    stable = message_digests(prompt.run(_STABLE))
    return blake3(_encode((prompt.system_field(), stable))).digest()


def messages_digest(messages: Iterable[Message], *, ids: bool = True) -> bytes:
    digest = blake3()
    for message in messages:
        digest.update(_encode((message.id if ids else "", message.role, message.parts)))
    return digest.digest()


def _check_bills(bills: Bills) -> None:
    if any(estimated <= 0 or billed <= 0 for estimated, billed in bills) or any(
        one[0] >= two[0] or one[1] > two[1] for one, two in pairwise(bills)
    ):
        raise ValueError("bills rise")


def _common(one: tuple[bytes, ...], two: tuple[bytes, ...]) -> int:
    same = 0
    while same < min(len(one), len(two)) and one[same] == two[same]:
        same += 1
    return same
