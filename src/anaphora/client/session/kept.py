"""What a session has between its turns: the history, and its state at each provider; with an id,
what an earlier session saved in any process; a cached prefix that is kept alive; MCP servers."""

from __future__ import annotations

import secrets
from abc import abstractmethod
from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING
from weakref import WeakSet

import msgspec

from anaphora.client.in_flight import InFlight, PreparedRequest
from anaphora.client.observe import EndedCall, Watchers
from anaphora.client.options import KeepWarm, OnPrefixBreak, Prompt
from anaphora.client.response import Record, Response
from anaphora.client.routing import SessionRoute
from anaphora.client.target import Target
from anaphora.client.turn import Caller, TurnRequest
from anaphora.errors import InvalidRequest
from anaphora.prompt import Call, RenderedContext
from anaphora.rendered import Plan
from anaphora.rendered.plan import misfit
from anaphora.values import Conversation, Message, Notice, SegmentRole

from .cached_prefix import CachedPrefix
from .call_builder import CallBuilder, PromptSource
from .handles import Handles
from .keep_warm import CacheRefresher, refresh_request
from .keeper import ConversationKeeper
from .provider_state import ProviderState
from .saved import SavedCompaction, SavedConversation, render_past, restore_state
from .turn_prompt import CompactedHistory, PromptMemory, TurnPrompt

if TYPE_CHECKING:
    from anaphora.client.mcp.servers import SessionServers

_HISTORY = SegmentRole.CONVERSATION
_NOT_LOADED = Notice(
    "conversation_not_loaded",
    "what is stored of the conversation is not known yet: await load() first",
    "id",
)


class KeptConversation(Caller):
    """A conversation, and all that lasts from one turn to the next. One with an id is loaded from a
    store before the first turn, and saved there after each."""

    _keeper: ConversationKeeper | None = None
    _compaction: SavedCompaction | None = None
    """What was dropped of the history that the app gave."""
    _audit_id = ""
    """Of the conversation in an audit log, where it has no name."""
    _audited = 0
    """Calls in it."""

    def __init__(
        self,
        route: SessionRoute,
        builder: CallBuilder,
        source: PromptSource,
        *,
        messages: Conversation,
        on_prefix_break: OnPrefixBreak,
        timeout: float | None,
        on_wait: Callable[[float], None] | None,
        save: Callable[[Message], None] | None,
        watchers: Watchers,
        holders: set[Handles],
    ) -> None:
        """`holders` has all handles that hold something, for the client to release at its end."""
        super().__init__(timeout=timeout, on_wait=on_wait, watchers=watchers)
        self._route = route
        self._builder = builder
        self._source = source
        self._conversation = self._answered = self._sent_from = messages
        """The history: now, after the last turn, and at the start of the turn in flight."""
        self._memory = PromptMemory()
        self._save = save
        self._unsaved: tuple[Message, ...] = ()
        """Messages that `save` has not taken yet; they come before newer ones."""
        self._on_prefix_break: OnPrefixBreak = on_prefix_break
        self._states: dict[Target, ProviderState] = {}
        self._holders = holders
        self._turn: TurnPrompt | None = None
        """The prompt of the turn in flight: the app's function is called once for all attempts."""
        self._load_notices: tuple[Notice, ...] = ()
        """Of loading the conversation, for the next response."""
        self._last_turn: tuple[TurnPrompt, TurnRequest] | None = None
        """What the last call was made of."""
        self._servers: SessionServers | None = None
        """MCP servers whose tools it uses."""
        self._refresher: CacheRefresher | None = None
        """Keeps the cached prefix alive between two turns."""
        self.running = False
        self.last: Response | None = None
        self.cost_usd: Decimal | None = Decimal(0)
        """The cost of the conversation so far; None once a price was unknown."""
        if not callable(source.prompt) and not source.from_keywords:
            self._take(self._next_prompt())  # its conversation is the initial history

    # ── What the turns add ───────────────────────────────────────────────────────────────────────

    @abstractmethod
    def _next_prompt(self) -> TurnPrompt:
        """The prompt of the next turn. Nothing of it is kept before the turn was answered."""

    @abstractmethod
    def _state(self, target: Target) -> ProviderState:
        """The conversation at one provider."""

    @abstractmethod
    def add_cost(self, cost_usd: Decimal | None) -> None:
        """To that of the conversation, which is unknown from then on where this is."""

    # ── The history ──────────────────────────────────────────────────────────────────────────────

    @property
    def busy(self) -> bool:
        return self._busy or self.running

    def check_idle(self) -> None:
        if self.busy:
            raise InvalidRequest(
                "this conversation already has a turn in flight; use fork() for parallel turns",
                path="session",
            )

    def _save_pending(self) -> None:
        """Passes messages to `save`, in order and without a gap: those that failed come first."""
        if self._save is None:
            self._unsaved = ()
        while self._unsaved and self._save is not None:
            message, self._unsaved = self._unsaved[0], self._unsaved[1:]
            try:
                self._save(message)
            except BaseException:
                self._unsaved = (message, *self._unsaved)
                raise

    def _take(self, turn: TurnPrompt) -> None:
        """Continues from a turn's history without a call. What was appended since the last reply
        stays unanswered."""
        before, answered = self._conversation, self._answered
        pending = len(before) - len(answered) if before.extends(answered) else 0
        self._conversation = turn.history
        self._answered = turn.history.prefix(len(turn.history) - pending)
        used = self._memory.continuation
        self._memory = turn.memory
        if turn.ir.continuation is not None:  # not used yet
            self._memory = msgspec.structs.replace(turn.memory, continuation=used)

    def _expect_prefix_changes(self) -> None:
        for state in self._states.values():
            state.prefix_change_expected = True

    # ── A conversation with an id ────────────────────────────────────────────────────────────────

    def keep_with(self, keeper: ConversationKeeper | None) -> None:
        self._keeper = keeper
        self._is_kept = keeper is not None

    def _ended(self, flight: InFlight, record: Record) -> EndedCall:
        return self.ended_call(super()._ended(flight, record))

    def ended_call(self, ended: EndedCall) -> EndedCall:
        """A call of this conversation, for an audit log."""
        self._audit_id = self._audit_id or secrets.token_hex(8)
        self._audited += 1
        name = None if self._keeper is None else self._keeper.saved_as
        return msgspec.structs.replace(
            ended, conversation=self._audit_id, turn=self._audited, session=name or ""
        )

    async def _load(self) -> None:
        keeper = self._keeper
        if keeper is None or keeper.loaded:
            return
        async with keeper.loading:
            if not keeper.loaded:
                saved = await keeper.load()
                if saved is not None:
                    self._restore(keeper, saved)
                keeper.loaded, self._load_notices = True, keeper.notices

    def _restore(self, keeper: ConversationKeeper, saved: SavedConversation) -> None:
        """Continues from what an earlier session saved."""
        states: dict[Target, ProviderState] = {}
        try:
            for one in saved.states:
                target = self._route.find(one.provider, one.model)
                if target is not None:
                    state = states[target] = ProviderState(target.begun())
                    restore_state(state, one, here=saved.process == keeper.process)
                    if one.handle is not None:
                        state.handles = Handles(state, self._holders)
                        state.handles.restore(one.handle.handle.handle, one.handle.expires)
            cost_usd = None if saved.cost_usd is None else Decimal(saved.cost_usd)
        except Exception as problem:
            keeper.reject(problem)
            return
        compacted = self._memory.boundary is not None  # before it was loaded
        self._states |= states
        current = self._route.find(*saved.current)
        if current in states:
            self._route.settle(current, self._states)
        self.cost_usd = cost_usd
        if compacted:
            self._expect_prefix_changes()
            return
        self._memory = msgspec.structs.replace(
            self._memory, boundary=saved.boundary, continuation=saved.continuation
        )
        if saved.compaction is not None:
            self._compact_again(saved.compaction)

    def _compact_again(self, compaction: SavedCompaction) -> None:
        """Drops what an earlier session dropped of the history that the app has loaded."""
        history, answered = self._conversation, self._answered
        appended = history[len(answered) :]
        if not self._source.from_keywords:
            # The prompt's conversation is taken again, and compared with what was dropped.
            self._compaction = compaction
            self._memory = msgspec.structs.replace(self._memory, sources=())
            self._conversation = self._answered = Conversation()
            if not callable(self._source.prompt):
                self._take(self._next_prompt())
            self._conversation = self._answered.append(*appended)
        elif dropped := compaction.dropped(answered):
            self._compaction = compaction
            self._answered = Conversation((*compaction.summary, *answered[dropped:]))
            self._conversation = self._answered.append(*appended)

    def _with_compaction(self, prompt: Prompt, memory: PromptMemory) -> PromptMemory:
        """With what an earlier session dropped of the prompt's conversation."""
        if self._compaction is None or memory.compactions or self._source.from_keywords:
            return memory
        turns = prompt.turns if isinstance(prompt, RenderedContext) else prompt.run(_HISTORY)
        dropped = self._compaction.dropped(turns)
        if not dropped:
            return memory
        after = Conversation(self._compaction.summary)
        compacted = CompactedHistory(turns.prefix(dropped), after, dropped)
        return msgspec.structs.replace(memory, compactions=(compacted,))

    async def _load_past(self, state: ProviderState, call: Call) -> ProviderState:
        """Compares the prompt with the last call of an earlier session, whose bytes are loaded only
        where it has changed. A call that cannot be restored is forgotten."""
        past, keeper = state.past, self._keeper
        assert past is not None
        assert keeper is not None
        rendered = render_past(state, past, call)
        try:
            if missing := past.missing(rendered):
                await keeper.load_pieces(past, missing)
            past.resolve(rendered)
            held = past.saved.handle
            if held is not None and misfit(rendered, held.handle) is None:
                # A name that no request can carry is found here.
                state.endpoint.wire.assemble(rendered, Plan(held=held.handle))
        except Exception as problem:
            keeper.reject(problem)
            self._load_notices = keeper.notices
            target = next(target for target, one in self._states.items() if one is state)
            state = self._states[target] = ProviderState(state.target)
        return state

    def _load_now(self) -> None:
        """The same for methods that cannot wait, as far as the store allows."""
        keeper = self._keeper
        if keeper is not None and not keeper.loaded:
            saved = keeper.load_now()
            if saved is not None:
                self._restore(keeper, saved)
            self._load_notices = keeper.notices
            if not keeper.loaded:
                self._load_notices = (_NOT_LOADED,)

    def _load_past_now(
        self, state: ProviderState, call: Call
    ) -> tuple[ProviderState, tuple[Notice, ...]]:
        """The same; a state without a past where its bytes would have to be waited for."""
        past, keeper = state.past, self._keeper
        assert past is not None
        assert keeper is not None
        try:
            rendered = render_past(state, past, call)
            keeper.load_pieces_now(past, past.missing(rendered))
            past.resolve(rendered)
        except Exception:
            return ProviderState(state.target), (_NOT_LOADED,)
        return state, ()

    async def _stored(self, response: Response) -> Response:
        keeper, current = self._keeper, self._route.current
        assert keeper is not None
        keeper.notices = self._load_notices = ()
        conversation = SavedConversation(
            process=keeper.process,
            current=(current.endpoint.id, current.model),
            cost_usd=None if self.cost_usd is None else str(self.cost_usd),
            states=(),
            boundary=self._memory.boundary,
            continuation=self._memory.continuation,
            compaction=self._compaction,
        )
        chained = bool(self._builder.store) or self._memory.continuation is not None
        notices = await keeper.save(conversation, self._states, chained=chained)
        return self._noted(response, notices) if notices else response

    def _note_compaction(self, before: Conversation, after: Conversation) -> None:
        """The history was shortened."""
        if self._keeper is not None:
            self._compaction = SavedCompaction.of(self._compaction, before, after)

    # ── Between two turns ────────────────────────────────────────────────────────────────────────

    def use_servers(self, servers: SessionServers) -> None:
        """Starts these MCP servers before the first turn."""
        self._servers, self._opens = servers, servers.open

    def keep_warm(self, settings: KeepWarm, among: WeakSet[CacheRefresher]) -> None:
        """Keeps the cached prefix alive from the next turn on, within these bounds; `among` are
        the refreshers of all sessions."""
        self._refresher = CacheRefresher(self, settings, among)

    @property
    def in_flight(self) -> bool:
        """Whether a call of the conversation is under way; a tool may be while none is."""
        return self._busy

    @property
    def watchers(self) -> Watchers:
        return self._watchers

    @property
    def refreshed_state(self) -> ProviderState | None:
        """The state whose prefix is kept alive; None before the first call."""
        return None if self._last_turn is None else self._state(self._route.current)

    def prepare_refresh(self, state: ProviderState, prefix: CachedPrefix) -> PreparedRequest | None:
        assert self._last_turn is not None
        turn, request = self._last_turn
        return refresh_request(self._builder, state, turn, request, prefix)
