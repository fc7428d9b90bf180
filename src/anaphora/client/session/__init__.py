"""A conversation with a provider.

chat = client.session("anthropic-default", model="claude-sonnet-5-5", tools=registry)
response = await chat.send("Book me a flight to Rome")
print(chat.last.verdict)
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any, Self, Unpack, overload

import msgspec

from anaphora.cache.plan import Advice
from anaphora.client.arguments import state_of
from anaphora.client.content import Content, messages_of, wrong_type
from anaphora.client.conversations import id_of
from anaphora.client.failures import reported
from anaphora.client.in_flight import PreparedRequest
from anaphora.client.options import (
    ParamOptions,
    Prompt,
    RunOptions,
    StateText,
    TurnOptions,
)
from anaphora.client.parameters import params_of
from anaphora.client.response import Output, Response
from anaphora.client.structured import Structured
from anaphora.client.turn import TurnRequest
from anaphora.errors import InvalidRequest
from anaphora.prompt import Compaction, OutputSchema, ToolChoice
from anaphora.prompt.context import TokenCount
from anaphora.tools import ToolRegistry
from anaphora.values import AnyTool, Conversation, Message, MessageLike, Notice, Reply
from anaphora.wire.message_dicts import read_message

from .call_builder import PromptSource
from .compaction import PromptSizes, compacted
from .preview import PrefixWarning, Preview, advice_of, parallel_of, preview_of
from .provider_state import ProviderState
from .run import Run, RunResult
from .turn_prompt import TurnPrompt, prompt_of
from .turns import SessionTurns

__all__ = ["PrefixWarning", "Preview", "Run", "RunResult", "Session"]


class Session(SessionTurns):
    """One conversation. Turns follow each other; `fork` returns branches that run in parallel. As a
    context manager it is closed at the end of the block."""

    _closes_servers = True
    """Not a branch, which shares the servers of the session it comes from."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    @overload
    def run(
        self,
        content: Content | None = None,
        *,
        output: None = None,
        **options: Unpack[RunOptions],
    ) -> Run[None]: ...
    @overload
    def run(
        self,
        content: Content | None = None,
        *,
        output: type[Output] | Structured[Output],
        **options: Unpack[RunOptions],
    ) -> Run[Output]: ...
    @overload
    def run(
        self, content: Content | None = None, *, output: object, **options: Unpack[RunOptions]
    ) -> Run[Any]: ...
    def run(
        self, content: Content | None = None, *, output: Any = None, **options: Unpack[RunOptions]
    ) -> Run[Any]:
        """Turns and tools until the model is done, or a bound is reached: see `RunOptions`."""
        return Run(self, messages_of(content), output=output, **options)

    async def prewarm(self) -> Response:
        """Writes the beginning of the conversation to the provider's cache without asking for an
        answer: for calls that are to start together, or a user who is about to type."""
        return await self.complete(TurnRequest(prewarm=True))

    def preview(
        self, content: Content | None = None, *, output: Any = None, **options: Unpack[TurnOptions]
    ) -> Preview:
        """What the next call would read, write and cost; nothing is sent."""
        request = self._request(content, output, options)
        if self._is_kept:
            self._load_now()
        self._check_turn(request)
        return preview_of(*self._prepared(self._next_prompt(), request))

    def advice(self, *, parallel: int = 1) -> tuple[Advice, ...]:
        """What pays now, with the expected gain in dollars and why, the largest gain first: to keep
        the cached prefix alive or let it go, to compact the history to half or keep it; with
        `parallel`, to `prewarm` before so many branches start together. Nothing is sent."""
        branches = parallel_of(parallel)
        if self._is_kept:
            self._load_now()
        if self._last_turn is not None:
            turn, request = self._last_turn
        else:
            turn, request = self._next_prompt(), TurnRequest(messages=(Message.user("."),))
        state, prepared = self._prepared(turn, request)
        return advice_of(state, turn, prepared, branches)

    def _prepared(
        self, turn: TurnPrompt, request: TurnRequest
    ) -> tuple[ProviderState, PreparedRequest]:
        """A call as it would be sent now, and where."""
        state = self._state(self._order(request, lambda: turn)[0])
        notices = self._load_notices
        if state.past is not None:
            call = self._builder.call(state, turn, request, whole=False)
            state, late = self._load_past_now(state, call)
            notices += late
        prepared = self._builder.prepare(state, turn, request)
        prepared.notices += notices
        return state, prepared

    @property
    def prompt(self) -> Prompt | Callable[[], Prompt]:
        """The prompt of every turn, besides the history. A new one takes effect at the next turn; a
        conversation in it is compared with the history (see docs/client.md)."""
        return self._source.prompt

    @prompt.setter
    def prompt(self, prompt: Prompt | Callable[[], Prompt]) -> None:
        if self._source.state is not None:
            raise InvalidRequest(
                "prompt and state cannot be combined: set state to None, and put the state into"
                " the prompt (state_turn, or a volatile tail segment)",
                path="prompt",
            )
        self._source = PromptSource(prompt_of(prompt))

    @property
    def state(self) -> StateText:
        """Text at the end of every call, behind everything that is cached; never kept."""
        return self._source.state

    @state.setter
    def state(self, state: StateText) -> None:
        if state is not None and not self._source.from_keywords:
            raise InvalidRequest(
                "state and prompt cannot be combined: put the state into the prompt (state_turn,"
                " or a volatile tail segment)",
                path="state",
            )
        state_of(state)
        self._source = msgspec.structs.replace(self._source, state=state)

    @property
    def conversation(self) -> Conversation:
        """The history. May be assigned; the next call then begins differently."""
        return self._conversation

    @conversation.setter
    def conversation(self, conversation: Conversation) -> None:
        if not isinstance(conversation, Conversation):
            raise wrong_type("a Conversation", conversation, "conversation")
        if not conversation.extends(self._conversation):
            self._memory = self._memory.without_history()
        self._conversation = conversation

    @property
    def messages(self) -> tuple[Message, ...]:
        return self.conversation[:]

    def append(self, *messages: MessageLike) -> None:
        """Adds messages without a call. Where `save` fails, nothing is added."""
        checked = [read_message(each, f"messages[{index}]") for index, each in enumerate(messages)]
        before = self._conversation
        grown = self._conversation = before.append(*checked)
        added = grown[len(before) :]
        self._unsaved += added
        try:
            self._save_pending()
        except BaseException:
            self._unsaved = tuple(one for one in self._unsaved if one not in added)
            if self._conversation is grown:
                self._conversation = before
            raise

    def keep(self, message: Message) -> tuple[Notice, ...]:
        """Adds a message that must not be lost, such as results of tools that have run. Where
        `save` fails, returns a notice."""
        self._conversation = self._conversation.append(message)
        self._unsaved += self._conversation[-1:]
        try:
            self._save_pending()
        except Exception as problem:
            return (reported("save_failed", problem),)
        return ()

    def compact(
        self, budget: int, *, summary: str | Message | None = None, tokens: TokenCount | None = None
    ) -> Compaction:
        """Drops the oldest exchanges of the history until it has at most `budget` tokens.

        Tool calls stay with their results and the reply to them. `summary` replaces the dropped
        messages. `tokens` counts a message; without it the model's estimate is used, in proportion
        to the last bill. The history that is left is frozen (`frozen_prefix_len`) until the next
        compaction; the next call writes it to the cache again.
        """
        self.check_idle()
        if self._is_kept:
            self._load_now()
        turn = self._next_prompt()
        if tokens is None and turn.history:
            state = self._state(self._route.current)
            call = self._builder.call(state, turn, TurnRequest())
            tokens = PromptSizes(state.prepare(call, time.time()).rendered).counter()
        done = compacted(turn, budget, tokens, summary)
        if done.dropped:
            self._builder.tools.settle()
            before = self._conversation
            self._take(turn.compacted(done))
            self._note_compaction(before, self._conversation)
            self._expect_prefix_changes()
        return done

    def recall(
        self,
        reply: Reply,
        *,
        provider: str,
        model: str,
        at: float,
        first: float,
        output: OutputSchema | None = None,
        **params: Unpack[ParamOptions],
    ) -> bool:
        """Restores the last call of a saved conversation, so that the next one is compared with it.

        `reply` is its reply, `at` the time of the request, `first` that of the first byte of the
        response, `output` its schema, `params` are its parameters besides the session's own. System
        prompt and tools have to be the same as then. False where the conversation no longer goes to
        that model.
        """
        target = self._route.find(provider, model)
        if target is None:
            return False
        turn = self._next_prompt()
        history = turn.history
        if not history or not history[-1].same_content(reply.message):
            return False
        state = self._state(target)
        changes = params_of(params)
        if output is not None:
            changes["output"] = output
        before = turn.without_tail(history.prefix(len(history) - 1))
        call = self._builder.call(state, before, TurnRequest(params=changes))
        price = target.price(at, call.params.service_tier or "")
        state.account(state.prepare(call, at), reply, at=at, first=first, price=price)
        self._take(turn)
        state.reply_id, state.committed, state.stored = reply.id or None, history, turn.ir
        self._route.settle(target, self._states)
        return True

    async def load(self) -> None:
        """Loads a conversation with an id, and starts its MCP servers, now instead of at the first
        turn: for a `preview` before it."""
        if self._opens is not None:
            await self._opens()
        await self._load()
        for state in self._states.values():
            if self._keeper is not None and state.past is not None:
                await self._keeper.load_pieces(state.past, state.past.references())

    async def forget(self) -> None:
        """Deletes what is stored under the conversation's id, and what providers hold for it."""
        await self._load()
        await self._release()
        if self._keeper is not None:
            await self._keeper.forget()

    def fork(self, *, id: str | None = None) -> Session:
        """Another conversation with the same history: both read what is cached of it. It is stored
        where it gets an id of its own."""
        other = copy.copy(self)
        if (name := id_of(id)) is not None and self._keeper is None:
            raise InvalidRequest(
                "only a session with an id can be forked with one: client.session(..., id=...)",
                path="id",
            )
        if self._keeper is not None:
            other.keep_with(self._keeper.forked(name))
        other._states = {target: state.fork() for target, state in self._states.items()}
        other._turn = None
        other._audit_id, other._audited = "", 0
        other._busy = other.running = False
        other._save, other._unsaved = None, ()
        other._closes_servers = False
        if (warm := self._refresher) is not None:
            other.keep_warm(warm.settings, warm.among)
        other._route = self._route.fork()
        return other

    async def close(self) -> None:
        """Releases what the provider holds for this conversation. One with an id goes on in another
        session, which uses it; `forget` ends it. The cached prefix is no longer kept alive."""
        if self._refresher is not None:
            await self._refresher.close()
        if self._servers is not None and self._closes_servers:
            await self._servers.close()
        if self._keeper is None:
            await self._release()

    async def _release(self) -> None:
        for state in self._states.values():
            if state.handles is not None:
                await state.handles.release()

    @property
    def id(self) -> str | None:
        """The name under which the conversation is stored; None where it is not."""
        return None if self._keeper is None else self._keeper.saved_as

    @property
    def provider(self) -> str:
        return self._route.current.endpoint.id

    @property
    def model(self) -> str:
        return self._route.current.model

    @property
    def priced(self) -> bool:
        return self._route.current.price(time.time()) is not None

    @property
    def tool_choice(self) -> ToolChoice | None:
        """The tool choice of every call, unless a turn has its own."""
        return self._builder.params.tool_choice

    @property
    def sent_tools(self) -> tuple[AnyTool, ...]:
        """All tools that the model is given now."""
        return self._builder.tools.source.current

    @property
    def tools(self) -> ToolRegistry | None:
        """The registry that runs the tools, if there is one."""
        return self._builder.tools.registry
