"""The providers of a configuration with their connections, and the targets of a call among them."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

from anaphora.bounded import BoundedMap
from anaphora.errors import InvalidRequest
from anaphora.redaction import looks_like_key, shown_name

from .choice import (
    ProviderChooser,
    has,
    name_at,
    refuses,
)
from .config import Hop
from .config.environment import Environment
from .config.secrets import ResolvedProvider, Secret
from .content import wrong_type
from .target import Endpoint, Target
from .transport import HttpTransport, TransportLayer
from .transport.timer import LoopAffinity

ChosenTargets: TypeAlias = tuple[tuple[Target, ...], tuple[Hop, ...]]
"""The targets of a call; for a route with the hop of each."""

#: Names of providers and models whose targets are remembered.
_MOST_CHOSEN = 4096


class ProviderPool:
    """One endpoint for each provider, made when it is first called, and the connections they
    share."""

    def __init__(
        self,
        providers: Mapping[str, ResolvedProvider],
        routes: Mapping[str, Sequence[Hop]],
        *,
        transport: HttpTransport | None = None,
    ) -> None:
        self.providers = providers
        self.routes = routes
        self.affinity = LoopAffinity()
        self._transport = transport
        self._transports: dict[tuple[Secret | None, str | None], HttpTransport] = {}
        self._endpoints: dict[str, Endpoint] = {}

    def endpoint(self, resolved: ResolvedProvider) -> Endpoint:
        endpoint = self._endpoints.get(resolved.id)
        if endpoint is None:
            transport = self._transport
            if transport is None or isinstance(transport, TransportLayer):
                transport = self._transport_for(resolved)
            elif resolved.credentials is not None:
                from .credentials.sending import AuthenticatingTransport

                transport = AuthenticatingTransport(transport)
            endpoint = Endpoint(resolved, transport, self.affinity)
            self._endpoints[resolved.id] = endpoint
        return endpoint

    def called(self, name: str) -> Endpoint | None:
        """The endpoint of a provider, if it was called before."""
        return self._endpoints.get(name)

    def reload(
        self, providers: Mapping[str, ResolvedProvider], routes: Mapping[str, Sequence[Hop]]
    ) -> None:
        """Uses another configuration. A provider keeps its limits, breaker and the planner's memory
        if only its key has changed; calls in flight end with the old configuration."""
        self.providers, self.routes = providers, routes
        for name, endpoint in list(self._endpoints.items()):
            resolved = providers.get(name)
            if resolved is None or not endpoint.takes_key(resolved):
                del self._endpoints[name]

    @property
    def has_connections(self) -> bool:
        """Whether connections were opened and are not closed."""
        return any(getattr(each, "is_open", False) for each in self._transports.values())

    def forget(self) -> None:
        """Drops all connections without closing them: their event loop has ended."""
        self._transports.clear()
        self._endpoints.clear()

    async def close(self) -> None:
        self.affinity.close()
        async with contextlib.AsyncExitStack() as stack:  # each is closed if another fails
            for transport in self._transports.values():
                stack.push_async_callback(transport.close)
        self.forget()

    def _transport_for(self, resolved: ResolvedProvider) -> HttpTransport:
        """One transport for all providers with the same proxy and CA."""
        way = resolved.proxy, resolved.provider.ca
        transport = self._transports.get(way)
        if transport is None:
            from .transport.over_aiohttp import AiohttpTransport

            transport = AiohttpTransport(proxy=way[0], ca=way[1])
            if isinstance(self._transport, TransportLayer):
                transport = self._transport.over(transport)
            self._transports[way] = transport
        return transport


class TargetChooser:
    """Chooses the targets of calls among the providers and routes of a pool."""

    def __init__(
        self,
        pool: ProviderPool,
        among: Collection[str] | None = None,
        *,
        environment: Environment | None = None,
    ) -> None:
        """`among` are names of providers and routes in order of preference; None: all of the pool.
        The hops of a route may be other providers. With an `environment`, its providers are
        used."""
        self._pool = pool
        self._routes = {
            name: tuple(hops)
            for name, hops in pool.routes.items()
            if among is None or name in among
        }
        providers = pool.providers
        if among is not None:
            providers = {name: providers[name] for name in among if name in providers}
        self._chooser = ProviderChooser(providers, self._routes, environment)
        self._hops = ProviderChooser(pool.providers, (), environment)
        self.chosen = BoundedMap[tuple[str | None, str | None], ChosenTargets](_MOST_CHOSEN)
        """The targets of earlier calls, by provider and model."""

    def targets(self, provider: str | None, model: str | None) -> ChosenTargets:
        """The targets for a provider or a route by name; without it, the model decides."""
        if model is not None and (not isinstance(model, str) or not model):
            raise InvalidRequest(f"must be the name of a model, not {model!r}", path="model")
        if provider is not None and not isinstance(provider, str):
            raise wrong_type("the name of a provider or a route", provider, "provider")
        chosen = self.chosen.get((provider, model))
        if chosen is None:
            for text, path in ((provider, "provider"), (model, "model")):
                if text is not None and looks_like_key(text):
                    raise InvalidRequest("looks like an API key, not like a name", path=path)
            name, at = self._chooser.choose(provider, model)
            if name in self._routes:
                chosen = self._route_targets(name, at)
            else:
                chosen = (self._endpoint(name).target(at),), ()
            self.chosen[provider, model] = chosen
        return chosen

    def _route_targets(self, route: str, model: str | None) -> ChosenTargets:
        """A hop's own model has priority. A provider that is not known to have the requested model
        gets its default instead; if no provider is known to have it, all that may have it get
        it."""
        hops = self._routes[route]
        ends = [self._endpoint(hop.provider) for hop in hops]
        names = [None if model is None else name_at(end.resolved, model) for end in ends]
        having = [
            name is not None and has(end.resolved, name)
            for end, name in zip(ends, names, strict=True)
        ]
        kept: list[tuple[Target, Hop]] = []
        for hop, end, name, known in zip(hops, ends, names, having, strict=True):
            wanted = name if hop.model is None else name_at(end.resolved, hop.model)
            if wanted is not None and hop.model is None:
                if not known and any(having):
                    wanted = end.default_model or wanted
                if refuses(end.resolved, wanted):
                    wanted = end.default_model
                if wanted is None:
                    continue
            kept.append((end.target(wanted), hop))
        if not kept:
            raise InvalidRequest(
                f"no provider of the route {route!r} has {shown_name(model or '')}", path="model"
            )
        return tuple(target for target, _ in kept), tuple(hop for _, hop in kept)

    def _endpoint(self, name: str) -> Endpoint:
        return self._pool.endpoint(self._hops.resolved(name))
