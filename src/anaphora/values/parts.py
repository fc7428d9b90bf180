"""What a message is made of.

Every part is a frozen value that survives a round trip through JSON. What providers gave us
and may want back unchanged (arguments, signatures, encrypted reasoning, whole blocks we have no
name for) is kept as the text it came in, so no round trip can reorder or reformat it.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

#: Fields of a provider's block that have no name here: wire name -> JSON object text.
Extras: TypeAlias = dict[str, str]


class _Value(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="type"
):
    """Common ground: immutable, strict when decoded, compact when encoded."""


class Bytes(_Value, tag="bytes", frozen=True):
    """Content that travels inside the request."""

    data: bytes
    media_type: str


class Url(_Value, tag="url", frozen=True):
    """Content the provider fetches by itself."""

    url: str
    media_type: str | None = None


class FileId(_Value, tag="file_id", frozen=True):
    """Content uploaded earlier; the id means something to that provider only."""

    provider: str
    id: str
    media_type: str | None = None


Source: TypeAlias = Bytes | Url | FileId


class Text(_Value, tag="text", frozen=True):
    text: str
    extras: Extras | None = None


class Image(_Value, tag="image", frozen=True):
    source: Source
    detail: str | None = None
    extras: Extras | None = None


class Document(_Value, tag="document", frozen=True):
    """A PDF, a text file: something with pages or lines. Plain text is `text/plain` bytes."""

    source: Source
    title: str | None = None
    context: str | None = None
    extras: Extras | None = None


class Audio(_Value, tag="audio", frozen=True):
    source: Source
    extras: Extras | None = None


class ToolCall(_Value, tag="tool_call", frozen=True):
    """The model asks for a tool. `arguments` is the JSON text it wrote, byte for byte."""

    id: str
    name: str
    arguments: str = "{}"
    extras: Extras | None = None


class Thinking(_Value, tag="thinking", frozen=True):
    """Reasoning that a provider wants back verbatim.

    `signature` proves `text`; `data` is encrypted or redacted reasoning. Both are opaque and mean
    something to `provider` only.
    """

    text: str = ""
    signature: str | None = None
    data: str | None = None
    provider: str | None = None
    extras: Extras | None = None


class Refusal(_Value, tag="refusal", frozen=True):
    """The model declined, in its own words."""

    text: str
    extras: Extras | None = None


class Opaque(_Value, tag="opaque", frozen=True):
    """A provider's own block, carried along unharmed: `json` is the object as it came."""

    provider: str
    kind: str
    json: str


ResultPart: TypeAlias = Text | Image | Document | Audio | Opaque


class ToolResult(_Value, tag="tool_result", frozen=True):
    """What a tool answered; `error` says that the tool failed."""

    call_id: str
    content: str | tuple[ResultPart, ...] = ""
    error: bool = False
    name: str | None = None
    extras: Extras | None = None


Part: TypeAlias = (
    Text | Image | Document | Audio | ToolCall | ToolResult | Thinking | Refusal | Opaque
)
