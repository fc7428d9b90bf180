"""The option --upstream of `anaphora watch`, `record` and `replay`, and the proxy's routes."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from anaphora.traffic.calls import ProxyRoute

#: A route of a provider that the catalog does not have.
_ROUTE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")

upstream_option = click.option(
    "--upstream",
    "upstreams",
    multiple=True,
    metavar="PROVIDER=URL",
    help="Send the calls of a provider to another address, such as a gateway.",
)


def routes_of(words: Sequence[str], upstreams: tuple[str, ...]) -> list[ProxyRoute]:
    """The routes of the catalog's providers, at the addresses that the user's settings and
    --upstream name, and of providers that the catalog does not have."""
    from anaphora import catalog
    from anaphora.proxy.programs import upstreams_from
    from anaphora.proxy.routes import default_routes
    from anaphora.traffic.accounts import checked_upstream
    from anaphora.traffic.calls import ProxyRoute
    from anaphora.yaml_values import nearest

    known = {row.provider for row in catalog.dialects().rows}
    named, others = upstreams_from(os.environ, words), []
    for text in upstreams:
        name, equals, url = text.partition("=")
        if not equals or not _ROUTE_NAME.fullmatch(name):
            raise click.BadParameter("write PROVIDER=URL", param_hint="--upstream")
        provider = catalog.dialects().provider_named(name, known)
        if provider is not None:
            named[provider] = _route_base(url, provider)
        elif near := nearest(name, sorted(known)):
            reason = f"no provider {name!r}. Did you mean {near!r}?"
            raise click.BadParameter(reason, param_hint="--upstream")
        else:
            url = checked_upstream(url, name)
            others.append(ProxyRoute(prefix=f"/{name}", provider="", upstream=url))
    return [*default_routes(named), *others]


def _route_base(url: str, provider: str) -> str:
    """The base URL of a route. That of a client may end with what all paths of the route begin
    with: `/v1` for OpenAI, `/openai/v1` for Groq."""
    from anaphora import catalog

    url = url.rstrip("/")
    paths = [row.request_path for row in catalog.dialects().rows if row.provider == provider]
    begin = url.find("/", url.find("://") + 3)
    while begin > 0:
        ending = url[begin:]
        if all(path.startswith(f"{ending}/") for path in paths):
            return url.removesuffix(ending)
        begin = url.find("/", begin + 1)
    return url
