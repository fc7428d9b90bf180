"""The fields of Converse requests, and the kinds of blocks.

Names are those of botocore 1.44.3, bedrock-runtime/2023-09-30, seen 2026-11-18; a test compares
them with it.
"""

from __future__ import annotations

from typing import Any

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
from .types import CACHE_POINT, WIRE


def _block(members: dict[str, Any], level: Level) -> tuple[str, BlockType]:  # noqa: ARG001
    """A block's kind is the name of its member."""
    kind = next((name for name in members if name in TABLE.blocks), next(iter(members), ""))
    return kind, TABLE.blocks.get(kind, TABLE.other)


def _media(chunk: Kind, medium: Medium, name: str) -> BlockType:
    return BlockType(chunk=chunk, markable=True, medium=medium, data=(f"{name}.source.bytes",))


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
        "text": BlockType(chunk=Kind.TEXT, markable=True),
        "toolUse": BlockType(chunk=Kind.TOOL_CALL, markable=True, opaque=names("toolUse")),
        "toolResult": BlockType(
            chunk=Kind.TOOL_RESULT,
            markable=True,
            inside=("toolResult.content",),
            shows=names("document image video"),
        ),
        "reasoningContent": BlockType(chunk=Kind.THINKING),
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
        CACHE_POINT: BlockType(),
    },
    function="toolSpec",
    classify=_block,
    one_member=True,
)
