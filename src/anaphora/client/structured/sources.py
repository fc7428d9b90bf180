"""Where a schema comes from, and how an answer becomes a value of that kind.

pydantic is never imported here: who has a model of it has loaded it.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import sys
import typing
from collections.abc import Callable
from typing import Any

import msgspec

from anaphora.errors import InvalidRequest, Parse

from .mismatch import field_names, place

Decode = Callable[[str], Any]
_PLACE = re.compile(r" - at `(?:key` in `)?(\$[^`]*)`$")
_QUOTES_THE_VALUE = re.compile(r"^Invalid (?:enum )?value ", re.DOTALL)


class Source(msgspec.Struct, frozen=True):
    """A schema in its maker's words, and the way from JSON that fits it to a value."""

    schema: Any
    decode: Decode | None = None
    """None: plain JSON values are what is wanted."""


def source_of(source: Any) -> Source:
    if isinstance(source, dict):
        return Source(source)
    if _is_pydantic(source):
        return _from_pydantic(source)
    if _is_for_msgspec(source):
        return _from_msgspec(source)
    raise InvalidRequest(
        "no schema can be made of this; give a msgspec.Struct, dataclass, TypedDict or pydantic"
        " model (the class, not an instance), or a JSON schema as a dict",
        path="output",
    )


def _is_for_msgspec(source: Any) -> bool:
    kind = typing.get_origin(source) or source  # Page[int] is made from Page
    return typing.is_typeddict(kind) or (
        isinstance(kind, type)
        and (issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind))
    )


def _from_msgspec(kind: Any) -> Source:
    try:
        schema = msgspec.json.schema(kind)
        decoder = msgspec.json.Decoder(kind)
    except (TypeError, ValueError, KeyError, NameError) as problem:
        reason = (str(problem).splitlines() or [""])[-1]
        raise InvalidRequest(f"has no JSON form: {reason}", path="output") from None

    def decode(text: str) -> Any:
        try:
            return decoder.decode(text)
        except msgspec.ValidationError as problem:
            raise _msgspec_refused(problem) from None

    return Source(schema, decode)


def _msgspec_refused(problem: msgspec.ValidationError) -> Parse:
    said = str(problem)
    place = _PLACE.search(said)
    reason = said[: place.start()] if place else said
    # An error of the type's own code, and some of msgspec's, may quote the answer.
    if problem.__cause__ is not None:
        reason = f"the type's own check raised {type(problem.__cause__).__name__}"
    elif _QUOTES_THE_VALUE.match(reason):
        reason = "not an allowed value"
    return Parse(reason, path=place[1] if place else "$")


def _is_pydantic(source: Any) -> bool:
    """A model or a dataclass of pydantic's."""
    return (
        "pydantic" in sys.modules
        and isinstance(source, type)
        and hasattr(source, "__pydantic_validator__")
    )


def _from_pydantic(kind: Any) -> Source:
    pydantic = sys.modules["pydantic"]
    adapter = pydantic.TypeAdapter(kind)
    try:
        schema = adapter.json_schema()
    except pydantic.errors.PydanticUserError as problem:
        raise InvalidRequest(f"has no JSON form: {problem.message}", path="output") from None
    names = field_names(schema)

    def decode(text: str) -> Any:
        try:
            return adapter.validate_json(text)
        except pydantic.ValidationError as problem:
            # Its messages quote the answer; the kind of error does not.
            first = problem.errors(include_input=False, include_url=False, include_context=False)[0]
            known = itertools.takewhile(
                lambda step: not isinstance(step, str) or step in names, first["loc"]
            )
            reason = f"the model's own check says {first['type']}"
            raise Parse(reason, path=place(known, names)) from None

    return Source(schema, decode)
