"""The parts of messages, tools, and notices.

Parts are frozen values that survive a round trip through JSON. Data that has to be sent back
unchanged (arguments, signatures, encrypted reasoning, unknown blocks) is kept as received text, so
no round trip can reorder or reformat it.
"""

from __future__ import annotations

from typing import ClassVar, TypeAlias

from .attachments import Audio, Document, Image
from .fields import CHECKED, Extras, PartValue, Value, check_fields
from .stability import CachePolicy


class Text(PartValue, tag="text", frozen=True):
    text: str
    extras: Extras | None = None

    def __post_init__(self) -> None:
        if type(self.text) is not str or type(self.extras) not in CHECKED:
            check_fields(self)


class ToolCall(PartValue, tag="tool_call", frozen=True):
    """A tool call. `arguments` is the JSON text that the model wrote, unchanged."""

    id: str
    name: str
    arguments: str = "{}"
    extras: Extras | None = None

    def __post_init__(self) -> None:
        texts = type(self.id) is type(self.name) is type(self.arguments) is str
        if not texts or type(self.extras) not in CHECKED:
            check_fields(self)


class Thinking(PartValue, tag="thinking", frozen=True):
    """Reasoning that has to be sent back to the provider verbatim.

    `signature` proves `text`; `data` is encrypted or redacted reasoning. Both are opaque and valid
    for `provider` only.
    """

    text: str = ""
    signature: str | None = None
    data: str | None = None
    provider: str | None = None
    extras: Extras | None = None


class Refusal(PartValue, tag="refusal", frozen=True):
    """The text of a refusal."""

    text: str
    extras: Extras | None = None


class Opaque(PartValue, tag="opaque", frozen=True):
    """A provider-specific block: `json` is the object as received."""

    provider: str
    kind: str
    json: str


ResultPart: TypeAlias = Text | Image | Document | Audio | Opaque


class ToolResult(PartValue, tag="tool_result", frozen=True):
    """The result of a tool; `error` means that the tool failed."""

    call_id: str
    content: str | tuple[ResultPart, ...] = ""
    error: bool = False
    name: str | None = None
    extras: Extras | None = None

    def __post_init__(self) -> None:
        if (
            not (type(self.call_id) is type(self.content) is str)
            or type(self.error) is not bool
            or not (self.name is None or type(self.name) is str)
            or type(self.extras) not in CHECKED
        ):
            check_fields(self)


Part: TypeAlias = (
    Text | Image | Document | Audio | ToolCall | ToolResult | Thinking | Refusal | Opaque
)


class Tool(Value, frozen=True, tag_field="type", tag="function"):
    """A function tool. `schema` is canonical JSON text."""

    field_hints: ClassVar[dict[str, str]] = {
        "schema": "; write json.dumps(…), or give the whole tool as a dict with an input_schema"
    }

    name: str
    description: str = ""
    schema: str = '{"properties":{},"type":"object"}'
    strict: bool | None = None
    cache: CachePolicy = CachePolicy.NONE
    extras: Extras | None = None


class ProviderTool(Value, frozen=True, tag_field="type", tag="provider"):
    """A provider's built-in tool (web search, code execution): `json` is its definition."""

    provider: str
    name: str
    json: str
    cache: CachePolicy = CachePolicy.NONE


AnyTool: TypeAlias = Tool | ProviderTool


class Notice(Value, frozen=True):
    """A feature that the wire lacks, or a value that was changed: part of the result, never logged.

    `code` is for programs, `message` for users; `path` names the field.
    """

    code: str
    message: str
    path: str = ""
    tokens: int | None = None

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message
