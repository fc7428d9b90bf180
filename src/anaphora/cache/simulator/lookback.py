"""Where a request's markers look for entries, by the less common readings of the rules."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from anaphora.catalog import CacheRules, LookbackUnit
from anaphora.rendered import Kind, Mark

from .view import PromptView

_RUN_KINDS = (Kind.TOOL_CALL, Kind.TOOL_RESULT)


def tool_run_positions(prompt: PromptView, position: int, reach: int) -> Iterator[int]:
    """The positions from a marker back, where a run of tool calls or results counts as one step."""
    steps = 0
    last: Kind | None = None
    while position >= 0:
        kind = prompt.kind(position)
        if kind not in _RUN_KINDS or kind is not last:
            steps += 1
            if steps > reach:
                return
        last = kind
        yield position
        position -= 1


def lookback_steps(kinds: Iterable[Kind], unit: LookbackUnit) -> int:
    """How many steps a look-back takes over these blocks, from the marker back."""
    steps = 0
    last: Kind | None = None
    for kind in kinds:
        if unit != "tool_runs" or kind not in _RUN_KINDS or kind is not last:
            steps += 1
        last = kind
    return steps


def request_boundaries(rules: CacheRules, prompt: PromptView, marks: tuple[Mark, ...]) -> list[int]:
    """The boundaries of the request itself, deepest first: its first and latest markers, and where
    the provider places breakpoints itself, the ends of earlier turns and of the system prompt."""
    explicit = [marker.chunk for marker in prompt.markers]
    first = rules.lookback_first.value if rules.lookback_first is not None else 0
    latest = rules.lookback_positions.value if rules.lookback_positions is not None else 0
    positions = set(explicit[:first]) | set(explicit[-latest:] if latest else ())
    if prompt.automatic is not None:
        positions |= {marker.chunk for marker in marks}
        earlier = rules.automatic_lookback.value if rules.automatic_lookback is not None else 0
        # The latest turn end is where the provider's own breakpoint is.
        positions |= set(itertools.islice(prompt.turn_ends(), earlier + 1)) | {prompt.leading}
    return sorted(positions - {-1}, reverse=True)


def automatic_position(rules: CacheRules, prompt: PromptView) -> int | None:
    """Where the provider places its own breakpoint."""
    where = rules.automatic_breakpoint.value
    if where == "last_message":
        end = next(prompt.turn_ends(), prompt.leading)
        return end if end >= 0 else None
    if where != "last_block":
        return None
    position = len(prompt) - 1
    while position >= 0 and not prompt.can_mark(position):
        position -= 1
    return position if position >= 0 else None
