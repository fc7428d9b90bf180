"""Finds the first difference of two prompts, and its kind, from the structure of the blocks."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from anaphora.cache.prefix_difference import common_length, first_difference
from anaphora.cache.sent_call import SentCall, cached_chunks
from anaphora.rendered import Chunk, Kind, Rendered
from anaphora.rendered.chunks import NOT_KEPT_LABEL, is_placeholder

from .json_blocks import (
    UNREADABLE,
    JsonBlock,
    block_of,
    chunk_at,
    excerpt,
    volatile_change,
    without_whitespace,
)
from .values import Change

_MISSING: Any = object()
#: How many blocks ahead a message is searched for.
_AHEAD = 2000
#: Bytes of a block whose JSON is compared; a longer one is compared as a whole.
_LONGEST = 512 * 1024
#: New blocks of a turn.
_FEW = 16
#: The kinds of change of a block or message: added, removed, moved.
_MOVES = {
    "system": ("block_added", "block_removed", "block_moved"),
    "messages": ("message_added", "message_dropped", "message_moved"),
}
#: The opening of the list of messages.
_LEAD = re.compile(rb'^"(?:messages|input|contents)"\s*:\s*\[')


def find_change(earlier: SentCall, later: SentCall) -> Change | None:
    """The first byte that differs in the part that the earlier call may have cached; None if the
    later call begins with all of it."""
    offset = first_difference(earlier.rendered, later.rendered, cached_chunks(earlier))
    return None if offset is None else change_at(earlier.rendered, later.rendered, offset)


def change_at(earlier: Rendered, later: Rendered, offset: int) -> Change:
    """The change that begins at this byte of the two prompts."""
    before = chunk_at(earlier, offset)
    after = chunk_at(later, offset) if offset < later.size else None
    found = _classify(earlier, later, before, after)
    gone = found.kind.endswith(("_removed", "_dropped", "_gone"))
    place = before if after is None or gone else after
    return Change(
        kind=found.kind,
        offset=offset,
        chunk=before.index,
        section=place.section,
        label=place.label,
        path=_field_path(place.path, found.path, members=found.members),
        before=NOT_KEPT_LABEL
        if is_placeholder(before.data)
        else excerpt(earlier, offset, in_text=found.character is not None),
        after=excerpt(later, offset, in_text=found.character is not None),
        detail=found.name,
        character=found.character,
    )


class _Found(NamedTuple):
    kind: str
    path: str = ""
    """The field inside the block."""
    name: str = ""
    """The name of the tool, block or message that was added, removed or moved."""
    character: int | None = None
    members: bool = False
    """The path is that of a member of the message, not of the block."""


def _field_path(block: str, inside: str, *, members: bool) -> str:
    """The path of a field. `members`: it is not in the block but in the message around it, or in
    the body, as a text that is not in a list of blocks."""
    if not members or not inside:
        return block + inside
    message, _, _ = block.rpartition(".")
    root = re.split(r"[.\[]", block, maxsplit=1)[0]
    inside = re.sub(rf"^\.{root}(?:\[0\])?(?=[.\[])", "", inside)
    return (message + inside).removeprefix(".")


def _classify(earlier: Rendered, later: Rendered, before: Chunk, after: Chunk | None) -> _Found:
    if "tools" in (before.section, after.section if after is not None else ""):
        changed = _tools_changed(earlier, later)
        if changed is not None:
            return _Found(changed[0], name=changed[1])
    if after is None:
        removed = _MOVES.get(before.section, _MOVES["system"])[1]
        return _Found(removed, name=before.label)
    if max(len(before.data), len(after.data)) > _LONGEST:
        return _Found("block_changed")
    one, two = block_of(before), block_of(after)
    image = _image_changed(earlier, later, before, after, one, two)
    if image is not None:
        return _Found(image, name=(before if image == "image_gone" else after).label)
    moved = _moved(earlier, later, before, after)
    if moved is not None:
        return _Found(moved[0], name=moved[1])
    if is_placeholder(before.data):
        return _Found("block_changed")
    if one.raw == two.raw:  # the same block in a message that opens differently
        found = _json_change(one.outer, two.outer, one.whole, two.whole)
        return found._replace(members=True)
    found = _json_change(one.raw, two.raw, one.value, two.value)
    return found._replace(members=_is_message(after, two))


def _is_message(chunk: Chunk, block: JsonBlock) -> bool:
    """Whether a block is a whole message or item, or a member of one: not in a list of blocks."""
    if block.raw[:1] != b"{":
        return True
    if chunk.section == "tools" or not chunk.path.endswith("[0]"):
        return False
    return _LEAD.sub(b"", block.outer).removesuffix(b"]") == block.raw


def _tools_changed(earlier: Rendered, later: Rendered) -> tuple[str, str] | None:
    """The kind of change and the names of tools; None if no tool was added, removed or moved."""
    was, now = _tool_names(earlier), _tool_names(later)
    known, present = set(was), set(now)
    gone = [name for name in was if name not in present]
    new = [name for name in now if name not in known]
    if new and gone:
        return "tool_removed", f"{joined_names(gone)}; {joined_names(new)} added instead"
    if new:
        return "tool_added", joined_names(new)
    if gone:
        return "tool_removed", joined_names(gone)
    for index, (one, two) in enumerate(zip(was, now, strict=False)):
        if one != two:
            return "tool_moved", f"{one} from position {index} to {now.index(one)}"
    return None


def _tool_names(rendered: Rendered) -> list[str]:
    """The names of all tools; repeated names are numbered."""
    names: list[str] = []
    seen: Counter[str] = Counter()
    for run in rendered.runs:
        if run.section == "tools":
            for index in range(run.count):
                name = run.label(index).removeprefix("tool ")
                seen[name] += 1
                names.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return names


def changed_tool_fields(earlier: Rendered, later: Rendered) -> tuple[str, ...]:
    """The fields in which the tools of two prompts differ; none if they are not the same tools."""
    names = _tool_names(later)
    if not names or names != _tool_names(earlier):
        return ()
    fields: dict[str, None] = {}
    for was, now in zip(_tool_values(earlier), _tool_values(later), strict=False):
        changed = (name for name in {**was, **now} if was.get(name, ...) != now.get(name, ...))
        fields.update(dict.fromkeys(changed))
    return tuple(fields)


def _tool_values(rendered: Rendered) -> Iterator[dict[str, Any]]:
    """The fields of each tool, those of its function among them, while their text is known."""
    first = 0
    for run in rendered.runs:
        for index in range(run.count) if run.section == "tools" and run.log.has_text else ():
            value = block_of(rendered.chunk(first + index)).value
            value = value if isinstance(value, dict) else {}
            function = value.pop("function", None)
            yield {**value, **function} if isinstance(function, dict) else value
        first += run.count


def joined_names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown


def _moved(
    earlier: Rendered, later: Rendered, before: Chunk, after: Chunk
) -> tuple[str, str] | None:
    """A message or system block that was added, removed or moved, and its name; None if it was
    edited. Only contents that occur once can be located."""
    if before.section != after.section:
        if after.section == "system":
            return "block_added", after.label
        return ("block_removed", before.label) if before.section == "system" else None
    if before.section == "tools":
        return None
    if _edited_alone(earlier, later, before, after):
        return None
    added, dropped, moved = _MOVES[before.section]
    was, now = _contents(earlier, before), _contents(later, after)
    if was[0] == now[0]:
        return None
    old_counts, new_counts = Counter(was), Counter(now)
    stays = old_counts[was[0]] == 1 == new_counts[was[0]]
    known = old_counts[now[0]] == 1 == new_counts[now[0]]
    if stays and known:
        return moved, before.label
    if stays:
        return added, after.label
    if known:
        return dropped, before.label
    # Neither occurs again: an edit, unless the following blocks have moved.
    positions = {block: index for index, block in enumerate(was) if old_counts[block] == 1}
    for index, block in enumerate(now):
        if new_counts[block] == 1 and block in positions:
            if positions[block] == index:
                return None
            return (dropped, before.label) if positions[block] > index else (added, after.label)
    return None


def _contents(rendered: Rendered, first: Chunk) -> list[bytes]:
    """The contents of this block and those after it in its section, without their position. A tool
    result is identified by its call, which on some wires is named outside of the block."""
    contents = []
    for index in range(first.index, min(len(rendered), first.index + _AHEAD)):
        chunk = rendered.chunk(index)
        if chunk.section != first.section:
            break
        contents.append(_content(chunk))
    return contents


def _content(chunk: Chunk) -> bytes:
    if len(chunk.data) > _LONGEST:
        return chunk.data
    block = block_of(chunk)
    if chunk.kind is Kind.TOOL_RESULT:
        return _LEAD.sub(b"", block.outer).rstrip(b"]}")
    return block.raw


def _edited_alone(earlier: Rendered, later: Rendered, before: Chunk, after: Chunk) -> bool:
    """Whether all blocks after this one in the earlier prompt also follow it in the later one,
    which then has a few more at most: found without reading any of them."""
    (one, first), (two, second) = earlier.locate(before.index), later.locate(after.index)
    if one is not earlier.runs[-1] or two is not later.runs[-1]:
        return False
    behind = one.count - first - 1
    new = two.count - second - 1 - behind
    if not 0 <= new <= _FEW or not behind:
        return False
    was, now = one.log, two.log
    start, begin = was.ends[first], now.ends[second]
    ends = [end - start for end in was.ends[first + 1 : one.count]]
    if ends != [end - begin for end in now.ends[second + 1 : second + 1 + behind]]:
        return False
    if was.slice(start, start + ends[-1]) != now.slice(begin, begin + ends[-1]):
        return False
    last = range(len(later) - new, len(later))
    return not new or _content(before) not in [_content(later.chunk(index)) for index in last]


def _image_changed(
    earlier: Rendered, later: Rendered, before: Chunk, after: Chunk, one: JsonBlock, two: JsonBlock
) -> str | None:
    """An image that was added or removed, as a block of its own or inside of one."""
    if (before.kind is Kind.IMAGE) != (after.kind is Kind.IMAGE):
        return "image_added" if after.kind is Kind.IMAGE else "image_gone"
    if Kind.IMAGE is before.kind is after.kind:
        old, new = _image_blocks(earlier), _image_blocks(later)
        if two.raw not in old and one.raw in new:
            return "image_added"
        return "image_gone" if one.raw not in new and two.raw in old else None
    was, now = _images_in(one.value), _images_in(two.value)
    if len(was) == len(now):
        return None
    # Only if nothing else differs: an edited message may also have lost an image.
    if _without_images(one.value) == _without_images(two.value) or not was or not now:
        return "image_added" if len(now) > len(was) else "image_gone"
    return None


def _image_blocks(rendered: Rendered) -> set[bytes]:
    return {block_of(chunk).raw for chunk in rendered if chunk.kind is Kind.IMAGE}


def _is_image(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    if value.get("type") in ("image", "image_url", "input_image"):
        return True
    data = value.get("inlineData") or value.get("inline_data")
    return isinstance(data, dict) and str(data.get("mimeType", "")).startswith("image/")


def _images_in(value: Any) -> list[Any]:
    if _is_image(value):
        return [value]
    own: list[Any] = []
    inner = value if isinstance(value, list) else []
    if isinstance(value, dict):
        own = value["images"] if isinstance(value.get("images"), list) else []
        inner = [value[name] for name in value if name != "images"]
    return [*own, *(image for item in inner for image in _images_in(item))]


def _without_images(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_images(value[name]) for name in value if name != "images"}
    if isinstance(value, list):
        return [_without_images(item) for item in value if not _is_image(item)]
    return value


def _json_change(one: bytes, two: bytes, was: Any, now: Any) -> _Found:
    """From the raw JSON of a block and its value."""
    if was is UNREADABLE or now is UNREADABLE:
        return _Found("text_edited")
    try:
        leaf = _first_leaf(was, now, "")
    except RecursionError:
        return _Found("value_changed")
    if leaf is None:
        same = without_whitespace(one) == without_whitespace(two)
        return _Found("whitespace" if same else "spelling")
    path, old, new = leaf
    if isinstance(old, str) and isinstance(new, str):
        return _Found(_text_change(old, new), path, character=common_length(old, new))
    if isinstance(old, dict) and isinstance(new, dict):
        return _Found("key_order", path)
    if isinstance(old, list) and isinstance(new, list):
        return _Found("order", path)
    return _Found("counter" if _is_number(old) and _is_number(new) else "value_changed", path)


def _first_leaf(was: Any, now: Any, path: str) -> tuple[str, Any, Any] | None:
    """The first value that differs, in the order of the JSON: a text or number, an object whose
    keys, or a list whose items, are in another order. None if none differs."""
    if isinstance(was, dict) and isinstance(now, dict):
        return _first_member(was, now, path)
    if isinstance(was, list) and isinstance(now, list):
        for index, (one, two) in enumerate(zip(was, now, strict=False)):
            if (leaf := _first_leaf(one, two, f"{path}[{index}]")) is not None:
                return (path, was, now) if _same_items(was, now) else leaf
        longer = len(was) != len(now)
        return (f"{path}[{min(len(was), len(now))}]", _MISSING, _MISSING) if longer else None
    same = was == now and isinstance(was, bool) == isinstance(now, bool)
    return None if same else (path, was, now)


def _first_member(
    was: dict[str, Any], now: dict[str, Any], path: str
) -> tuple[str, Any, Any] | None:
    for name, other in zip(was, now, strict=False):
        if name == other:
            leaf = _first_leaf(was[name], now[name], f"{path}.{name}")
            if leaf is not None:
                return leaf
        elif name in now and other in was:
            return path, was, now
        else:
            named = other if name in now else name
            return f"{path}.{named}", was.get(named, _MISSING), now.get(named, _MISSING)
    for named in [*was, *now][min(len(was), len(now)) :]:
        if named not in was or named not in now:
            return f"{path}.{named}", was.get(named, _MISSING), now.get(named, _MISSING)
    return None


def _same_items(was: list[Any], now: list[Any]) -> bool:
    return len(was) == len(now) and sorted(map(json.dumps, was)) == sorted(map(json.dumps, now))


def _text_change(old: str, new: str) -> str:
    if old.startswith(("{", "[")) and new.startswith(("{", "[")):  # as tool arguments are sent
        with suppress(ValueError, RecursionError):
            was, now = json.loads(old), json.loads(new)
            if was == now:
                return _json_change(old.encode(), new.encode(), was, now).kind
    if "".join(old.split()) == "".join(new.split()):
        return "whitespace"
    volatile = volatile_change(old, new)
    if volatile is not None:
        return volatile
    return "order" if sorted(old.splitlines()) == sorted(new.splitlines()) else "text_edited"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
