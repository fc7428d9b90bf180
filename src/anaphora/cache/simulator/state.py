"""What a simulator remembers, what bills show of it, and how it is saved for another process."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import msgspec

from anaphora.catalog import CacheRules, LookbackUnit

from .handles import HandleSimulator
from .markers import MarkerCache
from .prefixes import PrefixCache
from .prompt import ScopedKeys
from .saved import SavedCache
from .slot_predictor import SlotPredictor, TemplateStats
from .slots import SlotCache
from .view import PromptView


class SimulatedCaches(HandleSimulator):
    """The caches of one model at one provider."""

    def __init__(
        self,
        rules: CacheRules,
        *,
        lookback_unit: LookbackUnit | None,
        slots: int,
        most: int | None,
    ) -> None:
        super().__init__(rules)
        self._keys = ScopedKeys(rules)
        self._marked, self._unmarked = _caches(rules, lookback_unit, slots, most)
        """For requests with markers and without. Where a provider has a cache for each (Qwen,
        MiniMax), neither reads what the other wrote; elsewhere they are one."""
        self._template_stats = TemplateStats()

    def __len__(self) -> int:
        entries = sum(map(len, {self._marked, self._unmarked}))
        return entries + len(self._keys) + super().__len__()

    @property
    def lifetime(self) -> float | None:
        """Seconds that a prompt without markers can be read after its last use, which bills may
        show to be other than the rules say; None where the provider has no such cache."""
        return self._unmarked.lifetime if isinstance(self._unmarked, PrefixCache) else None

    @lifetime.setter
    def lifetime(self, seconds: float) -> None:
        if isinstance(self._unmarked, PrefixCache):
            self._unmarked.lifetime = seconds

    @property
    def replies_cached(self) -> bool | None:
        """Whether a reply can be read with its prompt, which bills may show to be other than the
        rules say; None: as they say."""
        return self._unmarked.replies_cached if isinstance(self._unmarked, PrefixCache) else None

    @replies_cached.setter
    def replies_cached(self, cached: bool | None) -> None:
        if isinstance(self._unmarked, PrefixCache):
            self._unmarked.replies_cached = cached

    def slot_predictor(self) -> SlotPredictor | None:
        """For one conversation on a self-hosted server; None at other providers."""
        slots = isinstance(self._marked, SlotCache)
        return SlotPredictor(self._template_stats) if slots else None

    def billed(self, share: float) -> None:
        """Learns from a bill which share of the last call's input was read: it shows how many slots
        a self-hosted server has. Other caches follow their rules."""
        if isinstance(self._marked, SlotCache):
            self._marked.billed(share)

    def save(self, prompt: PromptView, before: SavedCache, *, scope: Hashable = "") -> SavedCache:
        """What is cached of a prompt that was called, for `restore` in another process. `before` is
        the result for the previous call of the conversation."""
        key_of, saved = self._keys.of(prompt, scope), before
        for cache in dict.fromkeys((self._marked, self._unmarked)):
            saved = cache.save(prompt, key_of, saved)
        return msgspec.structs.replace(saved, template=self._template_stats.save())

    def restore(self, prompt: PromptView, saved: SavedCache, *, scope: Hashable = "") -> None:
        """Adds what another process saved. What is known here stays as it is."""
        key_of = self._keys.of(prompt, scope)
        for cache in dict.fromkeys((self._marked, self._unmarked)):
            cache.restore(prompt, key_of, saved)
        self._keys.remember(prompt, scope)
        self._template_stats.restore(saved.template)


def _caches(
    rules: CacheRules, lookback_unit: LookbackUnit | None, slots: int, most: int | None
) -> tuple[Any, Any]:
    automatic = rules.automatic_breakpoint.value
    takes_markers = rules.mechanism.value != "implicit" and rules.slots.value > 0
    if automatic == "slots":
        cache: Any = SlotCache(slots)
    elif not takes_markers and automatic != "none":
        cache = PrefixCache(rules, most)
    else:
        cache = MarkerCache(rules, lookback_unit, most)
        if rules.mechanism.value == "both" and automatic in ("granules", "units"):
            return cache, PrefixCache(rules, most)
    return cache, cache
