"""Targets of calls without a connection: models at providers, for tests of prices and bounds."""

from __future__ import annotations

import warnings
from functools import cache

from anaphora import wire as wires
from anaphora.catalog import dialects
from anaphora.client.choice import UnknownModelWarning
from anaphora.client.config import ClientConfig, ProviderConfig
from anaphora.client.config.resolve import check
from anaphora.client.target import Endpoint, Target
from anaphora.client.transport import HttpRequest, HttpResponse


class NoTransport:
    """Sends nothing."""

    async def send(self, request: HttpRequest) -> HttpResponse:
        raise AssertionError("this target is not connected")

    async def close(self) -> None:
        pass


@cache
def endpoint_of(name: str) -> Endpoint:
    """The endpoint of a wire's own provider, or of a dialect."""
    row = (
        dialects().find(wires.PROVIDERS[name], name)
        if name in wires.WIRES
        else wires.dialect_of(name)
    )
    url = row.base_url if "{" not in row.base_url else "https://gateway.example"
    config = ProviderConfig(wire=name, base_url=url)
    resolved = check(ClientConfig(providers={"test": config}))["test"]
    return Endpoint(resolved, NoTransport())


def target_of(name: str, model: str) -> Target:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnknownModelWarning)
        return endpoint_of(name).target(model)
