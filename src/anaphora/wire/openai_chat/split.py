"""Cuts a Chat Completions request into chunks of its own bytes, as it was sent."""

from __future__ import annotations

from functools import partial

import msgspec

from anaphora.canonical import string
from anaphora.errors import InvalidRequest
from anaphora.rendered import Kind, Rendered
from anaphora.values import (
    Ttl,
)
from anaphora.wire.body_memory import SplitInput
from anaphora.wire.markers import DialectMarkers, marker_bytes, take_dialect_marker
from anaphora.wire.openai import (
    body_order,
    function_name,
    split_tools,
    take_breakpoint,
)
from anaphora.wire.parts import following
from anaphora.wire.reading import (
    Members,
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

from .messages import close, glue
from .params import PARAMS
from .types import (
    AUTOMATIC,
    MARKABLE,
    MARKERS,
    MEMO,
    NULL,
    PATH,
    WIRE,
)

_KINDS = {
    "text": Kind.TEXT,
    "image_url": Kind.IMAGE,
    "file": Kind.DOCUMENT,
    "input_audio": Kind.AUDIO,
}

_RESULT_ROLES = ("tool", "function")

_cache_params = MEMO.remember(PARAM_SETS)(PARAMS.sent_cache_params)


@converts_errors(request_error)
def split(
    body: SplitInput,
    headers: tuple[tuple[str, str], ...] = (),
    path: str = "",  # noqa: ARG001
    markers: DialectMarkers | None = None,
) -> Rendered:
    """The request as chunks, with its breakpoints as marks. `markers` are those of a dialect."""
    request = RequestSplit(MEMO, body)
    model = request.take_model()
    raws = request.take_elements("messages")
    automatic: Ttl | None = "30m"
    if markers is not None or _is_explicit(request.members):
        automatic = None
    # Messages are cut differently in each dialect.
    context = None if markers is None else repr(markers)
    system = None
    if raws:
        system = request.add_section(
            f"system{context}", bytes(raws[0]), lambda raw: _split_system(raw, markers)
        )
    if system is not None:
        del raws[0]
    request.add_section("tools", request.take("tools"), _split_tools)
    messages = request.add_messages(
        raws,
        partial(_split_message, markers=markers),
        lead=b'"messages":[' if system is None else glue("system"),
        glue=glue,
        close=close,
        context=context,
        first_message=int(system is not None),
    )
    if messages is None:
        if system is None:
            raise InvalidRequest("at least one message with content", path="$.messages")
        request.runs[0] = msgspec.structs.replace(system, close=close("system"))
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


def _split_system(raw: bytes, markers: DialectMarkers | None) -> SplitSection | None:
    """The first message, if it is a system message with content."""
    message = _split_message(raw, "$.messages[0]", markers)
    if message.role not in ("system", "developer"):
        return None
    labels = [f"system{index}" for index in range(len(message.blocks))]
    lead = b'"messages":[' + message.opening
    return cut_section("system", message.blocks, labels, lead=lead, place="messages[0].content")


def _split_tools(raw: bytes) -> SplitSection | None:
    return split_tools(raw, function_name, b'"tools":[', b"],")


def _split_message(
    raw: bytes | msgspec.Raw, path: str, markers: DialectMarkers | None
) -> SplitMessage:
    members = object_members(raw, path, request_error)
    role = required_text(members, "role", path)
    if role == "assistant":
        kind = Kind.TOOL_CALL if "tool_calls" in members else Kind.TEXT
        return SplitMessage(role, b"", [SplitBlock(kind, bytes(raw))])
    del members["role"]
    content = bytes(members.pop("content", NULL))
    kind = Kind.TOOL_RESULT if role in _RESULT_ROLES else Kind.TEXT
    if content[:1] == b'"':
        splice = BEFORE_BRACE if content != b'""' else None
        blocks = [SplitBlock(kind, b'{"type":"text","text":' + content + b"}", splice)]
    else:
        path = f"{path}.content"
        elements = enumerate(list_elements(content, path, request_error))
        blocks = [_split_part(raw, f"{path}[{i}]", role, markers) for i, raw in elements]
    opening = b'{"role":' + string(role) + following(members) + b',"content":['
    return SplitMessage(role, opening, blocks)


def _split_part(
    raw: msgspec.Raw, path: str, role: str, markers: DialectMarkers | None
) -> SplitBlock:
    """A part without its breakpoint, byte for byte otherwise. It is always written anew: a part has
    the same bytes with and without a breakpoint."""
    members = object_members(raw, path, request_error)
    ttl: Ttl | None = None
    if markers is not None:
        ttl = take_dialect_marker(members, markers)
    if (markers is None or (markers and ttl is None)) and "prompt_cache_breakpoint" in members:
        marked, ttl, _ = take_breakpoint(members, path, WIRE)
        ttl = ttl or "30m" if marked else None
    kind = required_text(members, "type", path)
    empty = kind == "text" and not known_text(members, "text")
    markable = ttl is not None or (kind in MARKABLE and not empty)
    return SplitBlock(
        Kind.TOOL_RESULT if role in _RESULT_ROLES else _KINDS.get(kind, Kind.OTHER),
        encode_members(members),
        BEFORE_BRACE if markable else None,
        () if ttl is None else ((None, ttl),),
    )
