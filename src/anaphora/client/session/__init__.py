"""A conversation with a provider: every turn is rendered from where the last one ended, planned,
certified, sent, and held against its bill.

    chat = client.session("anthropic-default", model="claude-sonnet-5-5", tools=registry)
    answered = await chat.send("Book me a flight to Rome")
    print(chat.last.verdict)
"""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec

from anaphora.client.after import AfterAnswer, reported, with_notices
from anaphora.client.asking import Asked, Content, messages_of
from anaphora.client.calling import Calling, Underway
from anaphora.client.composing import Composing, beginning
from anaphora.client.delivered import Delivered, Prepared
from anaphora.client.endpoint import Stop
from anaphora.client.given import messages_given, seconds_of
from anaphora.client.observe import Watchers
from anaphora.client.recording import record_of
from anaphora.client.response import Response
from anaphora.client.turn import Turn
from anaphora.client.writing import Account, Written, cost
from anaphora.errors import (
    AnaphoraError,
    ContextOverflow,
    Forbidden,
    InvalidRequest,
    NotFound,
)
from anaphora.prompt import Compaction, ToolChoice
from anaphora.prompt.compaction import TokenCount
from anaphora.values import Conversation, Message, Notice, Reply, SegmentRole

from .certify import OnPrefixBreak, PrefixWarning, certify
from .compaction import compacted
from .history import Save, SessionHistory
from .holding import Handles, unheld
from .place import Place
from .preview import Preview, previewed
from .prompt_source import Prompt, PromptSource, State, TurnPrompt
from .stops import Stops
from .turn_writer import TurnWriter

if TYPE_CHECKING:
    from .running import Run

_HISTORY = SegmentRole.CONVERSATION

__all__ = ["Content", "OnPrefixBreak", "PrefixWarning", "Preview", "Session", "Turn"]


class Session(Calling):
    """One conversation. Turns follow each other; `fork` gives branches that go on side by side."""

    def __init__(
        self,
        stops: Stops,
        composing: Composing,
        source: PromptSource,
        *,
        messages: Conversation,
        compact_at: int | float | None = None,
        on_prefix_break: OnPrefixBreak = "warn",
        timeout: float | None = None,
        on_wait: Callable[[float], None] | None = None,
        save: Save | None = None,
        watchers: Watchers | None = None,
        holders: set[Handles] | None = None,
    ) -> None:
        """`holders` is where handles are known while they hold something, for whoever closes them
        when nobody else does."""
        super().__init__(timeout=timeout, on_wait=on_wait, watchers=watchers or Watchers())
        self._stops = stops
        self._composing = composing
        self._writer = TurnWriter(composing, compact_at)
        self._history = SessionHistory(source, messages, save)
        self._on_prefix_break: OnPrefixBreak = on_prefix_break
        self._places: dict[Stop, Place] = {}
        self._handles: dict[Stop, Handles] = {}
        self._holders = holders if holders is not None else set()
        self._sent_from = self.conversation
        self._turn: TurnPrompt | None = None
        """The prompt of the turn under way: asked for once, however often the call is sent,"""
        self._at: dict[Stop, TurnPrompt] = {}
        """and as it is at each stop, where the history may be compacted."""
        self._excused: frozenset[Stop] = frozenset()
        """Where the next call may begin otherwise, since the history was compacted on purpose."""
        self.run_under_way = False
        self.last: Response | None = None
        """The newest answer."""
        self.cost_usd: Decimal | None = Decimal(0)
        """What this conversation has cost so far; None once a price was unknown."""

    # ── The prompt ───────────────────────────────────────────────────────────────────────────────

    @property
    def prompt(self) -> Prompt | Callable[[], Prompt]:
        """What every turn is made from, besides the history. A new one takes effect at the next
        turn; a conversation in it is compared with the history (see docs/client.md)."""
        return self._history.prompt

    @prompt.setter
    def prompt(self, prompt: Prompt | Callable[[], Prompt]) -> None:
        self._history.prompt = prompt

    @property
    def state(self) -> State:
        """Text at the end of every call, behind everything that is cached; never kept."""
        return self._history.state

    @state.setter
    def state(self, state: State) -> None:
        self._history.state = state

    @property
    def conversation(self) -> Conversation:
        """The history. May be assigned; what is sent then no longer begins as before."""
        return self._history.conversation

    @conversation.setter
    def conversation(self, conversation: Conversation) -> None:
        self._history.conversation = conversation

    def compact(
        self,
        budget: int,
        *,
        summary: str | Message | None = None,
        tokens: TokenCount | None = None,
    ) -> Compaction:
        """Drops the oldest exchanges of the history until it has at most `budget` tokens.

        Tool calls stay with their results and the answer to them. `summary` takes the place of what
        is dropped. `tokens` counts a message; without it the model's estimate is used, in
        proportion to the last bill. The history that is left is frozen (`frozen_prefix_len`) until
        the next compaction; the next call writes it to the cache again.
        """
        self.refuse_second()
        turn = self._history.ask()
        if tokens is None and turn.history:
            tokens = self._writer.counter(self._place(self._stops.current), turn)
        done = compacted(turn, budget, tokens, summary)
        if done.dropped:
            self._history.take(turn.compacted(done))
            self._excused = frozenset(self._places)
        return done

    # ── For the app ──────────────────────────────────────────────────────────────────────────────

    def send(
        self,
        content: Content | None = None,
        *,
        output: Any = None,
        timeout: float | None = None,
        **params: Any,
    ) -> Turn:
        """A turn. Await it for the whole answer, or go through it for the events.

        `output` is the form that the answer must have (a struct, dataclass, pydantic model or JSON
        schema); other keywords are parameters of this call alone: `max_tokens`, `tool_choice`, ….
        The conversation goes on only when the answer is complete; a call that fails leaves it as it
        was.
        """
        asked = Asked(
            messages=messages_of(content),
            changes=params,
            output=self._composing.form(output),
            timeout=seconds_of(timeout, "timeout"),
        )
        return Turn(self, asked)

    def run(self, content: Content | None = None, **bounds: Any) -> Run:
        """Turns and tools until the model is done: see `running.Run`."""
        from .running import Run

        return Run(self, messages_of(content), **bounds)

    def preview(
        self, content: Content | None = None, *, output: Any = None, **params: Any
    ) -> Preview:
        """What the next call would read, write and cost; nothing is sent."""
        form = self._composing.form(output)
        asked = Asked(messages=messages_of(content), changes=params, output=form)
        turn = self._history.ask()
        place = self._place(self._order(asked, lambda: turn)[0])
        _, written, notices = self._writer.write(place, turn, asked)
        preview = previewed(place, written)
        notices = (*notices, *preview.notices)
        return msgspec.structs.replace(preview, notices=notices) if notices else preview

    async def prewarm(self) -> Response:
        """Writes the beginning of the conversation to the provider's cache, and asks for no
        answer: for calls that are to start together, or a user who is about to speak."""
        return await self.answer(Asked(messages=(), prewarm=True))

    def append(self, *messages: Message) -> None:
        """Adds messages without a call. Where `save` fails, nothing is added."""
        self._history.append(messages_given(messages, "messages"))

    def keep(self, message: Message) -> tuple[Notice, ...]:
        """Adds a message that must not be lost, such as results of tools that have run. Where
        `save` fails, returns a notice."""
        try:
            self._history.keep(message)
        except Exception as problem:
            return (reported("save_failed", problem),)
        return ()

    def recall(
        self, reply: Reply, *, provider: str, model: str, at: float, first: float, **params: Any
    ) -> bool:
        """Remembers the call that a saved conversation ends with, so that the next one is held
        against it: `reply` is what was answered, `at` when it was asked, `first` when the answer
        began, `params` are what that call's parameters were besides the session's own. System
        prompt and tools have to be the same as then. False where the conversation does not go
        there any more."""
        stop = self._stops.find(provider, model)
        if stop is None:
            return False
        turn = self._history.ask()
        history = turn.history
        if not history or not history[-1].same_content(reply.message):
            return False
        place = self._place(stop)
        asked = Asked(messages=(), changes=params)
        before = turn.without_tail(history.prefix(len(history) - 1))
        call = self._composing.call(place, before, asked, stream=False, whole=True)
        price = place.price(at, call.params.service_tier)
        place.account(place.write(call, at), reply, at=at, first=first, price=price)
        self._history.take(turn)
        place.reply, place.committed, place.stored = reply, history, turn.ir
        self._stops.settle(stop, place, self._places)
        return True

    def fork(self) -> Session:
        """Another conversation with the same past: both read what is cached of it."""
        other = copy.copy(self)
        other._places = {stop: place.fork() for stop, place in self._places.items()}
        other._handles = {}
        other._turn, other._at = None, {}
        other._busy = other.run_under_way = False
        other._history = self._history.fork()
        other._stops = self._stops.fork()
        return other

    async def close(self) -> None:
        """Lets go of what the provider holds for this conversation."""
        for handles in self._handles.values():
            await handles.release()

    @property
    def messages(self) -> tuple[Message, ...]:
        return self.conversation[:]

    @property
    def provider(self) -> str:
        """Where the conversation is at home."""
        return self._stops.current.endpoint.id

    @property
    def model(self) -> str:
        return self._stops.current.model.name

    @property
    def priced(self) -> bool:
        """Whether anybody states what the model costs."""
        stop = self._stops.current
        return stop.endpoint.price(stop.model.name, time.time()) is not None

    @property
    def tool_choice(self) -> ToolChoice | None:
        """What every call says of it, unless a turn says otherwise."""
        return self._composing.tool_choice

    @property
    def tools(self) -> Any:
        return self._composing.registry

    # ── A turn ───────────────────────────────────────────────────────────────────────────────────

    def _stops_of(self, asked: Asked) -> Sequence[Stop]:
        if self._busy:
            self.refuse_second()
        self._turn, self._at = None, {}
        stops = self._order(asked, self._prompt)
        home = stops[0].endpoint.home
        if asked.prewarm and home not in ("anthropic", "openai_responses"):
            raise InvalidRequest(
                f"{stops[0].endpoint.id} speaks {home}, which has no call that only writes the"
                " cache",
                path="prewarm",
            )
        self._busy = True
        return stops

    def _prompt(self) -> TurnPrompt:
        """The prompt of the turn under way."""
        if self._turn is None:
            self._sent_from = self.conversation
            self._turn = self._history.ask()
        return self._turn

    @property
    def busy(self) -> bool:
        """A turn or a run is under way."""
        return self._busy or self.run_under_way

    def refuse_second(self) -> None:
        if self.busy:
            raise InvalidRequest(
                "this conversation has a turn under way; `fork()` gives a branch for another",
                path="session",
            )

    def _order(self, asked: Asked, prompt: Callable[[], TurnPrompt]) -> tuple[Stop, ...]:
        """Where the call may go, the best first."""
        if (only := self._stops.only) is not None:
            return only

        def begins() -> bytes:
            place = self._place(self._stops.current)
            call = self._composing.call(place, prompt(), asked, stream=False, whole=True)
            return beginning(call)

        return self._stops.order(begins, time.monotonic(), self._places)

    def _end(self) -> None:
        self._busy = False
        self._turn, self._at = None, {}

    async def _prepare(self, underway: Underway, at: int, whole: bool) -> Prepared:
        stop = underway.stops[at]
        place = self._place(stop)
        prompt = self._prompt()
        # The call before did not fit: what it leans on is still there.
        too_long = whole and underway.delivery.tries[-1].error == ContextOverflow.__name__
        whole = whole and not too_long
        handles = self._handles.get(stop)
        if whole and handles is not None:
            handles.forget()
        turn, written, notices = self._writer.write(
            place,
            prompt,
            underway.asked,
            stream=underway.stream,
            whole=whole,
            too_long=too_long,
        )
        if too_long and turn is prompt:
            last = underway.delivery.tries[-1]
            raise ContextOverflow(last.reason, status=last.status, request_id=last.request_id)
        self._at[stop] = turn
        expected = turn is not prompt or stop in self._excused
        how = "tell" if expected and self._on_prefix_break != "off" else self._on_prefix_break
        notices += certify(place, written, how)
        if whole:
            written = unheld(written)
        elif written.plan.preludes:
            if handles is None:
                handles = self._handles[stop] = Handles(place, self._holders)
            written, more = await handles.carry_out(written)
            notices += more
        underway.written[at] = written, notices
        request = place.endpoint.wire.assemble(written.rendered, written.plan)
        return Prepared(
            outgoing=place.endpoint.outgoing(request),
            tokens=lambda: place.tokens(written),
            gone=_gone(turn, written) + self._too_long(underway.asked),
        )

    def _too_long(self, asked: Asked) -> tuple[type[AnaphoraError], ...]:
        """What a provider answers to a prompt that does not fit, where that can be helped."""
        return (ContextOverflow,) if self._writer.compact_at and not asked.prewarm else ()

    def _finish(self, underway: Underway, delivered: Delivered) -> Response:
        """Everything is noted, and the conversation goes on."""
        asked, reply, after = underway.asked, delivered.reply, underway.after
        stop = underway.stops[delivered.stop]
        place = self._place(stop)
        written, notices = underway.written[delivered.stop]
        moved = after.run("routing_failed", (), self._stops.settle, stop, place, self._places)
        price, cost_usd = cost(stop, written, reply.usage, delivered.at, after)
        account = after.run(
            "verdict_failed",
            Account(cost_usd=cost_usd),
            place.account,
            written,
            reply,
            at=delivered.at,
            first=delivered.first,
            price=price,
            cost_usd=cost_usd,
        )
        told = (written.rendered.notices, written.plan.notices, notices, moved, reply.notices)
        record = record_of(
            underway,
            delivered,
            written,
            account,
            notices=tuple(itertools.chain.from_iterable(told)),
            watched=bool(self._watchers),
        )
        # Before it is saved and parsed, which may fail: the answer was paid for.
        self.last = Response(reply=reply, record=record, raw_hash=delivered.raw_hash)
        self._pay(account)
        if not asked.prewarm:
            place.reply = reply
            history = written.call.ir.run(_HISTORY)
            args = place, history, asked.messages, reply.message, after
            after.run("conversation_failed", None, self._go_on, *args)
            self.last = self._noted(self.last, after.take())
            underway.record = self.last.record
        if asked.output is not None:
            parsed = self._composing.read(asked, reply)
            self.last = msgspec.structs.replace(self.last, parsed=parsed)
        return self.last

    def _go_on(
        self,
        place: Place,
        history: Conversation,
        said: tuple[Message, ...],
        answer: Message,
        after: AfterAnswer,
    ) -> None:
        """`history` is what was sent, and ends with what was `said`: it goes on as it is, without
        a copy, unless the app changed the conversation meanwhile."""
        turn = None
        if self.conversation is self._sent_from:
            turn = self._at[place.stop]
            if turn is not self._turn:  # compacted
                self._excused = frozenset(self._places)
            self._excused -= {place.stop}
        conversation = self._history.answered(turn, history, said, answer)
        # A stored response is continued where it holds the beginning of the prompt.
        place.committed = conversation if turn is not None else None
        place.stored = turn.ir if turn is not None else None
        after.run("save_failed", None, self._history.save_pending)

    def _noted(self, answered: Response, notices: tuple[Notice, ...]) -> Response:
        noted = with_notices(answered, notices)
        if self.last is answered:
            self.last = noted
        return noted

    def _pay(self, account: Account) -> None:
        if self.cost_usd is not None and account.cost_usd is not None:
            self.cost_usd += account.cost_usd
        else:
            self.cost_usd = None

    def _place(self, stop: Stop) -> Place:
        place = self._places.get(stop)
        if place is None:
            place = self._places[stop] = Place(stop)
        return place


def _gone(turn: TurnPrompt, written: Written) -> tuple[type[AnaphoraError], ...]:
    """What a provider answers when the stored response, or the held beginning, is gone and can be
    replaced. Google has the same answer for what is gone and for what is forbidden."""
    if written.plan.held is not None:
        return (NotFound, Forbidden)
    return (NotFound,) if written.call.ir.continuation is not None and turn.is_whole else ()
