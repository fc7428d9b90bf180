"""Making a call, from what was asked to the record of it: what calls on their own and conversations
have in common."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from anaphora.errors import AnaphoraError
from anaphora.values import Event, Notice

from .answered import Answered
from .asking import Asked
from .delivery import Delivered, Delivery, Prepared
from .endpoint import Stop
from .observe.watchers import Watchers
from .record import Operation
from .recording import failed_record
from .writing import Written

if TYPE_CHECKING:
    from .turn import Turn


class Underway:
    """A call that has begun."""

    __slots__ = ("asked", "began", "delivery", "stops", "stream", "written")

    def __init__(self, asked: Asked, stops: Sequence[Stop], stream: bool) -> None:
        self.asked = asked
        self.stops = stops
        self.stream = stream
        self.began = time.time()
        self.written: dict[int, tuple[Written, tuple[Notice, ...]]] = {}
        """What each stop was told, and what was noticed while writing it."""
        self.delivery: Delivery

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

    async def answer(self, asked: Asked) -> Answered:
        """The whole answer."""
        underway = self._begin(asked, stream=False)
        try:
            delivered = await underway.delivery.single()
            return self._finish(underway, delivered)
        except BaseException as problem:
            self._failed(underway, problem)
            raise
        finally:
            self._end()

    async def stream(self, asked: Asked, turn: Turn) -> AsyncGenerator[Event, None]:
        """Events as they come; the turn has its answer before the last of them is seen."""
        underway = self._begin(asked, stream=True)
        delivery = underway.delivery
        try:
            async with aclosing(delivery.stream()) as events:
                async for event in events:
                    if delivery.delivered is not None and turn.answered is None:
                        turn.answered = self._finish(underway, delivery.delivered)
                    yield event
        except BaseException as problem:
            if turn.answered is None:
                self._failed(underway, problem)
            raise
        finally:
            self._end()

    # ── What differs ─────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def _stops_of(self, asked: Asked) -> Sequence[Stop]:
        """Where the call may go, the best first. Raises where no call may be made now."""

    @abstractmethod
    async def _prepare(self, underway: Underway, at: int, whole: bool) -> Prepared:
        """The request for a stop; `whole`: one that leans on nothing that the provider stored."""

    @abstractmethod
    def _finish(self, underway: Underway, delivered: Delivered) -> Answered:
        """The answer is complete."""

    def _end(self) -> None:  # noqa: B027
        """The call is over, however it ended."""

    # ── What does not ────────────────────────────────────────────────────────────────────────────

    def _begin(self, asked: Asked, *, stream: bool) -> Underway:
        stops = self._stops_of(asked)
        underway = Underway(asked, stops, stream)
        timeout = asked.timeout or self._timeout or stops[0].endpoint.config.timeouts.total

        async def prepare(at: int, whole: bool) -> Prepared:
            return await self._prepare(underway, at, whole)

        underway.delivery = Delivery(stops, prepare, timeout=timeout, on_wait=self._on_wait)
        return underway

    def _failed(self, underway: Underway, problem: BaseException) -> None:
        delivery = underway.delivery
        if isinstance(problem, AnaphoraError):
            problem.attempts = tuple(delivery.tries)
        if self._watchers:
            self._watchers(failed_record(underway, problem))
