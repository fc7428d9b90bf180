"""The documented objects of the Converse API, under the names they have on the wire.

The structs reject unknown fields, so that the reader collects them and none is lost. A block is an
object with one member, which names its kind. Blocks of other kinds than these are kept whole.
"""

from __future__ import annotations

import base64
import binascii
from typing import Literal, TypeAlias

import msgspec
from msgspec import Raw

from anaphora.wire.lenient import Partial, Whole
from anaphora.wire.memo import MEMOS

WIRE = "bedrock"
#: The wire's memory between calls.
MEMO = MEMOS[WIRE]
#: Key in the extras: the form in which a value was read, if other wires write it differently.
FORM = "bedrock.form"
#: The kind of an opaque part that holds the unknown fields of its message, as its last part.
MESSAGE_FIELDS = "message"
#: The member of a list of blocks that marks the block before it.
CACHE_POINT = "cachePoint"
#: The type of a call that the provider itself runs: the app must not.
SERVER_TOOL = "server_tool_use"
#: Why a member may be missing: its value is null.
NULL = Raw(b"null")

Role: TypeAlias = Literal["user", "assistant", "system"]


class _Object(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    pass


# ── Blocks ───────────────────────────────────────────────────────────────────────────────────────


class CachePoint(_Object, frozen=True):
    type: str | None = None
    ttl: str | None = None


class ToolUse(_Object, frozen=True):
    toolUseId: str
    name: str
    input: Raw = Raw(b"{}")


class ResultBlock(_Object, frozen=True):
    text: Whole[str | None] = None
    json: Raw = NULL
    image: Raw = NULL
    document: Raw = NULL


class ToolResultObject(_Object, frozen=True):
    toolUseId: str
    content: list[ResultBlock] | None = None
    status: Whole[Literal["success", "error"] | None] = None


class ReasoningText(_Object, frozen=True):
    text: str = ""
    signature: str | None = None


class ReasoningContent(_Object, frozen=True):
    reasoningText: ReasoningText | None = None
    redactedContent: str | None = None


class Block(_Object, frozen=True):
    """A content block: one of these."""

    text: Whole[str | None] = None
    toolUse: ToolUse | None = None
    toolResult: ToolResultObject | None = None
    reasoningContent: ReasoningContent | None = None
    cachePoint: CachePoint | None = None
    image: Raw = NULL
    document: Raw = NULL
    audio: Raw = NULL
    citationsContent: Raw = NULL


class MediaObject(_Object, frozen=True):
    """An image or audio."""

    format: str = ""
    source: Raw = NULL


class DocumentObject(_Object, frozen=True):
    format: str = ""
    """Not required."""
    source: Raw = NULL
    name: str | None = None
    context: str | None = None


class S3Location(_Object, frozen=True):
    uri: str


class MediaSource(_Object, frozen=True):
    """One of these."""

    bytes: str | None = None
    text: str | None = None
    s3Location: S3Location | None = None


class CitedText(_Object, frozen=True):
    text: str


class CitationsContent(_Object, frozen=True):
    content: list[CitedText] | None = None


# ── Requests ─────────────────────────────────────────────────────────────────────────────────────


class SystemBlock(_Object, frozen=True):
    text: Whole[str | None] = None
    cachePoint: CachePoint | None = None


class ToolSpec(_Object, frozen=True):
    name: str
    inputSchema: Raw
    description: str | None = None
    strict: bool | None = None


class ToolObject(_Object, frozen=True):
    """A tool of the list: a function, or a marker. Others are Bedrock's own, and kept whole."""

    toolSpec: ToolSpec | None = None
    cachePoint: CachePoint | None = None


class NamedTool(_Object, frozen=True):
    name: str


class Choice(_Object, frozen=True, omit_defaults=True):
    """One of these; the first two are empty objects."""

    auto: dict[str, Raw] | None = None
    any: dict[str, Raw] | None = None
    tool: NamedTool | None = None


class ToolConfig(_Object, frozen=True):
    tools: Raw = NULL
    toolChoice: Whole[Choice | None] = None


class InferenceConfig(_Object, frozen=True):
    maxTokens: Whole[int | None] = None
    temperature: Whole[float | None] = None
    topP: Whole[float | None] = None
    stopSequences: Whole[tuple[str, ...] | None] = None


class JsonSchema(_Object, frozen=True):
    schema: str
    name: str | None = None
    description: str | None = None


class FormatStructure(_Object, frozen=True):
    jsonSchema: JsonSchema


class TextFormat(_Object, frozen=True):
    structure: FormatStructure
    type: Literal["json_schema"]


class OutputConfig(_Object, frozen=True):
    textFormat: Whole[TextFormat | None] = None


class ServiceTier(_Object, frozen=True):
    type: str


class RequestMessage(_Object, frozen=True):
    role: Role
    content: list[Block]


class ConverseRequest(_Object, frozen=True, kw_only=True):
    """The body. Guardrails and other options without a parameter are kept as unknown members."""

    messages: list[RequestMessage] | None = None
    system: Raw = NULL
    toolConfig: Raw = NULL
    inferenceConfig: Partial[InferenceConfig | None] = None
    additionalModelRequestFields: Raw = NULL
    outputConfig: Partial[OutputConfig | None] = None
    serviceTier: Whole[ServiceTier | None] = None
    requestMetadata: Whole[dict[str, str] | None] = None
    modelId: Whole[str | None] = None
    """Some clients repeat the model of the path."""


# ── Replies ──────────────────────────────────────────────────────────────────────────────────────


class CacheDetail(msgspec.Struct, frozen=True):
    ttl: str | None = None
    inputTokens: int | None = None


class UsageCounts(msgspec.Struct, frozen=True):
    """The counts that are read; the whole object is kept as well."""

    inputTokens: int | None = None
    outputTokens: int | None = None
    cacheReadInputTokens: int | None = None
    cacheWriteInputTokens: int | None = None
    cacheDetails: list[CacheDetail] | None = None


class ReplyMessage(_Object, frozen=True):
    content: list[Block]
    role: Literal["assistant"] | None = None


class ReplyOutput(_Object, frozen=True):
    message: ReplyMessage


class ConverseReply(_Object, frozen=True):
    """Metrics, traces and the model's own fields are kept as unknown members."""

    output: ReplyOutput
    stopReason: str | None = None
    usage: Raw = NULL


# ── Stream events ────────────────────────────────────────────────────────────────────────────────


class CallPiece(_Object, frozen=True):
    input: str = ""


class ReasoningPiece(_Object, frozen=True):
    text: str | None = None
    signature: str | None = None
    redactedContent: str | None = None


class BlockDelta(_Object, frozen=True):
    """One of these; others are collected for a block that is kept whole."""

    text: str | None = None
    toolUse: CallPiece | None = None
    reasoningContent: ReasoningPiece | None = None
    citation: Raw = NULL


class DeltaEvent(_Object, frozen=True):
    delta: BlockDelta
    contentBlockIndex: int | None = 0
    p: Raw = NULL
    """Padding of random length: every event has it."""


class CallStart(_Object, frozen=True):
    toolUseId: str
    name: str


class BlockStart(_Object, frozen=True):
    toolUse: CallStart | None = None


class StartEvent(_Object, frozen=True):
    start: BlockStart = BlockStart()
    contentBlockIndex: int | None = 0
    p: Raw = NULL


class StopEvent(_Object, frozen=True):
    contentBlockIndex: int | None = 0
    p: Raw = NULL


class MessageStart(_Object, frozen=True):
    role: str | None = None
    p: Raw = NULL


class MessageStop(_Object, frozen=True):
    stopReason: str | None = None
    p: Raw = NULL


class MetadataEvent(_Object, frozen=True):
    usage: Raw = NULL
    p: Raw = NULL


# ── Bytes ────────────────────────────────────────────────────────────────────────────────────────


def decode_base64(data: str) -> bytes | None:
    """Bytes in base64; None if they are not."""
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None
