"""The place of a conversation: a hop of its route, and a host behind it if that is a router; and
when the conversation moves. It stays where its prefix is cached, until that place fails, or the
prefix has expired by the rules.

Hops with a weight share the conversations by weight. A conversation's hop is chosen by hashing its
beginning with the name of each hop (weighted rendezvous hashing): nothing is stored, every process
gets the same result, and adding or removing a hop moves only the conversations that it wins or
loses. Hops without a weight are fallbacks, in their order.

A router chooses the host of a first call, and names it in the answer. Later calls ask for the same
host (`Plan.host`), unless the app chooses hosts itself.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING

from blake3 import blake3

from anaphora.client.config import Hop
from anaphora.errors import AnaphoraError, NotFound, Overloaded, RateLimited, RequestRejected
from anaphora.prompt import Call
from anaphora.values import Notice, SegmentRole
from anaphora.wire.dialect.routers import answering_host

from .prices import moving_message, price_of_moving

if TYPE_CHECKING:
    from .in_flight import InFlight, PreparedRequest
    from .session.provider_state import ProviderState
    from .target import Target

_RANGE = 1 << 53
_CHANGING = (SegmentRole.VOLATILE_TAIL, SegmentRole.DYNAMIC_CONTEXT)


#: Errors after which a call is sent again without its pin: the host's, and those of a router that
#: tries no other host. After the last attempt, others release the pin as well.
_HOST_FAILED = (RateLimited, Overloaded)
_HOST_GONE = (*_HOST_FAILED, NotFound, RequestRejected)
_RELEASING = ("Timeout", "Transport")


class SessionRoute:
    """The targets of one conversation, and the current one."""

    def __init__(self, targets: Sequence[Target], hops: Sequence[Hop] = ()) -> None:
        self._targets = tuple(targets)
        self._hops = tuple(hops)
        self._index: int | None = None
        self._ordered = self._targets
        self.only = self._targets if len(self._targets) == 1 else None

    @property
    def current(self) -> Target:
        return self._ordered[0] if self._index is None else self._targets[self._index]

    def order(
        self,
        key: Callable[[], bytes],
        now: float,
        states: Mapping[Target, ProviderState] | None = None,
        at: float = 0.0,
    ) -> tuple[Target, ...]:
        """The targets of the next call, the best first. `key` returns the `conversation_key`; `now`
        is monotonic, `at` in seconds since the epoch."""
        available = [not target.endpoint.breaker.allows(now) for target in self._targets]
        begins, current = key(), self._index
        if current is not None and states is not None:
            home = order(self._hops, begins, None, available)[0]
            here = states.get(self._targets[current])
            expired = here is not None and here.has_expired(at)
            if home != current and (expired or pays_to_return(here, self._targets[home])):
                current = home
        indexes = order(self._hops, begins, current, available)
        self._ordered = tuple(self._targets[index] for index in indexes)
        return self._ordered

    def find(self, provider: str, model: str) -> Target | None:
        """The target of that provider and model, if it is one of the conversation's."""
        for target in self._targets:
            if (target.endpoint.id, target.model) == (provider, model):
                return target
        return None

    def answered(
        self, flight: InFlight, states: Mapping[Target, ProviderState]
    ) -> tuple[Notice, ...]:
        """Notes which target answered a call, and which host of it; see `settle`."""
        target, reply, prepared = flight.target, flight.reply, flight.prepared[flight.index]
        assert reply is not None
        prepared.host = answering_host(reply, flight.headers, target.endpoint.resolved.dialect)
        return self.settle(target, states, prepared)

    def settle(
        self,
        target: Target,
        states: Mapping[Target, ProviderState],
        prepared: PreparedRequest | None = None,
    ) -> tuple[Notice, ...]:
        """Notes which target answered; notices state the cost of a move, and why a conversation
        stays at a host or leaves it. `states` are those before the call."""
        before, self._index = self._index, self._targets.index(target)
        state = states[target]
        if before is not None and before != self._index:
            left = states[self._targets[before]]
            return _moved(left, state, left.endpoint.id, state.endpoint.id, prepared)
        if prepared is None or not state.host:
            return ()
        return _host_notices(state, prepared)

    def fork(self) -> SessionRoute:
        return copy.copy(self)


def order(
    hops: Sequence[Hop], key: bytes, current: int | None, available: Sequence[bool]
) -> tuple[int, ...]:
    """The indexes of all hops, the one to try first in front.

    `key` identifies the conversation's beginning. A conversation stays at its `current` hop.
    Unavailable hops come last, in the same order: if none is available, the call reports why.
    """
    if len(hops) == 1:
        return (0,)
    ranked = sorted(range(len(hops)), key=lambda index: _rank(hops[index], index, key, current))
    return tuple(sorted(ranked, key=lambda index: not available[index]))


def conversation_key(call: Call) -> bytes:
    """A hash of a conversation's beginning: system prompt, tool names and first lasting message.
    Decides the hop of the conversation."""
    lasting = (run for run in call.ir.body_runs() if run.role not in _CHANGING)
    first = next((message for run in lasting for message in run.messages), None)
    digest = blake3(call.ir.system_field().encode(errors="replace"))
    for tool in call.tools:
        digest.update(b"\0" + tool.name.encode(errors="replace"))
    if first is not None:
        digest.update(b"\0" + repr(first.parts).encode(errors="replace"))
    return digest.digest(16)


def _rank(hop: Hop, index: int, key: bytes, current: int | None) -> tuple[int, float, int]:
    if index == current:
        return 0, 0.0, index
    if hop.weight > 0:
        return 1, _draw(hop, key) / hop.weight, index
    return 2, 0.0, index


def _draw(hop: Hop, key: bytes) -> float:
    """An exponential variate, the same for the same hop and key: divided by the weights, the
    minimum falls to each hop in proportion to its weight."""
    name = f"{hop.provider}\0{hop.model or ''}\0".encode()
    number = int.from_bytes(blake3(name + key).digest(length=8), "big") % _RANGE
    return -math.log((number + 0.5) / _RANGE)


def pays_to_return(here: ProviderState | None, home: Target) -> bool:
    """Whether a conversation that had to move is cheaper at its first target: over the expected
    calls, and with its prefix written again. False if a price is unknown."""
    billed = here.billed if here is not None else None
    if here is None or billed is None:
        return False
    at, usage = billed
    tokens = (usage.read or 0) + (usage.written_total or 0)
    now, then = here.target.price(at), home.price(at)
    move = price_of_moving(tokens, now, then)
    if move is None or now is None or then is None or now.read is None or then.read is None:
        return False
    calls = Decimal(here.target.memory.usual_calls())
    return calls * tokens * (now.read - then.read) > move.scaleb(6)


def _moved(
    left: ProviderState,
    reached: ProviderState,
    from_place: str,
    to_place: str,
    prepared: PreparedRequest | None,
) -> tuple[Notice, ...]:
    if left.billed is None or (prepared is not None and left.has_expired(prepared.at)):
        return ()  # nothing is billed again because of the move
    at, usage = left.billed
    tokens = (usage.read or 0) + (usage.written_total or 0)
    cost_usd = price_of_moving(tokens, left.target.price(at), reached.target.price(at))
    message = moving_message(from_place, to_place, tokens, cost_usd)
    return (Notice("moved", message, tokens=tokens),)


# ── Hosts behind a router ────────────────────────────────────────────────────────────────────────


def errors_of_host(state: ProviderState) -> tuple[type[AnaphoraError], ...]:
    """Errors after which a pinned call is prepared again, without the pin."""
    router = state.endpoint.router
    return _HOST_FAILED if router is not None and router.pin else _HOST_GONE


def release(state: ProviderState, error: str | None, problem: object = None) -> bool:
    """Releases the pin to the host that answered last, if the error of this name is the host's."""
    names = (*(each.__name__ for each in errors_of_host(state)), *_RELEASING)
    if not state.host or error not in names or getattr(problem, "phase", "") == "connect":
        return False
    state.released = error
    return True


def _host_notices(state: ProviderState, prepared: PreparedRequest) -> tuple[Notice, ...]:
    """Notices about a call at the same target as the last one: why its host is another one, or why
    the pin began or ended."""
    last, now, pin = state.host, prepared.host, prepared.plan.host
    pinned_before = state.sent is not None and state.sent.marks.host == last
    notices: tuple[Notice, ...] = ()
    if state.released or (pinned_before and not pin and state.has_expired(prepared.at)):
        why = f"it failed with {state.released}" if state.released else "the cached prefix expired"
        notices = (Notice("host_released", f"the call was not pinned to {last}: {why}"),)
    elif pin and not pinned_before:
        text = f"the conversation is pinned to {pin}, which has its prefix cached"
        notices = (Notice("host_pinned", text),)
    if now and now != last:
        notices += _moved(state, state, last, now, prepared)
    return notices
