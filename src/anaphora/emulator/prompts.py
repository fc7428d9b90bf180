"""The prompt of a request: its own body, and what the provider stores for it."""

from __future__ import annotations

import msgspec

from anaphora.catalog import CacheRules
from anaphora.errors import RequestRejected
from anaphora.prompt import Call
from anaphora.rendered import Mark, Plan, Rendered
from anaphora.tokens import Counts, for_model
from anaphora.wire.reading import Members

from .billing import Billing, ModelFacts
from .hosts.host import EmulatorRoute, RoutedRequest


class ParsedPrompt(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    body: bytes
    """Completed by what is not sent because the provider stores it."""
    call: Call
    rendered: Rendered
    plan: Plan
    facts: ModelFacts
    items: tuple[bytes, ...] = ()
    """Responses: the input items of the whole chain."""

    def long_tokens(self, sets_window: bool) -> int:
        """The prompt's tokens, where they may exceed the window; 0 where they cannot, because no
        token is shorter than a byte."""
        window = self.facts.profile.context_tokens
        if not sets_window and (window is None or len(self.body) < min(window.published)):
            return 0
        return Counts(self.rendered).total


class PromptReader:
    def __init__(self, billing: Billing) -> None:
        self._billing = billing

    def read(self, request: RoutedRequest) -> ParsedPrompt:
        """Parses a request; raises the provider's errors."""
        route, complete = request.route, request.host.complete_body(request)
        body = complete.body
        call = route.codec.parse(body, route.path)
        rendered, facts = self._split(request.fields if body is request.body else body, route)
        plan = request_plan(rendered, facts.rules, call.ir.cache.mode)
        if complete.held is not None:
            if complete.held_model != rendered.model:
                reason = f"the cached content is for {complete.held_model}, not {rendered.model}"
                raise RequestRejected(reason, status=400, param="model")
            plan = Plan(held=complete.held)
        return ParsedPrompt(
            body=body, call=call, rendered=rendered, plan=plan, facts=facts, items=complete.items
        )

    def split(self, request: RoutedRequest) -> tuple[Rendered, ModelFacts]:
        """Splits a request whose tokens are only counted."""
        return self._split(request.host.complete_body(request).body, request.route)

    def _split(self, body: bytes | Members, route: EmulatorRoute) -> tuple[Rendered, ModelFacts]:
        rendered = route.codec.split(body, (), route.path)
        facts = self._billing.facts(route.provider, route.host.wire, rendered.model)
        return for_model(rendered, facts.profile), facts


def request_plan(rendered: Rendered, rules: CacheRules, mode: str | None = None) -> Plan:
    """The markers of a request, as far as the provider honours them. `mode` is the request's
    setting for markers that the provider adds itself."""
    if not rules.slots.value:
        return Plan()
    ttls = rules.ttls.value
    default = rules.default_ttl.value if rules.default_ttl is not None else ttls[-1]
    marks = tuple(
        mark if mark.ttl in ttls else Mark(mark.chunk, default, mark.splice)
        for mark in rendered.marks
    )
    automatic = None
    if rules.automatic_breakpoint.value == "last_block":
        automatic = rendered.automatic
    elif rules.automatic_breakpoint.value == "last_message" and mode != "explicit":
        automatic = rendered.automatic or default
    if automatic is not None and automatic not in ttls:
        automatic = default
    return Plan(marks=marks, automatic=automatic)
