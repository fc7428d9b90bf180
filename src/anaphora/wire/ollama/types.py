"""The documented objects of Ollama's chat API, and the extras that parts keep for it.

The structs reject unknown fields, so that the reader collects them and none is lost.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Raw

from anaphora.errors import InvalidRequest
from anaphora.values import Extras
from anaphora.values.fields import FrozenExtras
from anaphora.wire.lenient import Whole
from anaphora.wire.memo import MEMOS
from anaphora.wire.reading import DECODE_ERRORS

WIRE = "ollama"
#: The wire's memory between calls.
MEMO = MEMOS[WIRE]
#: Key in the extras: the form of a call or result, see `PartForm`.
FORM = "ollama.form"

#: The kind of an opaque part that holds unknown fields of its message.
MESSAGE_FIELDS = "message"
#: The kind of an opaque part that is an image of an unknown type.
OTHER_IMAGE = "image"

#: A missing field.
NULL = Raw(b"null")


class _Object(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    pass


class CalledFunction(_Object, frozen=True, gc=False):
    name: str
    arguments: Raw = NULL
    index: int | None = None


class MessageCall(_Object, frozen=True, gc=False):
    function: CalledFunction
    id: str | None = None
    type: Literal["function"] | None = None


class _Message(msgspec.Struct, tag_field="role", frozen=True, forbid_unknown_fields=True, gc=False):
    content: str | None = None
    images: list[str] | None = None


class SystemMessage(_Message, tag="system", frozen=True, gc=False):
    pass


class UserMessage(_Message, tag="user", frozen=True, gc=False):
    pass


class AssistantMessage(_Message, tag="assistant", frozen=True, gc=False):
    thinking: str | None = None
    tool_calls: list[MessageCall] | None = None


class ToolMessage(_Message, tag="tool", frozen=True, gc=False):
    tool_name: str | None = None
    tool_call_id: str | None = None


ChatMessage: TypeAlias = SystemMessage | UserMessage | AssistantMessage | ToolMessage


class ModelOptions(_Object, frozen=True):
    """The options that have a parameter. A negative limit means none, and is kept as unknown."""

    num_predict: Whole[Annotated[int, msgspec.Meta(ge=0)] | None] = None
    temperature: Whole[float | None] = None
    top_p: Whole[float | None] = None
    top_k: Whole[int | None] = None
    seed: Whole[int | None] = None
    frequency_penalty: Whole[float | None] = None
    presence_penalty: Whole[float | None] = None
    stop: Whole[tuple[str, ...] | None] = None


class ChatRequest(_Object, frozen=True, kw_only=True):
    """The body of `POST /api/chat`. Raw members are decoded separately: models extend them."""

    model: str
    messages: list[ChatMessage] | None = None
    stream: bool | None = None
    tools: Raw = NULL
    options: Raw = NULL
    format: Raw = NULL
    think: Whole[bool | Literal["low", "medium", "high", "max"] | None] = None
    keep_alive: Raw = NULL


class FunctionTool(_Object, frozen=True):
    name: str
    description: str | None = None
    parameters: Raw = NULL


class ToolObject(_Object, frozen=True):
    """A function as a tool. Tools of other types are kept whole."""

    function: FunctionTool
    type: Literal["function"] | None = None


class ChatResponse(_Object, frozen=True):
    """An answer, or a line of a stream. Its date and durations are kept as unknown members."""

    model: str | None = None
    message: Raw = NULL
    done: bool | None = None
    done_reason: str | None = None
    prompt_eval_count: Any = None
    """A number; any other value does not invalidate the answer."""
    eval_count: Any = None


# ── Extras ───────────────────────────────────────────────────────────────────────────────────────


class PartForm(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a call or a result was written in its message."""

    missing: tuple[str, ...] = ()
    """Fields that were missing: the part's values for them are generated and not sent."""
    index: int | None = None
    """The number of a call."""
    created_at: str | None = None
    """The date of the answer that a call came in: its id is derived from that."""


_read_form = msgspec.json.Decoder(PartForm).decode


def read_form(extras: Extras | None) -> PartForm:
    if extras is None or FORM not in extras:
        return PartForm()
    try:
        return _read_form(extras[FORM])
    except DECODE_ERRORS as problem:
        raise InvalidRequest(str(problem), path=f"extras.{FORM}") from None


def form_extras(form: PartForm) -> Extras:
    return FrozenExtras({FORM: msgspec.json.encode(form).decode()})


class OpaqueImage(msgspec.Struct, frozen=True):
    """The JSON of an opaque part that is an image of an unknown type."""

    data: str
