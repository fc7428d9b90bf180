"""A conversation between two sessions, as it is stored: what the planner remembers, the last call
at each provider, and the digests of the bytes that the next call should begin with.

The bytes themselves are stored beside it, in pieces (`rendered/stored.py`), and read only when a
prompt no longer begins with them, to name the byte. Values from a store are not trusted: they are
decoded strictly, and one that cannot be used starts the conversation anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import msgspec
from blake3 import blake3
from msgspec import Meta

from anaphora.cache.plan import Planner
from anaphora.cache.plan.deferred import SentTurn
from anaphora.cache.plan.saved import SavedPlanner, restore_conversation
from anaphora.cache.saved_call import (
    SavedCall,
    SavedFormat,
    check_bills,
    restore_call,
    save_call,
)
from anaphora.cache.sent_call import SentCall
from anaphora.cache.simulator import Outcome, RenderedPrompt
from anaphora.cache.simulator.simulator import StoredHandle
from anaphora.cache.simulator.slot_predictor import SavedSlotCall
from anaphora.cache.simulator.view import Position, SavedCache, Time
from anaphora.errors import Parse
from anaphora.prompt import Call, Continuation, PromptIR
from anaphora.rendered import CacheHandle, ChunkRun, Rendered
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
from anaphora.values import Conversation, Message, SegmentRole

if TYPE_CHECKING:
    from .provider_state import ProviderState
    from .turn_prompt import TurnPrompt

_HISTORY, _TAIL = SegmentRole.CONVERSATION, SegmentRole.VOLATILE_TAIL
_DYNAMIC, _STABLE = SegmentRole.DYNAMIC_CONTEXT, SegmentRole.STABLE_PREFIX


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

    def pieces(self) -> set[bytes]:
        """The names of all pieces that are stored beside it."""
        refs = (ref for state in self.states for run in state.call.runs for ref in run.pieces)
        return {ref.digest for ref in refs if not ref.packed}


FORMAT = SavedFormat(b"anaphora conversation 1\n", SavedConversation)
_encode = msgspec.msgpack.Encoder().encode


class PastCall:
    """The last call before this session, until the next one was answered."""

    def __init__(self, saved: SavedState) -> None:
        """Raises where the state contradicts itself."""
        for run in saved.call.runs:
            run.check()
        saved.call.check()
        check_bills(saved.bills)
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
            self.sent = restore_call(call, rendered, runs)
        return self.sent

    def limited(self, rendered: Rendered) -> Rendered:
        """The prompt, whose reusable part ends with the dynamic context that has changed since."""
        chunks = 0
        for run in rendered.runs:
            if run.role in (_HISTORY, _TAIL):
                break
            if run.role is _DYNAMIC:
                stored = _run_like(self.saved.call, run)
                now, before = message_digests(run.source), () if stored is None else stored.sources
                same = _common(now, before)
                if same < len(now):
                    chunks += run.log.message_ends[same - 1] if same else 0
                    cacheable = min(rendered.cacheable, chunks)
                    return msgspec.structs.replace(rendered, cacheable=cacheable)
            chunks += run.count
        return rendered


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


def _run_like(call: SavedCall, run: ChunkRun) -> StoredRun | None:
    for stored in call.runs:
        if (stored.section, stored.role) == (run.section, run.role):
            return stored
    return None


def _common(one: tuple[bytes, ...], two: tuple[bytes, ...]) -> int:
    same = 0
    while same < min(len(one), len(two)) and one[same] == two[same]:
        same += 1
    return same


# ── A conversation at one provider ───────────────────────────────────────────────────────────────


def save_state(
    state: ProviderState, before: SavedState | None, *, keep_pieces: bool, chained: bool
) -> tuple[SavedState, dict[int, NewPiece]]:
    """For a later session: the state, and the pieces of its prompt that are not stored yet.
    `before` is what was stored after the last call."""
    sent, outcome = state.sent, state.outcome
    assert sent is not None
    assert outcome is not None
    planner = state.planner(sent.at or 0.0)
    known = before.call if before is not None and keep_pieces else None
    runs, pieces = _store_runs(sent.rendered, known)
    since = sent.at or 0.0 if known is None else known.since
    call = save_call(sent, runs, spans=outcome.spans, since=since)
    cache = SavedCache() if before is None else before.cache
    saved = SavedState(
        provider=state.endpoint.id,
        model=state.target.model,
        call=call,
        planner=planner.save(sent.rendered),
        cache=planner.save_cache(sent.rendered, sent.marks, cache),
        bills=state.bills,
        slot=None if state.predictor is None else state.predictor.save(),
        handle=_saved_handle(state, planner),
        reply_id=state.reply_id,
        chain=_saved_chain(state) if chained else None,
        prefix_change_expected=state.prefix_change_expected,
    )
    return saved, pieces


def _store_runs(
    rendered: Rendered, before: SavedCall | None
) -> tuple[tuple[StoredRun, ...], dict[int, NewPiece]]:
    """The runs of a prompt as they are stored, and the pieces that they lack, by the index of the
    run."""
    runs: list[StoredRun] = []
    new: dict[int, NewPiece] = {}
    for index, run in enumerate(rendered.runs):
        stored, piece = store_run(run, None if before is None else _run_like(before, run))
        runs.append(stored)
        if piece is not None:
            new[index] = piece
    return tuple(runs), new


def restore_state(state: ProviderState, saved: SavedState, *, here: bool) -> None:
    """Continues what an earlier session saved; `here`: with the same client."""
    target, call = state.target, saved.call
    state.past = PastCall(saved)
    state.simulated = SentTurn(Outcome(call.spans))
    state.reply_id, state.chain = saved.reply_id, saved.chain
    state.prefix_change_expected = saved.prefix_change_expected
    state.bills = saved.bills
    planner = state.planner(call.at or 0.0)
    planner.state = restore_conversation(target.memory, saved.planner, here=here)
    if saved.handle is not None:
        held = saved.handle
        stored = StoredHandle(held.tokens, held.since, held.expires)
        with target.memory.lock:
            target.memory.current().restore_handle(held.handle.handle, stored)
        planner.handles.hold(held.handle, held.expires)


def render_past(state: ProviderState, past: PastCall, call: Call) -> Rendered:
    """The prompt of a call that follows one of an earlier session."""
    past.rendered = state.target.render(call, past.rendered)
    return past.rendered


def continue_past(state: ProviderState, past: PastCall, call: Call) -> Rendered:
    """The same as the provider would cache it; the first time, what the call left is restored."""
    rendered = render_past(state, past, call)
    if state.sent is None:
        state.sent = past.resolve(rendered)
        prompt = RenderedPrompt(state.sent.rendered, state.sent.marks)
        with state.target.memory.lock:
            state.target.memory.current().restore(prompt, past.saved.cache)
        if state.predictor is not None and past.saved.slot is not None:
            state.predictor.restore(past.saved.slot, state.sent.rendered)
    return past.limited(rendered)


def _saved_handle(state: ProviderState, planner: Planner) -> SavedHandle | None:
    held = planner.handles.held
    if held is None:
        return None
    with state.target.memory.lock:
        stored = state.target.memory.current().saved_handle(held[0].handle)
    if stored is None:
        return None
    return SavedHandle(held[0], stored.tokens, stored.since, held[1])


def _saved_chain(state: ProviderState) -> SavedChain | None:
    committed, stored = state.committed, state.stored
    if not state.endpoint.features.stores_responses or committed is None:
        return None
    begins = b"" if stored is None else beginning_digest(stored)
    return SavedChain(len(committed), messages_digest(committed), begins)


# ── Responses that the provider stores ────────────────────────────────────────────────────────────


def stored_response(
    state: ProviderState, turn: TurnPrompt, store: bool | None
) -> Continuation | None:
    """Continues the last reply here, where the provider has stored it and the prompt still begins
    with the stored one. `store` is the app's choice; None: as its prompt did."""
    if state.reply_id is None or not (store or (store is None and turn.continues)):
        return None
    if state.chain is not None:
        _follow(state, turn)
    committed = state.committed
    if not committed or turn.history.common_prefix(committed, ids=True) < len(committed):
        return None
    if turn.is_whole and (state.stored is None or not _begins_alike(state.stored, turn.ir)):
        return None
    return Continuation(state.reply_id, committed[-1].id)


def _follow(state: ProviderState, turn: TurnPrompt) -> None:
    """Compares a prompt with the stored response of an earlier session."""
    chain, state.chain = state.chain, None
    if chain is None or len(turn.history) < chain.messages:
        return
    history = turn.history.prefix(chain.messages)
    if messages_digest(history) == chain.digest:
        state.committed = history
        state.stored = turn.ir if beginning_digest(turn.ir) == chain.begins else None


def _begins_alike(stored: PromptIR, prompt: PromptIR) -> bool:
    """Whether system prompt and stable prefix are those of a stored response. They are not sent
    again, so the model would continue with the stored ones."""
    if stored.system_field() != prompt.system_field():
        return False
    before, now = stored.run(_STABLE), prompt.run(_STABLE)
    return len(before) == len(now) == now.common_prefix(before)
