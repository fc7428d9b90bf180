"""Refuses calls of apps whose cached beginning is gone, for grants with `cold_above_usd`.

The same call passes if it is sent again within some minutes, on any node. Calls that arrived before
the refusal, on any node, are refused as well.
"""

from __future__ import annotations

import time
from decimal import Decimal

from blake3 import blake3

from anaphora.bounded import BoundedMap
from anaphora.cache.cold import PASS_SECONDS, ColdPasses, refusal
from anaphora.cache.sent_call import expiry, is_alive
from anaphora.client.in_flight import PreparedRequest, service_tier
from anaphora.client.target import Target
from anaphora.daemon.access.grants import NANO
from anaphora.daemon.shared_state import SharedState
from anaphora.daemon.values import App
from anaphora.errors import ColdCallRefused
from anaphora.traffic.matching import RememberedCall

#: Refused calls that other nodes may ask for.
_MOST = 4096


class ColdGate:
    """Judges the calls of all apps with such a grant. Bounded. Used from one event loop."""

    def __init__(self, shared: SharedState) -> None:
        self._shared = shared
        self._passes = ColdPasses()
        self._refused = BoundedMap[str, bytes](_MOST)
        """When calls were refused, by names that are the same on all nodes."""
        self._puts = not shared.alone

    async def check(
        self,
        app: App,
        remembered: RememberedCall,
        target: Target,
        prepared: PreparedRequest,
        *,
        known: int,
        arrived: float,
    ) -> None:
        """Raises `ColdCallRefused`. `known` are the tokens of the prompt that the app has sent
        before; `arrived` is when the call came."""
        limit, at = app.grant.llm.cold_above, prepared.at
        if limit is None:
            return
        cold = remembered.cold(
            remembered.rules or target.rules,
            price=target.price(at, service_tier(prepared)),
            profile=target.profile,
            known=known,
        )
        if cold is None or not cold.costs_more_than(Decimal(limit) / NANO):
            return
        scope = app.owner, target.endpoint.id, target.model
        rendered = remembered.sent.rendered
        key = self._passes.key(scope, rendered)
        name = f"cold {blake3(repr(key).encode()).hexdigest(16)}"
        if self._passes.allows(scope, rendered, arrived):
            return
        refused = await self._refused_elsewhere(name, at)
        if refused is not None and refused <= arrived:
            return
        now = time.time()
        # The clock of the other node may be ahead of this one's.
        self._passes.add(key, now, since=now if refused is None else min(refused, now))
        if refused is None:
            self._refused[name] = str(now).encode()
            if self._puts:
                self._shared.put(name, self._refused[name])
        raise ColdCallRefused(refusal(cold), cold=cold)

    async def _refused_elsewhere(self, name: str, at: float) -> float | None:
        """When another node has refused the call, a short time ago."""
        found = None if self._shared.alone else await self._shared.get(name)
        refused = None if found is None else float(found)
        if refused is not None and is_alive(expiry(refused, PASS_SECONDS), at):
            return refused
        return None
