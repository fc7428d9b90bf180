"""Calibration: what earlier calls of a conversation were billed corrects the next estimate.

Two things are learnt from a bill. The prompt that was billed is known to the token from then on,
so what extends it is only unsure in what is new. And the growth from one bill to the next says how
many tokens this conversation's text really makes.
"""

from __future__ import annotations

import math

import msgspec

from .count import NOTHING, Count

#: How many bills and growths are remembered: enough to be steady, few enough to follow a change.
BILLS = 8
GROWTHS = 24

#: A growth counts in proportion to its tokens, but a long turn for no more than this.
_HEAVIEST = 500

#: The catalog's error counts as much as this many growths.
_PRIOR = 5


class Growth(msgspec.Struct, frozen=True):
    """Tokens billed for each one estimated, from one call to the next."""

    ratio: float
    estimated: int

    @property
    def weight(self) -> int:
        return min(self.estimated, _HEAVIEST)


class Prefix(msgspec.Struct, frozen=True):
    """The beginning of a prompt, and how to know it again."""

    chunks: int
    size: int
    digest: bytes


class Bill(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt that was billed, and the part of it that the next turn should begin with."""

    prompt: Prefix
    total: Count
    kept: Prefix
    tail: Count
    """What stands in the prompt behind `kept`, as it was estimated."""
    knobs: bytes
    """Parameters that may cost tokens of their own: with others, the bill is of another prompt."""

    def shortened(self) -> Bill:
        """The bill of what was kept: not quite exact, since nobody billed the tail apart."""
        return msgspec.structs.replace(
            self, prompt=self.kept, total=self.total - self.tail, tail=NOTHING
        )


class Calibration(msgspec.Struct, frozen=True):
    """What the bills of one conversation teach. Immutable; `Counts.billed` gives the next one."""

    basis: tuple[str, ...] = ()
    """Wire, model and method: what the ratios are true of."""
    bills: tuple[Bill, ...] = ()
    """Newest last; each is of a prompt that the newest begins with."""
    growths: tuple[Growth, ...] = ()

    @property
    def ratio(self) -> float:
        """Tokens billed for each estimated one: the weighted median of the growths and of what the
        catalog says, which counts a little more than the heaviest. So the first bill corrects
        nothing, two that agree do, and one odd call among others does not."""
        heaviest = max((growth.weight for growth in self.growths), default=0)
        known = [(growth.ratio, growth.weight) for growth in self.growths]
        half = (sum(weight for _, weight in known) + heaviest + 1) / 2
        below = 0
        for ratio, weight in sorted([*known, (1.0, heaviest + 1)]):
            below += weight
            if below >= half:
                return ratio
        raise AssertionError("all weights together are more than half of them")

    def error(self, prior: float) -> float:
        """How far off a corrected estimate may be, as a share, nine times in ten.

        Growths were off by as much, never counting the oddest of them, and the ratio itself is as
        unsure as the median of so many. `prior` counts as that of a few growths more.
        """
        ratio, seen = self.ratio, len(self.growths)
        if seen < 3:
            return prior
        off = sorted(abs(growth.ratio / ratio - 1) for growth in self.growths)
        spread = off[min(math.ceil(0.9 * (seen + 1)), seen - 1) - 1]
        spread *= 1 + 1 / math.sqrt(seen)
        return (_PRIOR * prior + seen * spread) / (_PRIOR + seen)

    def learnt(self, growth: Growth) -> Calibration:
        """With one more growth; the oldest goes when there are many."""
        growths = (*self.growths, growth)[-GROWTHS:]
        return msgspec.structs.replace(self, growths=growths)
