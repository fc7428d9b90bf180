"""Compares several predictions of a read with the bills so far, and counts how often reads fall
short.

There are several predictions of what a call reads: what the previous call left, that and its reply,
only the beginning, nothing. The rules choose one of them. The history counts how often each was
right in the same situation, and chooses another one if the bills show that it is better.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from itertools import combinations
from typing import Literal, NamedTuple, TypeAlias

ReadClass: TypeAlias = Literal["hit", "partial", "miss"]
"""Whether all, some or none of what the previous call left in the cache was read."""

#: What the previous call left, in the catalog's steps. Reads are classified by comparison with it.
KEPT = "kept"
#: The reference, which no chosen prediction may be worse than: the same within the catalog's TTL.
CHAIN = "chain"
#: The weight of a share that the rules state, or a wider situation, in bills.
STATED = 4.0
#: A read of less than this share of the expected tokens is cut short.
WHOLE = 0.98
#: A prediction is ahead of another if it leads by so many standard deviations and one right call.
_DEVIATIONS = 2.0
#: The weight of a bill relative to the next one.
_FADING = 0.98
#: The same for statistics of the last few bills only.
_FORGETTING = 0.7


def read_class(read: int, kept: int) -> ReadClass:
    if not read:
        return "miss"
    return "hit" if read >= kept else "partial"


class Shortfall(NamedTuple):
    """How often a read that was expected falls short."""

    missed: float
    """The share of calls that read nothing."""
    cut_short: float
    """The share of calls that read a part."""
    part: float
    """The part of the expected tokens that such a call reads."""


class _Counts:
    """The bills of one situation. Later bills count more. A bill in which two predictions were
    equally good does not count in their comparison."""

    def __init__(self) -> None:
        self._won: dict[tuple[str, str], float] = {}
        """How often a prediction was better than another."""
        self._exact: dict[str, float] = {}
        self._alike: dict[str, float] = {}
        """A prediction's lead over the chain in right calls, to the token and in its class."""
        self._last: dict[str, float] = {}
        """How often it was right to the token in the last bills."""
        self.calls = 0
        self._expected = self._missed = self._cut_short = self._tokens = self._lost = 0.0

    def add(self, candidates: Mapping[str, int], expected: int, read: int) -> None:
        """A call read so many tokens; `expected` was predicted."""
        kept = candidates.get(KEPT, 0)
        happened = read_class(read, kept)
        exact = {name: tokens == read for name, tokens in candidates.items()}
        alike = {name: read_class(tokens, kept) == happened for name, tokens in candidates.items()}
        for name, right in exact.items():
            self._last[name] = self._last.get(name, 0.0) * _FORGETTING + right
        if CHAIN in candidates:
            _add_leads(self._exact, exact)
            _add_leads(self._alike, alike)
        for one, other in combinations(candidates, 2):
            ahead = exact[one] + alike[one] - exact[other] - alike[other]
            if ahead:
                won, lost = ((one, other), (other, one))[:: 1 if ahead > 0 else -1]
                self._won[won] = self._won.get(won, 0.0) * _FADING + 1
                self._won[lost] = self._won.get(lost, 0.0) * _FADING
        cut = 0 < read < WHOLE * expected
        self.calls += 1
        self._expected = self._expected * _FADING + (expected > 0)
        self._missed = self._missed * _FADING + (expected > 0 and not read)
        self._cut_short = self._cut_short * _FADING + cut
        self._tokens = self._tokens * _FADING + expected
        self._lost = self._lost * _FADING + cut * (expected - read)

    def is_ahead(self, name: str, other: str) -> bool:
        """Whether a prediction leads by more than chance."""
        won, lost = self._wins(name, other), self._wins(other, name)
        return won - lost > 1 + _DEVIATIONS * math.sqrt(won + lost)

    def is_behind(self, name: str, other: str) -> bool:
        return self._wins(name, other) < self._wins(other, name)

    def best(self, candidates: Mapping[str, int], default: str) -> str:
        """The best prediction that is not behind the chain, neither in tokens nor in classes."""
        best = CHAIN if CHAIN in candidates and self.is_behind(default, CHAIN) else default
        for name in candidates:
            safe = self._exact.get(name, 0.0) >= 0 and self._alike.get(name, 0.0) >= 0
            if safe and self.is_ahead(name, best):
                best = name
        return best

    def closest(self, candidates: Mapping[str, int], best: str) -> str:
        """Of the predictions of the same class, the one that was last right to the token. Whether a
        reply is read with its prompt is not random, so one bill shows it."""
        kept = candidates.get(KEPT, 0)
        alike = read_class(candidates[best], kept)
        for name, tokens in candidates.items():
            safe = self._exact.get(name, 0.0) >= 0 and read_class(tokens, kept) == alike
            if safe and self._last.get(name, 0.0) > self._last.get(best, 0.0):
                best = name
        return best

    def shortfall(self, stated: Shortfall) -> Shortfall:
        """How often reads fall short; `stated` counts like some bills."""
        bills = self._expected + STATED
        said, cut = stated.cut_short * STATED, self._cut_short
        part = max(0.0, 1 - self._lost / self._tokens * self._expected / cut) if cut else 0.0
        return Shortfall(
            missed=(stated.missed * STATED + self._missed) / bills,
            cut_short=(said + cut) / bills,
            part=(stated.part * said + part * cut) / (said + cut) if said + cut else 0.0,
        )

    def _wins(self, name: str, other: str) -> float:
        return self._won.get((name, other), 0.0)


def _add_leads(leads: dict[str, float], right: Mapping[str, bool]) -> None:
    """Add each prediction's lead over the chain."""
    for name, was in right.items():
        if was != right[CHAIN]:
            leads[name] = leads.get(name, 0.0) * _FADING + was - right[CHAIN]


class ReadHistory:
    """The bills of one provider entry."""

    def __init__(self) -> None:
        self._counts: dict[Hashable, _Counts] = {}

    def choose(
        self,
        situations: Sequence[Hashable],
        candidates: Mapping[str, int],
        default: str,
    ) -> str:
        """The prediction to use. `situations` describe the call, the most specific first: the bills
        of a wider one are used unless those of a more specific one contradict them."""
        known = [self._counts[one] for one in situations if one in self._counts]
        best = default
        for at, counts in enumerate(known):
            found = counts.best(candidates, default)
            if found != default and not any(one.is_behind(found, default) for one in known[:at]):
                best = found
                break
        if not known:
            return best
        last = known[0].closest(candidates, best)
        return best if any(one.is_behind(last, best) for one in known[1:]) else last

    def knows(self, situations: Sequence[Hashable]) -> bool:
        """Whether there was a bill in any of these situations."""
        return any(situation in self._counts for situation in situations)

    def shortfall(self, situations: Sequence[Hashable], stated: Shortfall) -> Shortfall:
        """How often a read falls short in such a situation, by the rules and by the bills."""
        wider = None
        for situation in reversed(situations):
            counts = self._counts.get(situation)
            if counts is not None and (wider is None or counts.calls < wider.calls):
                stated, wider = counts.shortfall(stated), counts
        return stated

    def learn(
        self,
        situations: Sequence[Hashable],
        candidates: Mapping[str, int],
        expected: int,
        read: int,
    ) -> None:
        """A call in these situations read so many tokens; `expected` was predicted."""
        for situation in situations:
            counts = self._counts.get(situation)
            if counts is None:
                counts = self._counts[situation] = _Counts()
            counts.add(candidates, expected, read)


#: Errors that a range needs, and the number of latest ones that it is computed from.
LEAST, _LATEST = 10, 200
#: The same of conversations: the least and the greatest of 19 errors hold nine in ten.
CONVERSATIONS = 19
#: The share of bills that a range should hold, and the initial target.
_SHARE, _AIM = 0.9, 0.93
#: How fast the target follows bills outside of their ranges.
_STEP = 0.02


class BillRange(NamedTuple):
    low: float
    high: float


class _Errors:
    """Billed amounts over predicted ones, as logarithms."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._latest: deque[float] = deque()
        self._sorted: list[float] = []
        self._aim = _AIM

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, error: float) -> None:
        if len(self) >= LEAST:
            low, high = self.spread()
            outside = not low <= error <= high
            self._aim = min(1.0, max(_SHARE, self._aim + _STEP * (outside - (1 - _AIM))))
        self._latest.append(error)
        insort(self._sorted, error)
        if len(self) > self._most:
            self._sorted.remove(self._latest.popleft())

    def spread(self) -> tuple[float, float]:
        """The shortest interval that holds the share."""
        errors, count = self._sorted, len(self)
        inside = min(count, math.ceil(self._aim * (count + 1)))
        starts = range(count - inside + 1)
        first = min(starts, key=lambda at: errors[at + inside - 1] - errors[at])
        return errors[first], errors[first + inside - 1]


class BillErrors:
    """The errors of the predicted bills of one provider entry: the latest `most` of them."""

    def __init__(self, most: int = _LATEST) -> None:
        self._most = most
        self._errors: dict[Hashable, _Errors] = {}

    def range_of(self, situations: Sequence[Hashable], predicted: float) -> BillRange | None:
        """Nine bills in ten are inside. `situations` describe the call, the closest first; the
        first one with enough errors counts. None if none has."""
        for situation in situations:
            errors = self._errors.get(situation)
            if errors is not None and len(errors) >= LEAST:
                low, high = errors.spread()
                return BillRange(predicted * math.exp(low), predicted * math.exp(high))
        return None

    def learn(self, situations: Sequence[Hashable], predicted: float, billed: float) -> None:
        if predicted > 0 and billed > 0:
            for situation in situations:
                errors = self._errors.setdefault(situation, _Errors(self._most))
                errors.add(math.log(billed / predicted))
