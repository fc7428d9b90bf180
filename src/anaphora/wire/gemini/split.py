"""Cuts a generateContent request into chunks of its own bytes.

Nothing is normalised inside a part, a tool or a declaration, so that bills and misses are computed
from the bytes that were sent.
"""

from __future__ import annotations

from msgspec import Raw

from anaphora.canonical import string
from anaphora.errors import InvalidRequest
from anaphora.rendered import Kind, Rendered
from anaphora.wire.elements import SplitInput
from anaphora.wire.reading import (
    converts_errors,
    decode_value,
    encode_members,
    known_text,
    object_members,
    request_error,
)
from anaphora.wire.splitting import (
    RequestSplit,
    SplitBlock,
    SplitMessage,
    SplitSection,
    cut_section,
)
from anaphora.wire.walking import Walk

from .fields import TABLE
from .params import envelope_of, frozen_with, model_id, path_of, read_path
from .render import CLOSE, CONTENTS, GLUE, SYSTEM, SYSTEM_CLOSE, SYSTEM_PLACE, TOOLS, join_tools
from .types import (
    MEMO,
    NULL,
    WIRE,
    camel,
    raw_elements,
)

_WALK = Walk(TABLE)


@converts_errors(request_error)
def split(body: SplitInput, headers: tuple[tuple[str, str], ...] = (), path: str = "") -> Rendered:
    """The request as chunks. The path names the model."""
    model, stream = read_path(path)
    request = RequestSplit(MEMO, body)
    request.members = {camel(name): raw for name, raw in request.members.items()}
    named = decode_value(request.take("model"), str | None, "$.model", request_error)
    model = model or model_id(named or "")
    request.add_section("systemInstruction", request.take("systemInstruction"), _split_system)
    request.add_section("tools", request.take("tools"), _split_tools)
    messages = request.add_messages(
        raw_elements(request.take("contents"), "$.contents"),
        _split_content,
        lead=CONTENTS,
        glue=lambda _: GLUE,
        close=lambda _: CLOSE,
        place="contents",
        blocks="parts",
    )
    if messages is None:
        raise InvalidRequest("at least one content with a part", path="$.contents")
    fields = {name: bytes(raw) for name, raw in request.members.items()}
    path = path_of(model, stream=stream) if model else path
    envelope = envelope_of(model, fields, path, headers)
    return request.finish(
        envelope, wire=WIRE, model=model, markers={}, frozen_with=frozen_with(envelope)
    )


def _split_system(raw: bytes) -> SplitSection | None:
    if raw == b"null":
        return None
    members = object_members(raw, "$.systemInstruction", request_error)
    parts = raw_elements(members.get("parts", NULL), "$.systemInstruction.parts")
    blocks = [SplitBlock(Kind.SYSTEM, bytes(part)) for part in parts]
    labels = [f"system{index}" for index in range(len(parts))]
    return cut_section(
        "system", blocks, labels, lead=SYSTEM, close=SYSTEM_CLOSE, place=SYSTEM_PLACE
    )


def _split_tools(raw: bytes) -> SplitSection | None:
    """A chunk for each declaration if an object holds nothing else, otherwise for the object."""
    labels: list[str] = []
    tools: list[tuple[bool, bool, bytes]] = []
    for index, tool in enumerate(_WALK.tools(raw, "$.tools")):
        members = tool.members
        kind = camel(next(iter(members), str(index)))
        listed: list[Raw] = []
        if kind == TABLE.function and len(members) == 1:
            path = f"{tool.path}.{kind}"
            (raw_functions,) = members.values()
            listed = raw_elements(raw_functions, path)
        for at, each in enumerate(listed):
            name = known_text(object_members(each, path, request_error), "name")
            labels.append(f"tool {name or len(labels)}")
            tools.append((True, at == 0, bytes(each)))
        if not listed:
            labels.append(f"tool {kind}")
            tools.append((False, True, bytes(tool.raw)))
    chunks, paths, close = join_tools(tools)
    blocks = [SplitBlock(Kind.TOOL, chunk) for chunk in chunks]
    return cut_section("tools", blocks, labels, lead=TOOLS, close=close, glue=b"", paths=paths)


def _split_content(raw: Raw, path: str) -> SplitMessage:
    members = object_members(raw, path, request_error)
    parts = raw_elements(members.pop("parts", NULL), f"{path}.parts")
    role = decode_value(members.pop("role", NULL), str | None, f"{path}.role", request_error)
    if role is not None:
        members = {"role": Raw(string(role)), **members}
    opening = encode_members(members)[:-1] + (b"," if members else b"") + b'"parts":['
    blocks = [
        SplitBlock(_WALK.block(part, f"{path}.parts[{index}]").row.chunk, bytes(part))
        for index, part in enumerate(parts)
    ]
    if not blocks and members.keys() - {"role"}:
        blocks = [SplitBlock(Kind.OTHER, b"")]  # its other members
    return SplitMessage(role or "user", opening, blocks)
