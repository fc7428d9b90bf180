"""Cuts a Chat Completions request into chunks of its own bytes."""

from __future__ import annotations

from functools import partial

import msgspec

from anaphora import catalog
from anaphora.canonical import string
from anaphora.errors import InvalidRequest
from anaphora.rendered import ChunkRun, Kind, Rendered
from anaphora.values import (
    Ttl,
)
from anaphora.wire.breakpoints import marker_in
from anaphora.wire.elements import SplitInput
from anaphora.wire.markers import DialectMarkers, marker_bytes, take_dialect_marker
from anaphora.wire.openai import body_order, profile_value
from anaphora.wire.parts import following
from anaphora.wire.reading import (
    Members,
    converts_errors,
    encode_members,
    known_text,
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
    cut_tools,
    required_text,
)
from anaphora.wire.walking import Walk, WalkedBlock

from .fields import TABLE
from .params import PARAMS
from .render import RoleWithEnd, close, ended, glue
from .types import (
    AUTOMATIC,
    MARKERS,
    MEMO,
    NULL,
    PATH,
    WIRE,
)

_RESULT_ROLES = ("tool", "function")

#: With OpenAI's breakpoints, and for a dialect that has none.
_WALK = Walk(TABLE)
_UNMARKED = Walk(msgspec.structs.replace(TABLE, marker=""))
_cache_params = MEMO.remember(PARAM_SETS)(PARAMS.sent_cache_params)


@converts_errors(request_error)
def split(
    body: SplitInput,
    headers: tuple[tuple[str, str], ...] = (),
    path: str = "",  # noqa: ARG001
    markers: DialectMarkers | None = None,
    provider: str = "openai",
) -> Rendered:
    """The request as chunks, with its breakpoints as marks. `markers` are those of a dialect."""
    request = RequestSplit(MEMO, body)
    model = request.take_model()
    raws = request.take_elements("messages")
    automatic: Ttl | None = "30m"
    if markers is not None or _is_explicit(request.members):
        automatic = None
    listed = _takes_breakpoints(provider, model) if markers is None else bool(markers)
    # Messages are cut differently in each dialect.
    context = f"{markers}{listed}"
    system = None
    if raws:
        system = request.add_section(
            f"system{context}", bytes(raws[0]), lambda raw: _split_system(raw, markers, listed)
        )
    if system is not None:
        raws = raws[1:]
    request.add_section("tools", request.take("tools"), _split_tools)
    messages = request.add_messages(
        raws,
        partial(_split_message, markers=markers, listed=listed),
        lead=b'"messages":[' if system is None else glue(_system_role(system)),
        glue=glue,
        close=close,
        context=context,
        first_message=int(system is not None),
    )
    if messages is None:
        if system is None:
            raise InvalidRequest("at least one message with content", path="$.messages")
        request.runs[0] = msgspec.structs.replace(system, close=close(_system_role(system)))
    return request.finish(
        request.envelope(model, PATH, headers, _cache_params),
        wire=WIRE,
        model=model,
        body_order=body_order(request.runs),
        markers=MARKERS if markers is None else marker_bytes(markers),
        request_markers=AUTOMATIC if markers is None else {},
        automatic=automatic,
    )


def _is_explicit(members: Members) -> bool:
    """Whether the request forbids OpenAI to place a breakpoint of its own."""
    options = msgspec.json.decode(members.get("prompt_cache_options", NULL))
    return isinstance(options, dict) and options.get("mode") == "explicit"


def _takes_breakpoints(provider: str, model: str) -> bool:
    if provider not in catalog.shipped().entries:
        return False
    return bool(profile_value(catalog.profile(provider, model), "explicit_breakpoints", False))


def _split_system(raw: bytes, markers: DialectMarkers | None, listed: bool) -> SplitSection | None:
    """The first message, if it is a system message with content."""
    message = _split_message(raw, "$.messages[0]", markers, listed)
    if message.role not in ("system", "developer") or not all(each.data for each in message.blocks):
        return None
    blocks, opening = message.blocks, message.opening
    if isinstance(message.role, RoleWithEnd):  # the text without its quotes
        opening += b'"'
        blocks = [msgspec.structs.replace(blocks[0], data=blocks[0].data[1:-2])]
    labels = [f"system{index}" for index in range(len(blocks))]
    lead = b'"messages":[' + opening
    return cut_section("system", blocks, labels, lead=lead, place="messages[0].content")


def _system_role(system: ChunkRun) -> str:
    is_text = system.lead.endswith(b'"')
    return RoleWithEnd("system", b'"}') if is_text else "system"


def _split_tools(raw: bytes) -> SplitSection | None:
    return cut_tools(_WALK, raw, b'"tools":[', b"],")


def _split_message(
    raw: bytes | msgspec.Raw, path: str, markers: DialectMarkers | None, listed: bool
) -> SplitMessage:
    """A message. A text that may be marked has the form of a list, which it has with a mark."""
    members = _WALK.members(raw, path)
    role = required_text(members, "role", path)
    if role == "assistant":
        kind = Kind.TOOL_CALL if "tool_calls" in members else Kind.TEXT
        return SplitMessage(role, b"", [SplitBlock(kind, bytes(raw))])
    del members["role"]
    content = bytes(members.pop("content", NULL))
    is_result = role in _RESULT_ROLES
    opening = b'{"role":' + string(role) + following(members) + b',"content":'
    if content[:1] == b'"':
        kind = Kind.TOOL_RESULT if is_result else Kind.TEXT
        if not listed:
            return SplitMessage(ended(role), opening, [SplitBlock(kind, content + b"}")])
        splice = BEFORE_BRACE if content != b'""' else None
        blocks = [SplitBlock(kind, b'{"type":"text","text":' + content + b"}", splice)]
    else:
        walk = _UNMARKED if markers == {} else _WALK
        parts = walk.listed(content, f"{path}.content")
        blocks = [_split_part(part, is_result, markers, listed) for part in parts]
    if not blocks and members:
        blocks = [SplitBlock(Kind.OTHER, b"")]  # its other members
    return SplitMessage(role, opening + b"[", blocks)


def _split_part(
    part: WalkedBlock, is_result: bool, markers: DialectMarkers | None, listed: bool
) -> SplitBlock:
    """A part without its breakpoint, byte for byte otherwise. It is always encoded again, so a part
    has the same bytes with and without a breakpoint."""
    members, row = part.members, part.row
    ttl = take_dialect_marker(members, markers) if markers else None
    if ttl is None:
        marked, ttl, _ = marker_in(part.marker, part.path, WIRE)
        ttl = ttl or "30m" if marked else None
    empty = part.type == "text" and not known_text(members, "text")
    markable = ttl is not None or (listed and row.markable and not empty)
    return SplitBlock(
        Kind.TOOL_RESULT if is_result else row.chunk,
        encode_members(members),
        BEFORE_BRACE if markable else None,
        () if ttl is None else ((None, ttl),),
    )
