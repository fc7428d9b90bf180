"""Gemini's cached contents: checked like a request, and charged to the app that creates them.

A content is charged when it is created: its tokens as input, and their storage for the whole
lifetime. Extending it is charged as storage for the whole new lifetime. Deleting it early refunds
nothing.
"""

from __future__ import annotations

import contextlib
import datetime
import re
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from anaphora import wire
from anaphora.client.costs.bounds import cost_bound, nano_usd, storage_bound
from anaphora.client.costs.settling import most_tokens
from anaphora.client.target import Target
from anaphora.daemon.access.checks import check_grant
from anaphora.daemon.faces.face import checked_model
from anaphora.daemon.money.ledger import Ledger
from anaphora.daemon.store import HandleRow
from anaphora.daemon.values import App
from anaphora.errors import NotGranted, RequestRejected
from anaphora.wire.facts.reading import read_facts

from .body import JsonBody
from .charges import ProviderCharge, ProviderCharges

if TYPE_CHECKING:
    from anaphora.audit.log import AuditLog

_SECONDS = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)s")
_DEFAULT_SECONDS = 3600.0
#: Fields of a cached content that a request does not have.
_OWN_FIELDS = frozenset(
    ("model", "ttl", "expireTime", "expire_time", "displayName", "display_name")
)
_NO_CONTENTS = msgspec.Raw(b'[{"role":"user","parts":[{"text":""}]}]')


class CachedContents:
    """Creates and extends cached contents. `target` returns a model at a provider."""

    def __init__(
        self,
        ledger: Ledger,
        target: Callable[[str, str], Target],
        clock: Callable[[], float],
        audit: AuditLog | None = None,
    ) -> None:
        self._charges = ProviderCharges(
            ledger, clock, audit, method="cachedContents", operation="cached_content"
        )
        self._target = target
        self._clock = clock

    @contextlib.asynccontextmanager
    async def creating(
        self, app: App, provider: str, body: JsonBody, request_id: str
    ) -> AsyncIterator[ProviderCharge]:
        """Checks a content to be created, and holds its maximum cost meanwhile."""
        name = body.value.get("model")
        if not isinstance(name, str):
            raise RequestRejected("model: must be the name of a model", status=400, param="model")
        model = checked_model(name.removeprefix("models/"))
        grant = app.grant.llm
        if grant.approved_prompt is not None:
            reason = "cached contents are not possible with an approved_prompt"
            raise NotGranted(reason, param="cachedContent")
        members = {name: raw for name, raw in body.members.items() if name not in _OWN_FIELDS}
        members.setdefault("contents", _NO_CONTENTS)
        path = f"/v1beta/models/{model}:generateContent"
        facts = read_facts("gemini", members, path)
        check_grant(facts, grant, provider_ids=(provider,), models=(model,))
        target, now = self._target(provider, model), self._clock()
        rendered = wire.get("gemini").split(members, (), path)
        bound = cost_bound(facts, rendered, target, at=now)
        if facts.unbounded and grant.has_spend_limit:
            raise _unknown_cost(bound.reason)
        if (facts.server_tools or facts.remote_mcp) and grant.has_spend_limit:
            raise _unknown_cost("calls that use its server tools would not be bounded")
        cost = self._cost(target, _lifetime(body.value, now), app, input_too=True)
        most = most_tokens(bound, target.profile)
        tokens = bound.input_tokens
        async with self._charges.held(target, app, request_id, tokens, cost, most) as charge:
            yield charge

    @contextlib.asynccontextmanager
    async def extending(
        self, app: App, row: HandleRow, model: str, body: JsonBody, request_id: str
    ) -> AsyncIterator[ProviderCharge]:
        """Holds the maximum cost of a longer lifetime while it is being set."""
        if row.tokens is None and app.grant.llm.has_spend_limit:
            raise _unknown_cost("the size of the cached content is not known")
        target = self._target(row.provider, model)
        cost = self._cost(target, _lifetime(body.value, self._clock()), app, input_too=False)
        tokens = row.tokens or 0
        async with self._charges.held(target, app, request_id, tokens, cost) as charge:
            yield charge

    def _cost(
        self, target: Target, seconds: float, app: App, *, input_too: bool
    ) -> Callable[[int], int]:
        price = target.price(self._clock())
        storage = None if price is None else storage_bound(price, 0, seconds)
        rate = None if price is None else price.at(0).input
        if price is None or storage is None or rate is None:
            if app.grant.llm.has_spend_limit:
                raise _unknown_cost(f"no price of storage is known for {target.model}")
            return lambda _: 0

        def cost(tokens: int) -> int:
            stored = storage_bound(price, tokens, seconds) or 0
            read = price.at(tokens).input or rate
            return stored + (nano_usd(read * tokens / 1_000_000) if input_too else 0)

        return cost


def _lifetime(value: dict[str, Any], now: float) -> float:
    """The requested lifetime in seconds."""
    given = [value[name] for name in ("expireTime", "expire_time") if value.get(name) is not None]
    ttl, end = value.get("ttl"), given[0] if given else None
    if len(given) + (ttl is not None) > 1:
        raise RequestRejected("give either ttl or expireTime", status=400, param="ttl")
    if ttl is not None:
        match = _SECONDS.fullmatch(ttl) if isinstance(ttl, str) else None
        if match is None:
            reason = "ttl must be a number of seconds such as 300s"
            raise RequestRejected(reason, status=400, param="ttl")
        return float(match[1])
    if end is None:
        return _DEFAULT_SECONDS
    try:
        return max(0.0, datetime.datetime.fromisoformat(end).timestamp() - now)
    except (ValueError, TypeError, OverflowError):
        reason = "expireTime must be a date such as 2026-11-14T09:30:00Z"
        raise RequestRejected(reason, status=400, param="expireTime") from None


def _unknown_cost(reason: str) -> NotGranted:
    return NotGranted(f"the grant limits spend, and {reason}", param="cachedContent")
