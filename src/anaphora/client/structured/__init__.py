"""Structured output: replies that are JSON of a given schema.

plan = output_of(Plan)                      a msgspec.Struct, dataclass, TypedDict, pydantic model,
                                            list[Plan], int, Plan | None, a JSON schema as a dict,
                                            or "json": any object, which the prompt describes
call = plan.apply(call)                     by the provider's native structured output,
call = plan.apply(call, by="tool")          or as the arguments of a tool that must be called
plan.parse_reply(reply)                     a Plan, or `Parse` with the path to the error
"""

from __future__ import annotations

import functools
import re
from typing import Any, Generic, Literal, TypeVar, overload

import msgspec

from anaphora import canonical
from anaphora.catalog import Profile
from anaphora.errors import InvalidJson, InvalidRequest, Parse
from anaphora.prompt import Call, OutputFormat, OutputSchema, ToolChoice
from anaphora.tools.schema import (
    canonical_schema,
    field_names,
    first_error,
    mismatch,
    schema_validator,
)
from anaphora.values import Notice, Refusal, Reply, StopReason, Tool
from anaphora.values.codec import loads

from .schema import Decode, provider_schema, source_of, takes_strict

__all__ = ["Structured", "output_of", "support_notices"]

T = TypeVar("T")

#: Schema names that OpenAI accepts, and tool names that all providers accept.
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_OPENS = re.compile(r"^[ \t]*```json[ \t]*\r?\n", re.MULTILINE | re.IGNORECASE)
_CLOSES = re.compile(r"^[ \t]*```[ \t]*\r?$", re.MULTILINE)
#: Why a reply with this stop reason has no value.
_NOT_COMPLETE: dict[StopReason, str] = {
    "length": "the reply was cut off at max_tokens",
    "context_overflow": "the reply was cut off at the end of the model's context window",
    "refusal": "the model refused to answer",
}
_TOOL = "Gives the answer. Call this exactly once, with the whole answer."


class Structured(Generic[T]):
    """A schema that replies must match. Made once and used for many calls."""

    def __init__(self, output: OutputFormat, accepted: str, decode: Decode | None) -> None:
        self.output = output
        self._accepted = accepted
        self._decode = decode

    def __repr__(self) -> str:
        if self.output == "json":
            return "<Structured json>"
        return f"<Structured {self.output.name}, {len(self.output.schema)} bytes of schema>"

    @property
    def name(self) -> str:
        """Of the schema; empty if there is none."""
        return "" if self.output == "json" else self.output.name

    def apply(self, call: Call, *, by: Literal["schema", "tool"] = "schema") -> Call:
        """The call with this output schema. `by="tool"` is for models that call tools but support
        no schema: it forces a tool call, and the tool is part of the prompt."""
        replace = msgspec.structs.replace
        if by == "schema":
            return replace(call, params=replace(call.params, output=self.output))
        if self.output == "json":
            raise InvalidRequest("a tool needs a schema; JSON mode has none", path="by")
        name = self.output.name
        if any(tool.name == name for tool in call.tools):
            raise InvalidRequest("a tool has this name; choose another", path="output.name")
        description = self.output.description or _TOOL
        tool = Tool(name, description, self.output.schema, strict=self.output.strict)
        choice = ToolChoice("tool", name)
        return replace(
            call, tools=(*call.tools, tool), params=replace(call.params, tool_choice=choice)
        )

    def parse_reply(self, reply: Reply) -> T:
        """The value in a reply's text or tool call. Every failure is a `Parse`, also an exception
        that the type's own code raises."""
        try:
            return self._parse_reply(reply)
        except Parse:
            raise
        except Exception as error:  # its message may quote the reply
            reason = f"code of the type raised {type(error).__name__}"
            raise Parse(reason, path="$") from None

    def _parse_reply(self, reply: Reply) -> T:
        for tool_call in reply.tool_calls:
            if tool_call.name == self.name:
                return self._value(tool_call.arguments)
        if any(isinstance(part, Refusal) for part in reply.message.parts):
            raise Parse(_NOT_COMPLETE["refusal"], path="$")
        try:
            return self.parse(reply.text)
        except Parse:
            if (reason := _NOT_COMPLETE.get(reply.stop_reason)) is not None:
                raise Parse(reason, path="$") from None
            raise

    def parse(self, text: str) -> T:
        """The value in a text that is JSON, or has exactly one ```json fence."""
        return self._value(_json_in(text))

    def _value(self, text: str) -> T:
        value: T = _loads(text)
        validator, names = self._validator
        if (error := first_error(validator, value)) is not None:
            reason, path = mismatch(error, names)
            raise Parse(reason, path=path)
        if self._decode is not None:
            value = self._decode(text)
        return value

    @functools.cached_property
    def _validator(self) -> tuple[Any, frozenset[str]]:
        validator = schema_validator(self._accepted, "output.schema", InvalidRequest)
        return validator, field_names(loads(self._accepted))


@overload
def output_of(source: Structured[T], name: None = None) -> Structured[T]: ...
@overload
def output_of(
    source: type[T],
    name: str | None = None,
    *,
    description: str | None = None,
    strict: bool | None = None,
) -> Structured[T]: ...
@overload
def output_of(
    source: object,
    name: str | None = None,
    *,
    description: str | None = None,
    strict: bool | None = None,
) -> Structured[Any]: ...
def output_of(
    source: Any,
    name: str | None = None,
    *,
    description: str | None = None,
    strict: bool | None = None,
) -> Structured[Any]:
    """The structured output that a type or a JSON schema defines.

    A type's schema is sent in the subset of JSON Schema that providers enforce, and replies are
    validated against the whole type; a JSON schema is sent unchanged. A type whose values are not
    objects (`list[Plan]`, `int`, a union) is wrapped in an object with the field `value`. `strict`
    is by default set if OpenAI's strict mode accepts the schema. `json` is JSON mode: any object. A
    `Structured` is returned unchanged.
    """
    if isinstance(source, Structured):
        return source
    if isinstance(source, str) and source == "json":
        return Structured[Any]("json", '{"type":"object"}', None)
    origin = source_of(source)
    sent = origin.schema if origin.decode is None else provider_schema(origin.schema)
    schema = canonical_schema(sent, path="output.schema")
    if name is not None and not _NAME.fullmatch(name):
        raise InvalidRequest("must be 1 to 64 of A-Z a-z 0-9 _ -", path="output.name")
    if strict is None and takes_strict(loads(schema)):
        strict = True
    output = OutputSchema(schema, description=description, strict=strict)
    if name is not None:
        output = msgspec.structs.replace(output, name=name)
    accepted = schema if origin.decode is None else canonical.dumps(origin.schema).decode()
    structured = Structured[Any](output, accepted, origin.decode)
    _ = structured._validator  # report an invalid schema at once
    return structured


def support_notices(profile: Profile) -> tuple[Notice, ...]:
    """A notice if the model's known capabilities do not include structured output."""
    if profile.capabilities is None or profile.can("structured_output"):
        return ()
    reason = f"{profile.id} is not known to support structured output; the reply is still validated"
    return (Notice("output_unpromised", reason, "params.output"),)


def _json_in(text: str) -> str:
    """The JSON in a reply. Prose is not searched: JSON in it may be an example, or one of several
    attempts."""
    if "```" not in text:
        return text
    try:
        loads(text)
    except InvalidJson:
        opened = list(_OPENS.finditer(text))
        closed = _CLOSES.search(text, opened[0].end()) if len(opened) == 1 else None
        return text if closed is None else text[opened[0].end() : closed.start()]
    return text


def _loads(text: str) -> Any:
    try:
        return loads(text)
    except InvalidJson as error:
        deep = error.reason == "nested too deeply"
        raise Parse("nested too deeply" if deep else "not JSON", path="$") from None
