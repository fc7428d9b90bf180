"""Loads a conversation by its id before the first turn of a session, and saves it after every turn.

Nothing here fails a call: a conversation that cannot be loaded starts anew, and one that cannot be
saved keeps its stored state; both add a notice to the response.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Iterable, Mapping

import msgspec

from anaphora.cache.plan import Planner
from anaphora.cache.plan.deferred import SentTurn
from anaphora.cache.plan.saved import restore_conversation
from anaphora.cache.saved_call import save_call
from anaphora.cache.simulator import Outcome
from anaphora.cache.simulator.simulator import StoredHandle
from anaphora.cache.simulator.view import SavedCache
from anaphora.client.conversations import (
    LIFETIME,
    ConversationStore,
    InProcessConversations,
    head_key,
    in_time,
    piece_key,
)
from anaphora.client.failures import described, log
from anaphora.client.routing import SessionRoute
from anaphora.client.target import Target
from anaphora.prompt import Call
from anaphora.rendered import Plan
from anaphora.rendered.held import misfit
from anaphora.rendered.stored import NewPiece, PieceRef
from anaphora.values import Notice

from .handles import Handles
from .provider_state import ProviderState
from .saved import (
    FORMAT,
    LastReply,
    PastCall,
    SavedConversation,
    SavedHandle,
    SavedState,
    store_runs,
    with_piece,
)

#: A longer piece is packed in a thread.
_LONG = 128 * 1024
#: The number of providers and models that are stored of a conversation: the latest.
_MOST_STATES = 8

NOT_LOADED = Notice(
    "conversation_not_loaded",
    "the stored conversation is not loaded yet: await load() first",
    "id",
)


class ConversationKeeper:
    """One conversation in a store."""

    def __init__(
        self, store: ConversationStore, name: str, process: str, *, saved_as: str | None
    ) -> None:
        """It is loaded by its `name`; a fork is saved under another, or not at all. `process`
        identifies the client, which knows its own conversations."""
        self._store = store
        self._name = name
        self._process = process
        self.saved_as = saved_as
        self.loaded = False
        self.loading = asyncio.Lock()
        self.notices: tuple[Notice, ...] = ()
        """Notices from loading, for the next response."""
        self._value: bytes | None = None
        """The value that this session last loaded or saved."""
        self._saved: SavedConversation | None = None

    @property
    def process(self) -> str:
        return f"{self._process} {os.getpid()}"

    def forked(self, name: str | None, *, past: bool) -> ConversationKeeper | None:
        """The keeper of a fork with this id. A fork without an id needs one until the original is
        loaded; with `past`, until the bytes of its last call are."""
        if name is None and self.loaded and not past:
            return None
        other = ConversationKeeper(self._store, self._name, self._process, saved_as=name)
        other.loaded = self.loaded
        return other

    # ── Loading ──────────────────────────────────────────────────────────────────────────────────

    async def load(self) -> SavedConversation | None:
        """The stored conversation; None if there is none, or it cannot be used."""
        try:
            return self._decode(await in_time(self._store.get(head_key(self._name))))
        except Exception as problem:
            self.reject(problem)
            return None

    def load_now(self) -> SavedConversation | None:
        """The same without waiting, if the store allows it."""
        if not isinstance(self._store, InProcessConversations):
            return None
        self.loaded = True
        try:
            return self._decode(self._store.get_now(head_key(self._name)))
        except Exception as problem:
            self.reject(problem)
            return None

    async def load_pieces(self, past: PastCall, refs: Iterable[PieceRef]) -> None:
        """Loads these pieces of the last call's bytes."""
        names = list(dict.fromkeys(ref.digest for ref in refs))
        keys = [piece_key(self._name, name) for name in names]
        try:
            found = await asyncio.gather(*(in_time(self._store.get(key)) for key in keys))
        except Exception as problem:
            self.reject(problem)
            return
        past.pieces |= {
            name: packed
            for name, packed in zip(names, found, strict=True)
            if isinstance(packed, bytes)
        }

    def _load_pieces_now(self, past: PastCall, refs: Iterable[PieceRef]) -> None:
        if isinstance(self._store, InProcessConversations):
            for ref in refs:
                packed = self._store.get_now(piece_key(self._name, ref.digest))
                if packed is not None:
                    past.pieces[ref.digest] = packed

    def restore_states(
        self, saved: SavedConversation, route: SessionRoute, holders: set[Handles]
    ) -> tuple[dict[Target, ProviderState], dict[Target, Handles]] | None:
        """The usable states and handles of an earlier session; `holders` are all handles of the
        client that are alive."""
        states: dict[Target, ProviderState] = {}
        handles: dict[Target, Handles] = {}
        try:
            for one in saved.states:
                target = route.find(one.provider, one.model)
                if target is not None:
                    state = states[target] = ProviderState(target.endpoint.begun(target))
                    _restore_state(state, one, here=saved.process == self.process)
                    if one.handle is not None:
                        handles[target] = Handles(state, holders)
                        handles[target].restore(one.handle.handle.handle, one.handle.expires)
        except Exception as problem:
            self.reject(problem)
            return None
        return states, handles

    async def load_past(self, state: ProviderState, past: PastCall, call: Call) -> bool:
        """Compares the prompt with the last call of an earlier session, whose bytes are loaded only
        if the prompt has changed. False if the call cannot be restored."""
        rendered = past.render(state.target, call)
        try:
            if missing := past.missing(rendered):
                await self.load_pieces(past, missing)
            past.resolve(rendered)
            held = past.saved.handle
            if held is not None and misfit(rendered, held.handle) is None:
                # A name that no request can carry is found here.
                state.endpoint.wire.assemble(rendered, Plan(held=held.handle))
        except Exception as problem:
            self.reject(problem)
            return False
        return True

    def load_past_now(self, state: ProviderState, past: PastCall, call: Call) -> bool:
        """The same without waiting; False if its bytes would have to be waited for."""
        try:
            rendered = past.render(state.target, call)
            self._load_pieces_now(past, past.missing(rendered))
            past.resolve(rendered)
        except Exception:
            return False
        return True

    def reject(self, problem: Exception) -> None:
        """The stored conversation cannot be used."""
        self._saved = None
        if self.notices:
            return
        message = f"the conversation could not be restored and starts anew: {described(problem)}"
        log(logging.WARNING, message, problem)
        self.notices = (Notice("conversation_not_restored", message, "id"),)

    def _decode(self, value: bytes | None) -> SavedConversation | None:
        if value is None:
            return None
        saved = FORMAT.decode(value)
        if self.saved_as == self._name:
            self._value, self._saved = value, saved
        return saved

    # ── Saving ───────────────────────────────────────────────────────────────────────────────────

    async def save(
        self,
        conversation: SavedConversation,
        states: Mapping[Target, ProviderState],
        *,
        chained: bool,
    ) -> tuple[Notice, ...]:
        """Stores the conversation with these states; `chained`: the provider stores replies."""
        if self.saved_as is None:
            return ()
        try:
            await self._save(self.saved_as, conversation, states, chained)
        except Exception as problem:
            message = (
                f"saving the conversation failed after the answer arrived: {described(problem)}"
            )
            log(logging.ERROR, message, problem)
            return (Notice("conversation_not_saved", message, "id"),)
        return ()

    async def forget(self) -> None:
        """Deletes everything stored of the conversation."""
        if self.saved_as is None:
            return
        stored = _pieces(await in_time(self._store.get(head_key(self.saved_as))))
        await in_time(self._store.delete(head_key(self.saved_as)))
        await self._delete(self.saved_as, stored)
        self._value = self._saved = None

    async def _save(
        self,
        name: str,
        conversation: SavedConversation,
        states: Mapping[Target, ProviderState],
        chained: bool,
    ) -> None:
        """New pieces are stored before the value that lists them, and unlisted ones are deleted
        after it: the store is always consistent."""
        current = await in_time(self._store.get(head_key(name)))
        # Another session has saved the conversation meanwhile: it may have deleted our pieces.
        alone = current == self._value
        before = self._saved
        known = {} if before is None else {(one.provider, one.model): one for one in before.states}
        saved: list[SavedState] = []
        for target, state in states.items():
            last = known.pop((state.endpoint.id, target.model), None)
            if state.past is not None or state.sent is None:
                if last is not None and alone:  # no call of this session went there
                    saved.append(last)
                continue
            fresh = last is not None and alone and time.time() < last.call.since + LIFETIME / 2
            now, pieces = _save_state(state, last, keep_pieces=fresh, chained=chained)
            call = now.call
            for index, piece in pieces.items():
                call = with_piece(call, index, await self._store_piece(name, piece))
            saved.append(msgspec.structs.replace(now, call=call))
        saved += known.values() if alone else ()
        saved.sort(key=lambda each: each.call.at or 0.0, reverse=True)
        conversation = msgspec.structs.replace(conversation, states=tuple(saved[:_MOST_STATES]))
        value = FORMAT.encode(conversation)
        await in_time(self._store.set(head_key(name), value, ex=LIFETIME))
        self._value, self._saved = value, conversation
        await self._delete(name, _pieces(current) - conversation.pieces())

    async def _store_piece(self, name: str, piece: NewPiece) -> PieceRef:
        if piece.size > _LONG:
            ref, packed = await asyncio.to_thread(piece.pack)
        else:
            ref, packed = piece.pack()
        if not ref.packed:
            await in_time(self._store.set(piece_key(name, ref.digest), packed, ex=LIFETIME))
        return ref

    async def _delete(self, name: str, pieces: Iterable[bytes]) -> None:
        for digest in pieces:
            await in_time(self._store.delete(piece_key(name, digest)))


def _pieces(value: object) -> set[bytes]:
    """The pieces that a value lists; none if it cannot be read."""
    try:
        return FORMAT.decode(value).pieces()
    except Exception:
        return set()


# ── A conversation at one provider ───────────────────────────────────────────────────────────────


def _save_state(
    state: ProviderState, before: SavedState | None, *, keep_pieces: bool, chained: bool
) -> tuple[SavedState, dict[int, NewPiece]]:
    """The state for a later session, and the pieces of its prompt that are not stored yet. `before`
    is the state stored after the last call."""
    sent, outcome = state.sent, state.outcome
    assert sent is not None
    assert outcome is not None
    planner = state.planner(sent.at or 0.0)
    known = before.call if before is not None and keep_pieces else None
    runs, pieces = store_runs(sent.rendered, known)
    since = sent.at or 0.0 if known is None else known.since
    call = save_call(sent, runs, spans=outcome.spans, since=since)
    stores = state.endpoint.features.stores_responses
    cache = SavedCache() if before is None else before.cache
    saved = SavedState(
        provider=state.endpoint.id,
        model=state.target.model,
        call=call,
        planner=planner.save(sent.rendered),
        cache=planner.save_cache(sent.rendered, sent.marks, cache),
        bills=state.bills,
        handle=_saved_handle(state, planner),
        reply_id=state.reply.id,
        chain=state.reply.chain() if chained and stores else None,
        prefix_change_expected=state.prefix_change_expected,
    )
    return saved, pieces


def _saved_handle(state: ProviderState, planner: Planner) -> SavedHandle | None:
    held = planner.handles.held
    if held is None:
        return None
    with state.target.memory.lock:
        stored = state.target.memory.current().saved_handle(held[0].handle)
    if stored is None:
        return None
    return SavedHandle(held[0], stored.tokens, stored.since, held[1])


def _restore_state(state: ProviderState, saved: SavedState, *, here: bool) -> None:
    """Continues the saved state of an earlier session; `here`: of the same client."""
    target, call = state.target, saved.call
    state.past = PastCall(saved)
    state.simulated = SentTurn(Outcome(call.spans))
    state.reply = LastReply(saved.reply_id, saved.chain)
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
