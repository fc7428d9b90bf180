"""Blocks that came, went or changed places: tools by their names, messages by what they say."""

from __future__ import annotations

import re
from collections import Counter
from itertools import takewhile

from anaphora.rendered import Chunk, Kind, Rendered

from .blocks import block_of
from .values import ChangeKind

#: How far ahead a message is looked for.
_AHEAD = 2000

#: What opens the list of messages.
_LEAD = re.compile(rb'^"(?:messages|input|contents)"\s*:\s*\[')


def tools_changed(earlier: Rendered, later: Rendered) -> tuple[ChangeKind, str] | None:
    """What happened to the list of tools; None when each is where it was."""
    was, now = _tools(earlier), _tools(later)
    gone = [name for name in was if name not in now]
    new = [name for name in now if name not in was]
    if new and gone:
        return "tool_removed", f"{_named(gone)}; {_named(new)} came instead"
    if new:
        return "tool_added", _named(new)
    if gone:
        return "tool_removed", _named(gone)
    if was != now:
        at = next(at for at, (one, two) in enumerate(zip(was, now, strict=False)) if one != two)
        return "tool_moved", f"{was[at]} from place {at} to {now.index(was[at])}"
    return None


def _tools(rendered: Rendered) -> list[str]:
    names = [
        run.label(at).removeprefix("tool ")
        for run in rendered.runs
        if run.section == "tools"
        for at in range(run.count)
    ]
    # Two of one name are two tools.
    return [
        f"{name} ({names[:at].count(name) + 1})" if name in names[:at] else name
        for at, name in enumerate(names)
    ]


def _named(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown


def moved_part(
    earlier: Rendered, later: Rendered, before: Chunk, after: Chunk
) -> tuple[ChangeKind, str] | None:
    """A block of the system prompt that came, went or stands elsewhere."""
    if before.section != after.section:
        if after.section == "system":
            return "block_added", after.label
        return ("block_removed", before.label) if before.section == "system" else None
    if before.section != "system":
        return None
    was, now = _system(earlier, before.index), _system(later, after.index)
    return _shift(was, now, ("block_added", "block_removed", "block_moved"), before, after)


def moved_message(
    earlier: Rendered, later: Rendered, before: Chunk, after: Chunk
) -> tuple[ChangeKind, str] | None:
    """A message that went, came, or stands elsewhere; None when it is the same one, edited."""
    was, now = _said(earlier, before.index), _said(later, after.index)
    return _shift(was, now, ("message_added", "message_dropped", "message_moved"), before, after)


def _shift(
    was: list[bytes],
    now: list[bytes],
    kinds: tuple[ChangeKind, ChangeKind, ChangeKind],
    before: Chunk,
    after: Chunk,
) -> tuple[ChangeKind, str] | None:
    """Both lists begin where the prompts part. Only what was said once tells where it went."""
    added, dropped, moved = kinds
    if was[0] == now[0]:
        return None
    said, says = Counter(was), Counter(now)
    stays = said[was[0]] == 1 == says[was[0]]
    known = said[now[0]] == 1 == says[now[0]]
    if stays and known:
        return moved, before.label
    if stays:
        return added, after.label
    if known:
        return dropped, before.label
    # Neither is found again: an edit, unless what comes next stands nearer or farther than it did.
    places = {block: at for at, block in enumerate(was) if said[block] == 1}
    for at, block in enumerate(now):
        if says[block] == 1 and block in places:
            if places[block] == at:
                return None
            return (dropped, before.label) if places[block] > at else (added, after.label)
    return None


def _system(rendered: Rendered, first: int) -> list[bytes]:
    chunks = (rendered.chunk(index) for index in range(first, len(rendered)))
    return [block_of(chunk).raw for chunk in takewhile(lambda c: c.section == "system", chunks)]


def _said(rendered: Rendered, first: int) -> list[bytes]:
    last = min(len(rendered), first + _AHEAD)
    return [_identity(rendered.chunk(index)) for index in range(first, last)]


def _identity(chunk: Chunk) -> bytes:
    """What a block says, and nothing of where it stands. A result is known by its call, which on
    some wires is named outside of the block."""
    block = block_of(chunk)
    if chunk.kind is not Kind.TOOL_RESULT:
        return block.raw
    return _LEAD.sub(b"", block.outer).rstrip(b"]}")
