"""Steps of cached lengths that bills have shown, if they contradict a row of the catalog.

    steps = LearnedSteps()
    rules = steps.begin("api.openai.com", row)                    for a conversation that begins
    steps.learn("api.openai.com", rules, read, conversation=7)    with each of its bills
    steps.learned                                                 what differs from the catalog

A row is a prior. It is replaced if enough positive reads of a model at a host, in several
conversations, have lengths that it does not allow: from the next conversation on, by the coarsest
steps in the catalog, of any provider, that fit all reads. A read of nothing has many causes, and is
ignored. Prices, lifetimes, slots and isolation do not change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from typing import NamedTuple

import msgspec

from anaphora import catalog
from anaphora.bounded import BoundedMap
from anaphora.catalog import CacheRules

#: How many reads must contradict a row, and of how many conversations.
READS, CONVERSATIONS = 20, 3
#: The minimum share of reads that contradict: if steps are half the size, every other read still
#: fits.
_SHARE = 0.25
#: Models at hosts whose reads are remembered.
_MOST_PLACES = 4096


class LearnedRow(msgspec.Struct, frozen=True, kw_only=True):
    """The reads of a model at a host, by its bills."""

    provider: str
    model: str
    host: str
    granule_tokens: int
    granule_offset: int
    minimum_tokens: int
    text: str
    """A sentence with these figures and the catalog's."""


class Steps(NamedTuple):
    granule: int
    offset: int

    @classmethod
    def of(cls, rules: CacheRules) -> Steps:
        return cls(rules.granule_tokens.value, rules.offset)

    def allow(self, read: int) -> bool:
        """Whether a read may have this length."""
        return (read + self.offset) % self.granule == 0

    def __str__(self) -> str:
        return f"{self.granule:,} less {self.offset:,}" if self.offset else f"{self.granule:,}"


class LearnedSteps:
    """The reads of models at hosts, and the rules learned from them. Bounded."""

    def __init__(
        self,
        granularities: Callable[[], tuple[tuple[int, int], ...]] = lambda: (
            catalog.shipped().granularities
        ),
    ) -> None:
        """`granularities` returns the known granules and offsets, the largest first; called when a
        row has been contradicted."""
        self._granularities = granularities
        self._reads = BoundedMap[tuple[Hashable, str, str], _Reads](_MOST_PLACES)

    def begin(self, host: Hashable, row: CacheRules) -> CacheRules:
        """The rules of a conversation that begins now; `row` is the model's in the catalog. The
        conversation keeps them to its end."""
        reads = self._reads.get((host, row.provider, row.model))
        if reads is None or not reads.contradict:
            return row
        if reads.row is not row and reads.row != row:
            reads.use(row)
        return self._rules(reads)

    def learn(
        self, host: Hashable, rules: CacheRules, read: int | None, *, conversation: Hashable
    ) -> None:
        """Learns from the bill of a call, which was predicted before. `rules` are the catalog's, or
        those that its conversation began with."""
        if not read or read < 0:
            return
        key = host, rules.provider, rules.model
        reads = self._reads.use(key)
        if reads is None:
            reads = self._reads[key] = _Reads(rules)
        reads.add(read, conversation)

    @property
    def learned(self) -> tuple[LearnedRow, ...]:
        """The models whose bills contradict the catalog, in the order of the last bills."""
        rows = []
        for (host, provider, model), reads in self._reads.items():
            if not reads.contradict:
                continue
            rules = self._rules(reads)
            rows.append(
                LearnedRow(
                    provider=provider,
                    model=model,
                    host=host if isinstance(host, str) else "",
                    granule_tokens=rules.granule_tokens.value,
                    granule_offset=rules.offset,
                    minimum_tokens=rules.minimum_tokens.value,
                    text=_text(reads.row, rules),
                )
            )
        return tuple(rows)

    def _rules(self, reads: _Reads) -> CacheRules:
        """The row with the steps that fit all reads: its own, if only its minimum does not."""
        row = reads.row
        if reads.rules is None:
            steps = Steps.of(row)
            if not reads.fit(steps):
                known = (Steps(*each) for each in self._granularities())
                steps = next((each for each in known if reads.fit(each)), Steps(1, 0))
            minimum = min(row.minimum_tokens.value, reads.least)
            text = _text(row, row.with_granules(*steps, minimum, source="learned"))
            reads.rules = row.with_granules(*steps, minimum, source=text)
        return reads.rules


class _Reads:
    """All positive reads of a model at a host: in which steps they come."""

    row: CacheRules
    rules: CacheRules | None
    """The row with the steps of the reads so far; None: not known yet."""

    def __init__(self, row: CacheRules) -> None:
        self.use(row)
        self.least = 0
        self._first = 0
        self._common = 0
        """The greatest common divisor of their differences."""
        self._count = self._unfit = 0
        self._conversations: set[Hashable] = set()
        """Conversations with reads that do not fit the row, as many as are needed."""

    @property
    def contradict(self) -> bool:
        """Whether the reads contradict the row."""
        enough = self._unfit >= READS and len(self._conversations) >= CONVERSATIONS
        return enough and self._unfit >= _SHARE * self._count

    def use(self, row: CacheRules) -> None:
        """The catalog's row of the model; another one if the wire or the catalog has changed."""
        self.row, self.rules = row, None
        self._steps, self._minimum = Steps.of(row), row.minimum_tokens.value

    def add(self, read: int, conversation: Hashable) -> None:
        if not self._count:
            self._first = self.least = read
        self._count += 1
        common = math.gcd(self._common, abs(read - self._first))
        if common != self._common or read < self.least:
            self._common, self.least, self.rules = common, min(self.least, read), None
        if read < self._minimum or not self._steps.allow(read):
            self._unfit += 1
            if len(self._conversations) < CONVERSATIONS:
                self._conversations.add(conversation)

    def fit(self, steps: Steps) -> bool:
        """Whether every read may come in these steps."""
        return self._common % steps.granule == 0 and steps.allow(self._first)


def _text(row: CacheRules, rules: CacheRules) -> str:
    """learned: reads come in steps of 512 less 128; the catalog says 2,048"""
    steps, stated = Steps.of(rules), Steps.of(row)
    least, minimum = rules.minimum_tokens.value, row.minimum_tokens.value
    learned, catalogued = [], []
    if steps != stated:
        any_length = steps.granule == 1
        learned.append("reads have any length" if any_length else f"reads come in steps of {steps}")
        catalogued.append(f"steps of {stated}" if any_length else str(stated))
    if least != minimum:
        learned.append(f"from {least:,} tokens on" if learned else f"reads begin at {least:,}")
        catalogued.append(f"from {minimum:,} on" if catalogued else f"{minimum:,}")
    return f"learned: {', '.join(learned)}; the catalog says {', '.join(catalogued)}"
