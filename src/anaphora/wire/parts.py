"""Code for parts and replies that several wires share: arguments, extras, unknown fields, usage,
notices for extras of other wires, and a whole reply as the events of a stream."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from anaphora.canonical import string
from anaphora.catalog import Profile
from anaphora.errors import InvalidRequest
from anaphora.prompt import Call, PromptBlock
from anaphora.rendered import ChunkRun, Kind, LogAppend
from anaphora.rendered.log import Piece
from anaphora.values import (
    Bytes,
    Extras,
    Message,
    Notice,
    Opaque,
    Part,
    Reply,
    Section,
    Source,
    StopReason,
    Thinking,
    Tool,
    ToolResult,
    Usage,
    WriteTtl,
)
from anaphora.values.codec import check_object, is_object

from .reading import (
    DECODE_ERRORS,
    Members,
    decode_members,
    encode_members,
    object_members,
    request_error,
)
from .replies import positive_counts

R = TypeVar("R")


def notices_below(notices: Iterable[Notice], place: str) -> list[Notice]:
    """The notices with their paths below `place`."""
    return [
        msgspec.structs.replace(notice, path=f"{place}.{notice.path}" if notice.path else place)
        for notice in notices
    ]


def encode_at(
    path: str, encode: Callable[..., R], part: object, notices: list[Notice], *args: object
) -> R:
    """Call `encode` with a part, notices and further arguments; notices and errors get the path."""
    own: list[Notice] = []
    try:
        encoded = encode(part, own, *args)
    except InvalidRequest as problem:
        raise problem.within(path) from None
    if own:
        notices += notices_below(own, path)
    return encoded


def object_arguments(text: str, notices: list[Notice]) -> bytes:
    """A call's arguments for a wire that accepts only an object. Other text, which a model may
    write, is wrapped in one."""
    if is_object(text):
        return text.encode()
    if not text.strip():
        return b"{}"
    why = "the call's arguments are not a JSON object; sent as text in invalid_arguments"
    notices.append(Notice("arguments_not_an_object", why, "arguments"))
    try:
        return b'{"invalid_arguments":' + string(text) + b"}"
    except InvalidRequest as problem:
        raise problem.within("arguments") from None


def bare_members(json: str, path: str) -> bytes:
    """The members of a JSON object without its braces."""
    return check_object(json, path=path).strip()[1:-1].strip().encode()


def extra_members(extras: Extras | None, wire: str) -> bytes:
    """The extras of that wire, as members of an object without its braces."""
    if extras is None or wire not in extras:
        return b""
    return bare_members(extras[wire], f"extras.{wire}")


def merged(block: bytes, extras: Extras | None, wire: str) -> bytes:
    """An object with the extras of that wire as further members, also inside objects of it."""
    if extras is None or wire not in extras:
        return block
    path = f"extras.{wire}"
    return merge_fields(block, check_object(extras[wire], path=path).encode(), path)


def merge_fields(field: bytes, extra: bytes | msgspec.Raw, path: str) -> bytes:
    """Merge two objects. A member in both is an error, unless it is an object itself."""
    if field[:1] == b"{" and bytes(extra).lstrip()[:1] == b"{":
        whole = object_members(field, path, request_error)
        more = object_members(extra, path, request_error)
        for name in sorted(whole.keys() & more.keys()):
            more[name] = msgspec.Raw(merge_fields(bytes(whole[name]), more[name], f"{path}.{name}"))
        return encode_members({**whole, **more})
    raise InvalidRequest("the call already sets this; remove one of them", path=path)


def own_members(extras: Extras | None, wire: str) -> Members:
    """The extras of that wire by name."""
    if extras is None or wire not in extras:
        return {}
    return decode_members(check_object(extras[wire], path=f"extras.{wire}"))


def following(members: Members) -> bytes:
    """Members with a leading comma."""
    return b"," + encode_members(members)[1:-1] if members else b""


def own_usage(usage: Usage, read: Callable[[bytes], Usage]) -> bytes | None:
    """The provider's own usage object, if it has the same counts on this wire."""
    try:
        if usage.raw is not None and read(usage.raw.encode()) == usage:
            return usage.raw.encode()
    except DECODE_ERRORS:
        pass
    return None


def own_stop(reply: Reply, read: Callable[[str], StopReason]) -> str | None:
    """The provider's own stop reason, if it means the same on this wire."""
    raw = reply.stop_reason_raw
    return raw if raw is not None and read(raw) == reply.stop_reason else None


def partition(
    total: int | None, read: int | None, written: Mapping[WriteTtl, int] | None
) -> tuple[int | None, int | None, Mapping[WriteTtl, int] | None, int]:
    """Uncached, read, written, and how many tokens were counted twice.

    Some hosts count written tokens as read as well, so that the parts exceed the whole. The excess
    is subtracted from the written tokens, then from the read ones.
    """
    if total is None:
        return None, read, written, 0
    uncached = total - (read or 0) - sum((written or {}).values())
    if uncached >= 0:
        return uncached, read, written, 0
    surplus = overlap = -uncached
    if written:
        written = dict(written)
        for ttl in reversed(written):
            less = min(surplus, written[ttl])
            written[ttl] -= less
            surplus -= less
        written = positive_counts(written)
    return 0, None if read is None else read - surplus, written, overlap


def check_part(part: object, known: Container[type]) -> None:
    if type(part) not in known:
        name = type(part).__name__
        raise InvalidRequest(f"{name} is not a part; use Text, Image, ToolCall, ToolResult, …")


def check_image(source: Source) -> None:
    if isinstance(source, Bytes) and not source.media_type.startswith("image/"):
        raise InvalidRequest(
            f"{source.media_type!r} is not an image type; use a Document", path="source.media_type"
        )


def unknown_role(role: str, path: str = "role") -> InvalidRequest:
    return InvalidRequest(f"{role!r} is not a role; use system, user, assistant or tool", path=path)


def opaque_json(
    part: Opaque, notices: list[Notice], owners: tuple[str, ...], host: str
) -> bytes | None:
    """The JSON of a part of one of these providers; None for any other."""
    if part.provider in owners:
        return check_object(part.json, path="json").encode()
    why = f"a {part.kind} block of {part.provider} is unknown to {host}; left out"
    notices.append(Notice("foreign_block", why))
    return None


def render_items(
    section: Section, items: tuple[R, ...], encode: Callable[[R], bytes], splice: int | None
) -> LogAppend:
    """The items of a section, each a chunk; an error names the item. Providers refuse a marker on a
    blank text."""
    append = LogAppend()
    kind = Kind.TOOL if section == "tools" else Kind.SYSTEM
    for index, item in enumerate(items):
        try:
            data = encode(item)
        except InvalidRequest as problem:
            raise problem.within(f"{section}[{index}]") from None
        blank = isinstance(item, PromptBlock) and not item.text.strip()
        append.chunk(kind, b"," + data if index else data, None if blank else splice)
    return append


def with_deferred(run: ChunkRun, pieces: list[Piece]) -> list[Piece]:
    """The pieces of a run with its deferred tools at their positions, after markers."""
    placed = [(run.log.start(tool.before), tool.data) for tool in run.deferred]
    merged: list[Piece] = []
    for piece in pieces[:-1]:
        if isinstance(piece, bytes):
            merged.append(piece)
            continue
        log, begin, end = piece
        while placed and (placed[0][0] < end or piece is pieces[-2]):
            offset, data = placed.pop(0)
            merged += (log, begin, offset), data
            begin = offset
        merged.append((log, begin, end))
    return [*merged, pieces[-1]]


def leading_results(
    parts: Sequence[Part], is_fields: Callable[[Part], bool], notices: list[Notice]
) -> Iterator[tuple[int, ToolResult]]:
    """The tool results of a message and their positions, for wires that send them before all other
    parts. `is_fields`: whether a part holds fields of the message, and so has no position."""
    behind_other = False
    for index, part in enumerate(parts):
        if not isinstance(part, ToolResult):
            behind_other = behind_other or not is_fields(part)
            continue
        if behind_other:
            why = "tool results come first here"
            notices.append(Notice("parts_reordered", why, f"parts[{index}]"))
        yield index, part


# ── Unknown fields of a message ───────────────────────────────────────────────────────────────────
#
# They are kept in an opaque part, of a kind that only their own wire reads.


def fields_part(wire: str, kind: str, members: Members) -> list[Part]:
    """The part that holds these fields; none if there are none."""
    return [Opaque(wire, kind, encode_members(members).decode())] if members else []


def is_fields_part(part: Part, wires: tuple[str, ...], kind: str) -> bool:
    return isinstance(part, Opaque) and part.kind == kind and part.provider in wires


def fields_in_parts(parts: Iterable[Part], wires: tuple[str, ...], kind: str) -> bytes:
    """The fields that these parts hold, as members of an object without its braces."""
    members: Members = {}
    for part in parts:
        if isinstance(part, Opaque) and is_fields_part(part, wires, kind):
            members |= decode_members(check_object(part.json, path="json"))
    return encode_members(members)[1:-1] if members else b""


# ── Extras of other wires ─────────────────────────────────────────────────────────────────────────
#
# They are left out, with a notice. Extras are named after their wire. A name with a dot
# (`openai.system`) records a form of the wire without any content, except for the fields of a
# Responses item and of a system message of Chat. Ids, states and empty values give no notice.

#: Ids, states and positions that providers add to their output.
_BOOKKEEPING: dict[str, frozenset[str]] = {
    "openai_responses": frozenset({"id", "status"}),
    "openai_responses.item": frozenset({"id", "status", "phase"}),
    "openai_chat": frozenset({"index"}),
    "openai_chat.message": frozenset(),
}

_EMPTY = (b"null", b"[]")


def foreign_extras(extras: Extras | None, wire: str, path: str) -> list[Notice]:
    """One notice for each other wire whose extras have content."""
    notices = []
    for name, text in (extras or {}).items():
        owner = name.partition(".")[0]
        if owner == wire or ("." in name and name not in _BOOKKEEPING):
            continue
        if fields := _field_names(name, text):
            place = f"{path}.{name}" if path else name
            notices.append(Notice("foreign_fields", f"{fields} of {owner}: left out", place))
    return notices


def system_blocks_of(call: Call, profile: Profile) -> tuple[PromptBlock, ...]:
    """The blocks of the system prompt; in requests rendered as sent also blank ones."""
    blocks = call.ir.all_system_blocks()
    return blocks if blocks and profile.as_sent else call.ir.system_field_blocks()


def system_block_index(call: Call, index: int, profile: Profile) -> int | None:
    """The index of a system block among those that are sent."""
    if not profile.as_sent:
        return call.ir.system_field_index(index)
    return index if 0 <= index < len(call.ir.all_system_blocks()) else None


def foreign_sections(call: Call, wire: str) -> list[Notice]:
    """The notices for tools and system blocks."""
    notices: list[Notice] = []
    for index, tool in enumerate(call.tools):
        if type(tool) is Tool and tool.extras is not None:
            notices += foreign_extras(tool.extras, wire, f"tools[{index}].extras")
    for index, block in enumerate(call.ir.system_field_blocks()):
        if block.extras is not None:
            notices += foreign_extras(block.extras, wire, f"system[{index}].extras")
    return notices


def has_extras(part: Part) -> bool:
    """Whether a part, or a part inside it, may have extras; nearly none has."""
    if isinstance(part, ToolResult):
        return part.extras is not None or not isinstance(part.content, str)
    return getattr(part, "extras", None) is not None


def note_foreign_fields(append: LogAppend, message: Message, wire: str, place: str) -> None:
    """Adds the notices for the parts of the message that is being added."""
    for index, part in enumerate(message.parts):
        if has_extras(part):
            for notice in _part_notices(part, wire, f"{place}.parts[{index}]"):
                append.notice(notice)


def _part_notices(part: Part, wire: str, path: str) -> list[Notice]:
    if isinstance(part, (Thinking, Opaque)):
        return []  # left out as a whole, with a notice of its own
    notices = foreign_extras(part.extras, wire, f"{path}.extras")
    if isinstance(part, ToolResult) and not isinstance(part.content, str):
        for index, inner in enumerate(part.content):
            notices += _part_notices(inner, wire, f"{path}.content[{index}]")
    return notices


def _field_names(name: str, text: str) -> str:
    """The names of the fields with content."""
    try:
        members = decode_members(text)
    except DECODE_ERRORS:
        return "fields"
    known = _BOOKKEEPING.get(name, frozenset())
    return ", ".join(
        field for field, raw in members.items() if field not in known and bytes(raw) not in _EMPTY
    )


# ── A whole reply as events ───────────────────────────────────────────────────────────────────────
