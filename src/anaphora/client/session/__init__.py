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
from anaphora.client.answered import Answered
from anaphora.client.asking import Asked, Content, messages_of
from anaphora.client.calling import Calling, Underway
from anaphora.client.composing import Composing, beginning
from anaphora.client.delivered import Delivered, Prepared
from anaphora.client.endpoint import Stop
from anaphora.client.given import messages_given, seconds_of
from anaphora.client.observe.watchers import Watchers
from anaphora.client.recording import record_of
from anaphora.client.turn import Turn
from anaphora.client.writing import Account, Written, cost
from anaphora.errors import AnaphoraError, Forbidden, InvalidRequest, NotFound
from anaphora.prompt import Call, ToolChoice
from anaphora.values import Conversation, Message, Notice, Reply, SegmentRole

from .certify import Certify, PrefixWarning, certify
from .holding import Handles, unheld
from .place import Place
from .preview import Preview, previewed
from .stops import Stops

if TYPE_CHECKING:
    from .running import Running

_HISTORY = SegmentRole.CONVERSATION

__all__ = ["Certify", "Content", "PrefixWarning", "Preview", "Session", "Turn"]


class Session(Calling):
    """One conversation. Turns follow each other; `fork` gives branches that go on side by side."""

    def __init__(
        self,
        stops: Stops,
        composing: Composing,
        *,
        messages: Conversation,
        certify: Certify = "warn",
        timeout: float | None = None,
        on_wait: Callable[[float], None] | None = None,
        save: Callable[[Message], None] | None = None,
        watchers: Watchers | None = None,
        holders: set[Handles] | None = None,
    ) -> None:
        """`holders` is where handles are known while they hold something, for whoever closes them
        when nobody else does."""
        super().__init__(timeout=timeout, on_wait=on_wait, watchers=watchers or Watchers())
        self._stops = stops
        self._composing = composing
        self._certify: Certify = certify
        self._save = save
        self._unsaved: tuple[Message, ...] = ()
        """What `save` failed to take; it is handed over again before anything newer."""
        self._places: dict[Stop, Place] = {}
        self._handles: dict[Stop, Handles] = {}
        self._holders = holders if holders is not None else set()
        self.conversation = self._sent_from = messages
        self.run_under_way = False
        self.last: Answered | None = None
        """The newest answer."""
        self.dollars: Decimal | None = Decimal(0)
        """What this conversation has cost so far; None once a price was unknown."""
        self.state: str | Callable[[], str] | None = None
        """What is true at this very moment: said at the end of every call, and never kept."""

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

    def run(self, content: Content | None = None, **bounds: Any) -> Running:
        """Turns and tools until the model is done: see `running.Running`."""
        from .running import Running

        return Running(self, messages_of(content), **bounds)

    def preview(
        self, content: Content | None = None, *, output: Any = None, **params: Any
    ) -> Preview:
        """What the next call would read, write and cost; nothing is sent."""
        form = self._composing.form(output)
        asked = Asked(messages=messages_of(content), changes=params, output=form)
        stop = self._order(asked)[0]
        place, at = self._place(stop), time.time()
        written = place.write(self._call(place, asked, stream=False), at)
        return previewed(place, written)

    async def prewarm(self) -> Answered:
        """Writes the beginning of the conversation to the provider's cache, and asks for no
        answer: for calls that are to start together, or a user who is about to speak."""
        asked = Asked(messages=(), prewarm=True)
        stop = self._order(asked)[0]
        if stop.endpoint.home not in ("anthropic", "openai_responses"):
            raise InvalidRequest(
                f"{stop.endpoint.id} speaks {stop.endpoint.home}, which has no call that only"
                " writes the cache",
                path="prewarm",
            )
        return await self.answer(asked)

    def append(self, *messages: Message) -> None:
        """Adds messages without a call. Where `save` fails, nothing is added."""
        before = self.conversation
        grown = self.conversation = before.append(*messages_given(messages, "messages"))
        added = grown[len(before) :]
        try:
            self._hand_over(added)
        except BaseException:
            self._unsaved = tuple(one for one in self._unsaved if one not in added)
            if self.conversation is grown:
                self.conversation = before
            raise

    def keep(self, message: Message) -> tuple[Notice, ...]:
        """Adds a message that must not be lost, such as results of tools that have run. Where
        `save` fails, returns a notice."""
        before = len(self.conversation)
        self.conversation = self.conversation.append(message)
        try:
            self._hand_over(self.conversation[before:])
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
        if stop is None or not self.messages or not self.messages[-1].says_the_same(reply.message):
            return False
        place = self._place(stop)
        asked = Asked(messages=(), changes=params)
        said = self.conversation.prefix(len(self.conversation) - 1)
        call = self._composing.call(place, said, asked, state=None, stream=False, whole=True)
        price = place.price(at, call.params.service_tier)
        place.account(place.write(call, at), reply, at=at, first=first, price=price)
        place.reply, place.committed = reply, self.conversation[-1].id
        self._stops.settle(stop, place, self._places)
        return True

    def fork(self) -> Session:
        """Another conversation with the same past: both read what is cached of it."""
        other = copy.copy(self)
        other._places = {stop: place.fork() for stop, place in self._places.items()}
        other._handles = {}
        other._busy = other.run_under_way = False
        other._save, other._unsaved = None, ()
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
        stops = self._order(asked)
        self._busy = True
        return stops

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

    def _order(self, asked: Asked) -> tuple[Stop, ...]:
        """Where the call may go, the best first."""
        if (only := self._stops.only) is not None:
            return only

        def begins() -> bytes:
            place = self._place(self._stops.current)
            return beginning(self._call(place, asked, stream=False))

        return self._stops.order(begins, time.monotonic(), self._places)

    def _end(self) -> None:
        self._busy = False

    async def _prepare(self, underway: Underway, at: int, whole: bool) -> Prepared:
        stop = underway.stops[at]
        place = self._place(stop)
        self._sent_from = self.conversation
        call = self._call(place, underway.asked, stream=underway.stream, whole=whole)
        handles = self._handles.get(stop)
        if whole and handles is not None:
            handles.forget()
        written = place.write(call, time.time())
        notices = certify(place, written, self._certify)
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
            gone=_gone(written),
        )

    def _finish(self, underway: Underway, delivered: Delivered) -> Answered:
        """Everything is noted, and the conversation goes on."""
        asked, reply, after = underway.asked, delivered.reply, underway.after
        stop = underway.stops[delivered.stop]
        place = self._place(stop)
        written, notices = underway.written[delivered.stop]
        moved = after.run("routing_failed", (), self._stops.settle, stop, place, self._places)
        price, dollars = cost(stop, written, reply.usage, delivered.at, after)
        account = after.run(
            "verdict_failed",
            Account(dollars=dollars),
            place.account,
            written,
            reply,
            at=delivered.at,
            first=delivered.first,
            price=price,
            dollars=dollars,
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
        self.last = Answered(reply=reply, record=record, raw_hash=delivered.raw_hash)
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
        """`history` is what was sent, and has what was `said` in it: it goes on as it is, without
        a copy, unless the app changed the conversation meanwhile."""
        before = self.conversation
        if before is self._sent_from:
            self.conversation = history.append(answer)
        else:
            self.conversation = before.append(*said, answer)
        place.committed = self.conversation[-1].id
        after.run("save_failed", None, self._hand_over, self.conversation[len(before) :])

    def _noted(self, answered: Answered, notices: tuple[Notice, ...]) -> Answered:
        noted = with_notices(answered, notices)
        if self.last is answered:
            self.last = noted
        return noted

    def _hand_over(self, messages: tuple[Message, ...]) -> None:
        """Gives messages to `save`, in order and without a gap: those that it failed to take come
        again first."""
        if self._save is None:
            return
        self._unsaved += messages
        while self._unsaved:
            message, self._unsaved = self._unsaved[0], self._unsaved[1:]
            try:
                self._save(message)
            except BaseException:
                self._unsaved = (message, *self._unsaved)
                raise

    def _pay(self, account: Account) -> None:
        if self.dollars is not None and account.dollars is not None:
            self.dollars += account.dollars
        else:
            self.dollars = None

    def _place(self, stop: Stop) -> Place:
        place = self._places.get(stop)
        if place is None:
            place = self._places[stop] = Place(stop)
        return place

    def _call(self, place: Place, asked: Asked, *, stream: bool, whole: bool = False) -> Call:
        state = self.state() if callable(self.state) else self.state
        return self._composing.call(
            place, self.conversation, asked, state=state, stream=stream, whole=whole
        )


def _gone(written: Written) -> tuple[type[AnaphoraError], ...]:
    """What a provider says when the stored response, or the held beginning, is there no more.
    Google tells what is gone like what one may not see."""
    if written.plan.held is not None:
        return (NotFound, Forbidden)
    return (NotFound,) if written.call.ir.continuation is not None else ()
