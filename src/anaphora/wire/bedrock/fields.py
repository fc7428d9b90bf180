"""The fields of Converse requests, and the kinds of blocks.

Names are those of botocore 1.44.3, bedrock-runtime/2023-09-30, seen 2026-11-18; a test compares
them with it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from anaphora.rendered import Kind
from anaphora.wire.tables import (
    BlockType,
    Effect,
    Level,
    Medium,
    RequestTable,
    names,
    request_fields,
)

from .params import read_path
from .types import CACHE_POINT, NULL, WIRE, ReasoningContent


def _block(members: dict[str, Any], level: Level) -> tuple[str, BlockType]:  # noqa: ARG001
    """A block's kind is the name of its member."""
    kind = next((name for name in members if name in TABLE.blocks), next(iter(members), ""))
    return kind, TABLE.blocks.get(kind, TABLE.other)


def _media(chunk: Kind, medium: Medium, name: str) -> BlockType:
    return BlockType(chunk=chunk, markable=True, medium=medium, data=(f"{name}.source.bytes",))


class _Plain(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    pass


class _PlainPoint(_Plain):
    """Without a TTL: others are read, since they change the price."""

    type: str


class _PlainCall(_Plain):
    toolUseId: str | None = None
    name: str | None = None
    input: msgspec.Raw = NULL


class _PlainResultBlock(_Plain):
    text: str | None = None
    json: msgspec.Raw = NULL


class _PlainResult(_Plain):
    toolUseId: str | None = None
    content: list[_PlainResultBlock] | None = None
    status: str | None = None


class _PlainBlock(_Plain):
    text: str | None = None
    toolUse: _PlainCall | None = None
    toolResult: _PlainResult | None = None
    reasoningContent: ReasoningContent | None = None
    cachePoint: _PlainPoint | None = None


class _PlainMessage(_Plain):
    role: str | None = None
    content: list[_PlainBlock] | None = None


def _is_plain(one: _PlainMessage | _PlainBlock) -> bool:
    """Whether every marker follows a block: those that follow none are not in a request's marks."""
    if isinstance(one, _PlainBlock):
        return one.cachePoint is None
    marked = True
    for block in one.content or ():
        if block.cachePoint is not None and marked:
            return False
        marked = block.cachePoint is not None
    return True


TABLE = RequestTable(
    wire=WIRE,
    limit="inferenceConfig.maxTokens",
    read_path=read_path,
    fields=request_fields(
        {
            Effect.TEXT: "messages outputConfig system",
            Effect.CACHE: "additionalModelRequestFields",
            Effect.MONEY: "inferenceConfig modelId performanceConfig serviceTier",
            Effect.TOOL: "toolConfig",
            Effect.ANSWER: "additionalModelResponseFieldPaths requestMetadata",
            # A guardrail has a price of its own, and variables are of a stored prompt.
            Effect.ASK: "guardrailConfig promptVariables",
        },
        members={
            "inferenceConfig": "maxTokens stopSequences temperature topP",
            "toolConfig": "toolChoice tools",
            "outputConfig": "effort textFormat",
            "performanceConfig": "latency",
            "serviceTier": "type",
            "additionalModelRequestFields": """anthropic_beta inferenceConfig output_config
            reasoning reasoning_config reasoning_effort thinking tool_choice top_k""",
            # Of Nova, which has other names for the limit of the output as well.
            "additionalModelRequestFields.inferenceConfig": "maxTokens topK",
        },
        counted="additionalModelRequestFields messages system toolConfig",
        unread="modelId requestMetadata",
        prose="""additionalModelRequestFields.tools inferenceConfig.stopSequences
        outputConfig.textFormat""",
    ),
    system="system",
    message_fields={"": names("content role")},
    blocks={
        "text": BlockType(chunk=Kind.TEXT, markable=True, plain=True),
        "toolUse": BlockType(
            chunk=Kind.TOOL_CALL, markable=True, opaque=names("toolUse"), plain=True
        ),
        "toolResult": BlockType(
            chunk=Kind.TOOL_RESULT,
            markable=True,
            inside=("toolResult.content",),
            shows=names("document image video"),
        ),
        "reasoningContent": BlockType(chunk=Kind.THINKING, plain=True),
        "image": _media(Kind.IMAGE, "images", "image"),
        "document": _media(Kind.DOCUMENT, "documents", "document"),
        "audio": _media(Kind.AUDIO, "audio", "audio"),
        # A video has a sound track.
        "video": _media(Kind.DOCUMENT, "audio", "video"),
        "citationsContent": BlockType(chunk=Kind.TEXT, markable=True),
        "guardContent": BlockType(markable=True),
        "searchResult": BlockType(markable=True),
        "json": BlockType(opaque=names("json")),
        "toolAddition": BlockType(changes_tools=True),
        "toolRemoval": BlockType(changes_tools=True),
        CACHE_POINT: BlockType(plain=True),
    },
    function="toolSpec",
    classify=_block,
    one_member=True,
    plain=_PlainMessage,
    plain_block=_PlainBlock,
    is_plain=_is_plain,
)
