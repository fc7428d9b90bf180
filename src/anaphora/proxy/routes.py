"""Which upstream a request goes to: the route table, from configuration alone.

Every provider of the catalog has the prefix `/PROVIDER`: `/deepseek/chat/completions` goes to
`https://api.deepseek.com/chat/completions`. The paths of Anthropic, OpenAI, Gemini and Ollama work
without a prefix, too, since some programs take no path in their base URL.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from anaphora import catalog, wire
from anaphora.catalog import Dialect
from anaphora.client.config.environment import default_rows
from anaphora.errors import InvalidRequest
from anaphora.traffic.accounts import checked_upstream
from anaphora.traffic.calls import ProxyRoute
from anaphora.wire import Wire

#: How requests are answered that belong to no route.
_DEFAULT_WIRE = "openai_chat"


def default_routes(overrides: Mapping[str, str] = {}) -> list[ProxyRoute]:
    """A route for every provider of the catalog's dialects; `overrides` are other base URLs by
    provider. Providers whose address depends on the account (Azure) have a route only there."""
    bases = {row.provider: row.base_url for row in reversed(catalog.dialects().rows)}
    named = {}
    for name, url in overrides.items():
        provider = catalog.dialects().provider_named(name, bases)
        if provider is None:
            known = ", ".join(sorted(bases))
            raise InvalidRequest(f"no provider {name!r}; there are {known}", path="upstream")
        named[provider] = checked_upstream(url, name)
    bases = {**dict(reversed(bases.items())), **named}
    routes = [
        ProxyRoute(prefix=f"/{provider}", provider=provider, upstream=url)
        for provider, url in bases.items()
        if "{" not in url
    ]
    return routes + [
        ProxyRoute(prefix="", provider=provider, upstream=bases[provider])
        for provider, row in default_rows().items()
        if row.own_paths
    ]


class RouteTable:
    """Routes by the beginning of a path. Neither Host nor an absolute URI decides."""

    def __init__(self, routes: Iterable[ProxyRoute]) -> None:
        self.routes = tuple(routes)
        self._prefixed: dict[str, ProxyRoute] = {}
        self._own: dict[str, ProxyRoute] = {}
        for route in self.routes:
            checked_upstream(route.upstream, f"route {route.prefix or route.provider}")
            if not route.prefix:
                self._own[route.provider] = route
            elif not route.prefix.startswith("/") or "/" in route.prefix[1:]:
                reason = f"a prefix is one step of a path, such as /anthropic: {route.prefix!r}"
                raise InvalidRequest(reason, path="prefix")
            else:
                self._prefixed[route.prefix[1:]] = route
        rows = default_rows()
        known = [(rows[name], route) for name, route in self._own.items() if name in rows]
        # Models and files of several providers have the same path.
        self._own_headers = [(row.own_header, route) for row, route in known if row.own_header]
        self._own_paths = [(start, route) for row, route in known for start in row.own_paths]
        self._own_paths.sort(key=lambda one: len(one[0]), reverse=True)
        # A single route without a prefix takes every path.
        self._only = next(iter(self._own.values())) if len(self._own) == 1 else None

    def find(self, path: str, headers: Mapping[str, str]) -> tuple[ProxyRoute, str] | None:
        """The route of a path that is still percent-encoded, and the path at the provider, below
        the route's base URL. None where no route fits."""
        first, slash, rest = path[1:].partition("/")
        route = self._prefixed.get(first) if path.startswith("/") else None
        if route is not None:
            path = slash + rest
        else:
            route = self._own_route(path, headers)
            if route is None:
                return None
        row = default_rows().get(route.provider)
        if row is not None and row.short_path and path == row.short_path:
            path = row.request_path
        return route, path

    def codec(self, path: str, headers: Mapping[str, str]) -> Wire:
        """The format of errors at a path, as its caller expects it."""
        found = self.find(path, headers)
        row = None if found is None else dialect_at(found[0].provider, found[1])
        return wire.get(_DEFAULT_WIRE) if row is None else wire.codec_for(row)

    def _own_route(self, path: str, headers: Mapping[str, str]) -> ProxyRoute | None:
        if not path.startswith("/"):
            return None
        if self._only is not None:
            return self._only
        for name, route in self._own_headers:
            if name in headers:
                return route
        return next((route for start, route in self._own_paths if path.startswith(start)), None)


def dialect_at(provider: str, path: str) -> Dialect | None:
    """The dialect of a provider that is spoken at a path below its base URL; its default one at
    paths that belong to none. None for a provider without dialects."""
    rows = [row for row in catalog.dialects().rows if row.provider == provider]
    return next((row for row in rows if path.startswith(row.request_path)), *rows[:1] or (None,))
