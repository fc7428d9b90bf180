"""A provider, one of its models, and the requests to it: address, key, headers."""

from __future__ import annotations

import datetime
from collections.abc import Hashable
from decimal import Decimal
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from anaphora import catalog, wire
from anaphora.bounded import BoundedMap
from anaphora.cache.learned_steps import LearnedSteps
from anaphora.cache.plan import AppMemory
from anaphora.catalog import CacheRules, Price, Profile, names
from anaphora.catalog.api_limits import ModelBounds, bounds_of
from anaphora.catalog.price_data import PRICE_SLOT, PriceRow, PriceRows, TierRow
from anaphora.catalog.pricing import STANDARD_TIERS
from anaphora.errors import InvalidRequest
from anaphora.prompt import Call, Params
from anaphora.redaction import shown_url
from anaphora.rendered import Rendered, Request
from anaphora.values import Notice

from .choice import UnknownModelWarning, checked_model, name_at, unknown_model
from .config.secrets import ResolvedProvider, SecretHeaders
from .forced_choice import without_forced_choice
from .limits import Gate
from .parameters import check_temperature
from .pending import warn
from .retry import CircuitBreaker
from .transport import HttpRequest, HttpTransport
from .transport.timer import LoopAffinity

#: The number of models of a provider that are remembered: callers may name any.
_MOST_TARGETS = 512

#: The number of prices of a model that are remembered.
_MOST_PRICES = 64

#: Headers that hold a list: values of the configuration and of a call are joined.
_LISTS = frozenset(("anthropic-beta", "openai-beta"))


class Target(msgspec.Struct, frozen=True, eq=False):
    """One model at one endpoint, and everything that all conversations with it share."""

    endpoint: Endpoint
    model: str
    profile: Profile
    rules: CacheRules
    memory: AppMemory
    gate: Gate
    prices: dict[tuple[int, str, bool], Price | None]
    """By quarter of an hour, service tier, and whether it is for batches."""
    notices: tuple[Notice, ...] = ()
    """Notices about the model itself, added to every response."""
    _bounds: ModelBounds | None = None

    @property
    def bounds(self) -> ModelBounds:
        """The model's limits for the cost bound of a call; looked up once."""
        if self._bounds is None:
            endpoint = self.endpoint
            model = endpoint.listed_model(self.model)
            found = bounds_of(endpoint.system, model, endpoint.base_wire)
            msgspec.structs.force_setattr(self, "_bounds", found)
            return found
        return self._bounds

    def price(self, at: float, tier: str = "", *, batch: bool = False) -> Price | None:
        key = int(at // PRICE_SLOT), tier, batch
        if key not in self.prices:
            if len(self.prices) >= _MOST_PRICES:
                self.prices.clear()
            self.prices[key] = find_price(self, at, tier, batch=batch)
        return self.prices[key]

    def learn(self, read: int | None, *, conversation: Hashable) -> None:
        """Learns the steps of cache reads from a bill."""
        self.endpoint.steps.learn(self.endpoint.host, self.rules, read, conversation=conversation)

    def render(self, call: Call, previous: Rendered | None = None) -> Rendered:
        """The call rendered for the provider. An error names a parameter like the app:
        `tool_choice`, not `params.tool_choice`."""
        try:
            notices: tuple[Notice, ...] = ()
            if call.params.tool_choice is not None:
                call, notices = without_forced_choice(call, self.profile, previous)
            rendered: Rendered = self.endpoint.wire.render(call, self.profile, previous)
            if notices:
                rendered = replace(rendered, notices=(*notices, *rendered.notices))
            return rendered
        except InvalidRequest as error:
            if not error.path.startswith("params."):
                raise
            raise type(error)(error.reason, path=error.path.removeprefix("params.")) from None

    def with_defaults(self, call: Call, changes: dict[str, Any]) -> Call:
        """The call for this target: with its model, and the parameters of `params`."""
        params = self.params(call.params, changes)
        if params is call.params and self.model == call.model:
            return call
        return replace(call, params=params, model=self.model)

    def params(self, params: Params, changes: dict[str, Any]) -> Params:
        """The parameters with `changes`, and the provider's defaults for those that are not set."""
        config = self.endpoint.config
        if params.max_tokens is None and self.endpoint.features.requires_max_tokens:
            changes.setdefault("max_tokens", config.max_tokens)
        if config.temperature is not None and params.temperature is None:
            changes.setdefault("temperature", config.temperature)
        if changes:
            params = replace(params, **changes)
        if params.temperature is not None:
            check_temperature(params, self.endpoint.max_temperature, self.endpoint.id)
        return params


class Endpoint:
    """One provider of the configuration. Shared by all calls of a client."""

    def __init__(
        self,
        resolved: ResolvedProvider,
        transport: HttpTransport,
        affinity: LoopAffinity | None = None,
    ) -> None:
        self.affinity = affinity or LoopAffinity()
        self.resolved = resolved
        self.config = resolved.provider
        self.system = resolved.system
        self.base_url = resolved.base_url
        self._path_start = resolved.path_start
        self.use_key(resolved)
        self.id = resolved.id
        model = self.config.model
        self.default_model = None if model is None else name_at(resolved, model)
        self.wire_name = resolved.wire
        self.wire = wire.get(resolved.wire)
        self.base_wire = resolved.dialect.wire if resolved.dialect is not None else resolved.wire
        self.features = wire.features(self.base_wire)
        self.router = resolved.dialect.router if resolved.dialect is not None else None
        """Its rows about the hosts that it passes requests on to, if it is a router."""
        # A dialect may have another range than its wire.
        self.max_temperature = (
            2.0 if resolved.dialect is not None else self.features.max_temperature
        )
        self.transport = transport
        self.breaker = CircuitBreaker(self.config.breaker)
        self.host = urlsplit(self.base_url).netloc
        self._gate = Gate.of(self.config.limits)
        self._targets = BoundedMap[str, Target](
            _MOST_TARGETS, on_drop=lambda _, oldest: self._gate.limiter.forget(oldest.gate.lane)
        )
        self.steps = LearnedSteps()
        """The steps of cache reads, learned from bills with unmasked usage."""
        self._deployments = BoundedMap[str, Target](_MOST_TARGETS)
        """Targets of deployments whose model is known from an answer."""
        self._learned = BoundedMap[str, Target](_MOST_TARGETS)
        """Targets by model, for models whose bills contradict the catalog."""

    def __repr__(self) -> str:
        return f"<Endpoint {self.id} at {shown_url(self.base_url)}>"

    def use_key(self, resolved: ResolvedProvider) -> None:
        """Uses the key of the current configuration of the same provider."""
        self.resolved = resolved
        self.redactor = resolved.redactor()
        """Removes the secrets of this provider from its responses."""
        self._headers = resolved.headers()
        self._last_headers: tuple[tuple[tuple[str, str], ...], SecretHeaders] = (), self._headers
        """The headers of the last request, and the same with the configured ones."""

    def outgoing(self, request: Request) -> HttpRequest:
        """The request with address, key and all headers."""
        return self.outgoing_body(
            request.path, request.headers, request.body.join(), method=request.method
        )

    def outgoing_body(
        self,
        path: str,
        headers: tuple[tuple[str, str], ...],
        body: bytes,
        *,
        method: str = "POST",
    ) -> HttpRequest:
        """The request for a body given as bytes."""
        self.affinity.enter()
        for name, value in self.resolved.path_values.items():
            path = path.replace(f"{{{name}}}", value)
        return HttpRequest(
            method=method,
            url=self.base_url + path.removeprefix(self._path_start),
            headers=self._with_headers(headers),
            body=body,
            timeouts=self.config.timeouts,
            max_response_bytes=self.config.max_response_bytes,
            provider=self.system,
            path=path,
            credentials=self.resolved.credentials,
        )

    def outgoing_resource(self, request: Request) -> HttpRequest:
        """The request for a resource of the account, such as a cached content. At Google Cloud,
        such resources are next to the publishers of models, and name models in full."""
        base, mark, account = self.base_url.partition("/projects/")
        if not mark:
            return self.outgoing(request)
        location = f"projects/{account.partition('/publishers/')[0]}"
        name = request.path.removeprefix(f"/{location}")
        full = b'{"model":"projects/%b/models/' % account.encode()
        body = request.body.join().replace(b'{"model":"models/', full, 1)
        made = self.outgoing_body(name, request.headers, body, method=request.method)
        return replace(made, url=f"{base}/{location}{name}")

    def _with_headers(self, headers: tuple[tuple[str, str], ...]) -> SecretHeaders:
        if headers is not self._last_headers[0]:
            self._last_headers = headers, _merged(self._headers, headers)
        return self._last_headers[1]

    def headroom(self, now: float) -> dict[str, float]:
        """The remaining share of each rate limit; `now` is monotonic."""
        return self._gate.limiter.headroom(now)

    def target(self, model: str | None) -> Target:
        """The model here, or the configured one; the same target for every call."""
        name = model or self.default_model
        target = self._targets.use(name) if isinstance(name, str) else None
        if target is None:
            target = self._new_target(name)
            self._targets[target.model] = target
        return target

    def listed_model(self, name: str) -> str:
        """The catalog's model behind a name: the configured one, or that which an answer of the
        deployment has named."""
        named = self.resolved.provider.models.get(name)
        if named is not None:
            return named.model
        deployed = self._deployments.get(name)
        return name if deployed is None else deployed.profile.id

    def learn_model(self, target: Target, answered: str) -> None:
        """Learns from an answer which model a deployment has: rules and prices are the model's."""
        dialect = self.resolved.dialect
        if dialect is None or not dialect.deployments or target.profile.known:
            return
        found = catalog.profile(self.system, answered)
        if not found.known or self.listed_model(target.model) == found.id:
            return
        rules = catalog.rules(self.system, found.id, self.base_wire)
        self._deployments[target.model] = replace(
            target, profile=found, rules=rules, memory=AppMemory(rules)
        )
        target.prices.clear()
        msgspec.structs.force_setattr(target, "_bounds", None)

    def begun(self, target: Target) -> Target:
        """The target for a conversation that begins now, used to its end: with the model that a
        deployment was learned to have, and the steps of cache reads learned from bills, if they
        contradict the catalog."""
        target = self._deployments.get(target.model, target)
        rules = self.steps.begin(self.host, target.rules)
        if rules is target.rules:
            return target
        learned = self._learned.get(target.model)
        if learned is None or learned.rules is not rules:
            learned = replace(target, rules=rules, memory=AppMemory(rules))
            self._learned[target.model] = learned
        return learned

    def takes_key(self, resolved: ResolvedProvider) -> bool:
        """Uses the key of the new configuration; False if anything else has changed."""
        before = self.resolved
        same = ("wire", "base_url", "dialect", "provider")
        if any(getattr(before, name) != getattr(resolved, name) for name in same):
            return False
        self.use_key(resolved)
        return True

    def _new_target(self, model: object) -> Target:
        name = checked_model(self.resolved, model)
        listed = self.listed_model(name)
        if listed == name and self.system in names.HOSTED and names.is_opaque(name):
            raise InvalidRequest(
                f"the ARN {name[:200]!r} does not tell its model, so neither prices nor cache rules"
                f" are known; write it into llm.yaml: providers.{self.resolved.id}.models, under"
                " the ARN: {model: anthropic.claude-sonnet-5}",
                path="model",
            )
        notices = unknown_model(self.resolved, listed)
        for notice in notices:
            warn(notice.message, UnknownModelWarning)
        rules = catalog.rules(self.system, listed, self.base_wire)
        profile, gate = catalog.profile(self.system, listed), self._gate.of_model(name, rules)
        return Target(self, name, profile, rules, AppMemory(rules), gate, {}, notices)


def _merged(configured: SecretHeaders, headers: tuple[tuple[str, str], ...]) -> SecretHeaders:
    merged = dict(configured)
    for name, value in headers:
        if name in merged and name in _LISTS and merged[name] != value:
            value = f"{merged[name]},{value}"
        merged[name] = value
    return SecretHeaders(merged)


def find_price(target: Target, at: float, tier: str, *, batch: bool = False) -> Price | None:
    """The price of a service tier at that time; None if it is unknown."""
    endpoint = target.endpoint
    return catalog.price(
        endpoint.system,
        endpoint.listed_model(target.model),
        datetime.datetime.fromtimestamp(at, datetime.UTC),
        rules=target.rules,
        wire=endpoint.base_wire,
        service_tier=tier,
        batch=batch,
        own=_configured_price(endpoint, target.model, tier),
    )


def _configured_price(endpoint: Endpoint, model: str, tier: str) -> PriceRows | None:
    """The model's price in the configuration, for the standard service tier."""
    prices = endpoint.config.prices
    price = prices.get(model) or prices.get("*")
    if price is None or tier not in STANDARD_TIERS:
        return None
    tiers = tuple(
        TierRow(above=one.above, input=_decimal(one.input), output=_decimal(one.output))
        for one in price.tiers
    )
    row = PriceRow(
        provider=endpoint.system,
        models=(model,),
        source=f"prices of {endpoint.id} in the configuration",
        date=None,
        input=_decimal(price.input),
        output=_decimal(price.output),
        tiers=tiers,
    )
    return PriceRows((row,))


def _decimal(value: float) -> Decimal:
    """The number as written in the configuration, not the nearest double."""
    return Decimal(repr(value))
