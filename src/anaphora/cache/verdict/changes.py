"""What kind of difference it is, found from the structure of the two blocks."""

from __future__ import annotations

import json
from typing import Any

from anaphora.rendered import Chunk, Kind, Rendered

from .blocks import UNREADABLE, Block, bare, block_of
from .comparing import excerpt
from .patterns import volatile_change
from .sequences import moved_message, moved_part, tools_changed
from .values import Change, ChangeKind

_MISSING: Any = object()


def change_at(earlier: Rendered, later: Rendered, offset: int) -> Change:
    """The change that begins at this byte of the two prompts."""
    before = earlier.chunk(earlier.at_offset(offset))
    after = later.chunk(later.at_offset(offset)) if offset < later.size else None
    kind, inside, detail = _kind(earlier, later, before, after)
    place = before if after is None or kind.endswith(("_removed", "_dropped", "_gone")) else after
    return Change(
        kind=kind,
        offset=offset,
        chunk=before.index,
        section=place.section,
        label=place.label,
        path=place.path + inside,
        before=excerpt(earlier, offset),
        after=excerpt(later, offset),
        detail=detail,
    )


def _kind(
    earlier: Rendered, later: Rendered, before: Chunk, after: Chunk | None
) -> tuple[ChangeKind, str, str]:
    """The kind, the path inside the block, and what has a name."""
    if "tools" in (before.section, after.section if after is not None else ""):
        found = tools_changed(earlier, later)
        if found is not None:
            return found[0], "", found[1]
    if after is None:
        gone = "message_dropped" if before.section == "messages" else "block_removed"
        return gone, "", before.label  # type: ignore[return-value]
    one, two = block_of(before), block_of(after)
    pictured = _image(earlier, later, before, after, one, two)
    if pictured is not None:
        return pictured, "", ""
    if before.section == after.section == "messages":
        moved = moved_message(earlier, later, before, after)
    else:
        moved = moved_part(earlier, later, before, after)
    if moved is not None:
        return moved[0], "", moved[1]
    kind, inside = _inside(one, two)
    return kind, inside, ""


def _image(
    earlier: Rendered, later: Rendered, before: Chunk, after: Chunk, one: Block, two: Block
) -> ChangeKind | None:
    """An image that came or went, as a block of its own or inside of one."""
    if (before.kind is Kind.IMAGE) != (after.kind is Kind.IMAGE):
        return "image_added" if after.kind is Kind.IMAGE else "image_gone"
    if Kind.IMAGE is before.kind is after.kind:
        return _other_image(earlier, later, one, two)
    was, now = _pictures(one.value), _pictures(two.value)
    if len(was) == len(now):
        return None
    # Only where nothing else differs: an edited message may have lost an image besides.
    if _pictureless(one.value) == _pictureless(two.value) or not was or not now:
        return "image_added" if len(now) > len(was) else "image_gone"
    return None


def _other_image(earlier: Rendered, later: Rendered, one: Block, two: Block) -> ChangeKind | None:
    """Of several images, one that is nowhere any more is gone, and one that was nowhere is new."""
    was, now = _image_blocks(earlier), _image_blocks(later)
    if two.raw not in was and one.raw in now:
        return "image_added"
    if one.raw not in now and two.raw in was:
        return "image_gone"
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


def _pictures(value: Any) -> list[Any]:
    if _is_image(value):
        return [value]
    if isinstance(value, dict):
        own = value.get("images")
        listed = own if isinstance(own, list) else []
        return [*listed, *(p for name in value if name != "images" for p in _pictures(value[name]))]
    return [p for item in value for p in _pictures(item)] if isinstance(value, list) else []


def _pictureless(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _pictureless(value[name]) for name in value if name != "images"}
    if isinstance(value, list):
        return [_pictureless(item) for item in value if not _is_image(item)]
    return value


# ── Inside a block ───────────────────────────────────────────────────────────────────────────────


def _inside(one: Block, two: Block) -> tuple[ChangeKind, str]:
    if one.raw == two.raw:
        # The same block in a message that opens otherwise.
        return _raw_kind(one.outer, two.outer, one.whole, two.whole)
    return _raw_kind(one.raw, two.raw, one.value, two.value)


def _raw_kind(one: bytes, two: bytes, was: Any, now: Any) -> tuple[ChangeKind, str]:
    if was is UNREADABLE or now is UNREADABLE:
        return "text_edited", ""
    if was == now:
        if bare(one) == bare(two):
            return "whitespace", ""
        same = json.dumps(was) == json.dumps(now)
        return ("spelling" if same else "key_order"), ""
    path, old, new = _leaf(was, now, "")
    if isinstance(old, str) and isinstance(new, str):
        return _text_kind(old, new), path
    if isinstance(old, list) and isinstance(new, list):
        return "order", path
    if _is_number(old) and _is_number(new):
        return "counter", path
    return "value_changed", path


def _leaf(was: Any, now: Any, path: str) -> tuple[str, Any, Any]:
    """The first place in which two values differ."""
    if isinstance(was, dict) and isinstance(now, dict):
        for name in [*was, *(name for name in now if name not in was)]:
            one, two = was.get(name, _MISSING), now.get(name, _MISSING)
            if one is _MISSING or two is _MISSING:
                return f"{path}.{name}", one, two
            if one != two:
                return _leaf(one, two, f"{path}.{name}")
    if isinstance(was, list) and isinstance(now, list):
        if _same_items(was, now):
            return path, was, now
        for index, (one, two) in enumerate(zip(was, now, strict=False)):
            if one != two:
                return _leaf(one, two, f"{path}[{index}]")
        shorter = min(len(was), len(now))
        return f"{path}[{shorter}]", _MISSING, _MISSING
    return path, was, now


def _same_items(was: list[Any], now: list[Any]) -> bool:
    return len(was) == len(now) and sorted(map(json.dumps, was)) == sorted(map(json.dumps, now))


def _text_kind(old: str, new: str) -> ChangeKind:
    """How one text became the other."""
    stored = _json_kind(old, new)
    if stored is not None:
        return stored
    if "".join(old.split()) == "".join(new.split()):
        return "whitespace"
    found = volatile_change(old, new)
    if found is not None:
        return found
    if sorted(old.splitlines()) == sorted(new.splitlines()):
        return "order"
    return "text_edited"


def _json_kind(old: str, new: str) -> ChangeKind | None:
    """Of two texts that hold the same JSON (arguments are sent as text)."""
    if old[:1] not in ("{", "[") or new[:1] not in ("{", "["):
        return None
    try:
        was, now = json.loads(old), json.loads(new)
    except (ValueError, RecursionError):
        return None
    return _raw_kind(old.encode(), new.encode(), was, now)[0] if was == now else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
