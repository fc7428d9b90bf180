"""What an app's earlier calls left at the provider, and how often each beginning is used."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable

from anaphora.cache.simulator import Outcome, Prompt, Simulator
from anaphora.catalog import CacheRules

from .gaps import SOME, Gaps
from .prices import Lifetimes

#: Beginnings whose use is remembered.
_MOST = 4096
#: Prefixes that may be read again. Where every block is one, they are 60 conversations of 300
#: blocks; where only markers are, one or two come with each call, and mostly the last one is read.
_BLOCKS, _MARKERS = 20_000, 10_000
#: Conversations at once from which it is learned how long they go on.
_TALKING = 1024
#: A conversation that was not heard of for so long has ended, as far as one can tell.
_SILENCE = 600.0


class AppMemory:
    """One provider, model and account: shared by all conversations there. Bounded."""

    def __init__(self, rules: CacheRules) -> None:
        self.rules = rules
        by_itself = rules.automatic_breakpoint.value in ("granules", "units")
        self.lifetimes = Lifetimes(rules)
        self.simulator = Simulator(rules, most=_BLOCKS if by_itself else _MARKERS)
        self._shared: OrderedDict[Hashable, Gaps] = OrderedDict()
        self._talking: OrderedDict[int, float] = OrderedDict()
        """Conversations that may go on, and when each was last heard of; some of them, if there
        are many: they are only counted."""
        self._lately: deque[float] = deque(maxlen=_MOST)
        self._begun = 0
        self._went_on = 0
        self._ended = 0

    def begin(self) -> int:
        """The number of a new conversation."""
        self._begun += 1
        return self._begun

    def usual(self) -> float:
        """How many calls a conversation has here: how often one went on for each that ended."""
        return 1 + (self._went_on + SOME) / (self._ended + 1)

    def per_minute(self, at: float) -> int:
        """Calls of the last minute."""
        while self._lately and self._lately[0] < at - 60:
            self._lately.popleft()
        return len(self._lately)

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

    def call(
        self,
        prompt: Prompt,
        shared: int | None,
        conversation: int,
        at: float,
        began: float | None,
    ) -> Outcome:
        """Notes a call of a conversation, and plays it."""
        self._lately.append(at)
        self.per_minute(at)
        self._heard_of(conversation, at)
        if shared is not None:
            self.uses(prompt.key(shared)).use(at)
        return self.simulator.call(prompt, at=at, began=began)

    def _heard_of(self, conversation: int, at: float) -> None:
        talking = self._talking
        while talking and at - next(iter(talking.values())) > _SILENCE:
            talking.popitem(last=False)
            self._ended += 1
        if conversation in talking:
            self._went_on += 1
        elif len(talking) >= _TALKING:
            return
        talking[conversation] = at
        talking.move_to_end(conversation)
