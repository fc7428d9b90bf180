"""Answers that are JSON of a given form.

plan = output_of(Plan)                      a msgspec.Struct, dataclass, TypedDict,
                                            pydantic model, or a JSON schema as a dict
call = plan.ask(call)                       natively, as every wire has it,
call = plan.ask(call, by="tool")            or as the arguments of a tool that must be called
plan.of(reply)                              a Plan, or `Parse` with the path to what is amiss
"""

from __future__ import annotations

import functools
import re
from typing import Any, Generic, Literal, TypeVar, overload

import msgspec

from anaphora import canonical
from anaphora.catalog import Profile
from anaphora.errors import InvalidJson, InvalidRequest, Parse
from anaphora.prompt import Call, OutputSchema, ToolChoice
from anaphora.tools.schema import canonical_schema
from anaphora.values import Notice, Refusal, Reply, Tool

from .asking import asked, takes_strict
from .mismatch import field_names, mismatch
from .sources import Decode, source_of

__all__ = ["Structured", "output_of", "unpromised"]

T = TypeVar("T")

#: What OpenAI takes as the name of a schema, and all take as that of a tool.
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_OPENS = re.compile(r"^[ \t]*```json[ \t]*\r?\n", re.MULTILINE | re.IGNORECASE)
_CLOSES = re.compile(r"^[ \t]*```[ \t]*\r?$", re.MULTILINE)
_TOOL = "Gives the answer. Call this exactly once, with the whole answer."


class Structured(Generic[T]):
    """A form that answers must have. Made once and used for many calls."""

    def __init__(self, output: OutputSchema, accepted: str, decode: Decode | None) -> None:
        self.output = output
        """What a provider is asked for."""
        self._accepted = accepted
        self._decode = decode

    def __repr__(self) -> str:
        return f"<Structured {self.output.name}, {len(self.output.schema)} bytes of schema>"

    def ask(self, call: Call, *, by: Literal["schema", "tool"] = "schema") -> Call:
        """The call, asking for an answer of this form. `by="tool"` is for models that keep to no
        schema but call tools: it forces one, which is part of the prompt."""
        replace = msgspec.structs.replace
        if by == "schema":
            return replace(call, params=replace(call.params, output=self.output))
        name = self.output.name
        if any(tool.name == name for tool in call.tools):
            raise InvalidRequest("a tool has that name already; give another", path="output.name")
        told = self.output.description or _TOOL
        tool = Tool(name, told, self.output.schema, strict=self.output.strict)
        choice = ToolChoice("tool", name)
        return replace(
            call, tools=(*call.tools, tool), params=replace(call.params, tool_choice=choice)
        )

    def of(self, reply: Reply) -> T:
        """The answer as a value, from the text or from the call of the tool. Whatever is wrong
        with it, also what a type's own code raises, is a `Parse`."""
        try:
            return self._of(reply)
        except Parse:
            raise
        except Exception as problem:  # its message may quote the answer
            reason = f"the type's own code raised {type(problem).__name__}"
            raise Parse(reason, path="$") from None

    def _of(self, reply: Reply) -> T:
        for tool_call in reply.tool_calls:
            if tool_call.name == self.output.name:
                return self._value(tool_call.arguments)
        if any(isinstance(part, Refusal) for part in reply.message.parts):
            raise Parse("the model declined, so there is no answer to read", path="$")
        try:
            return self.read(reply.text)
        except Parse:
            if reply.stop == "length":
                raise Parse("the answer was cut off at max_tokens", path="$") from None
            raise

    def read(self, text: str) -> T:
        """The value that the text says: all of it is JSON, or has it in its only ```json fence."""
        return self._value(_json_in(text))

    def _value(self, text: str) -> T:
        value: T = _loads(text)
        validator, names = self._validator
        if not validator.is_valid(value):
            for problem in validator.iter_errors(value):
                raise mismatch(problem, names)
        if self._decode is not None:
            value = self._decode(text)
        return value

    @functools.cached_property
    def _validator(self) -> tuple[Any, frozenset[str]]:
        """The compiled schema, and all names of fields in it."""
        import jsonschema_rs  # slow to load, and most calls ask for no schema

        try:
            validator = jsonschema_rs.validator_for(self._accepted, retriever=_refuse_to_fetch)
        except (ValueError, jsonschema_rs.ReferencingError) as problem:
            reason = getattr(problem, "message", str(problem))
            raise InvalidRequest(f"not a JSON schema: {reason}", path="output.schema") from None
        return validator, field_names(canonical.loads(self._accepted))


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
    source: dict[str, Any],
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
    """The form that a type, or a JSON schema, gives to answers.

    A type is asked for in the part of JSON Schema that providers enforce, and read by all that it
    says; a schema is asked for as it is written. Unless `strict` says otherwise, strict mode is
    asked for where the schema is one that it takes. What is `Structured` already stays as it is.
    """
    if isinstance(source, Structured):
        return source
    found = source_of(source)
    made = found.schema if found.decode is None else asked(found.schema)
    schema = canonical_schema(made, path="output.schema")
    if name is not None and not _NAME.fullmatch(name):
        raise InvalidRequest("must be 1 to 64 of A-Z a-z 0-9 _ -", path="output.name")
    if strict is None and takes_strict(canonical.loads(schema)):
        strict = True
    output = OutputSchema(schema, description=description, strict=strict)
    if name is not None:
        output = msgspec.structs.replace(output, name=name)
    accepted = schema if found.decode is None else canonical.dumps(found.schema).decode()
    structured = Structured[Any](output, accepted, found.decode)
    _ = structured._validator  # a schema that is none is the caller's error, and told at once
    return structured


def unpromised(profile: Profile) -> tuple[Notice, ...]:
    """What to tell when a model is asked for an answer of a given form, and its source, which says
    what it can do, does not say that it keeps to one."""
    if profile.capabilities is None or profile.can("structured_output"):
        return ()
    why = f"no source says that {profile.id} keeps to a schema by itself; the answer is checked"
    return (Notice("output_unpromised", f"{why} all the same", "params.output"),)


def _json_in(text: str) -> str:
    """The JSON in an answer. It is not looked for in prose: what is found there may be an example,
    or one of several tries."""
    if "```" not in text:
        return text
    try:
        canonical.loads(text)
    except InvalidJson:
        opened = list(_OPENS.finditer(text))
        closed = _CLOSES.search(text, opened[0].end()) if len(opened) == 1 else None
        return text if closed is None else text[opened[0].end() : closed.start()]
    return text


def _loads(text: str) -> Any:
    try:
        return canonical.loads(text)
    except InvalidJson as problem:
        deep = problem.reason == "nested too deeply"
        raise Parse("nested too deeply" if deep else "not JSON", path="$") from None


def _refuse_to_fetch(uri: str) -> Any:
    raise ValueError(f"{uri} is not fetched; put what it says into $defs")
