"""What a request costs: cut into chunks as it came, and played by the provider's rules."""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from anaphora import catalog
from anaphora.cache.simulator import Outcome, RenderedPrompt, Simulator
from anaphora.catalog import CacheRules, Profile
from anaphora.rendered import Mark, Plan, Rendered
from anaphora.tokens import tokens_in
from anaphora.values import Usage

from .routes import Route

#: Models whose caches are kept at a time; the one that was not asked for longest goes first.
_MODELS = 256
#: Prefixes (messages, tools, system blocks) that a model's cache remembers, however long they would
#: live: some 6 MB. Those that were not used for longest go first.
PREFIXES = 25_000


class Facts(msgspec.Struct, frozen=True):
    """What is known of the model that was asked for."""

    profile: Profile
    rules: CacheRules


class Bill(msgspec.Struct, frozen=True, eq=False):
    """One call's input."""

    facts: Facts
    outcome: Outcome

    def usage(self, wire: str, output: int, reasoning: int | None) -> Usage:
        """The counts as the provider would tell them: only those that it has a name for."""
        outcome = self.outcome
        if wire == "ollama":
            return Usage(uncached=outcome.total, output=output)
        read = outcome.read
        # Where nothing is written by request, nobody is told what was written.
        writes = self.facts.rules.slots.value or wire == "anthropic"
        return Usage(
            uncached=outcome.uncached,
            read=None if wire == "gemini" and not read else read,
            written=outcome.written if writes else None,
            output=output,
            reasoning=reasoning,
        )


class Billing:
    """The caches of every model that was asked for."""

    def __init__(self) -> None:
        self._simulators: OrderedDict[tuple[str, str, str], Simulator] = OrderedDict()
        self._facts: dict[tuple[str, str, str], Facts] = {}

    def facts(self, route: Route, model: str) -> Facts:
        place = route.provider, model, route.wire
        found = self._facts.get(place)
        if found is None:
            if len(self._facts) > 4 * _MODELS:
                self._facts.clear()
            profile = catalog.profile(route.provider, model)
            rules = catalog.rules(route.provider, model, route.wire)
            found = self._facts[place] = Facts(profile, rules)
        return found

    def bill(
        self,
        route: Route,
        prompt: RenderedPrompt,
        facts: Facts,
        *,
        at: float,
        began: float,
        ended: float,
        scope: str,
    ) -> Bill:
        """What the call reads and writes, and leaves for the next."""
        outcome = self.simulator(route, facts).call(
            prompt, at=at, began=began, ended=ended, scope=_scope(scope, facts.rules)
        )
        return Bill(facts, outcome)

    def simulator(self, route: Route, facts: Facts) -> Simulator:
        place = route.provider, facts.profile.id, route.wire
        found = self._simulators.get(place)
        if found is None:
            found = self._simulators[place] = Simulator(facts.rules, most=PREFIXES)
            if len(self._simulators) > _MODELS:
                self._simulators.popitem(last=False)
        self._simulators.move_to_end(place)
        return found


def count_text(text: str, profile: Profile) -> int:
    return tokens_in(len(text.encode()), profile.bytes_per_token.value)


def asked_plan(rendered: Rendered, rules: CacheRules, mode: str | None = None) -> Plan:
    """The markers as they were sent, as far as the provider takes notice of them. `mode` is what
    the request says of markers that the provider adds by itself."""
    if not rules.slots.value:
        return Plan()
    known = rules.ttls.value
    usual = rules.default_ttl.value if rules.default_ttl is not None else known[-1]
    marks = tuple(
        mark if mark.ttl in known else Mark(mark.chunk, usual, mark.splice)
        for mark in rendered.marks
    )
    automatic = None
    if rules.automatic_breakpoint.value == "last_block":
        automatic = rendered.automatic
    elif rules.automatic_breakpoint.value == "last_message" and mode != "explicit":
        automatic = rendered.automatic or usual
    if automatic is not None and automatic not in known:
        automatic = usual
    return Plan(marks=marks, automatic=automatic)


def _scope(workspace: str, rules: CacheRules) -> str:
    """A server of one's own keeps nobody apart."""
    return "" if rules.isolation.value == "server" else workspace
