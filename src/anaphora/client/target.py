"""One model at one provider, and the requests that go there: their address, key and headers."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import msgspec

from anaphora import catalog
from anaphora.cache.plan import AppMemory
from anaphora.catalog import CacheRules, Price, Profile
from anaphora.errors import InvalidRequest
from anaphora.prompt import Call, Params
from anaphora.rendered import Rendered, Request
from anaphora.values import Notice

from .config.resolve import ResolvedProvider
from .config.secrets import SecretHeaders
from .limits import Gate
from .parameters import check_temperature
from .prices import find_price
from .transport import HttpRequest
from .transport.timer import LoopAffinity

if TYPE_CHECKING:
    from .pool import Endpoint

#: Prices of one model that are remembered.
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
    """About the model itself; on every response."""

    def price(self, at: float, tier: str = "", *, batch: bool = False) -> Price | None:
        key = int(at // catalog.PRICE_SLOT), tier, batch
        if key not in self.prices:
            if len(self.prices) >= _MOST_PRICES:
                self.prices.clear()
            self.prices[key] = find_price(self, at, tier, batch=batch)
        return self.prices[key]

    def begun(self) -> Target:
        """The target of a conversation that begins now, which keeps it to its end."""
        return self.endpoint.begun(self)

    def learn(self, read: int | None, *, conversation: Hashable) -> None:
        """Learns from a bill in which steps reads come."""
        self.endpoint.steps.learn(self.endpoint.host, self.rules, read, conversation=conversation)

    def render(self, call: Call, previous: Rendered | None = None) -> Rendered:
        """The call as the provider gets it. An error names a parameter as the app wrote it:
        `tool_choice`, not `params.tool_choice`."""
        try:
            return self.endpoint.wire.render(call, self.profile, previous)
        except InvalidRequest as error:
            if not error.path.startswith("params."):
                raise
            raise type(error)(error.reason, path=error.path.removeprefix("params.")) from None

    def with_defaults(self, call: Call, changes: dict[str, Any]) -> Call:
        """The call as it is made here: with this model, and the parameters of `params`."""
        params = self.params(call.params, changes)
        if params is call.params and self.model == call.model:
            return call
        return msgspec.structs.replace(call, params=params, model=self.model)

    def params(self, params: Params, changes: dict[str, Any]) -> Params:
        """The parameters with `changes`, and the provider's defaults for those that are not set."""
        config = self.endpoint.config
        if params.max_tokens is None and self.endpoint.features.requires_max_tokens:
            changes.setdefault("max_tokens", config.max_tokens)
        if config.temperature is not None and params.temperature is None:
            changes.setdefault("temperature", config.temperature)
        if changes:
            params = msgspec.structs.replace(params, **changes)
        if params.temperature is not None:
            check_temperature(params, self.endpoint.max_temperature, self.endpoint.id)
        return params


class OutgoingRequests:
    """Makes the requests to one provider. The base of `Endpoint`."""

    def __init__(self, resolved: ResolvedProvider, affinity: LoopAffinity | None) -> None:
        self.affinity = affinity or LoopAffinity()
        self.resolved = resolved
        self.config = resolved.provider
        self.system = resolved.system
        self.base_url = resolved.base_url
        self._path_start = resolved.path_start
        self.use_key(resolved)

    def use_key(self, resolved: ResolvedProvider) -> None:
        """Sends the key of the same provider as it is configured now."""
        self.resolved = resolved
        self.redactor = resolved.redactor()
        """Removes the secrets of this provider from what it responds."""
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
        """The same for a body whose bytes are given."""
        self.affinity.enter()
        return HttpRequest(
            method=method,
            url=self.base_url + path.removeprefix(self._path_start),
            headers=self._with_headers(headers),
            body=body,
            timeouts=self.config.timeouts,
            max_response_bytes=self.config.max_response_bytes,
            provider=self.system,
            path=path,
        )

    def repeated(self, request: HttpRequest, body: bytes) -> HttpRequest:
        """A request that was sent before with another body, and with the key as it is now."""
        self.affinity.enter()
        own = {name: value for name, value in self._headers.items() if name not in _LISTS}
        headers = SecretHeaders({**request.headers, **own})
        return msgspec.structs.replace(request, headers=headers, body=body)

    def _with_headers(self, headers: tuple[tuple[str, str], ...]) -> SecretHeaders:
        if headers is not self._last_headers[0]:
            self._last_headers = headers, _merged(self._headers, headers)
        return self._last_headers[1]


def _merged(configured: SecretHeaders, headers: tuple[tuple[str, str], ...]) -> SecretHeaders:
    merged = dict(configured)
    for name, value in headers:
        if name in merged and name in _LISTS and merged[name] != value:
            value = f"{merged[name]},{value}"
        merged[name] = value
    return SecretHeaders(merged)
