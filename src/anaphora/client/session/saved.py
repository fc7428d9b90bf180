"""The stored form of a conversation between two sessions: the planner's memory, the last call at
each provider, and digests of the bytes that the next call should begin with.

The bytes are stored separately, in pieces (`rendered/stored.py`), and only read when a prompt no
longer begins with them, to find the first difference. Values from a store are not trusted: they are
decoded strictly, and with an invalid one the conversation starts anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import msgspec
from blake3 import blake3
from msgspec import Meta

from anaphora.cache.plan.saved import SavedPlanner
from anaphora.cache.saved_call import (
    SavedCall,
    SavedFormat,
    check_bills,
    restore_call,
)
from anaphora.cache.sent_call import SentCall
from anaphora.cache.simulator import RenderedPrompt
from anaphora.cache.simulator.view import Position, SavedCache, Time
from anaphora.client.target import Target
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
    from .turn_prompt import TurnPrompt

_HISTORY, _TAIL = SegmentRole.CONVERSATION, SegmentRole.VOLATILE_TAIL
_DYNAMIC, _STABLE = SegmentRole.DYNAMIC_CONTEXT, SegmentRole.STABLE_PREFIX


class SavedHandle(msgspec.Struct, frozen=True):
    """A cache handle at the provider."""

    handle: CacheHandle
    tokens: Annotated[int, Meta(ge=0)]
    since: Time
    expires: Time


class SavedChain(msgspec.Struct, frozen=True):
    """The response that the provider stores, by the messages of its conversation."""

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
    handle: SavedHandle | None
    reply_id: str | None
    chain: SavedChain | None
    prefix_change_expected: bool


class SavedCompaction(msgspec.Struct, frozen=True):
    """What was dropped of the app's history, to drop it again when the app loads all of it."""

    parts: tuple[tuple[Position, bytes], ...]
    """The number of messages that each compaction dropped, and their digest."""
    summary: tuple[Message, ...]

    def dropped(self, history: Conversation) -> int:
        """The number of messages to drop from a history; 0 if it is another one."""
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
        """The compaction from `before` to `after`, a summary and the end of `before`; None if it is
        none."""
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
    """The client that saved it, which may still have the conversation in memory."""
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
        """The names of all its stored pieces."""
        refs = (ref for state in self.states for run in state.call.runs for ref in run.pieces)
        return {ref.digest for ref in refs if not ref.packed}


FORMAT = SavedFormat(b"anaphora conversation 1\n", SavedConversation)
_encode = msgspec.msgpack.Encoder().encode


class PastCall:
    """The last call of an earlier session, until the next one is answered."""

    def __init__(self, saved: SavedState) -> None:
        """Raises if the state contradicts itself."""
        for run in saved.call.runs:
            run.check()
        saved.call.check()
        check_bills(saved.bills)
        self.saved = saved
        self.pieces: dict[bytes, bytes] = {}
        """The pieces that were loaded."""
        self.rendered: Rendered | None = None
        """The last rendered prompt, which a later one continues."""
        self._runs: list[ChunkRun | None] = [None] * len(saved.call.runs)
        self.sent: SentCall | None = None

    def references(self) -> list[PieceRef]:
        """All its stored pieces."""
        refs = (ref for run in self.saved.call.runs for ref in run.pieces)
        return [ref for ref in refs if not ref.packed and ref.digest not in self.pieces]

    def missing(self, rendered: Rendered) -> list[PieceRef]:
        """The pieces to load: those of runs that the prompt no longer begins with."""
        refs: list[PieceRef] = []
        for index, stored in enumerate(self.saved.call.runs):
            if self._runs[index] is None:
                self._runs[index] = match_run(stored, rendered)
            if self._runs[index] is None:
                refs += [ref for ref in stored.pieces if not ref.packed]
        return [ref for ref in refs if ref.digest not in self.pieces]

    def resolve(self, rendered: Rendered) -> SentCall:
        """The last call. Runs that the prompt still begins with are views of it; the others are
        restored from the pieces. Raises if these are missing."""
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

    def render(self, target: Target, call: Call) -> Rendered:
        """The prompt of a call that follows this one."""
        self.rendered = target.render(call, self.rendered)
        return self.rendered

    def restore(self, rendered: Rendered, target: Target) -> SentCall:
        """The last call; what it left at the provider is restored."""
        sent = self.resolve(rendered)
        with target.memory.lock:
            prompt = RenderedPrompt(sent.rendered, sent.marks)
            target.memory.current().restore(prompt, self.saved.cache)
        return sent

    def limited(self, rendered: Rendered) -> Rendered:
        """The prompt with its reusable part cut at dynamic context that has changed since."""
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


class LastReply:
    """The last reply at one provider, which the next call continues if the provider has stored
    it."""

    def __init__(self, reply_id: str | None = None, chain: SavedChain | None = None) -> None:
        self.id = reply_id
        """The provider's id of the reply."""
        self.committed: Conversation | None = None
        """The conversation that ends with it."""
        self.prompt: PromptIR | None = None
        """The rest of the prompt that it answers."""
        self._chain = chain
        """The stored response of an earlier session, until a prompt is compared with it."""

    def continued(self, turn: TurnPrompt, store: bool | None) -> Continuation | None:
        """Continues it, if the prompt still begins with the stored one. `store` is the app's
        choice; None: only if the app's prompt continued a response."""
        if self.id is None or not (store or (store is None and turn.continues)):
            return None
        if self._chain is not None:
            self._follow(self._chain, turn)
        committed = self.committed
        if not committed or turn.history.common_prefix(committed, ids=True) < len(committed):
            return None
        if turn.is_whole and (self.prompt is None or not _begins_alike(self.prompt, turn.ir)):
            return None
        return Continuation(self.id, committed[-1].id)

    def _follow(self, chain: SavedChain, turn: TurnPrompt) -> None:
        """Compares a prompt with the stored response of an earlier session."""
        self._chain = None
        if len(turn.history) < chain.messages:
            return
        history = turn.history.prefix(chain.messages)
        if messages_digest(history) == chain.digest:
            self.committed = history
            self.prompt = turn.ir if _beginning_digest(turn.ir) == chain.begins else None

    def chain(self) -> SavedChain | None:
        """The stored form, for a later session."""
        if self.committed is None:
            return None
        begins = b"" if self.prompt is None else _beginning_digest(self.prompt)
        return SavedChain(len(self.committed), messages_digest(self.committed), begins)


def with_piece(call: SavedCall, index: int, ref: PieceRef) -> SavedCall:
    """The call with the piece that completes the run at `index`."""
    run = call.runs[index]
    run = msgspec.structs.replace(run, pieces=(*run.pieces, ref))
    return msgspec.structs.replace(call, runs=(*call.runs[:index], run, *call.runs[index + 1 :]))


def _beginning_digest(prompt: PromptIR) -> bytes:
    """A digest of system prompt and stable prefix, which a stored response contains."""
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


def _begins_alike(stored: PromptIR, prompt: PromptIR) -> bool:
    """Whether system prompt and stable prefix are those of a stored response. They are not sent
    again, so the model would continue with the stored ones."""
    if stored.system_field() != prompt.system_field():
        return False
    before, now = stored.run(_STABLE), prompt.run(_STABLE)
    return len(before) == len(now) == now.common_prefix(before)


def store_runs(
    rendered: Rendered, before: SavedCall | None
) -> tuple[tuple[StoredRun, ...], dict[int, NewPiece]]:
    """The stored form of a prompt's runs, and the missing pieces by the index of the run."""
    runs: list[StoredRun] = []
    new: dict[int, NewPiece] = {}
    for index, run in enumerate(rendered.runs):
        stored, piece = store_run(run, None if before is None else _run_like(before, run))
        runs.append(stored)
        if piece is not None:
            new[index] = piece
    return tuple(runs), new
