"""Cached contents of Gemini: checked like a request, and charged to the app that makes them.

A content is charged when it is made: its tokens as input, and their storage for the whole lifetime.
A longer lifetime is charged as storage for all of it. What is deleted early is not given back.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import re
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from anaphora import wire
from anaphora.audit.envelope import AuditEnvelope, AuditUsage
from anaphora.client.failures import log
from anaphora.client.observe.export import label, outcome, word
from anaphora.client.target import Target
from anaphora.daemon.access.checks import check_grant
from anaphora.daemon.faces.face import checked_model
from anaphora.daemon.facts.reading import read_facts
from anaphora.daemon.money.bounds import cost_bound, nano_usd, storage_bound
from anaphora.daemon.money.ledger import Ledger, OpenHold
from anaphora.daemon.money.settling import most_tokens
from anaphora.daemon.store import LARGEST_AMOUNT, HandleRow, Hold
from anaphora.daemon.values import App
from anaphora.errors import NotGranted, RequestRejected, Upstream
from anaphora.values import Usage

from .body import JsonBody

if TYPE_CHECKING:
    from anaphora.audit.log import AuditLog

_SECONDS = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)s")
_DEFAULT_SECONDS = 3600.0
#: Fields of a cached content that a request does not have.
_OWN_FIELDS = frozenset(
    ("model", "ttl", "expireTime", "expire_time", "displayName", "display_name")
)
_NO_CONTENTS = msgspec.Raw(b'[{"role":"user","parts":[{"text":""}]}]')


class StorageCharge:
    """The charge for one content, settled when the provider has answered."""

    def __init__(self, hold: OpenHold, cost: Callable[[int], int], most: int) -> None:
        """More tokens than `most` cannot be true."""
        self._hold = hold
        self._cost = cost
        self._most = most
        self.tokens: int | None = None
        """By the provider's count; None: it did not answer, or not say."""
        self.billed: int | None = None
        """Nano-dollars; None: there is no bill."""
        self.unbilled = 0
        """Nano-dollars that are charged without a bill."""
        self._written = False
        """The request may have been written to a connection."""

    def sending(self) -> None:
        """The request is written to a connection next."""
        self._written = True
        self._hold.sending()

    def settle(self, tokens: int | None) -> None:
        """By the tokens that the provider counted; at the bound where it did not."""
        if tokens is None:
            self.settle_at_bound()
            return
        if tokens > self._most:
            self.unbilled = self._hold.hold.bound
            self._hold.settle_later(self._cost(tokens), "disputed", usage=Usage(uncached=tokens))
            return
        self.tokens, self.billed = tokens, self._cost(tokens)
        self._hold.settle_later(self.billed, "billed", usage=Usage(uncached=tokens))

    def release(self) -> None:
        self.billed = 0
        self._hold.release()

    def fail(self) -> None:
        """The provider did not answer: the content may have been made, unless nothing was sent."""
        if self._written:
            self.settle_at_bound()
        else:
            self.release()

    def settle_at_bound(self) -> None:
        self.unbilled = self._hold.hold.bound
        self._hold.settle_at_bound()


class CachedContents:
    """`target` gives a model at a provider."""

    def __init__(
        self,
        ledger: Ledger,
        target: Callable[[str, str], Target],
        clock: Callable[[], float],
        audit: AuditLog | None = None,
    ) -> None:
        self._ledger = ledger
        self._target = target
        self._clock = clock
        self._audit = audit

    @contextlib.asynccontextmanager
    async def creating(
        self, app: App, provider: str, body: JsonBody, request_id: str
    ) -> AsyncIterator[StorageCharge]:
        """Checks a content that is to be made, and holds what it can cost while it is."""
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
        async with self._held(app, provider, model, request_id, tokens, cost, most) as charge:
            yield charge

    @contextlib.asynccontextmanager
    async def extending(
        self, app: App, row: HandleRow, model: str, body: JsonBody, request_id: str
    ) -> AsyncIterator[StorageCharge]:
        """Holds what a longer lifetime can cost while it is set."""
        if row.tokens is None and app.grant.llm.has_spend_limit:
            raise _unknown_cost("the size of the cached content is not known")
        target = self._target(row.provider, model)
        cost = self._cost(target, _lifetime(body.value, self._clock()), app, input_too=False)
        tokens = row.tokens or 0
        async with self._held(app, row.provider, model, request_id, tokens, cost) as charge:
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

    @contextlib.asynccontextmanager
    async def _held(
        self,
        app: App,
        provider: str,
        model: str,
        request_id: str,
        tokens: int,
        cost: Callable[[int], int],
        most: int | None = None,
    ) -> AsyncIterator[StorageCharge]:
        hold = await self._ledger.hold(
            app, provider=provider, model=model, request_id=request_id, bound=cost(tokens)
        )
        charge = StorageCharge(hold, cost, LARGEST_AMOUNT if most is None else most)
        error = ""
        try:
            yield charge
        except Upstream as problem:
            charge.release()  # the provider refused it
            error = type(problem).__name__
            raise
        except BaseException as problem:
            charge.fail()
            error = type(problem).__name__
            raise
        finally:
            self._write_row(hold.hold, charge, error)

    def _write_row(self, hold: Hold, charge: StorageCharge, error: str) -> None:
        """Never fails: the provider has answered."""
        if self._audit is None:
            return
        row = AuditEnvelope(
            at=round(hold.at, 6),
            app=label(hold.app),
            adapter="daemon",
            method="cachedContents",
            operation="cached_content",
            call_id=word(hold.request_id),
            provider=label(hold.provider),
            model=word(hold.model),
            outcome=outcome(error or None),
            seconds=round(max(0.0, self._clock() - hold.at), 6),
            usage=AuditUsage(uncached=charge.tokens),
            cost_nano_usd=charge.billed,
            unbilled_nano_usd=charge.unbilled,
        )
        try:
            self._audit.append(row)
        except Exception as problem:
            log(
                logging.ERROR,
                f"a cached content was not audited: {type(problem).__name__}",
                problem,
            )


def _lifetime(value: dict[str, Any], now: float) -> float:
    """Seconds that a content is to be kept."""
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
