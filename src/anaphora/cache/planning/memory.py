"""What an app's earlier calls left at the provider, and how often each beginning is used."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from anaphora.cache.simulator import Outcome, Prompt, Simulator
from anaphora.catalog import CacheRules

from .gaps import Gaps

#: Beginnings whose use is remembered.
_MOST = 4096


class AppMemory:
    """One provider, model and account: shared by all conversations there. Bounded."""

    def __init__(self, rules: CacheRules) -> None:
        self.rules = rules
        self.simulator = Simulator(rules)
        self._shared: OrderedDict[Hashable, Gaps] = OrderedDict()

    def uses(self, key: Hashable) -> Gaps:
        """How a beginning is used by all conversations that share it."""
        gaps = self._shared.get(key)
        if gaps is None:
            gaps = self._shared[key] = Gaps()
            if len(self._shared) > _MOST:
                self._shared.popitem(last=False)
        else:
            self._shared.move_to_end(key)
        return gaps

    def call(self, prompt: Prompt, shared: int | None, at: float, began: float | None) -> Outcome:
        if shared is not None:
            self.uses(prompt.key(shared)).use(at)
        return self.simulator.call(prompt, at=at, began=began)
