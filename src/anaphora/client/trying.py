"""The attempt that is under way, and those that are over."""

from __future__ import annotations

import time

from .endpoint import Stop
from .record import Attempt
from .transport import HttpResponse


class Trying:
    """One call's attempts, one after the other."""

    __slots__ = ("answer", "begun", "made", "queued", "queueing", "sent_at", "_sent")

    def __init__(self) -> None:
        self.made: list[Attempt] = []
        self._clear()

    def _clear(self) -> None:
        self.begun = self.queueing = False
        """There is one; it waits for our own limits."""
        self.queued = 0.0
        self.sent_at = self._sent = 0.0
        """When it was sent, in seconds since the epoch, and on the loop's clock."""
        self.answer: HttpResponse | None = None

    def passed(self, queued: float) -> None:
        """Our own limits have let it go."""
        self.queueing, self.queued = False, queued

    def sent(self, now: float) -> None:
        self.sent_at, self._sent = time.time(), now

    def over(
        self, stop: Stop, now: float, error: BaseException | None, named: str | None = None
    ) -> None:
        """It was answered, or this is how it ended."""
        answer = self.answer
        self.made.append(
            Attempt(
                provider=stop.endpoint.id,
                model=stop.model.name,
                at=self.sent_at or time.time(),
                seconds=now - (self._sent or now),
                queued=self.queued,
                status=answer.status if answer is not None else None,
                request_id=named or getattr(error, "request_id", None),
                error=None if error is None else type(error).__name__,
                reason="" if error is None else str(error),
            )
        )
        self._clear()
