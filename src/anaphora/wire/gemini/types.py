"""The documented objects of the generateContent API, under the names they have on the wire.

The structs reject unknown fields, so that the reader collects them and none is lost. In requests
Gemini also accepts every name in snake_case, and a single object for a list of one.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Raw

from anaphora.canonical import dumps
from anaphora.values import Extras
from anaphora.values.codec import loads
from anaphora.values.fields import FrozenExtras
from anaphora.wire.lenient import Partial, Whole
from anaphora.wire.memo import MEMOS
from anaphora.wire.reading import (
    Members,
    decode_members,
    decode_value,
    object_members,
    request_error,
)

WIRE = "gemini"
#: The wire's memory between calls.
MEMO = MEMOS[WIRE]
#: The providers whose blocks, files and tools are valid here.
OWN = (WIRE, "google")
#: Key in the extras: the form in which a value was read, if other wires write it differently.
FORM = "gemini.form"
#: Key in the extras of a call or result that had no id: the generated one is never sent.
MADE_ID: Extras = FrozenExtras({FORM: '{"id":null}'})
#: Fields of a call that another model made, for models that refuse one without a signature. Google
#: documents the value.
UNSIGNED = '{"thoughtSignature":"skip_thought_signature_validator"}'
#: The kind of an opaque part that holds unknown fields of its content.
CONTENT_FIELDS = "content"
#: A missing field.
NULL = Raw(b"null")
_UNDERSCORE = re.compile(r"(?<=[a-z0-9])_([a-z0-9])")
_URL_SAFE = str.maketrans("-_", "+/")


class _Object(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    pass


class FunctionCall(_Object, frozen=True, gc=False):
    name: str | None = None
    args: Raw = NULL
    id: str | None = None


class FunctionResponse(_Object, frozen=True, gc=False):
    name: str | None = None
    response: Raw = NULL
    id: str | None = None
    parts: list[WirePart] | None = None


class Blob(_Object, frozen=True, gc=False):
    mimeType: str | None = None
    data: str | None = None


class FileData(_Object, frozen=True, gc=False):
    mimeType: str | None = None
    fileUri: str | None = None


class WirePart(_Object, frozen=True, gc=False):
    """One of text, call, response, bytes and file. Parts of other kinds are kept whole."""

    text: Whole[str | None] = None
    functionCall: FunctionCall | None = None
    functionResponse: FunctionResponse | None = None
    inlineData: Partial[Blob | None] = None
    fileData: Partial[FileData | None] = None
    thought: Whole[bool | None] = None
    thoughtSignature: Raw = NULL
    """Raw text, since it is sent back unchanged."""

    @property
    def is_text(self) -> bool:
        """Whether it is only a text, or a thought."""
        others = self.functionCall or self.functionResponse or self.inlineData or self.fileData
        return self.text is not None and others is None


class Content(_Object, frozen=True, gc=False):
    role: str | None = None
    parts: list[WirePart] | None = None


class FunctionDeclaration(_Object, frozen=True):
    """A schema in Gemini's own form, `parameters`, is read from the unknown members."""

    name: str
    description: str | None = None
    parametersJsonSchema: Raw = NULL


class ToolObject(_Object, frozen=True):
    """An object of the tool list. Its other members are tools of Gemini's own."""

    functionDeclarations: list[FunctionDeclaration] | None = None


class FunctionCallingConfig(_Object, frozen=True, omit_defaults=True):
    """Other modes, and several names, are kept as unknown members."""

    mode: Literal["AUTO", "ANY", "NONE"] | None = None
    allowedFunctionNames: tuple[str] | None = None


class ToolConfig(_Object, frozen=True):
    functionCallingConfig: Partial[FunctionCallingConfig | None] = None


class ThinkingConfig(_Object, frozen=True):
    thinkingLevel: Annotated[str, Meta(pattern=r"(?i)^(minimal|low|medium|high)\Z")] | None = None
    thinkingBudget: Annotated[int, Meta(ge=-1)] | None = None
    includeThoughts: bool | None = None


#: A number that clients written in languages with one type of numbers send as `50.0`.
_Integer: TypeAlias = int | Annotated[float, Meta(multiple_of=1)]


class GenerationConfig(_Object, frozen=True):
    maxOutputTokens: Whole[_Integer | None] = None
    temperature: Whole[float | None] = None
    topP: Whole[float | None] = None
    topK: Whole[_Integer | None] = None
    candidateCount: Whole[_Integer | None] = None
    seed: Whole[_Integer | None] = None
    presencePenalty: Whole[float | None] = None
    frequencyPenalty: Whole[float | None] = None
    stopSequences: Whole[tuple[str, ...] | None] = None
    responseMimeType: Whole[str | None] = None
    responseJsonSchema: Raw = NULL
    responseSchema: Raw = NULL
    thinkingConfig: Partial[ThinkingConfig | None] = None


_LabelName = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_-]{0,62}\Z")]
_LabelValue = Annotated[str, Meta(pattern=r"^[a-z0-9_-]{0,63}\Z")]


class GenerateContentRequest(_Object, frozen=True, kw_only=True):
    model: str | None = None
    contents: list[Content] | None = None
    systemInstruction: Raw = NULL
    tools: Raw = NULL
    toolConfig: ToolConfig | None = None
    generationConfig: GenerationConfig | None = None
    safetySettings: Raw = NULL
    cachedContent: Raw = NULL
    serviceTier: Whole[Literal["standard", "flex", "priority"] | None] = None
    labels: Whole[dict[_LabelName, _LabelValue] | None] = None
    store: Whole[bool | None] = None


class UsageMetadata(msgspec.Struct, frozen=True):
    promptTokenCount: int | None = None
    cachedContentTokenCount: int | None = None
    toolUsePromptTokenCount: int | None = None
    candidatesTokenCount: int | None = None
    thoughtsTokenCount: int | None = None
    totalTokenCount: int | None = None


class Candidate(_Object, frozen=True):
    """Grounding, ratings and log probabilities are kept as unknown members."""

    content: Content | None = None
    finishReason: str | int | None = None
    """A number if the client requested enums as integers."""
    index: Raw = NULL


class GenerateContentResponse(_Object, frozen=True):
    """A response, or a chunk of a stream. Feedback and errors are read from the other members."""

    candidates: list[Candidate] | None = None
    usageMetadata: Raw = NULL
    modelVersion: str | None = None
    responseId: str | None = None


# ── Names, lists and bytes ───────────────────────────────────────────────────────────────────────


def camel(name: str) -> str:
    """`system_instruction` becomes `systemInstruction`."""
    return _UNDERSCORE.sub(lambda match: match[1].upper(), name) if "_" in name else name


def read_form(extras: Extras | None) -> Members:
    """The form in which a value was read, from its extras."""
    if extras is None or FORM not in extras:
        return {}
    return object_members(extras[FORM].encode(), f"extras.{FORM}", request_error)


def raw_elements(raw: bytes | Raw, path: str = "$") -> list[Raw]:
    """The elements of a list as raw JSON."""
    if bytes(raw)[:1] == b"{":
        return [Raw(raw)]
    return decode_value(raw, list[Raw] | None, path, request_error) or []


def raw_list(raw: bytes | Raw, *path: str | int) -> list[Raw]:
    """`raw_elements` of the list at a path of names and positions."""
    for step in path:
        if isinstance(step, int):
            raw = raw_elements(raw)[step]
        else:
            raw = {camel(name): value for name, value in decode_members(raw).items()}[step]
    return raw_elements(raw)


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
# as strings. A schema that was read in this form is written in it; other wires get the equal JSON
# Schema. Types in capitals are also accepted in the fields of JSON Schema: Google's own CLI sends
# them there.

_CAPITALS = re.compile(rb'"type"\s*:\s*(?:\[\s*)?"[A-Z]')
_SCHEMA_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SCHEMA_MAPS = ("properties", "defs", "$defs", "definitions", "patternProperties")
_COUNTS = ("minItems", "maxItems", "minProperties", "maxProperties", "minLength", "maxLength")


def json_schema(raw: bytes, path: str) -> str:
    """The schema as JSON Schema, keys in their original order."""
    return dumps(_read_schema(loads(raw, path=path)), path=path).decode()


def has_own_types(raw: bytes) -> bool:
    """Whether a schema has types in capitals."""
    return _CAPITALS.search(raw) is not None


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
    if name == "type" and isinstance(value, list):
        return [each.lower() if isinstance(each, str) else each for each in value]
    if name in _COUNTS and isinstance(value, str) and value.isdecimal():
        return int(value)
    if name in _SCHEMA_LISTS and isinstance(value, list):
        return [_read_schema(item) for item in value]
    if name in ("items", "additionalProperties"):
        return _read_schema(value)
    if name in _SCHEMA_MAPS and isinstance(value, dict):
        return {key: _read_schema(item) for key, item in value.items()}
    return value
