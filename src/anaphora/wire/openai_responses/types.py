"""The documented fields of Responses: requests, items, replies and stream events.

The structs reject unknown fields, so that nothing is lost: the reader decodes such objects without
them and keeps them in extras.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, final

import msgspec

from anaphora.values import Role, Ttl
from anaphora.wire.errors import ErrorObject
from anaphora.wire.lenient import Partial, Whole
from anaphora.wire.markers import Breakpoint
from anaphora.wire.memo import MEMOS
from anaphora.wire.openai import ReasoningCount

WIRE = "openai_responses"
#: The wire's memory between calls.
MEMO = MEMOS[WIRE]
PATH = "/v1/responses"

#: The key in the extras of an item's first part for the fields of the item itself (id, status,
#: phase). A part with this key begins a new item.
ITEM = "openai_responses.item"
#: Key in the extras of a file that was sent without a name.
UNNAMED = f"{WIRE}.unnamed"

ROLES: dict[str, Role] = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "developer": "system",
}

#: The bytes that mark a part.
MARKERS: dict[Ttl, bytes] = {
    "30m": b',"prompt_cache_breakpoint":{"mode":"explicit","ttl":"30m"}',
    "12h": b',"prompt_cache_breakpoint":{"mode":"explicit","ttl":"12h"}',
}
#: The breakpoint that OpenAI sets by itself takes no bytes; its TTL is among the cache options.
AUTOMATIC: dict[Ttl, bytes] = {"30m": b"", "12h": b""}

UNSET = msgspec.UNSET
OptionalText: TypeAlias = str | msgspec.UnsetType

#: The default of `Raw` fields: msgspec accepts no union of `Raw` and None.
NULL = msgspec.Raw(b"null")
#: Key in the extras of a tool that had no `strict`: the provider then decides, unlike with null.
STRICT_KEY = "openai_responses.strict"


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rejects unknown fields."""


# ── Items ─────────────────────────────────────────────────────────────────────────────────────────


@final
class InputText(Strict, frozen=True, tag_field="type", tag="input_text", omit_defaults=True):
    text: str
    prompt_cache_breakpoint: Breakpoint | None = None


@final
class OutputText(Strict, frozen=True, tag_field="type", tag="output_text", omit_defaults=True):
    text: str
    prompt_cache_breakpoint: Breakpoint | None = None
    # Kept unchanged.
    annotations: msgspec.Raw = NULL
    logprobs: msgspec.Raw = NULL


class RefusalPart(Strict, frozen=True, tag_field="type", tag="refusal", omit_defaults=True):
    refusal: str
    prompt_cache_breakpoint: Breakpoint | None = None


#: Images and files are read from their members.
ContentPart: TypeAlias = InputText | OutputText | RefusalPart
Content: TypeAlias = str | list[ContentPart]


class ReasoningText(msgspec.Struct, frozen=True):
    text: str = ""


class ReasoningFields(msgspec.Struct, frozen=True):
    """The fields of a reasoning item that hold its text."""

    summary: list[ReasoningText] | None = None
    content: list[ReasoningText] | None = None


class FunctionTool(Strict, frozen=True, tag_field="type", tag="function"):
    name: str | None = None
    parameters: msgspec.Raw = NULL
    description: str | None = None
    strict: bool | msgspec.UnsetType | None = UNSET


# ── Requests ──────────────────────────────────────────────────────────────────────────────────────


class CacheOptions(Strict, frozen=True):
    mode: Literal["implicit", "explicit"] | None = None
    ttl: Literal["30m", "12h"] | None = None
    prewarm: bool = False
    comparison_response_id: str | None = None


class ForcedTool(Strict, frozen=True):
    type: Literal["function"]
    name: str


class ReasoningOptions(Strict, frozen=True):
    effort: str | None = None
    summary: str | None = None


class SchemaFormat(Strict, frozen=True, tag_field="type", tag="json_schema"):
    name: str
    schema: msgspec.Raw
    description: str | None = None
    strict: bool | None = None


class JsonFormat(Strict, frozen=True, tag_field="type", tag="json_object"):
    pass


class TextOptions(Strict, frozen=True):
    format: SchemaFormat | JsonFormat | None = None
    verbosity: str | None = None


class ResponsesRequest(Strict, frozen=True, kw_only=True):
    model: str = ""
    """A stored prompt may name it."""
    input: msgspec.Raw = NULL
    instructions: str | None = None
    tools: msgspec.Raw = NULL
    previous_response_id: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    tool_choice: Whole[Literal["auto", "required", "none"] | ForcedTool | None] = None
    parallel_tool_calls: Whole[bool | None] = None
    reasoning: Partial[ReasoningOptions | None] = None
    text: Partial[TextOptions | None] = None
    metadata: Whole[dict[str, str] | None] = None
    user: str | None = None
    service_tier: str | None = None
    store: bool | None = None
    include: list[str] | None = None
    truncation: str | None = None
    stream: bool | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: Partial[CacheOptions | None] = None


# ── Replies ───────────────────────────────────────────────────────────────────────────────────────


class IncompleteDetails(msgspec.Struct, frozen=True):
    reason: str | None = None


class ReplyFields(msgspec.Struct, frozen=True):
    """The fields of a reply that are read; all of them but the first three stay in its extras."""

    id: str | None = None
    model: str | None = None
    output: list[msgspec.Raw] | None = None
    object: str | None = None
    status: str | None = None
    incomplete_details: IncompleteDetails | None = None
    usage: msgspec.Raw = NULL
    error: msgspec.Raw = NULL


class CacheWrites(msgspec.Struct, frozen=True):
    ttl_30m_tokens: int = 0
    ttl_12h_tokens: int = 0


class InputDetails(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    cache_write_tokens_details: CacheWrites | None = None


class ResponsesUsage(msgspec.Struct, frozen=True):
    input_tokens: int | None = None
    input_tokens_details: InputDetails | None = None
    output_tokens: int | None = None
    output_tokens_details: ReasoningCount | None = None
    total_tokens: int | None = None


# ── Stream events ─────────────────────────────────────────────────────────────────────────────────


class ResponseHead(msgspec.Struct, frozen=True):
    id: str | None = None
    model: str | None = None


class ItemHead(msgspec.Struct, frozen=True):
    type: str | None = None
    id: str | None = None

    @property
    def kind(self) -> str:
        """Only messages may lack a type."""
        return self.type or "message"


class CallHead(msgspec.Struct, frozen=True):
    """The fields of a function call, besides those of any item."""

    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None


class PartHead(msgspec.Struct, frozen=True):
    type: str | None = ""


class StreamEvent(Strict, frozen=True, gc=False):
    """An event of any type that is read; all others are ignored."""

    type: str = ""
    sequence_number: int | None = None
    output_index: int | None = None
    content_index: int | None = None
    item_id: str | None = None
    delta: str | None = None
    response: msgspec.Raw = NULL
    item: msgspec.Raw = NULL
    part: msgspec.Raw = NULL
    summary_index: msgspec.Raw = NULL
    logprobs: msgspec.Raw = NULL
    obfuscation: msgspec.Raw = NULL
    # The fields of an error.
    message: str | None = None
    code: str | int | None = None
    param: str | None = None
    error: ErrorObject | None = None
