"""Prompt caches and rate-limit counters of every account."""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from anaphora import catalog
from anaphora.cache.simulator import Simulator
from anaphora.catalog import CacheRules, Profile

#: Models whose caches are kept at a time; the least recently used goes first.
_MODELS = 256
#: Prefixes (messages, tools, system blocks) that a model's cache remembers, whatever their
#: lifetime: some 6 MB. The least recently used go first.
PREFIXES = 25_000
_MINUTE = 60.0
_ACCOUNTS = 1000
#: Limits per minute. They are generous: only faults reject requests because of a limit.
REQUEST_LIMIT, INPUT_LIMIT, OUTPUT_LIMIT = 4_000, 4_000_000, 800_000


class ModelFacts(msgspec.Struct, frozen=True):
    """The catalog's rows for one model on one wire."""

    provider: str
    wire: str
    profile: Profile
    rules: CacheRules


class Billing:
    """The prompt cache of every model that was called."""

    def __init__(self) -> None:
        self._simulators: OrderedDict[tuple[str, str, str], Simulator] = OrderedDict()
        self._facts: dict[tuple[str, str, str], ModelFacts] = {}

    def facts(self, provider: str, wire: str, model: str) -> ModelFacts:
        key = provider, wire, model
        facts = self._facts.get(key)
        if facts is None:
            if len(self._facts) > 4 * _MODELS:
                self._facts.clear()
            profile = catalog.profile(provider, model)
            facts = ModelFacts(provider, wire, profile, catalog.rules(provider, model, wire))
            self._facts[key] = facts
        return facts

    def simulator(self, facts: ModelFacts) -> Simulator:
        key = facts.provider, facts.wire, facts.profile.id
        simulator = self._simulators.get(key)
        if simulator is None:
            simulator = self._simulators[key] = Simulator(facts.rules, most=PREFIXES)
            if len(self._simulators) > _MODELS:
                self._simulators.popitem(last=False)
        self._simulators.move_to_end(key)
        return simulator


class UsageWindow(msgspec.Struct):
    """An account's usage in the minute that began at `since`."""

    since: float
    requests: int = 0
    input: int = 0
    output: int = 0

    @property
    def reset(self) -> float:
        return self.since + _MINUTE


class UsageWindows:
    """The current minute of each account at each provider."""

    def __init__(self) -> None:
        self._windows: OrderedDict[tuple[str, str], UsageWindow] = OrderedDict()

    def add(
        self, account: tuple[str, str], now: float, input_tokens: int = 0, output_tokens: int = 0
    ) -> UsageWindow:
        window = self._windows.get(account)
        if window is None or not 0 <= now - window.since < _MINUTE:
            window = self._windows[account] = UsageWindow(now)
            if len(self._windows) > _ACCOUNTS:
                self._windows.popitem(last=False)
        self._windows.move_to_end(account)
        window.requests += 1
        window.input += input_tokens
        window.output += output_tokens
        return window
