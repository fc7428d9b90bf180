"""The documented objects of the generateContent API, under the names they have on the wire.

The structs reject unknown fields, so that none is lost: the reader collects those beside them. In
requests Gemini takes every name in snake_case as well.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw

from anaphora.canonical import dumps, loads
from anaphora.values import Extras
from anaphora.wire.memo import Memo
from anaphora.wire.reading import ErrorFactory, Partial, Whole, decode_value, encode_members

WIRE = "gemini"
#: The providers whose blocks, files and tools are valid here.
OWN = (WIRE, "google")
#: The extras that hold the form in which a value came, where other wires write it differently.
FORM = "gemini.form"
#: The extras of a call or result that came without an id: it gets one here that is never sent.
MADE_ID: Extras = {FORM: '{"id":null}'}
#: The kind of an opaque part that holds unknown fields of its content.
CONTENT_FIELDS = "content"
#: The API takes a single object for a list of one.
OneOrMany = list[Raw] | dict[str, Raw] | None
#: A missing field.
NULL = Raw(b"null")
#: What this wire remembers between calls.
MEMO = Memo()

_UNDERSCORE = re.compile(r"(?<=[a-z0-9])_([a-z0-9])")
_URL_SAFE = str.maketrans("-_", "+/")


class FunctionCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    name: str | None = None
    args: Raw = NULL
    id: str | None = None


class FunctionResponse(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    name: str | None = None
    response: Raw = NULL
    id: str | None = None
    parts: OneOrMany = None


class Blob(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    mimeType: str | None = None
    data: str | None = None


class FileData(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    mimeType: str | None = None
    fileUri: str | None = None


class WirePart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """One of text, call, response, bytes and file. Parts of other kinds are kept whole."""

    text: Whole[str | None] = None
    functionCall: FunctionCall | None = None
    functionResponse: FunctionResponse | None = None
    inlineData: Partial[Blob | None] = None
    fileData: Partial[FileData | None] = None
    thought: Whole[bool | None] = None
    thoughtSignature: Raw = NULL
    """As it was written: it is sent back that way."""


class Content(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    role: Literal["user", "model"]
    parts: list[WirePart]


class RawContent(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Any content, its parts not yet decoded."""

    role: str | None = None
    parts: OneOrMany = None


class FunctionDeclaration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A schema in Gemini's own form, `parameters`, is read from the unknown members."""

    name: str
    description: str | None = None
    parametersJsonSchema: Raw = NULL


class ToolObject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An object of the tool list. Its other members are tools of Gemini's own."""

    functionDeclarations: OneOrMany = None


class FunctionCallingConfig(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Other modes, and several names, are kept as unknown members."""

    mode: Literal["AUTO", "ANY", "NONE"] | None = None
    allowedFunctionNames: tuple[str] | None = None


class ThinkingConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    thinkingLevel: Annotated[str, Meta(pattern=r"(?i)^(minimal|low|medium|high)\Z")] | None = None
    thinkingBudget: Annotated[int, Meta(ge=-1)] | None = None
    includeThoughts: bool | None = None


class GenerationConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    maxOutputTokens: Whole[int | None] = None
    temperature: Whole[float | None] = None
    topP: Whole[float | None] = None
    topK: Whole[int | None] = None
    candidateCount: Whole[int | None] = None
    seed: Whole[int | None] = None
    presencePenalty: Whole[float | None] = None
    frequencyPenalty: Whole[float | None] = None
    stopSequences: Whole[tuple[str, ...] | None] = None
    responseMimeType: Whole[str | None] = None
    responseJsonSchema: Whole[Raw] = NULL
    responseSchema: Whole[Raw] = NULL
    thinkingConfig: Partial[ThinkingConfig | None] = None


class ToolConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    functionCallingConfig: Partial[FunctionCallingConfig | None] = None


_LabelName = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_-]{0,62}\Z")]
_LabelValue = Annotated[str, Meta(pattern=r"^[a-z0-9_-]{0,63}\Z")]


class RequestSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A request but for its contents. Objects that grow with the API are decoded apart."""

    model: str | None = None
    systemInstruction: Raw = NULL
    tools: Raw = NULL
    toolConfig: Raw = NULL
    generationConfig: Raw = NULL
    safetySettings: Raw = NULL
    cachedContent: Raw = NULL
    serviceTier: Whole[Literal["standard", "flex", "priority"] | None] = None
    labels: Whole[dict[_LabelName, _LabelValue] | None] = None
    store: Whole[bool | None] = None


class GenerateContentRequest(RequestSettings, frozen=True, forbid_unknown_fields=True):
    contents: list[Content]


class RawContentRequest(RequestSettings, frozen=True, forbid_unknown_fields=True):
    """Any request, its contents not yet decoded."""

    contents: OneOrMany = None


class UsageMetadata(msgspec.Struct, frozen=True):
    promptTokenCount: int | None = None
    cachedContentTokenCount: int | None = None
    toolUsePromptTokenCount: int | None = None
    candidatesTokenCount: int | None = None
    thoughtsTokenCount: int | None = None
    totalTokenCount: int | None = None


class GenerateContentResponse(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A response, or a chunk of a stream. Feedback and errors are read from the other members."""

    candidates: OneOrMany = None
    usageMetadata: Raw = NULL
    modelVersion: str | None = None
    responseId: str | None = None


class Candidate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Grounding, ratings and log probabilities are kept as unknown members."""

    content: Raw = NULL
    finishReason: str | None = None
    index: Raw = NULL


# ── Names, lists and bytes ───────────────────────────────────────────────────────────────────────


def camel(name: str) -> str:
    """`system_instruction` is `systemInstruction`."""
    return _UNDERSCORE.sub(lambda match: match[1].upper(), name) if "_" in name else name


def elements(listed: OneOrMany) -> list[Raw]:
    if isinstance(listed, dict):
        return [Raw(encode_members(listed))]
    return listed or []


def read_elements(raw: bytes | Raw, path: str, fail: ErrorFactory) -> list[Raw]:
    return elements(decode_value(raw, OneOrMany, path, fail))


def decode_base64(data: str) -> bytes | None:
    """Bytes in base64, in either alphabet, padded or not."""
    text = data.translate(_URL_SAFE).rstrip("=")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None


# ── Gemini's own schema form ─────────────────────────────────────────────────────────────────────
#
# `parameters` and `responseSchema` take a subset of OpenAPI: types in capitals, `nullable`, counts
# as strings. A schema that came in it goes back in it; other wires get the equal JSON Schema.

_COUNTS = ("minItems", "maxItems", "minProperties", "maxProperties", "minLength", "maxLength")


def json_schema(raw: bytes, path: str) -> str:
    """The schema as JSON Schema, keys in the order they came."""
    return dumps(_read_schema(loads(raw, path=path)), path=path).decode()


def _read_schema(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    read: dict[str, Any] = {}
    for key, value in schema.items():
        name = key if key.startswith("$") else camel(key)
        # The first is part of the type, the second the order of the properties.
        if name not in ("nullable", "propertyOrdering"):
            read[name] = _read_keyword(name, value)
    kind = read.get("type")
    if schema.get("nullable") is True and isinstance(kind, str):
        read["type"] = [kind, "null"]
    return read


def _read_keyword(name: str, value: Any) -> Any:
    if name == "type" and isinstance(value, str):
        return value.lower()
    if name in _COUNTS and isinstance(value, str) and value.isdecimal():
        return int(value)
    if name in ("anyOf", "prefixItems") and isinstance(value, list):
        return [_read_schema(item) for item in value]
    if name in ("items", "additionalProperties"):
        return _read_schema(value)
    if name in ("properties", "defs") and isinstance(value, dict):
        return {key: _read_schema(item) for key, item in value.items()}
    return value
