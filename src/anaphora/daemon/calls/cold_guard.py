"""Refuses calls of apps whose cached beginning is gone, for grants with `cold_above_usd`.

The same call passes if it is sent again within some minutes. Calls that arrived before the refusal
are refused as well.
"""

from __future__ import annotations

import time
from decimal import Decimal

from anaphora.cache.cold import ColdPasses, refusal
from anaphora.client.in_flight import PreparedRequest, service_tier
from anaphora.client.target import Target
from anaphora.daemon.access.grants import NANO
from anaphora.daemon.values import App
from anaphora.errors import ColdCallRefused
from anaphora.traffic.matching import RememberedCall


class ColdGate:
    """Judges the calls of all apps with such a grant. Bounded. Used from one event loop."""

    def __init__(self) -> None:
        self._passes = ColdPasses()

    def check(
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
        if self._passes.allows(scope, rendered, arrived):
            return
        now = time.time()
        self._passes.add(self._passes.key(scope, rendered), now, since=now)
        raise ColdCallRefused(refusal(cold), cold=cold)
