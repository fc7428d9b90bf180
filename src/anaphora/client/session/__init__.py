"""A conversation with a provider.

chat = client.session("anthropic-default", model="claude-sonnet-5-5", tools=registry)
response = await chat.send("Book me a flight to Rome")
print(chat.last.verdict)
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any, Self, Unpack, overload

import msgspec

from anaphora.client.arguments import state_of
from anaphora.client.content import Content, messages_of, wrong_type
from anaphora.client.conversations import id_of
from anaphora.client.in_flight import TurnRequest
from anaphora.client.options import (
    Prompt,
    RunOptions,
    StateText,
    SummaryOptions,
    TurnOptions,
)
from anaphora.client.preview import Preview
from anaphora.client.response import Output, Response
from anaphora.client.structured import Structured
from anaphora.client.turn import Turn
from anaphora.errors import InvalidRequest
from anaphora.prompt import Compaction
from anaphora.prompt.context import TokenCount
from anaphora.tools import ToolRegistry
from anaphora.values import AnyTool, Conversation, Message, MessageLike
from anaphora.wire.message_dicts import read_message

from .call_builder import PromptSource
from .compaction import compacted
from .preview import (
    PrefixWarning,
    preview_of,
)
from .run import Run, RunResult
from .summarize import Summary, SummaryResult, history_sizes, take_compaction
from .turn_prompt import prompt_of
from .turns import SessionTurns

__all__ = ["PrefixWarning", "Preview", "Run", "RunResult", "Session", "Summary", "SummaryResult"]


class Session:
    """One conversation. Turns follow each other; `fork` returns branches that run in parallel. As a
    context manager it is closed at the end of the block."""

    def __init__(self, turns: SessionTurns) -> None:
        self.turns = turns
        """Makes its calls; private to this package."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    @overload
    def send(
        self,
        content: Content | None = None,
        *,
        output: type[Output] | Structured[Output] | None = None,
        **options: Unpack[TurnOptions],
    ) -> Turn[Output]: ...
    @overload
    def send(
        self,
        content: Content | None = None,
        *,
        output: object,
        **options: Unpack[TurnOptions],
    ) -> Turn[Any]: ...
    def send(
        self,
        content: Content | None = None,
        *,
        output: Any = None,
        **options: Unpack[TurnOptions],
    ) -> Turn[Any]:
        """A turn. Await it for the response, or iterate over it to stream.

        `output` is the form that the reply must have (a struct, dataclass, pydantic model or JSON
        schema); other keywords are parameters of this call alone: `max_tokens`, `tool_choice`, ….
        The conversation grows only when the reply is complete; a failed call does not change it.
        """
        return Turn(self.turns, self.turns.builder.request(content, output, options))

    @overload
    def run(
        self,
        content: Content | None = None,
        *,
        output: type[Output] | Structured[Output] | None = None,
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
        return Run(self.turns, messages_of(content), output, options)

    async def prewarm(self) -> Response:
        """Writes the beginning of the conversation to the provider's cache without requesting a
        reply: before calls that start together, or while a user is typing."""
        return await self.turns.complete(TurnRequest(prewarm=True))

    def preview(
        self, content: Content | None = None, *, output: Any = None, **options: Unpack[TurnOptions]
    ) -> Preview:
        """What the next call would read, write and cost; nothing is sent."""
        turns, history = self.turns, self.turns.history
        request = turns.builder.request(content, output, options)
        turns.load_now()
        history.check_turn(request)
        return preview_of(*turns.prepared_now(history.next_prompt(), request))

    @property
    def prompt(self) -> Prompt | Callable[[], Prompt]:
        """The prompt of every turn, besides the history. A new one takes effect at the next turn;
        it has no conversation, or the session's own (see docs/client.md)."""
        return self.turns.history.source.prompt

    @prompt.setter
    def prompt(self, prompt: Prompt | Callable[[], Prompt]) -> None:
        if self.turns.history.source.state is not None:
            raise InvalidRequest(
                "prompt and state cannot be combined: set state to None, and put the state into"
                " the prompt (state_turn, or a volatile tail segment)",
                path="prompt",
            )
        self.turns.history.source = PromptSource(prompt_of(prompt))

    @property
    def state(self) -> StateText:
        """Text at the end of every call, after everything that is cached; never kept."""
        return self.turns.history.source.state

    @state.setter
    def state(self, state: StateText) -> None:
        if state is not None and not self.turns.history.source.from_keywords:
            raise InvalidRequest(
                "state and prompt cannot be combined: put the state into the prompt (state_turn,"
                " or a volatile tail segment)",
                path="state",
            )
        state_of(state)
        history = self.turns.history
        history.source = msgspec.structs.replace(history.source, state=state)

    @property
    def conversation(self) -> Conversation:
        """The history. May be assigned; the next call then begins differently."""
        return self.turns.history.messages

    @conversation.setter
    def conversation(self, conversation: Conversation) -> None:
        if not isinstance(conversation, Conversation):
            raise wrong_type("a Conversation", conversation, "conversation")
        self.turns.history.replace(conversation)

    @property
    def messages(self) -> tuple[Message, ...]:
        return self.conversation[:]

    def append(self, *messages: MessageLike) -> None:
        """Adds messages without a call. If `save` fails, nothing is added."""
        checked = [read_message(each, f"messages[{index}]") for index, each in enumerate(messages)]
        self.turns.history.append(*checked)

    def compact(
        self, budget: int, *, summary: str | Message | None = None, tokens: TokenCount | None = None
    ) -> Compaction:
        """Drops the oldest exchanges of the history until it has at most `budget` tokens.

        Tool calls stay with their results and the reply to them. `summary` replaces the dropped
        messages. `tokens` counts a message; without it the model's estimate is used, in proportion
        to the last bill. The history that is left is frozen (`frozen_prefix_len`) until the next
        compaction; the next call writes it to the cache again.
        """
        turns, history = self.turns, self.turns.history
        turns.check_idle()
        turns.load_now()
        turn = history.next_prompt()
        if tokens is None and turn.history:
            tokens = history_sizes(turns, turns.state(turns.route.current), turn).counter()
        done = compacted(turn, budget, tokens, summary)
        take_compaction(turns, turn, done)
        return done

    def summarize(self, budget_tokens: int, **options: Unpack[SummaryOptions]) -> Summary:
        """Replaces the history by a summary and its newest units, within `budget_tokens`. The model
        writes the summary in a continuation of the last call, which is read from the cache. If the
        answer is none (`SummaryFailed`) or the call fails, the history is unchanged. If the cached
        prefix has expired, `ColdCache` is raised with the cost; see `on_cold`."""
        return Summary(self.turns, budget_tokens, options)

    async def load(self) -> None:
        """Loads a conversation with an id now instead of at the first turn: for a `preview` before
        it."""
        turns = self.turns
        await turns.load()
        for state in turns.states.values():
            if turns.keeper is not None and state.past is not None:
                await turns.keeper.load_pieces(state.past, state.past.references())

    async def forget(self) -> None:
        """Deletes the stored conversation and its cache handles at providers."""
        await self.turns.load()
        await self._release()
        if self.turns.keeper is not None:
            await self.turns.keeper.forget()

    def fork(self, *, id: str | None = None) -> Session:
        """Another conversation with the same history: both read its cached prefix. It is stored if
        it gets its own id."""
        if (name := id_of(id)) is not None and self.turns.keeper is None:
            raise InvalidRequest(
                "only a session with an id can be forked with one: client.session(..., id=...)",
                path="id",
            )
        return Session(self.turns.fork(name))

    async def close(self) -> None:
        """Releases cache handles at the provider, unless the conversation has an id: then another
        session can continue with them, and `forget` deletes them."""
        if self.turns.keeper is None:
            await self._release()

    async def _release(self) -> None:
        for handles in self.turns.handles.values():
            await handles.release()

    @property
    def id(self) -> str | None:
        """The name under which the conversation is stored; None if it is not."""
        return None if self.turns.keeper is None else self.turns.keeper.saved_as

    @property
    def last(self) -> Response | None:
        """The last response."""
        return self.turns.last

    @property
    def cost_usd(self) -> Decimal | None:
        """The cost of the conversation so far; None once a price was unknown."""
        return self.turns.cost_usd

    @property
    def provider(self) -> str:
        return self.turns.route.current.endpoint.id

    @property
    def model(self) -> str:
        return self.turns.route.current.model

    @property
    def sent_tools(self) -> tuple[AnyTool, ...]:
        """All tools of the next call."""
        return self.turns.builder.tools.source.current

    @property
    def tools(self) -> ToolRegistry | None:
        """The registry that runs the tools, if there is one."""
        return self.turns.builder.tools.registry
