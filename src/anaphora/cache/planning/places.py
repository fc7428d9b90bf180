"""Where a marker could go, and what it would be good for."""

from __future__ import annotations

import msgspec

from anaphora.rendered import Rendered, Run
from anaphora.values import SegmentRole


class Places(msgspec.Struct, frozen=True):
    """Blocks that may carry a marker; None where there is no such block."""

    tail: int | None
    """The last block of the history that the next turn can reuse."""
    frozen: int | None
    """The end of what stays until the next compaction."""
    shared: int | None
    """The end of what other conversations begin with, too: tools, identity, guides."""
    first: int | None
    """The end of what is hashed first, which outlives a change of what follows."""


_NOWHERE = Places(None, None, None, None)


def places(rendered: Rendered) -> Places:
    """Costs the number of runs, and a few steps back from each place."""
    if not rendered.markers:
        return _NOWHERE
    tail = shared = leading = None
    first = 0
    for run in rendered.runs:
        last = min(run.count, rendered.cacheable - first) - 1
        if last >= 0:
            found = _markable(run, last)
            if found is not None:
                if run.section != "messages" or run.role is SegmentRole.STABLE_PREFIX:
                    leading = first + found if leading is None else leading
                    shared = first + found
                elif rendered.messages_cacheable:
                    tail = first + found
        first += run.count
    frozen = None
    if rendered.frozen is not None and rendered.frozen < rendered.cacheable:
        run, at = rendered.locate(rendered.frozen)
        found = _markable(run, at)
        frozen = None if found is None else rendered.frozen - at + found
    return Places(tail, frozen, shared, leading)


def stable_end(rendered: Rendered) -> int | None:
    """The last block before the conversation begins, whether or not it takes a marker."""
    count = 0
    for run in rendered.runs:
        if run.section == "messages" and run.role is not SegmentRole.STABLE_PREFIX:
            break
        count += run.count
    return min(count, rendered.cacheable) - 1 if count else None


def _markable(run: Run, position: int) -> int | None:
    """The block at a position of the run, or the nearest before it that takes a marker."""
    splices = run.log.splices
    while position >= 0:
        if splices[position] >= 0:
            return position
        position -= 1
    return None
