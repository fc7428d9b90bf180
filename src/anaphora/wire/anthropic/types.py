"""Anthropic's requests, replies and stream events as typed structs of the documented fields.

All of them forbid unknown fields; `LenientDecoder` separates those.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, final

import msgspec

from anaphora.wire.lenient import Partial, Whole
from anaphora.wire.memo import MEMOS

WIRE = "anthropic"
#: The wire's memory between calls.
MEMO = MEMOS[WIRE]
#: The kind of an opaque part that holds the unknown fields of its message, as its last part.
MESSAGE_FIELDS = "message"
#: Key in the extras of thinking that had no signature at all, as some hosts send it.
UNSIGNED_KEY = f"{WIRE}.unsigned"

#: Fields of a reply that a stream sends in its last delta, and those beside that delta.
IN_DELTA = ("container", "stop_details")
BESIDE_DELTA = ("context_management", "input_transformations")

# A default of None is not possible: a union with `Raw` would exclude it.
NULL = msgspec.Raw(b"null")
EMPTY_OBJECT = msgspec.Raw(b"{}")

Role: TypeAlias = Literal["user", "assistant", "system"]


class _Object(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """An object without a tag."""


class _Tagged(msgspec.Struct, tag_field="type", frozen=True, forbid_unknown_fields=True, gc=False):
    """An object with a `type` tag."""


# ── Content blocks ───────────────────────────────────────────────────────────────────────────────


class CacheControl(_Object, frozen=True):
    type: str
    ttl: str | None = None


class _Block(_Tagged, frozen=True, kw_only=True):
    cache_control: CacheControl | None = None


@final
class TextBlock(_Block, tag="text", frozen=True):
    text: str


@final
class ToolUseBlock(_Block, tag="tool_use", frozen=True):
    id: str
    name: str
    input: msgspec.Raw


@final
class ToolResultBlock(_Block, tag="tool_result", frozen=True):
    tool_use_id: str
    content: str | list[ContentBlock] | None = None
    is_error: bool | None = None


@final
class ThinkingBlock(_Block, tag="thinking", frozen=True):
    thinking: str
    signature: str | None = None  # Ollama and OpenRouter send none


@final
class RedactedBlock(_Block, tag="redacted_thinking", frozen=True):
    data: str


class ImageBlock(_Block, tag="image", frozen=True):
    source: msgspec.Raw


class DocumentBlock(_Block, tag="document", frozen=True):
    source: msgspec.Raw
    title: str | None = None
    context: str | None = None


ContentBlock: TypeAlias = (
    TextBlock
    | ToolUseBlock
    | ToolResultBlock
    | ThinkingBlock
    | RedactedBlock
    | ImageBlock
    | DocumentBlock
)


class Base64Source(_Tagged, tag="base64", frozen=True):
    media_type: str
    data: str


class UrlSource(_Tagged, tag="url", frozen=True):
    url: str


class FileSource(_Tagged, tag="file", frozen=True):
    file_id: str


class TextSource(_Tagged, tag="text", frozen=True):
    data: str
    media_type: str | None = None


MediaSource: TypeAlias = Base64Source | UrlSource | FileSource | TextSource


# ── Requests ─────────────────────────────────────────────────────────────────────────────────────


class ToolDefinition(_Object, frozen=True):
    name: str
    input_schema: msgspec.Raw
    description: str | None = None
    strict: bool | None = None
    cache_control: CacheControl | None = None


class Choice(_Object, frozen=True):
    type: Literal["auto", "any", "none", "tool"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingConfig(_Object, frozen=True):
    type: Literal["adaptive", "enabled", "disabled", "between_tools"]
    budget_tokens: int | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(_Object, frozen=True):
    type: Literal["json_schema"]
    schema: msgspec.Raw


class OutputConfig(_Object, frozen=True):
    effort: str | None = None
    format: OutputFormat | None = None


class RequestMetadata(_Object, frozen=True):
    user_id: str | None = None


class Diagnostics(_Object, frozen=True):
    previous_message_id: str | None = None


class RequestMessage(_Object, frozen=True):
    role: Role
    content: str | list[ContentBlock]


class MessagesRequest(_Object, frozen=True, kw_only=True):
    model: str
    messages: list[RequestMessage]
    max_tokens: int | None = None
    """Requests that count tokens have none."""
    system: msgspec.Raw = NULL
    tools: msgspec.Raw = NULL
    cache_control: CacheControl | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: list[str] | None = None
    service_tier: str | None = None
    stream: bool | None = None
    tool_choice: Whole[Choice | None] = None
    thinking: Partial[ThinkingConfig | None] = None
    output_config: Partial[OutputConfig | None] = None
    output_format: OutputFormat | None = None
    """The older place of `output_config.format`, by a beta header."""
    metadata: Partial[RequestMetadata | None] = None
    diagnostics: Partial[Diagnostics | None] = None


# ── Replies ──────────────────────────────────────────────────────────────────────────────────────


class CacheCreation(msgspec.Struct, frozen=True):
    ephemeral_5m_input_tokens: int = 0
    ephemeral_1h_input_tokens: int = 0


class OutputDetails(msgspec.Struct, frozen=True):
    thinking_tokens: int | None = None


class UsageCounts(msgspec.Struct, frozen=True):
    """The counts that are read; the whole object is kept as well."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_creation: CacheCreation | None = None
    output_tokens_details: OutputDetails | None = None


class MessageReply(_Object, frozen=True):
    content: list[ContentBlock]
    type: Literal["message"] | None = None
    id: str | None = None
    role: Literal["assistant"] | None = None
    model: str | None = None
    usage: msgspec.Raw = NULL
    stop_reason: str | None = None
    stop_sequence: str | None = None


# ── Stream events ────────────────────────────────────────────────────────────────────────────────


class _Delta(_Tagged, frozen=True):
    """More of a content block."""


class TextBlockDelta(_Delta, tag="text_delta", frozen=True):
    text: str


class JsonDelta(_Delta, tag="input_json_delta", frozen=True):
    partial_json: str


class ThinkingBlockDelta(_Delta, tag="thinking_delta", frozen=True):
    thinking: str


class SignatureDelta(_Delta, tag="signature_delta", frozen=True):
    signature: str


class CitationsDelta(_Delta, tag="citations_delta", frozen=True):
    citation: msgspec.Raw


class CompactionDelta(_Delta, tag="compaction_delta", frozen=True):
    content: str | None = None
    encrypted_content: str | None = None


BlockDelta: TypeAlias = (
    TextBlockDelta
    | JsonDelta
    | ThinkingBlockDelta
    | SignatureDelta
    | CitationsDelta
    | CompactionDelta
)


class TextStart(_Tagged, tag="text", frozen=True):
    text: str | None = None
    citations: msgspec.Raw = NULL


class ToolUseStart(_Tagged, tag="tool_use", frozen=True):
    id: str
    name: str
    input: msgspec.Raw = EMPTY_OBJECT


class ThinkingStart(_Tagged, tag="thinking", frozen=True):
    thinking: str | None = None
    signature: str | None = None


BlockStart: TypeAlias = TextStart | ToolUseStart | ThinkingStart


class StartMessage(_Object, frozen=True):
    """The beginning of a reply; its content is still empty."""

    id: str | None = None
    model: str | None = None
    usage: msgspec.Raw = NULL
    type: msgspec.Raw = NULL
    role: msgspec.Raw = NULL
    content: msgspec.Raw = NULL
    stop_reason: msgspec.Raw = NULL
    stop_sequence: msgspec.Raw = NULL


class FinalDelta(_Object, frozen=True):
    stop_reason: str | None = None
    stop_sequence: str | None = None


class ErrorDetails(msgspec.Struct, frozen=True):
    error_code: str | None = None


class ErrorBody(msgspec.Struct, frozen=True):
    """The error object of an error reply or event."""

    type: str
    message: str = ""
    details: ErrorDetails | None = None


class ErrorReply(msgspec.Struct, frozen=True):
    error: ErrorBody
    request_id: str | None = None


class BlockDeltaEvent(_Tagged, tag="content_block_delta", frozen=True):
    index: int
    delta: BlockDelta


class BlockStartEvent(_Tagged, tag="content_block_start", frozen=True):
    index: int
    content_block: BlockStart


class BlockStopEvent(_Tagged, tag="content_block_stop", frozen=True):
    index: int


class MessageDeltaEvent(_Tagged, tag="message_delta", frozen=True):
    delta: Partial[FinalDelta] = FinalDelta()
    usage: msgspec.Raw = NULL


class MessageStartEvent(_Tagged, tag="message_start", frozen=True):
    message: Partial[StartMessage] = StartMessage()


class MessageStopEvent(_Tagged, tag="message_stop", frozen=True):
    pass


class PingEvent(_Tagged, tag="ping", frozen=True):
    pass


class ErrorEvent(_Tagged, tag="error", frozen=True):
    error: ErrorBody
    request_id: str | None = None


StreamEvent: TypeAlias = (
    BlockDeltaEvent
    | BlockStartEvent
    | BlockStopEvent
    | MessageDeltaEvent
    | MessageStartEvent
    | MessageStopEvent
    | PingEvent
    | ErrorEvent
)
