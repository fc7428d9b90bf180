"""Which of several predictions of a read has fitted the bills so far, and how often a read falls
short.

What a call reads can be predicted in more than one way: what the previous call left, that and its
reply, the beginning alone, nothing. The rules name one of them. The history counts how often each
would have been right in the same situation, and names another one where the bills have shown it.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

ReadClass: TypeAlias = Literal["hit", "partial", "miss"]
"""Whether all, some or none of what the previous call left in the cache was read."""

#: The prediction that no other may be behind: a call reads what the previous one left.
KEPT = "kept"
#: What the rules say counts like so many bills.
_PRIOR = 40.0
#: A prediction is ahead of another by so many standard deviations, and one right call more.
_DEVIATIONS = 1.5
#: What an earlier bill counts beside the next one.
_FADING = 0.98


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
    """The bills of one situation."""

    def __init__(self) -> None:
        self.bills = 0.0
        self._exact: dict[str, float] = {}
        self._alike: dict[str, float] = {}
        """How often a prediction was right to the token, and in its class."""
        self._won: dict[tuple[str, str], float] = {}
        """How often one prediction was better than another."""
        self.expected = self.missed = self.cut_short = self.part = 0.0

    def add(self, candidates: Mapping[str, int], read: int) -> None:
        kept = candidates.get(KEPT, 0)
        happened = read_class(read, kept)
        for counts in (self._exact, self._alike, self._won):
            for key in counts:
                counts[key] *= _FADING
        self.bills = self.bills * _FADING + 1
        points: dict[str, int] = {}
        for name, tokens in candidates.items():
            exact, alike = tokens == read, read_class(tokens, kept) == happened
            self._exact[name] = self._exact.get(name, 0.0) + exact
            self._alike[name] = self._alike.get(name, 0.0) + alike
            points[name] = exact + alike
        for name, better in points.items():
            for other, worse in points.items():
                if better > worse:
                    self._won[name, other] = self._won.get((name, other), 0.0) + better - worse

    def fall_short(self, expected: int, read: int) -> None:
        """A call that was expected to read so many tokens read so many."""
        if not expected:
            return
        missed, cut_short = not read, 0 < read < expected
        self.expected = self.expected * _FADING + 1
        part = read / expected if cut_short else 0.0
        self.missed = self.missed * _FADING + missed
        self.cut_short = self.cut_short * _FADING + cut_short
        self.part = self.part * _FADING + part

    def is_ahead(self, name: str, other: str) -> bool:
        """By more than chance would have it."""
        won, lost = self._won.get((name, other), 0.0), self._won.get((other, name), 0.0)
        return won - lost > 1 + _DEVIATIONS * math.sqrt(won + lost)

    def is_behind(self, name: str, other: str) -> bool:
        return self._won.get((name, other), 0.0) < self._won.get((other, name), 0.0)

    def is_safe(self, name: str) -> bool:
        """Not behind what the previous call left, neither in tokens nor in classes."""
        return all(
            counts.get(name, 0.0) >= counts.get(KEPT, 0.0) for counts in (self._exact, self._alike)
        )

    def best(self, candidates: Mapping[str, int], default: str) -> str:
        best = KEPT if KEPT in candidates and self.is_ahead(KEPT, default) else default
        for name in candidates:
            if self.is_safe(name) and self.is_ahead(name, best):
                best = name
        return best


class ReadHistory:
    """The bills of one provider entry."""

    def __init__(self) -> None:
        self._counts: dict[Hashable, _Counts] = {}

    def choose(
        self, situations: Sequence[Hashable], candidates: Mapping[str, int], default: str
    ) -> str:
        """The prediction to make. `situations` describe the call, the closest first: the bills of a
        wider one count as long as those of the closer ones do not speak against them."""
        closer: list[_Counts] = []
        for situation in situations:
            counts = self._counts.get(situation)
            if counts is not None:
                best = counts.best(candidates, default)
                if best != default and not any(one.is_behind(best, default) for one in closer):
                    return best
                closer.append(counts)
        return default

    def shortfall(self, situations: Sequence[Hashable], stated: Shortfall) -> Shortfall:
        """How often a read falls short in such a situation, by the rules and by the bills."""
        share = stated
        for situation in reversed(situations):
            counts = self._counts.get(situation)
            if counts is not None:
                bills = counts.expected + _PRIOR
                cut = share.cut_short * _PRIOR + counts.cut_short
                part = share.part * share.cut_short * _PRIOR + counts.part
                share = Shortfall(
                    missed=(share.missed * _PRIOR + counts.missed) / bills,
                    cut_short=cut / bills,
                    part=part / cut if cut else 0.0,
                )
        return share

    def learn(
        self,
        situations: Sequence[Hashable],
        candidates: Mapping[str, int],
        expected: int,
        read: int,
    ) -> None:
        """A call in these situations read so many tokens; `expected` was predicted."""
        for situation in situations:
            counts = self._counts.setdefault(situation, _Counts())
            counts.add(candidates, read)
            counts.fall_short(expected, read)
