"""Conversations that several nodes serve: each node saves its state of a conversation after a call,
and another node finds it by the next prompt.

One round trip before planning, only if this node does not know the conversation; one write in the
background after the answer.
"""

from __future__ import annotations

import itertools
import secrets

import msgspec
from blake3 import blake3
from msgspec.structs import replace

from anaphora.cache import CallHints, EarlierCall
from anaphora.cache import saved_blocks as blocks
from anaphora.cache.plan.saved import SavedPlanner
from anaphora.cache.saved_call import SavedCall, SavedFormat, restore_call, save_call
from anaphora.cache.sent_call import SentCall
from anaphora.cache.simulator import RenderedPrompt
from anaphora.cache.verdict.judgement import may_be_shared
from anaphora.daemon.shared_state import ID_BYTES, SavedRecord, SharedState
from anaphora.daemon.values import CallScope, cache_scope
from anaphora.rendered import Plan
from anaphora.rendered.stored import StoredRun
from anaphora.tokens import learned, tokens_in
from anaphora.traffic.matching import RememberedCall
from anaphora.traffic.planning import ConversationPlans, PlannedCall, ReadRequest


class SharedCall(msgspec.Struct, frozen=True, array_like=True):
    """An answered call."""

    turn: int
    end: bytes
    """The key of the whole prompt."""
    estimated: int
    """Tokens by the catalog's ratio."""
    call: SavedCall


class SharedConversation(msgspec.Struct, frozen=True, array_like=True):
    """A conversation saved for other nodes: figures, places of markers and digests."""

    conversation: str
    hints: tuple[bytes, bytes]
    calls: tuple[SharedCall, ...]
    """The last one or two, the latest at the end."""
    last: bytes
    """The entries (`saved_blocks`) of the last blocks of the latest prompt."""
    planner: SavedPlanner | None
    changing: int
    seen: int

    def check(self) -> None:
        """Raises `ValueError` if the fields contradict each other."""
        for each in self.calls:
            each.call.check()
        latest = min(blocks.LAST_BLOCKS, self.calls[-1].call.chunks)
        if len(self.last) != latest * blocks.ENTRY_BYTES:
            raise ValueError("its last blocks are not those of its last call")


FORMAT = SavedFormat(b"anaphora calls 2\n", SharedConversation)


class SharedLine:
    """The record of a conversation's calls on this node, until one branches off."""

    __slots__ = (
        "calls", "hints", "last", "opening", "record", "request", "salts", "saved_chunks", "scope",
    )  # fmt: skip

    def __init__(
        self,
        record: SavedRecord,
        calls: tuple[SharedCall, ...],
        hints: CallHints,
        saved_chunks: int = 0,
    ) -> None:
        self.record = record
        self.calls = calls
        """The answered calls in it."""
        self.hints = hints
        self.saved_chunks = saved_chunks
        """Number of leading chunks of the next prompt that it describes."""
        self.last = b""
        """The entries of the last of these chunks."""
        self.request: ReadRequest | None = None
        self.scope: CallScope = ()
        self.salts: blocks.Salts | None = None
        self.opening: tuple[bytes, bytes] = b"", b""
        """The key and the digest of the first block of its messages."""


class FoundCall(msgspec.Struct, frozen=True, eq=False):
    """A call that another node made."""

    sent: SentCall
    planned: PlannedCall | None
    turn: int


class FoundConversation(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """State from another node: the last call of the conversation that a prompt continues, or of one
    with the same beginning."""

    conversation: str
    line: SharedLine | None
    call: FoundCall
    hints: CallHints
    continues: bool
    chunks: int
    """Number of leading chunks that the prompt shares with it."""


class SharedConversations:
    """Saves and finds conversations in a shared state."""

    def __init__(self, shared: SharedState, plans: ConversationPlans) -> None:
        self._shared = shared
        self._plans = plans
        self._process, self._versions = secrets.token_bytes(8), itertools.count()
        """Of which the versions of its records consist."""

    # ── Finding ──────────────────────────────────────────────────────────────────────────────────

    async def find(
        self,
        request: ReadRequest,
        here: EarlierCall[RememberedCall] | None,
        *,
        scope: CallScope,
        at: float,
        own: Plan,
    ) -> FoundConversation | None:
        """`here` is the call that this node found. None if other nodes know no more."""
        prompt = RenderedPrompt(request.rendered, Plan())
        if not len(prompt):
            return None
        keyed = request.rules.key_requests is not None
        if here is not None and here.continues and blocks.replies_after(prompt, here.chunks) == 1:
            planned = here.call.planned
            if not keyed or (planned is not None and planned.state.cache_key is not None):
                return None  # otherwise a key is chosen from the calls of all nodes
        salts = blocks.Salts.of(scope, request.hints)
        names, positions = blocks.candidates(prompt, salts)
        records, calls = await self._shared.find(names, _counted(salts) if keyed else "", at)
        if keyed:
            self._plans.count_everywhere(calls, request, scope=cache_scope(scope), at=at)
        known = None if here is None or here.call.line is None else here.call.line.record.version
        beginning: FoundConversation | None = None
        for index, record in records:
            if here is not None and here.continues and record.version == known:
                return None
            try:
                found = await self._read(
                    record, names[index][:1], positions[index], prompt, request, scope, own
                )
            except Exception:  # data of another program or version must not fail a call
                continue
            if found is not None and found.continues:
                behind = here is not None and here.continues and found.chunks < here.chunks
                return None if behind else found
            beginning = beginning or found
        return None if here is not None and here.continues else beginning

    async def _read(
        self,
        record: SavedRecord,
        name: bytes,
        position: int,
        prompt: RenderedPrompt,
        request: ReadRequest,
        scope: CallScope,
        own: Plan,
    ) -> FoundConversation | None:
        """`position` is the chunk of the prompt by which the record was found."""
        line = FORMAT.decode(record.data)
        line.check()
        last, call = line.calls[-1], line.calls[-1].call
        if name == b"l":
            return self._beginning(line, prompt, request, scope, own)
        chunks = call.chunks
        if chunks <= len(prompt) and last.end == prompt.key(chunks - 1):
            runs, common = blocks.first_runs(request.rendered, chunks), chunks
        elif name == b"e" and line.calls[0].end == prompt.key(position):
            return self._branched(line, prompt, request, scope, own)
        else:
            entries, first = line.last, max(0, chunks - blocks.LAST_BLOCKS)
            common = position + 1
            if name != b"e" or not first <= common < chunks:
                entries, first = await self._shared.digests(record), 0
                if len(entries) < chunks * blocks.ENTRY_BYTES:
                    return None
                common = blocks.common_blocks(prompt, entries[: chunks * blocks.ENTRY_BYTES])
                if name == b"b" and not blocks.repeats(prompt, call, entries):
                    return None
            runs = blocks.rebuilt_runs(prompt, call, entries, first, common)
        hints = _restored_hints(line.hints, request.hints)
        if not hints.agrees(request.hints):
            return None
        sent = restore_call(call, request.rendered, runs, own)
        return FoundConversation(
            conversation=line.conversation,
            line=SharedLine(record, line.calls, hints, common),
            call=FoundCall(sent, self._planned(line, call, request, scope), last.turn),
            hints=hints,
            continues=True,
            chunks=common,
        )

    def _branched(
        self,
        line: SharedConversation,
        prompt: RenderedPrompt,
        request: ReadRequest,
        scope: CallScope,
        own: Plan,
    ) -> FoundConversation | None:
        """The call before the last one, from which the prompt branches off."""
        turn, hints = line.calls[0], _restored_hints(line.hints, request.hints)
        if not hints.agrees(request.hints):
            return None
        chunks = turn.call.chunks
        runs = blocks.first_runs(prompt.rendered, chunks)
        sent = restore_call(turn.call, prompt.rendered, runs, own)
        planned = self._planned(line, turn.call, request, scope)
        if planned is not None:
            planned.continued = True
        return FoundConversation(
            conversation=line.conversation,
            line=SharedLine(_new_record(), (turn,), hints),
            call=FoundCall(sent, planned, turn.turn),
            hints=hints,
            continues=True,
            chunks=chunks,
        )

    def _planned(
        self, line: SharedConversation, call: SavedCall, request: ReadRequest, scope: CallScope
    ) -> PlannedCall | None:
        if line.planner is None:
            return None
        planned = self._plans.adopt(line.planner, request, scope=cache_scope(scope))
        planned.changing, planned.seen, planned.chunks = line.changing, line.seen, call.chunks
        return planned

    def _beginning(
        self,
        line: SharedConversation,
        prompt: RenderedPrompt,
        request: ReadRequest,
        scope: CallScope,
        own: Plan,
    ) -> FoundConversation | None:
        """Another conversation with the same tools and system prompt."""
        last, chunks = line.calls[-1], prompt.leading + 1
        if line.planner is not None:
            self._plans.adopt_beginning(line.planner, request, scope=cache_scope(scope))
        runs = blocks.first_runs(request.rendered, chunks)
        sent = _shared_beginning(restore_call(last.call, request.rendered, runs, own), last, chunks)
        if not may_be_shared(sent, request.rendered, request.rules):
            return None
        return FoundConversation(
            conversation=line.conversation,
            line=None,
            call=FoundCall(sent, None, last.turn),
            hints=CallHints(),
            continues=False,
            chunks=chunks,
        )

    # ── Saving ───────────────────────────────────────────────────────────────────────────────────

    def begin(
        self,
        call: RememberedCall,
        found: EarlierCall[RememberedCall] | None,
        request: ReadRequest,
        *,
        scope: CallScope,
        at: float,
    ) -> None:
        """Chooses the record in which a call that is about to be planned will be saved."""
        before = None if found is None or not found.continues else found.call
        line = None if before is None else before.line
        if before is None or line is None or (before.planned and before.planned.continued):
            calls = () if line is None else line.calls
            line = SharedLine(_new_record(), calls, request.hints)
        else:
            shared = min(line.saved_chunks, 0 if found is None else found.chunks)
            left = len(line.last) - (line.saved_chunks - shared) * blocks.ENTRY_BYTES
            line.saved_chunks, line.last = shared, line.last[: max(0, left)]
        line.request, line.scope = request, scope
        if line.salts is None:
            line.salts = blocks.Salts.of(scope, request.hints)
        call.line = line
        if request.rules.key_requests is not None:
            self._shared.count(_counted(line.salts), at)

    def save(self, call: RememberedCall) -> None:
        """Saves an answered call."""
        line = call.line
        if line is None or line.request is None or line.salts is None:
            return
        request, prompt = line.request, RenderedPrompt(call.sent.rendered, Plan())
        if not len(prompt):
            return
        planned, changing = call.planned, 0 if call.planned is None else call.planned.changing
        line.calls = (*line.calls[-1:], _shared_call(call, prompt.key(len(prompt) - 1)))
        done = line.saved_chunks
        # The text of chunks that other calls have added may have to be read from the body again.
        entries: bytes = line.last
        first = done - len(entries) // blocks.ENTRY_BYTES
        if first > max(0, len(prompt) - blocks.LAST_BLOCKS):
            first, entries = max(0, len(prompt) - blocks.LAST_BLOCKS), b""
        entries += blocks.block_entries(prompt, first + len(entries) // blocks.ENTRY_BYTES)
        record, before = line.record, line.record.version
        record.version = self._process + next(self._versions).to_bytes(8)
        planner = None
        if planned is not None:
            planner = self._plans.save(planned, request, scope=cache_scope(line.scope)).rounded()
        record.data = FORMAT.encode(
            SharedConversation(
                conversation=call.conversation,
                hints=(_hint(request.hints.conversation), _hint(request.hints.user)),
                calls=line.calls,
                last=entries[-blocks.LAST_BLOCKS * blocks.ENTRY_BYTES :],
                planner=planner,
                changing=changing,
                seen=0 if planned is None else planned.seen,
            )
        )

        def entries_from(start: int) -> bytes:
            if start < first:
                return blocks.block_entries(prompt, start)
            return entries[(start - first) * blocks.ENTRY_BYTES :]

        names = blocks.pointers(
            prompt, line.salts, changing, entries[-blocks.ENTRY_BYTES :][:8], _opening(line, prompt)
        )
        self._shared.save(record, before, names, entries_from, done)
        line.saved_chunks = len(prompt)
        line.last = entries[-blocks.LAST_BLOCKS * blocks.ENTRY_BYTES :]
        line.request = replace(request, rendered=request.rendered.without_text())


def _shared_call(call: RememberedCall, end: bytes) -> SharedCall:
    rendered = call.sent.rendered
    runs = tuple(StoredRun(run.section, run.role, run.count) for run in rendered.runs)
    estimated = tokens_in(rendered.size, rendered.bytes_per_token)
    return SharedCall(call.turn, end, estimated, save_call(call.sent, runs, without_text=True))


def _shared_beginning(sent: SentCall, saved: SharedCall, chunks: int) -> SentCall:
    """A call cut after the chunks that it shares with another conversation. The bill for these is
    unknown, but the whole bill gives the bytes per token."""
    rendered = sent.rendered
    total = None if sent.usage is None else sent.usage.input
    marks = tuple(mark for mark in sent.marks.marks if mark.chunk < chunks)
    bills = saved.call.bills
    if total:
        bills = learned(bills, saved.estimated, total)
    rendered = replace(
        rendered,
        runs=blocks.first_runs(rendered, chunks),
        cacheable=min(rendered.cacheable, chunks),
        bills=bills,
    )
    return replace(sent, rendered=rendered, plan=Plan(marks=marks), usage=None)


def _restored_hints(saved: tuple[bytes, bytes], hints: CallHints) -> CallHints:
    """This call's hints if they are the same. Others are distinguished by their digests."""
    given = (hints.conversation, hints.user)
    conversation, user = (
        now if _hint(now) == digest else digest.hex()
        for now, digest in zip(given, saved, strict=True)
    )
    return CallHints(conversation=conversation, user=user)


def _hint(text: str) -> bytes:
    return blake3(text.encode(errors="replace")).digest(8) if text else b""


def _opening(line: SharedLine, prompt: RenderedPrompt) -> bytes:
    """The digest of the first block of the messages: the same from call to call."""
    first = prompt.leading + 1
    if first >= len(prompt):
        return b""
    key = prompt.key(first)
    if line.opening[0] != key:
        line.opening = key, blocks.block_digest(prompt, first)
    return line.opening[1]


def _counted(salts: blocks.Salts) -> str:
    """The name under which the calls of an app with a model are counted."""
    return f"calls {salts.scope.hex()}"


def _new_record() -> SavedRecord:
    return SavedRecord(secrets.token_bytes(ID_BYTES), b"", b"")
