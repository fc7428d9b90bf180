"""A provider of the configuration, ready to be called: its wire, address, key and patience."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Mapping
from decimal import Decimal
from urllib.parse import urlsplit

import msgspec

from anaphora import catalog, wire
from anaphora.cache.plan import AppMemory
from anaphora.catalog import CacheRules, Price, PriceRows, Profile
from anaphora.catalog.price_rows import PriceRow, TierRow
from anaphora.catalog.prices import STANDARD_TIERS
from anaphora.errors import InvalidRequest
from anaphora.rendered import Request

from .breaker import Breaker
from .config.resolve import ResolvedProvider
from .limits import Gate
from .transport import HttpRequest, HttpTransport

#: Headers that name several things: what is configured is said beside what a call says.
_LISTS = frozenset(("anthropic-beta", "openai-beta"))

#: Headers in which providers name a request.
_REQUEST_IDS = ("request-id", "x-request-id", "x-goog-request-id", "apim-request-id")


class Model(msgspec.Struct, frozen=True, eq=False):
    """One model at one endpoint: what is known of it, and what all conversations there share."""

    name: str
    profile: Profile
    rules: CacheRules
    memory: AppMemory
    gate: Gate


class Stop(msgspec.Struct, frozen=True, eq=False):
    """A place that a call may go to."""

    endpoint: Endpoint
    model: Model


class Home:
    """The event loop where a client's connections are, and its calls wait for their turn."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None

    def enter(self) -> None:
        """The first who comes decides."""
        loop = asyncio.get_running_loop()
        if self.loop is loop:
            return
        if self.loop is not None:
            raise InvalidRequest(
                "this client was used in another event loop, where its connections are; make one"
                " in each loop, or use a Client",
                path="client",
            )
        self.loop = loop


class Endpoint:
    """Shared by all calls of a client."""

    def __init__(
        self, resolved: ResolvedProvider, transport: HttpTransport, home: Home | None = None
    ) -> None:
        self._home = home or Home()
        self.id = resolved.id
        self.config = resolved.provider
        self.wire_name = resolved.wire
        self.wire = wire.get(resolved.wire)
        self.home = resolved.dialect.wire if resolved.dialect is not None else resolved.wire
        """The wire itself, in whosever dialect."""
        self.system = wire.provider_of(resolved.wire)
        self.transport = transport
        self.breaker = Breaker(self.config.breaker)
        self.base_url = resolved.base_url
        self.host = urlsplit(self.base_url).netloc
        self._headers = resolved.headers()
        self._gate = Gate.of(self.config.limits)
        self._said: tuple[tuple[tuple[str, str], ...], dict[str, str]] = (), dict(self._headers)
        """The headers of the last request, and what came of them."""
        self._models: dict[str, Model] = {}
        self._stops: dict[str, Stop] = {}
        self._prices: dict[tuple[str, str], tuple[int, Price | None]] = {}

    def __repr__(self) -> str:
        return f"<Endpoint {self.id} at {self.base_url}>"

    def name_of(self, model: str | None) -> str:
        """The model to ask for, once it is known to be allowed."""
        name = model or self.config.model
        if name is not None and not isinstance(name, str):
            raise InvalidRequest(f"a model's name, not {name!r}", path="model")
        if name is None:
            raise InvalidRequest(
                f"say which model of {self.id} (or give it one as `model` in llm.yaml)",
                path="model",
            )
        known = self.config.known_models
        if known and name not in known:
            raise InvalidRequest(
                f"{name!r} is not among the known_models of {self.id}: {', '.join(known)}",
                path="model",
            )
        return name

    def knows(self, model: str) -> bool:
        """Whether the provider is known to have a model: by the configuration, or the catalog."""
        known = self.config.known_models
        if known:
            return model in known
        return catalog.profile(self.system, model).known

    def model(self, name: str) -> Model:
        found = self._models.get(name)
        if found is None:
            rules = catalog.rules(self.system, name, self.home)
            found = self._models[name] = Model(
                name,
                catalog.profile(self.system, name),
                rules,
                AppMemory(rules),
                self._gate.of_model(name, rules),
            )
        return found

    def stop(self, name: str) -> Stop:
        """The model here, as a place that calls may go to: the same one every time."""
        found = self._stops.get(name)
        if found is None:
            found = self._stops[name] = Stop(self, self.model(name))
        return found

    def price(self, model: str, at: float, tier: str = "") -> Price | None:
        """The model's price at that time; None where it is unknown."""
        slot = int(at // catalog.PRICE_SLOT)
        known = self._prices.get((model, tier))
        if known is None or known[0] != slot:
            when = datetime.datetime.fromtimestamp(at, datetime.UTC)
            found = catalog.price(
                self.system,
                model,
                when,
                rules=self.model(model).rules,
                wire=self.home,
                service_tier=tier,
                own=self._configured_price(model, tier),
            )
            known = self._prices[model, tier] = slot, found
        return known[1]

    def _configured_price(self, model: str, tier: str) -> PriceRows | None:
        """What the configuration says the model costs, at the standard service tier."""
        prices = self.config.prices
        price = prices.get(model) or prices.get("*")
        if price is None or tier not in STANDARD_TIERS:
            return None
        tiers = tuple(
            TierRow(above=one.above, input=_decimal(one.input), output=_decimal(one.output))
            for one in price.tiers
        )
        row = PriceRow(
            provider=self.system,
            models=(model,),
            source=f"prices of {self.id} in the configuration",
            date=None,
            input=_decimal(price.input),
            output=_decimal(price.output),
            tiers=tiers,
        )
        return PriceRows((row,))

    def outgoing(self, request: Request) -> HttpRequest:
        """The request with everything that leaves this machine."""
        self._home.enter()
        return HttpRequest(
            method=request.method,
            url=self.base_url + request.path,
            headers=self._with(request.headers),
            body=request.body.join(),
            timeouts=self.config.timeouts,
            max_response_bytes=self.config.max_response_bytes,
        )

    def _with(self, said: tuple[tuple[str, str], ...]) -> dict[str, str]:
        """A request's own headers over the configured ones."""
        if said is self._said[0]:
            return self._said[1]  # as the call before had them, and nobody changes them
        headers = dict(self._headers)
        for name, value in said:
            if name in headers and name in _LISTS and headers[name] != value:
                value = f"{headers[name]},{value}"
            headers[name] = value
        self._said = said, headers
        return headers


def _decimal(value: float) -> Decimal:
    """The number that was written, not the double next to it."""
    return Decimal(repr(value))


def request_id(headers: Mapping[str, str]) -> str | None:
    for name in _REQUEST_IDS:
        if name in headers:
            return headers[name]
    return None
