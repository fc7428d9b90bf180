"""Conversations that several nodes serve in turn: what one of them knows is saved after each call,
and found by the next prompt on another node.

One round trip before planning, only where this node does not know the conversation; one write
after the answer, which nothing waits for.
"""

from __future__ import annotations

import secrets
from collections.abc import Hashable
from typing import TYPE_CHECKING

import msgspec

from anaphora.cache import CallHints, EarlierCall
from anaphora.cache.compared_prompt import ComparedPrompt
from anaphora.cache.comparison import may_be_shared
from anaphora.cache.sent_call import SentCall
from anaphora.daemon.shared_state import ID_BYTES, SavedRecord, SharedState, prompt_names
from anaphora.daemon.shared_state import saved_blocks as blocks
from anaphora.daemon.shared_state import saved_calls as saved
from anaphora.daemon.shared_state.saved_calls import SavedLine, SavedTurn
from anaphora.rendered import Plan
from anaphora.traffic.planning import ConversationPlans, PlannedCall, ReadRequest

if TYPE_CHECKING:
    from .conversations import RememberedCall

_VERSION_BYTES = 8


class SharedLine:
    """The record of one conversation on this node: of all its calls, until one branches off."""

    __slots__ = ("hints", "opening", "record", "request", "salts", "saved_chunks", "scope", "turns")

    def __init__(
        self,
        record: SavedRecord,
        turns: tuple[SavedTurn, ...],
        hints: CallHints,
        saved_chunks: int = 0,
    ) -> None:
        self.record = record
        self.turns = turns
        """The answered calls in it."""
        self.hints = hints
        self.saved_chunks = saved_chunks
        """How many leading chunks of the next prompt are described in it."""
        self.request: ReadRequest | None = None
        self.scope: Hashable = None
        self.salts: prompt_names.Salts | None = None
        self.opening: tuple[bytes, bytes] = b"", b""
        """The key and the digest of the first block of its messages."""


class FoundCall(msgspec.Struct, frozen=True, eq=False):
    """A call that another node made."""

    sent: SentCall
    planned: PlannedCall | None
    turn: int


class FoundConversation(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """What another node knows: the last call of the conversation that a prompt continues; else one
    that begins like it."""

    conversation: str
    line: SharedLine | None
    call: FoundCall
    hints: CallHints
    continues: bool
    chunks: int
    """How many leading chunks the prompt shares with it."""


class SharedConversations:
    """Saves and finds conversations in a shared state."""

    def __init__(self, shared: SharedState, plans: ConversationPlans) -> None:
        self._shared = shared
        self._plans = plans

    # ── Finding ──────────────────────────────────────────────────────────────────────────────────

    async def find(
        self,
        request: ReadRequest,
        here: EarlierCall[RememberedCall] | None,
        *,
        scope: Hashable,
        at: float,
        own: Plan,
    ) -> FoundConversation | None:
        """`here` is what this node found. None where nothing more is known elsewhere."""
        prompt = ComparedPrompt(request.rendered, Plan())
        if not len(prompt):
            return None
        keyed = request.rules.key_requests is not None
        if (
            here is not None
            and here.continues
            and prompt_names.replies_after(prompt, here.chunks) == 1
        ):
            planned = here.call.planned
            if not keyed or (planned is not None and planned.state.cache_key is not None):
                return None  # otherwise a key is chosen, by the calls of all nodes
        salts = prompt_names.Salts.of(scope, request.hints)
        names, positions = prompt_names.candidates(prompt, salts)
        records, calls = await self._shared.find(names, _counted(salts) if keyed else "", at)
        if keyed:
            self._plans.count_everywhere(calls, request, scope=scope, at=at)
        known = None if here is None or here.call.line is None else here.call.line.record.version
        beginning: FoundConversation | None = None
        for index, record in records:
            if here is not None and here.continues and record.version == known:
                return None
            try:
                found = await self._read(
                    record, names[index][:1], positions[index], prompt, request, scope, own
                )
            except Exception:  # what another program or version wrote must not fail a call
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
        prompt: ComparedPrompt,
        request: ReadRequest,
        scope: Hashable,
        own: Plan,
    ) -> FoundConversation | None:
        """`position` is the chunk of the prompt that the record was found by."""
        line = saved.decode_line(record.data)
        if line is None:
            return None
        last = line.turns[-1]
        if name == b"l":
            return self._beginning(line, prompt, request, scope, own)
        if last.chunks <= len(prompt) and last.end == prompt.key(last.chunks - 1):
            runs, common = blocks.first_runs(request.rendered, last.chunks), last.chunks
        elif name == b"e" and line.turns[0].end == prompt.key(position):
            return self._branched(line, prompt, request, scope, own)
        else:
            entries, first = line.last, max(0, last.chunks - blocks.LAST_BLOCKS)
            common = position + 1
            if name != b"e" or not first <= common < last.chunks:
                entries, first = await self._shared.digests(record), 0
                if len(entries) < last.chunks * blocks.ENTRY_BYTES:
                    return None
                common = blocks.common_blocks(prompt, entries[: last.chunks * blocks.ENTRY_BYTES])
                if name == b"b" and not blocks.repeats(prompt, last, entries):
                    return None
            runs = blocks.rebuilt_runs(prompt, last, entries, first, common)
        hints = saved.restored_hints(line.hints, request.hints)
        if not hints.agrees(request.hints):
            return None
        sent = saved.restored_call(last, request.rendered, runs, own)
        return FoundConversation(
            conversation=line.conversation,
            line=SharedLine(record, line.turns, hints, common),
            call=FoundCall(sent, self._planned(line, last, request, scope), last.turn),
            hints=hints,
            continues=True,
            chunks=common,
        )

    def _branched(
        self,
        line: SavedLine,
        prompt: ComparedPrompt,
        request: ReadRequest,
        scope: Hashable,
        own: Plan,
    ) -> FoundConversation | None:
        """The call before the last one, from which the prompt branches off."""
        turn, hints = line.turns[0], saved.restored_hints(line.hints, request.hints)
        if not hints.agrees(request.hints):
            return None
        runs = blocks.first_runs(prompt.rendered, turn.chunks)
        sent = saved.restored_call(turn, prompt.rendered, runs, own)
        planned = self._planned(line, turn, request, scope)
        if planned is not None:
            planned.continued = True
        return FoundConversation(
            conversation=line.conversation,
            line=SharedLine(_new_record(), (turn,), hints),
            call=FoundCall(sent, planned, turn.turn),
            hints=hints,
            continues=True,
            chunks=turn.chunks,
        )

    def _planned(
        self, line: SavedLine, turn: SavedTurn, request: ReadRequest, scope: Hashable
    ) -> PlannedCall | None:
        if line.planner is None:
            return None
        planned = self._plans.adopt(saved.restored_planner(line.planner), request, scope=scope)
        planned.changing, planned.seen, planned.chunks = line.changing, line.seen, turn.chunks
        return planned

    def _beginning(
        self,
        line: SavedLine,
        prompt: ComparedPrompt,
        request: ReadRequest,
        scope: Hashable,
        own: Plan,
    ) -> FoundConversation | None:
        """Another conversation with the same tools and system prompt."""
        last, chunks = line.turns[-1], prompt.leading + 1
        if line.planner is not None:
            planner = saved.restored_planner(line.planner)
            self._plans.adopt_beginning(planner, request, scope=scope)
        whole = saved.restored_call(
            last, request.rendered, blocks.first_runs(request.rendered, chunks), own
        )
        sent = saved.shared_beginning(whole, last, chunks)
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
        scope: Hashable,
        at: float,
    ) -> None:
        """A call is about to be planned: where it will be saved."""
        before = None if found is None or not found.continues else found.call
        line = None if before is None else before.line
        if before is None or line is None or (before.planned and before.planned.continued):
            turns = () if line is None else line.turns
            line = SharedLine(_new_record(), turns, request.hints)
        else:
            line.saved_chunks = min(line.saved_chunks, 0 if found is None else found.chunks)
        line.request, line.scope = request, scope
        if line.salts is None:
            line.salts = prompt_names.Salts.of(scope, request.hints)
        call.line = line
        if request.rules.key_requests is not None:
            self._shared.count(_counted(line.salts), at)

    def save(self, call: RememberedCall) -> None:
        """Saves a call that was answered."""
        line = call.line
        if line is None or line.request is None or line.salts is None:
            return
        request, prompt = line.request, ComparedPrompt(call.sent.rendered, Plan())
        if not len(prompt):
            return
        planned, changing = call.planned, 0 if call.planned is None else call.planned.changing
        turn = saved.saved_call(call.sent, call.turn, prompt.key(len(prompt) - 1))
        line.turns = (*line.turns[-1:], turn)
        done = line.saved_chunks
        first = min(done, max(0, len(prompt) - blocks.LAST_BLOCKS))
        entries = blocks.block_entries(prompt, first)
        record, before = line.record, line.record.version
        record.version = secrets.token_bytes(_VERSION_BYTES)
        record.data = saved.encode_line(
            SavedLine(
                conversation=call.conversation,
                hints=saved.hint_digests(request.hints),
                turns=line.turns,
                last=entries[-blocks.LAST_BLOCKS * blocks.ENTRY_BYTES :],
                planner=None
                if planned is None
                else saved.saved_planner(self._plans.save(planned, request, scope=line.scope)),
                changing=changing,
                seen=0 if planned is None else planned.seen,
            )
        )

        def entries_from(start: int) -> bytes:
            if start < first:
                return blocks.block_entries(prompt, start)
            return entries[(start - first) * blocks.ENTRY_BYTES :]

        names = prompt_names.pointers(
            prompt, line.salts, changing, entries[-blocks.ENTRY_BYTES :][:8], _opening(line, prompt)
        )
        self._shared.save(record, before, names, entries_from, done)
        line.saved_chunks = len(prompt)


def _opening(line: SharedLine, prompt: ComparedPrompt) -> bytes:
    """The digest of the first block of the messages: the same from call to call."""
    first = prompt.leading + 1
    if first >= len(prompt):
        return b""
    key = prompt.key(first)
    if line.opening[0] != key:
        line.opening = key, prompt_names.block_digest(prompt, first)
    return line.opening[1]


def _counted(salts: prompt_names.Salts) -> str:
    """The name under which the calls of an app with a model are counted."""
    return f"calls {salts.scope.hex()}"


def _new_record() -> SavedRecord:
    return SavedRecord(secrets.token_bytes(ID_BYTES), b"", b"")
