"""The same requests of a program without and with `watch --fix`, billed by the simulator."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from anaphora import catalog
from anaphora.cache.simulator import RenderedPrompt, Simulator
from anaphora.catalog import CacheRules
from anaphora.traffic.calls import ProxyRoute, UpstreamRequest
from anaphora.traffic.placing import Placer
from anaphora.traffic.planning import own_plan, read_request
from anaphora.values import Usage
from anaphora.wire.reading import object_members, request_error


class SentBody(msgspec.Struct, frozen=True):
    """A request of a program."""

    at: float
    body: bytes


class FixedBills(msgspec.Struct):
    """Multiples of a token's input price."""

    before: float = 0.0
    after: float = 0.0

    @property
    def saving(self) -> float:
        """As a share of the bill without `--fix`; negative: dearer."""
        return 1 - self.after / self.before if self.before else 0.0


def play(
    provider: str,
    path: str,
    requests: list[SentBody],
    bills: FixedBills,
    placer: Callable[[], Placer] = lambda: Placer(fix=True),
) -> Placer:
    """Adds the bills of the requests, in their order, as one program sends them."""
    place, simulators = placer(), dict[tuple[str, bool], Simulator]()
    route = ProxyRoute(prefix="", provider=provider, upstream="https://api.example.com")
    for request in requests:
        sent = UpstreamRequest(
            method="POST",
            route=route,
            path=path,
            query="",
            headers=(("authorization", "Bearer any"),),
            body=request.body,
            started=request.at,
        )
        fixed = place(sent) or request.body
        bills.before += _bill(provider, path, request, request.body, simulators, fixed=False)
        bills.after += _bill(provider, path, request, fixed, simulators, fixed=True)
    return place


def _bill(
    provider: str,
    path: str,
    request: SentBody,
    body: bytes,
    simulators: dict[tuple[str, bool], Simulator],
    *,
    fixed: bool,
) -> float:
    read = read_request("POST", provider, path, {}, body)
    assert read is not None
    rules = catalog.rules(provider, read.rendered.model, read.rendered.wire)
    plan = own_plan(read.rendered, rules, object_members(body, "$", request_error))
    simulator = simulators.setdefault((read.rendered.model, fixed), Simulator(rules))
    outcome = simulator.call(RenderedPrompt(read.rendered, plan), at=request.at)
    marked = bool(plan.marks) or plan.automatic is not None
    return relative_cost(rules, outcome.usage(output=0), marked=marked)


def relative_cost(rules: CacheRules, usage: Usage, *, marked: bool) -> float:
    """The cost of input in multiples of a token's input price."""
    read = rules.read_price
    if not marked and rules.automatic_read_price is not None:
        read = rules.automatic_read_price
    total = (usage.uncached or 0) + (usage.read or 0) * read.value
    for ttl, tokens in (usage.written or {}).items():
        total += tokens * (1.0 if ttl == "unsplit" else rules.writing(ttl))
    return total
