"""The documented fields of Chat Completions: requests, replies and stream chunks.

The structs reject unknown fields, so that nothing is lost: the reader decodes such objects without
them and keeps them in extras.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, final

import msgspec

from anaphora.values import Extras, Ttl
from anaphora.values.fields import FrozenExtras
from anaphora.wire.lenient import Partial, Whole
from anaphora.wire.markers import Breakpoint
from anaphora.wire.memo import MEMOS
from anaphora.wire.openai import ReasoningCount

WIRE = "openai_chat"
#: The wire's memory between calls.
MEMO = MEMOS[WIRE]
PATH = "/v1/chat/completions"

#: Kinds of opaque parts that are no content parts: fields of the message, and tool calls of other
#: types than `function`.
MESSAGE_FIELDS = "message"
#: In the extras of a reply: fields of its message that are facts about the reply.
BESIDE = "choice.message"
OTHER_CALL = "tool_call"

#: Key in the extras: the form in which a request had a part that other forms mean as well. A text
#: that is alone in a list, the `refusal` beside the content, and a call or result of the time
#: before tools.
FORM = "openai_chat.form"
LISTED, BESIDE_CONTENT, LEGACY = (
    FrozenExtras({FORM: f'"{form}"'}) for form in ("list", "field", "function")
)
#: In the extras of a call: the field of its limit, if that is the older one.
OLD_LIMIT = FrozenExtras({FORM: '"max_tokens"'})
#: Key in the extras of a call: it streams, and did not ask for the usage.
USAGE_KEY = "openai_chat.usage"


def has_form(extras: Extras | None, form: Extras) -> bool:
    """Whether a part or a call was read in that form."""
    return extras is not None and extras.get(FORM) == form[FORM]


#: Message fields in which hosts send reasoning, and the name for reasoning in a content part.
REASONING_FIELDS = ("reasoning_content", "reasoning")
IN_CONTENT = "content"

#: The bytes that mark a part. Without a TTL it has the request's, which is always 30 minutes.
MARKERS: dict[Ttl, bytes] = {
    "30m": b',"prompt_cache_breakpoint":{"mode":"explicit"}',
    "12h": b',"prompt_cache_breakpoint":{"mode":"explicit","ttl":"12h"}',
}
#: The breakpoint that OpenAI sets by itself takes a slot, but no bytes in the request.
AUTOMATIC: dict[Ttl, bytes] = {"30m": b""}

#: The default of `Raw` fields: msgspec accepts no union of `Raw` and None.
NULL = msgspec.Raw(b"null")


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Rejects unknown fields."""


# ── Content parts ────────────────────────────────────────────────────────────────────────────────


class TextPart(Strict, frozen=True, tag_field="type", tag="text"):
    text: str
    prompt_cache_breakpoint: Breakpoint | None = None


@final
class RefusalPart(Strict, frozen=True, tag_field="type", tag="refusal"):
    refusal: str


class ImagePart(Strict, frozen=True, tag_field="type", tag="image_url"):
    """The source is decoded separately, as below: a part with an unknown one is kept whole."""

    image_url: msgspec.Raw = NULL
    prompt_cache_breakpoint: Breakpoint | None = None


class ImageUrl(Strict, frozen=True):
    url: str
    detail: str | None = None


class AudioPart(Strict, frozen=True, tag_field="type", tag="input_audio"):
    input_audio: msgspec.Raw = NULL
    prompt_cache_breakpoint: Breakpoint | None = None


class InputAudio(Strict, frozen=True):
    data: str
    format: str


class FilePart(Strict, frozen=True, tag_field="type", tag="file"):
    file: msgspec.Raw = NULL
    prompt_cache_breakpoint: Breakpoint | None = None


class File(Strict, frozen=True):
    file_data: str | None = None
    file_id: str | None = None
    filename: str | None = None


@final
class ThinkingPart(Strict, frozen=True, tag_field="type", tag="thinking"):
    """Mistral's reasoning."""

    thinking: msgspec.Raw = NULL


class ThinkingText(msgspec.Struct, frozen=True):
    type: str
    text: str = ""


ContentPart: TypeAlias = TextPart | RefusalPart | ImagePart | AudioPart | FilePart | ThinkingPart
Content: TypeAlias = str | list[ContentPart] | None

# ── Messages and tools ───────────────────────────────────────────────────────────────────────────


class Function(Strict, frozen=True):
    name: str | None = None
    arguments: Whole[str | None] = None
    """Some hosts give the object itself."""


class FunctionCall(Strict, frozen=True, tag_field="type", tag="function"):
    id: str | None = None
    function: Function | None = None


class SystemMessage(Strict, frozen=True, tag_field="role", tag="system"):
    content: Content = None


class DeveloperMessage(Strict, frozen=True, tag_field="role", tag="developer"):
    content: Content = None


class UserMessage(Strict, frozen=True, tag_field="role", tag="user"):
    content: Content = None


class _AssistantFields(Strict, frozen=True):
    content: Content = None
    refusal: str | None = None
    tool_calls: list[FunctionCall] | None = None
    # Fields of hosts that send their reasoning; values other than text are kept unchanged.
    reasoning_content: msgspec.Raw = NULL
    reasoning: msgspec.Raw = NULL


class AssistantMessage(_AssistantFields, frozen=True, tag_field="role", tag="assistant"):
    """The assistant's message in a request."""


class ToolMessage(Strict, frozen=True, tag_field="role", tag="tool"):
    tool_call_id: str | None = None
    content: Content = None


class FunctionMessage(Strict, frozen=True, tag_field="role", tag="function"):
    """The result of a `function_call`."""

    name: str
    content: Content = None


RequestMessage: TypeAlias = (
    SystemMessage
    | DeveloperMessage
    | UserMessage
    | AssistantMessage
    | ToolMessage
    | FunctionMessage
)


class FunctionDefinition(Strict, frozen=True):
    name: str
    parameters: msgspec.Raw = NULL
    description: str | None = None
    strict: bool | None = None


class ToolDefinition(Strict, frozen=True, tag_field="type", tag="function"):
    function: FunctionDefinition | None = None


# ── Requests ─────────────────────────────────────────────────────────────────────────────────────


class FunctionName(Strict, frozen=True):
    name: str


class ForcedTool(Strict, frozen=True):
    type: Literal["function"]
    function: FunctionName


class JsonSchema(Strict, frozen=True):
    name: str
    schema: msgspec.Raw
    description: str | None = None
    strict: bool | None = None


class SchemaFormat(Strict, frozen=True, tag_field="type", tag="json_schema"):
    json_schema: JsonSchema


class JsonFormat(Strict, frozen=True, tag_field="type", tag="json_object"):
    pass


class CacheOptions(Strict, frozen=True):
    mode: Literal["implicit", "explicit"] | None = None
    ttl: Literal["30m"] | None = None


class ChatRequest(Strict, frozen=True, kw_only=True):
    model: str
    messages: list[RequestMessage]
    tools: msgspec.Raw = NULL
    max_completion_tokens: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    stop: str | list[str] | None = None
    user: str | None = None
    metadata: Whole[dict[str, str] | None] = None
    service_tier: str | None = None
    store: bool | None = None
    verbosity: str | None = None
    reasoning_effort: str | None = None
    tool_choice: Whole[Literal["auto", "none", "required", "any"] | ForcedTool | None] = None
    parallel_tool_calls: bool | None = None
    response_format: Whole[SchemaFormat | JsonFormat | None] = None
    stream: bool | None = None
    stream_options: msgspec.Raw = NULL
    prompt_cache_key: str | None = None
    prompt_cache_options: Partial[CacheOptions | None] = None
    prompt_cache_retention: str | None = None


# ── Replies ──────────────────────────────────────────────────────────────────────────────────────


class ReplyMessage(_AssistantFields, frozen=True):
    role: str | None = None
    # Kept unchanged; they are mostly empty.
    annotations: msgspec.Raw = NULL
    audio: msgspec.Raw = NULL
    function_call: msgspec.Raw = NULL


class Choice(Strict, frozen=True):
    message: ReplyMessage | None = None
    index: msgspec.Raw = NULL
    finish_reason: str | None = None
    logprobs: Whole[None] = None
    stop_reason: Whole[None] = None


class InputDetails(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class ChatUsage(msgspec.Struct, frozen=True):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: InputDetails | None = None
    completion_tokens_details: ReasoningCount | None = None
    # Fields in which other hosts report cached tokens.
    cached_tokens: int | None = None
    num_cached_tokens: int | None = None
    prompt_cache_hit_tokens: int | None = None
    prompt_audio_seconds: Any = None
    """Mistral's. The tokens of the audio are in the total alone."""


# ── Stream chunks ────────────────────────────────────────────────────────────────────────────────


class FunctionDelta(Strict, frozen=True):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class CustomDelta(msgspec.Struct, frozen=True):
    name: str | None = None
    input: str | None = None


class CallDelta(Strict, frozen=True):
    index: int | None = None
    type: msgspec.Raw = NULL
    id: str | None = None
    function: FunctionDelta | None = None
    custom: CustomDelta | None = None
    extra_content: msgspec.Raw = NULL


class Delta(Strict, frozen=True):
    role: msgspec.Raw = NULL
    content: str | list[msgspec.Raw] | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[CallDelta] | None = None
    # Fields that hosts add in pieces.
    reasoning_details: list[Any] | None = None
    annotations: list[Any] | None = None
    executed_tools: list[Any] | None = None
    images: list[Any] | None = None
    audio: dict[str, Any] | None = None
    function_call: dict[str, Any] | None = None
    extra_content: dict[str, Any] | None = None


class ChoiceDelta(Strict, frozen=True):
    index: int | None = None
    delta: Delta | None = None
    finish_reason: str | None = None
    native_finish_reason: str | None = None
    logprobs: dict[str, Any] | None = None
    usage: msgspec.Raw = NULL
    """Kimi puts its usage here."""


class ContentDelta(Strict, frozen=True):
    content: str
    role: str | None = None


class TextChoice(Strict, frozen=True):
    delta: ContentDelta
    index: int = 0
    finish_reason: None = None
    native_finish_reason: None = None
    logprobs: None = None


class TextChunk(Strict, frozen=True, kw_only=True):
    """A chunk with a piece of text and nothing else, as most are. All of them repeat the other
    fields; those of the first and the last ones are kept."""

    choices: list[TextChoice]
    usage: None = None
    error: None = None
    id: msgspec.Raw = NULL
    model: msgspec.Raw = NULL
    object: msgspec.Raw = NULL
    created: msgspec.Raw = NULL
    system_fingerprint: msgspec.Raw = NULL
    service_tier: msgspec.Raw = NULL
    provider: msgspec.Raw = NULL
    obfuscation: msgspec.Raw = NULL
