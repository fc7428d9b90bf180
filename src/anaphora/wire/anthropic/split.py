"""Cuts an Anthropic request into chunks of its own bytes.

Nothing is normalised: key order and the spelling of numbers and strings stay, so that a cache is
billed, and a miss explained, by what was sent. Only markers are taken out (they become marks), and
white space between the members of a block.
"""

from __future__ import annotations

import functools

import msgspec

from anaphora.errors import InvalidRequest
from anaphora.rendered import DeferredTool, Kind, Rendered
from anaphora.values import Section
from anaphora.wire.body_memory import SplitInput
from anaphora.wire.reading import (
    Members,
    Unknown,
    converts_errors,
    encode_members,
    known_text,
    list_elements,
    object_members,
    request_error,
)
from anaphora.wire.splitting import (
    BEFORE_BRACE,
    PARAM_SETS,
    RequestSplit,
    SplitBlock,
    SplitMessage,
    SplitSection,
    cut_section,
    required_text,
)

from .inner_blocks import Marks, holds_blocks, take_inner_marks
from .messages import RoleWithFields
from .params import MARKERS, PARAMS, PATH, take_marker
from .parts import placed
from .render import CLOSE, WIRE_ROLES, joins, opening
from .types import MARKABLE_OPAQUE, MEMO, WIRE

_KINDS = {
    "text": Kind.TEXT,
    "image": Kind.IMAGE,
    "document": Kind.DOCUMENT,
    "tool_use": Kind.TOOL_CALL,
    "tool_result": Kind.TOOL_RESULT,
    "thinking": Kind.THINKING,
    "redacted_thinking": Kind.THINKING,
}
_MARKABLE = {"text", "image", "document", "tool_use", "tool_result", *MARKABLE_OPAQUE}
_cache_params = MEMO.remember(PARAM_SETS)(PARAMS.sent_cache_params)


@converts_errors(request_error)
def split(
    body: SplitInput,
    headers: tuple[tuple[str, str], ...] = (),
    path: str = "",  # noqa: ARG001
) -> Rendered:
    """The request as chunks, with the markers it carries as the caller's marks."""
    request = RequestSplit(MEMO, body)
    model = request.take_model()
    request.add_section("tools", request.take("tools"), functools.partial(_split_section, "tools"))
    request.add_section(
        "system", request.take("system"), functools.partial(_split_section, "system")
    )
    messages = request.add_messages(
        request.take_elements("messages"),
        _split_message,
        lead=b'"messages":[',
        glue=lambda _: b"]},",
        close=lambda _: CLOSE,
        joins=joins,
    )
    if messages is None:
        raise InvalidRequest("at least one message with content is needed", path="$.messages")
    automatic = take_marker(request.members, "$", request_error)
    envelope = request.envelope(model, PATH, headers, _cache_params)
    return request.finish(
        msgspec.structs.replace(envelope, binds_thinking=True),
        wire=WIRE,
        model=model,
        markers=MARKERS,
        request_markers=MARKERS,
        automatic=automatic[0] if automatic is not None else None,
    )


def _split_section(section: Section, raw: bytes) -> SplitSection | None:
    """The tools or system blocks of a request."""
    if raw[:1] == b'"' and section == "system":
        raw = b'[{"type":"text","text":' + raw + b"}]"
    blocks: list[SplitBlock] = []
    labels: list[str] = []
    deferred: list[DeferredTool] = []
    paths: list[str] = []
    elements = list_elements(raw, f"$.{section}", request_error)
    read = [_unmarked(each, f"$.{section}[{index}]") for index, each in enumerate(elements)]
    tools = section == "tools"
    # Where all are deferred, which the provider rejects, they are compared as any others.
    may_defer = tools and not all(_is_deferred(members) for members, _ in read)
    for index, (members, marks) in enumerate(read):
        name = known_text(members, "name") if tools else ""
        if may_defer and _is_deferred(members):
            deferred.append(placed(name, len(blocks), encode_members(members)))
            continue
        labels.append(f"tool {name}" if name else f"{section}{index}")
        splice = BEFORE_BRACE if tools or not _is_blank_block(members) else None
        blocks.append(SplitBlock(Kind.OTHER, encode_members(members), splice, marks))
        paths.append(f"{section}[{index}]")
    lead = b'"%b":[' % section.encode()
    if not deferred:
        return cut_section(section, blocks, labels, lead=lead, close=b"],")
    cut = cut_section(section, blocks, labels, lead=lead, close=b"],", paths=tuple(paths))
    if cut is None:
        return None
    return msgspec.structs.replace(cut[0], deferred=tuple(deferred)), cut[1]


def _is_deferred(members: Members) -> bool:
    return bytes(members.get("defer_loading", b"")) == b"true"


def _split_message(raw: msgspec.Raw, path: str) -> SplitMessage:
    members = object_members(raw, path, request_error)
    role = required_text(members, "role", path)
    if "content" not in members:
        raise request_error("is missing", f"{path}.content")
    del members["role"]
    content = members.pop("content")
    if role not in WIRE_ROLES:
        raise request_error(f"{role!r} is not a role here", f"{path}.role")
    if members and (rest := Unknown(dict(members)).remaining()):
        role = RoleWithFields(role, encode_members(rest)[1:-1])
    if bytes(content)[:1] == b'"':
        text = b'{"type":"text","text":' + bytes(content) + b"}"
        splice = None if _is_blank(bytes(content)) else BEFORE_BRACE
        return SplitMessage(role, opening(role), [SplitBlock(Kind.TEXT, text, splice)])
    path = f"{path}.content"
    elements = enumerate(list_elements(content, path, request_error))
    blocks = [_split_block(block, f"{path}[{index}]") for index, block in elements]
    return SplitMessage(role, opening(role), blocks)


def _split_block(raw: msgspec.Raw, path: str) -> SplitBlock:
    members, marks = _unmarked(raw, path)
    kind = required_text(members, "type", path)
    if holds_blocks(kind, members):
        marks = [*take_inner_marks(members, path, request_error), *marks]
    splice = BEFORE_BRACE if kind in _MARKABLE and not _is_blank_block(members) else None
    return SplitBlock(_KINDS.get(kind, Kind.OTHER), encode_members(members), splice, marks)


def _is_blank_block(members: Members) -> bool:
    """A text block without text, on which the provider rejects a marker."""
    return known_text(members, "type") == "text" and _is_blank(bytes(members.get("text", b"")))


def _is_blank(text: bytes) -> bool:
    # Decoded only where it does not begin with a letter or the like.
    if b"!" <= text[1:2] <= b"~" and text[1:2] not in b'"\\':
        return False
    return not known_text({"text": msgspec.Raw(text)}, "text").strip()


def _unmarked(raw: msgspec.Raw, path: str) -> tuple[Members, Marks]:
    """The members of a block without its marker. A block has the same bytes with and without one:
    it is always written anew."""
    members = object_members(raw, path, request_error)
    marker = take_marker(members, path, request_error)
    return members, [] if marker is None else [(None, marker[0])]
