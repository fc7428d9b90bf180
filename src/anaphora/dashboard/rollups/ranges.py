"""A range of time as whole steps of which sums are kept, and the remainders at its ends."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from .filling import FillState
from .schema import HOUR, MINUTE, QUARTER, STEPS


class Piece(msgspec.Struct, frozen=True):
    """Part of a range."""

    step: int
    """0: the calls themselves."""
    since: float
    until: float


def pieces(since: float, until: float, within: int, state: FillState) -> list[Piece]:
    """`within`: each step must be part of one such longer step."""
    found: list[Piece] = []
    if state.calls_since and since <= state.calls_since:  # hours, as their calls are not kept
        kept = (state.calls_since // HOUR + 1) * HOUR
        end = min(math.ceil(until / HOUR) * HOUR, kept)
        # Minutes are only used where there are no hours yet.
        longer = [step for step in STEPS if step > HOUR and within % step == 0]
        hours = [MINUTE, HOUR, *longer]
        found, since = _split(since // HOUR * HOUR, end, hours, state), kept
    return found + _split(since, until, [step for step in STEPS if within % step == 0], state)


def whole_pieces(since: float, until: float, state: FillState) -> list[Piece]:
    """The range widened to whole steps."""
    first, last = (MINUTE if at >= state.minutes_since else HOUR for at in (since, until))
    since = math.floor(since / first) * first
    until = math.ceil(until / last) * last
    return [*_split(since, until, list(STEPS), state)]


def _split(since: float, until: float, steps: Sequence[int], state: FillState) -> list[Piece]:
    if since >= until:
        return []
    if not steps:
        return [Piece(0, since, until)]
    step, finer = steps[-1], steps[:-1]
    if step > MINUTE and until > state.longer_until:
        kept = min(max(state.longer_until, since), until)
        minutes = [each for each in steps if each == MINUTE]
        return [*_split(since, kept, steps, state), *_split(kept, until, minutes, state)]
    if step in (MINUTE, QUARTER) and since < state.minutes_since < until:
        kept = state.minutes_since
        return [*_split(since, kept, (), state), *_split(kept, until, steps, state)]
    begin, end = math.ceil(since / step) * step, math.floor(until / step) * step
    if begin >= end or (step in (MINUTE, QUARTER) and until <= state.minutes_since):
        return _split(since, until, finer, state)
    return [
        *_split(since, begin, finer, state),
        Piece(step, begin, end),
        *_split(end, until, finer, state),
    ]
