"""Making a call, from what was asked to the record of it: what calls on their own and conversations
have in common."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING

from anaphora.errors import AnaphoraError
from anaphora.values import Event, Notice

from .after import AfterAnswer, with_notices
from .asking import Asked
from .delivered import Delivered, Prepared
from .delivery import Delivery
from .endpoint import Stop
from .observe import Watchers
from .record import Operation, Record
from .recording import failed_record
from .response import Response
from .writing import Written

if TYPE_CHECKING:
    from .turn import Turn

#: How many rounds the loop gets to close a stream that nobody reads any more.
CLOSE_TICKS = 8


class Underway:
    """A call that has begun."""

    __slots__ = (
        *("after", "asked", "began", "delivery", "record"),
        *("stops", "stream", "told", "written"),
    )

    def __init__(self, asked: Asked, stops: Sequence[Stop], stream: bool) -> None:
        self.asked = asked
        self.stops = stops
        self.stream = stream
        self.began = time.time()
        self.after = AfterAnswer()
        self.written: dict[int, tuple[Written, tuple[Notice, ...]]] = {}
        """What each stop was told, and what was noticed while writing it."""
        self.delivery: Delivery
        self.record: Record | None = None
        """The answer's, as soon as there is one."""
        self.told = False
        """The watchers have the record: every call has one."""

    @property
    def operation(self) -> Operation:
        return "prewarm" if self.asked.prewarm else "chat"


class Calling(ABC):
    """Whoever makes calls."""

    def __init__(
        self,
        *,
        timeout: float | None,
        on_wait: Callable[[float], None] | None,
        watchers: Watchers,
    ) -> None:
        self._timeout = timeout
        self._on_wait = on_wait
        self._watchers = watchers
        self._busy = False
        """A call is under way, where only one may be."""

    async def answer(self, asked: Asked) -> Response:
        """The whole answer."""
        if self._busy:
            await self._settled()
        underway = self._begin(asked, stream=False)
        try:
            delivered = await underway.delivery.single()
            return self._answered(underway, delivered)
        except BaseException as problem:
            self._failed(underway, problem)
            raise
        finally:
            del underway.delivery  # it holds the body, and would hold it until garbage is collected
            self._end()

    async def stream(self, asked: Asked, turn: Turn) -> AsyncGenerator[Event, None]:
        """Events as they come; the turn has its answer before the last of them is seen."""
        if self._busy:
            await self._settled()
        underway = self._begin(asked, stream=True)
        delivery = underway.delivery
        try:
            async with aclosing(delivery.stream()) as events:
                async for event in events:
                    if delivery.delivered is not None and turn.answered is None:
                        turn.answered = self._answered(underway, delivery.delivered)
                    yield event
            if turn.answered is not None:
                # What went wrong with the connection behind the last event.
                turn.answered = self._noted(turn.answered, underway.after.take())
        except BaseException as problem:
            self._failed(underway, problem)
            raise
        finally:
            del underway.delivery  # it holds the body, and would hold it until garbage is collected
            self._end()

    # ── What differs ─────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def _stops_of(self, asked: Asked) -> Sequence[Stop]:
        """Where the call may go, the best first. Raises where no call may be made now."""

    @abstractmethod
    async def _prepare(self, underway: Underway, at: int, whole: bool) -> Prepared:
        """The request for a stop; `whole`: one that leans on nothing that the provider stored."""

    @abstractmethod
    def _finish(self, underway: Underway, delivered: Delivered) -> Response:
        """The answer is complete: it is remembered, and parsed where a form was asked for. The
        record is there before that. Raises nothing but `Parse`."""

    def _end(self) -> None:  # noqa: B027
        """The call is over, however it ended."""

    # ── What does not ────────────────────────────────────────────────────────────────────────────

    async def _settled(self) -> None:
        """A stream that was left by `break` is closed by the loop, a moment later."""
        for _ in range(CLOSE_TICKS):
            await asyncio.sleep(0)
            if not self._busy:
                return

    def _begin(self, asked: Asked, *, stream: bool) -> Underway:
        stops = self._stops_of(asked)
        underway = Underway(asked, stops, stream)
        timeout = asked.timeout if asked.timeout is not None else self._timeout
        if timeout is None:
            timeout = stops[0].endpoint.config.timeouts.total
        prepare = partial(self._prepare, underway)
        underway.delivery = Delivery(
            stops, prepare, timeout=timeout, on_wait=self._on_wait, after=underway.after
        )
        return underway

    def _answered(self, underway: Underway, delivered: Delivered) -> Response:
        answered = self._finish(underway, delivered)
        return self._noted(answered, self._tell(underway, answered.record))

    def _noted(self, answered: Response, notices: tuple[Notice, ...]) -> Response:
        """The answer with what was reported after it was finished."""
        return with_notices(answered, notices)

    def _failed(self, underway: Underway, problem: BaseException) -> None:
        delivery = underway.delivery
        if isinstance(problem, AnaphoraError):
            problem.attempts = tuple(delivery.tries)
            if problem.partial is None and delivery.delivered is not None:
                # An answer in another form than was asked for was paid for, too.
                problem.partial = delivery.delivered.reply
        if self._watchers and not underway.told:
            self._tell(underway, failed_record(underway, problem))

    def _tell(self, underway: Underway, record: Record) -> tuple[Notice, ...]:
        underway.told = True
        return self._watchers(record) if self._watchers else ()
