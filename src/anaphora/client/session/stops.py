"""Where a conversation goes: it stays where its prefix is cached, unless it has to move."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal

from anaphora.client.config.values import Hop
from anaphora.client.endpoint import Stop
from anaphora.client.routing import moving_said, order, price_of_moving
from anaphora.values import Notice

from .place import Place


class Stops:
    """The stops of one conversation, and the one that it is at."""

    def __init__(self, stops: Sequence[Stop], hops: Sequence[Hop] = ()) -> None:
        self._stops = tuple(stops)
        self._hops = tuple(hops)
        self._at: int | None = None
        self._ordered = self._stops

    @property
    def only(self) -> tuple[Stop] | None:
        """The one stop there is, where it is the only one."""
        return self._stops if len(self._stops) == 1 else None

    @property
    def current(self) -> Stop:
        return self._stops[self._at or 0] if self._at is not None else self._ordered[0]

    def order(
        self, begins: Callable[[], bytes], now: float, places: Mapping[Stop, Place] | None = None
    ) -> tuple[Stop, ...]:
        """Where the next call may go, the best first. `begins` is how the conversation begins."""
        available = [not stop.endpoint.breaker.allows(now) for stop in self._stops]
        key = begins()
        at = self._at
        if at is not None and places is not None:
            home = order(self._hops, key, None, available)[0]
            if home != at and pays_to_return(places, self._stops[at], self._stops[home]):
                at = home
        found = order(self._hops, key, at, available)
        self._ordered = tuple(self._stops[at] for at in found)
        return self._ordered

    def find(self, provider: str, model: str) -> Stop | None:
        """The stop of that provider and model, if the conversation may go there."""
        for stop in self._stops:
            if (stop.endpoint.id, stop.model.name) == (provider, model):
                return stop
        return None

    def settle(self, stop: Stop, place: Place, places: Mapping[Stop, Place]) -> tuple[Notice, ...]:
        """The call was answered there; says what it cost to move, when it did."""
        before, self._at = self._at, self._stops.index(stop)
        if before is None or before == self._at:
            return ()
        left = places[self._stops[before]]
        return moved(left, place)

    def fork(self) -> Stops:
        return copy.copy(self)


def pays_to_return(places: Mapping[Stop, Place], here: Stop, home: Stop) -> bool:
    """Whether a conversation that had to move is cheaper where it was meant to be, over the calls
    that are to be expected, what it pays for its prefix again counted in. Where a price is unknown
    it stays."""
    place = places.get(here)
    past = place.past if place is not None else None
    if place is None or past is None or past.sent.usage is None or past.sent.at is None:
        return False
    usage, at = past.sent.usage, past.sent.at
    tokens = (usage.read or 0) + (usage.written_total or 0)
    now, then = place.price(at), home.endpoint.price(home.model.name, at)
    move = price_of_moving(tokens, now, then)
    if move is None or now is None or then is None or now.read is None or then.read is None:
        return False
    calls = Decimal(here.model.memory.usual_calls())
    return calls * tokens * (now.read - then.read) > move.scaleb(6)


def moved(left: Place, place: Place) -> tuple[Notice, ...]:
    """What a conversation pays again because it went elsewhere."""
    past = left.past
    if past is None or past.sent.usage is None:
        return ()
    usage = past.sent.usage
    tokens = (usage.read or 0) + (usage.written_total or 0)
    at = past.sent.at or 0.0
    price: Decimal | None = price_of_moving(tokens, left.price(at), place.price(at))
    said = moving_said(left.endpoint.id, place.endpoint.id, tokens, price)
    return (Notice("moved", said, tokens=tokens),)
