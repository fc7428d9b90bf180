"""The fields of generateContent requests, and the kinds of parts.

Names are those of google-genai 3.1.0, models.py (fields of requests) and types.py, seen 2026-11-14;
a test compares them with it.
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

from .types import NULL, WIRE, camel

#: Members of a part.
PART = names(
    """audioTranscription codeExecutionResult executableCode fileData functionCall functionResponse
    inlineData mediaProcessing mediaResolution partMetadata speechMetadata text thought
    thoughtSignature toolCall toolResponse videoMetadata"""
)
#: Members that are known to be billed as text or as a medium.
_COUNTED = PART - names("audioTranscription mediaProcessing speechMetadata")
#: Members of the generation settings: types.GenerationConfig, and further ones of the SDK.
GENERATION_CONFIG = names(
    """audioTimestamp audioTranscriptionConfig candidateCount enableAffectiveDialog
    enableEnhancedCivicAnswers frequencyPenalty imageConfig logprobs maxOutputTokens mediaResolution
    modelConfig modelSelectionConfig presencePenalty responseFormat responseJsonSchema
    responseLogprobs responseMimeType responseModalities responseSchema routingConfig seed
    speechConfig stopSequences temperature thinkingConfig topK topP translationConfig"""
)


def _part(members: dict[str, Any], level: Level) -> tuple[str, BlockType]:
    """The kind of a part, apart from whether it is a thought."""
    for name in ("inlineData", "fileData"):
        value = members.get(name)
        if value is not None and level.first(value) == b"{":
            inner = level.members(value, name)
            given = inner.get("mimeType", inner.get("mime_type"))
            medium = level.text(given).partition("/")[0].lower()
            return name, _MEDIA.get(medium, _OTHER_MEDIUM)
    kind = next((name for name in TABLE.blocks if members.get(name) not in (None, NULL)), "")
    row = TABLE.blocks.get(kind, TABLE.other)
    thought = members.get("thought")
    if thought is True or (type(thought) is msgspec.Raw and bytes(thought) == b"true"):
        return kind, msgspec.structs.replace(row, chunk=Kind.THINKING)
    return kind, row


def _media_row(chunk: Kind, medium: Medium) -> BlockType:
    return BlockType(chunk=chunk, medium=medium, data=("inlineData.data",))


#: By the first part of the media type. A video has a sound track; a file without a type may be one.
_MEDIA = {
    "image": _media_row(Kind.IMAGE, "images"),
    "audio": _media_row(Kind.AUDIO, "audio"),
    "text": _media_row(Kind.DOCUMENT, "documents"),
    "application": _media_row(Kind.DOCUMENT, "documents"),
}
_OTHER_MEDIUM = _media_row(Kind.DOCUMENT, "audio")


def _read_path(path: str) -> tuple[str, bool]:
    """`/v1beta/models/NAME:METHOD`."""
    resource, _, method = path.partition("?")[0].rpartition(":")
    model = resource.rpartition("/models/")[2] if "/models/" in resource else ""
    return model, method == "streamGenerateContent"


TABLE = RequestTable(
    wire=WIRE,
    limit="generationConfig.maxOutputTokens",
    read_path=_read_path,
    fields=request_fields(
        {
            Effect.TEXT: "contents systemInstruction",
            Effect.CACHE: "toolConfig",
            Effect.MONEY: "generationConfig model serviceTier",
            Effect.TOOL: "tools",
            Effect.STORED: "cachedContent store",
            Effect.ANSWER: "labels safetySettings",
            Effect.ASK: "continuationToken modelArmorConfig outputConfig",
        },
        members={
            "generationConfig": """candidateCount frequencyPenalty logprobs maxOutputTokens
            mediaResolution presencePenalty responseJsonSchema responseLogprobs responseMimeType
            responseModalities responseSchema seed stopSequences temperature thinkingConfig topK
            topP""",
            "generationConfig.thinkingConfig": "thinkingLevel thinkingBudget includeThoughts",
            "toolConfig": "functionCallingConfig includeServerSideToolInvocations",
        },
        unread="labels model",
        prose="""generationConfig.responseJsonSchema generationConfig.responseSchema
        generationConfig.stopSequences""",
    ),
    content=names("parts"),
    role_implied=True,
    messages="contents",
    system="systemInstruction",
    message=BlockType(inside=("parts",), shows=None, members=names("parts role")),
    other=BlockType(members=_COUNTED),
    blocks={
        "text": BlockType(chunk=Kind.TEXT),
        "functionCall": BlockType(chunk=Kind.TOOL_CALL),
        "functionResponse": BlockType(
            chunk=Kind.TOOL_RESULT,
            inside=("functionResponse.parts",),
            shows=names("inlineData"),
        ),
        "codeExecutionResult": BlockType(),
        "executableCode": BlockType(),
        "toolCall": BlockType(),
        "toolResponse": BlockType(),
    },
    rename=camel,
    usual=PART | names("id name parts response role"),
    function="functionDeclarations",
    single=True,
    classify=_part,
)
