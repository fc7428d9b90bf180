"""Cuts a request to Ollama into chunks of its own bytes.

Only the white space between the outermost fields of the request and of its system message is
removed, so that bills and misses are computed from the bytes that were sent.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw

from anaphora.canonical import string
from anaphora.rendered import Kind, Rendered
from anaphora.wire.elements import SplitInput
from anaphora.wire.openai import body_order
from anaphora.wire.reading import (
    converts_errors,
    encode_members,
    known_text,
    object_members,
    request_error,
)
from anaphora.wire.splitting import (
    PARAM_SETS,
    RequestSplit,
    SplitBlock,
    SplitMessage,
    SplitSection,
    cut_section,
    cut_tools,
    required_text,
)
from anaphora.wire.walking import Walk

from .fields import TABLE
from .params import NO_MESSAGES, PATH
from .params import TABLE as PARAMS
from .render import CLOSE, CLOSE_SYSTEM, CLOSE_TOOLS, MESSAGES, TOOLS
from .types import (
    MEMO,
    WIRE,
)

_WALK = Walk(TABLE)
_cache_params = MEMO.remember(PARAM_SETS)(PARAMS.sent_cache_params)


@converts_errors(request_error)
def split(
    body: SplitInput,
    headers: tuple[tuple[str, str], ...] = (),
    path: str = "",  # noqa: ARG001
) -> Rendered:
    """The request as chunks."""
    request = RequestSplit(MEMO, body)
    model = request.take_model()
    raws = request.take_elements("messages")
    system = request.add_section("system", bytes(raws[0]), _split_system) if raws else None
    first = 0 if system is None else 1
    request.add_section("tools", request.take("tools"), _split_tools)
    messages = request.add_messages(
        raws[first:],
        _split_message,
        lead=CLOSE_SYSTEM + b"," if first else MESSAGES,
        glue=lambda _: b",",
        close=lambda _: CLOSE,
        first_message=first,
    )
    if system is not None and messages is None:
        request.runs[0] = msgspec.structs.replace(system, close=CLOSE_SYSTEM + CLOSE)
    empty = b"" if raws else NO_MESSAGES
    return request.finish(
        request.envelope(model, PATH, headers, _cache_params, after_runs=empty),
        wire=WIRE,
        model=model,
        body_order=body_order(request.runs),
        markers={},
    )


def _split_system(raw: bytes) -> SplitSection | None:
    """The first message, if it is a system message with a text."""
    members = object_members(raw, "$.messages[0]", request_error)
    role, text = known_text(members, "role"), known_text(members, "content")
    if role.lower() != "system" or not text.strip():
        return None
    del members["role"]
    block = SplitBlock(Kind.SYSTEM, bytes(members.pop("content"))[1:-1])
    rest = b"," + encode_members(members)[1:-1] if members else b""
    lead = MESSAGES + b'{"role":' + string(role) + rest + b',"content":"'
    return cut_section("system", [block], ["system0"], lead=lead, place="messages[0].content")


def _split_tools(raw: bytes) -> SplitSection | None:
    return cut_tools(_WALK, raw, TOOLS, CLOSE_TOOLS)


def _split_message(raw: Raw, path: str) -> SplitMessage:
    """A message is one chunk."""
    members = _WALK.members(raw, path)
    role = required_text(members, "role", path).lower()
    if role == "tool":
        kind = Kind.TOOL_RESULT
    elif "tool_calls" in members:
        kind = Kind.TOOL_CALL
    else:
        kind = Kind.IMAGE if "images" in members else Kind.TEXT
    return SplitMessage(role, b"", [SplitBlock(kind, bytes(raw))])
