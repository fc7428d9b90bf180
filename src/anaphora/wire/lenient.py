"""Typed decoding of foreign JSON without losing unknown fields.

A `LenientDecoder` decodes strictly first. If that fails, it separates each object's unknown members
from the known ones, decodes the known ones, and returns the unknown ones beside the value. Errors
name the JSON path.
"""

from __future__ import annotations

import functools
import re
import types
from collections.abc import Callable
from typing import (
    Annotated,
    Any,
    Generic,
    TypeAlias,
    TypeVar,
    Union,
    cast,
    final,
    get_args,
    get_origin,
)

import msgspec

from anaphora.values import Extras

from .reading import (
    DECODE_ERRORS,
    ErrorFactory,
    Members,
    decode_elements,
    decode_members,
    decode_optional_text,
    decode_reason,
    decode_text,
    encode_members,
    extras_of,
    reason_and_path,
)

T = TypeVar("T")

_NULL = msgspec.Raw(b"null")
_CAPITAL = re.compile("[A-Z]")


@final
class Unknown(msgspec.Struct):
    """The members of an object that its struct lacks, and those of values inside it."""

    members: dict[str, msgspec.Raw | Unknown | dict[int, Unknown]]

    def take(self, name: str) -> Unknown | None:
        """Removes and returns the unknown members of the object in this field."""
        inner = self.members.get(name)
        if type(inner) is not Unknown:
            return None
        del self.members[name]
        return inner

    def take_elements(self, name: str) -> dict[int, Unknown]:
        """Removes and returns the unknown members of the list elements in this field, by index."""
        inner = self.members.pop(name, None)
        return inner if isinstance(inner, dict) else {}

    def remaining(self, *, nulls: bool = False) -> Members:
        """All that was not taken, in the order of the JSON; without nulls by default."""
        rest: Members = {}
        for name, value in self.members.items():
            if type(value) is msgspec.Raw:
                if nulls or value != _NULL:
                    rest[name] = value
            elif type(value) is Unknown and (inner := value.remaining(nulls=nulls)):
                rest[name] = msgspec.Raw(encode_members(inner))
        return rest

    def extras(self, wire: str, *, nulls: bool = False) -> Extras | None:
        """All that was not taken, as extras of that wire."""
        return extras_of(wire, self.remaining(nulls=nulls))


@final
class OtherBlock(msgspec.Struct, frozen=True):
    """An object of a tagged union with an unknown tag."""

    tag: str
    members: Members
    """All of it, the tag included."""
    raw: msgspec.Raw
    """The object as raw JSON."""


#: The type of a field whose whole value is unknown if it does not decode.
Whole = Annotated[T, "whole"]


#: The type of a field for an object of which only those members are unknown that do not decode. If
#: one of them is required, the whole object is unknown.
Partial = Annotated[T, "partial"]


class LenientDecoder(Generic[T]):
    """Decodes one type of struct, union of tagged structs, or list of them.

    The structs forbid unknown fields. A tag that no struct has gives an `OtherBlock`; `default_tag`
    stands for a missing one. `protobuf`: like Google's JSON parser, accept names in snake_case as
    well, and a single object for a list of one.
    """

    def __init__(
        self, kind: Any, *, default_tag: str | None = None, protobuf: bool = False
    ) -> None:
        self._node = _node(kind, protobuf, default_tag)
        self.strict: Callable[[bytes | msgspec.Raw], T] = self._node.strict

    def decode(
        self, data: bytes | msgspec.Raw, path: str, fail: ErrorFactory
    ) -> tuple[T, Unknown | None]:
        """The value, and the members that its type lacks; None if there are none."""
        try:
            return self.strict(data), None
        except DECODE_ERRORS:
            return self.separate(data, path, fail)

    def decode_list(
        self, data: bytes | msgspec.Raw, path: str, fail: ErrorFactory
    ) -> tuple[T, dict[int, Unknown]]:
        """A value that may be a list, and the unknown members of its elements by their index."""
        value, unknown = self.decode(data, path, fail)
        return value, cast("dict[int, Unknown]", unknown or {})

    def separate(
        self, data: bytes | msgspec.Raw, path: str, fail: ErrorFactory
    ) -> tuple[T, Unknown | None]:
        """The same as `decode` for data that is known not to decode strictly."""
        try:
            return self._node.separate(data)
        except _Invalid as problem:
            raise fail(problem.reason, path + problem.path) from None


class _Invalid(Exception):
    """A value that is not of its type; the path grows on the way out."""

    def __init__(self, reason: str, path: str = "") -> None:
        self.reason = reason
        self.path = path


#: A value and its unknown members; `UNSET` and the raw value if all of it is unknown.
_Separated: TypeAlias = tuple[Any, Any]


class _Node:
    """A type: its structs by their tags, and the type of its elements if it is a list. Any other
    type decodes as a whole."""

    def __init__(self, kind: Any, protobuf: bool, default_tag: str | None = None) -> None:
        self.strict = msgspec.json.Decoder(kind).decode
        self._protobuf = protobuf
        self._element: _Node | None = None
        self._structs: dict[str | None, _Struct] = {}
        self._tag_field: str | None = None
        kinds = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
        for each in kinds:
            if get_origin(each) is list:
                self._element = _node(get_args(each)[0], protobuf)
            elif isinstance(each, type) and issubclass(each, msgspec.Struct):
                self._tag_field = each.__struct_config__.tag_field
                tag = each.__struct_config__.tag
                self._structs[None if tag is None else str(tag)] = _struct(each, protobuf)
        self._only_objects = len(self._structs) == len(kinds)
        if default_tag is None and len(self._structs) == 1:
            (default_tag,) = self._structs  # as msgspec does
        self._default_tag = default_tag

    def separate(self, raw: bytes | msgspec.Raw) -> _Separated:
        """The value and its unknown members, after the strict decoder has failed."""
        if self._only_objects:
            return self._separate_object(raw)
        first = bytes(raw)[:1]
        if self._structs and first == b"{":
            return self._separate_object(raw)
        if self._element is not None and (first == b"[" or (first == b"{" and self._protobuf)):
            return self._separate_list(self._element, raw, first == b"{")
        try:
            return self.strict(raw), None
        except DECODE_ERRORS as problem:
            raise _Invalid(*reason_and_path(problem)) from None

    def separate_members(self, raw: msgspec.Raw) -> _Separated:
        """`separate` for a `Partial` field."""
        if bytes(raw)[:1] != b"{":
            return _keep_whole(raw)
        (struct,) = self._structs.values()
        return struct.separate(decode_members(raw), raw)

    def _separate_object(self, raw: bytes | msgspec.Raw) -> _Separated:
        try:
            members = decode_members(raw)
        except DECODE_ERRORS as problem:
            raise _Invalid(f"not a JSON object: {decode_reason(problem, raw)}") from None
        tag, field = self._default_tag, self._tag_field
        if field is not None and field in members:
            decode = decode_text if tag is None else decode_optional_text
            try:
                tag = decode(members[field]) or tag or ""
            except DECODE_ERRORS as problem:
                raise _Invalid(decode_reason(problem), f".{field}") from None
        if tag in self._structs:
            return self._structs[tag].separate(members)
        if tag is None:
            raise _Invalid("is missing", f".{field}")
        return OtherBlock(tag, members, msgspec.Raw(raw)), None

    def _separate_list(self, node: _Node, raw: bytes | msgspec.Raw, single: bool) -> _Separated:
        try:
            elements = [msgspec.Raw(raw)] if single else decode_elements(raw)
        except DECODE_ERRORS as problem:
            raise _Invalid(decode_reason(problem)) from None
        values: list[Any] = []
        unknown: dict[int, Unknown] = {}
        unusual = False
        separate = node._separate_object if node._only_objects else node.separate
        for index, element in enumerate(elements):
            if not unusual:
                try:
                    values.append(node.strict(element))
                    continue
                except DECODE_ERRORS:
                    pass
            try:
                value, inner = separate(element)
            except _Invalid as problem:
                problem.path = f"[{index}]{problem.path}"
                raise
            values.append(value)
            # If one element has unknown members, the next one likely has some as well.
            unusual = inner is not None
            if inner is not None:
                unknown[index] = inner
        return values, unknown or None


class _Struct:
    """A struct, whose fields are decoded one by one."""

    def __init__(self, kind: Any, protobuf: bool) -> None:
        self._kind = kind
        self._protobuf = protobuf
        self._tag_field = kind.__struct_config__.tag_field
        fields = msgspec.structs.fields(kind)
        self._required = [(field.name, field.encode_name) for field in fields if field.required]

    @functools.cached_property
    def _fields(self) -> dict[str, tuple[str, Callable[[msgspec.Raw], Any], Any]]:
        """By name in JSON: the attribute, the strict decoder, and the function for values that the
        decoder rejects. Made on demand, since types may be recursive."""
        fields: dict[str, tuple[str, Callable[[msgspec.Raw], Any], Any]] = {}
        for field in msgspec.structs.fields(self._kind):
            marks = getattr(field.type, "__metadata__", ())
            node = _node(field.type.__origin__ if marks else field.type, self._protobuf)
            separate = node.separate_members if "partial" in marks else node.separate
            if "whole" in marks:
                separate = _keep_whole
            fields[field.encode_name] = field.name, node.strict, separate
        return fields

    @functools.cached_property
    def _aliases(self) -> dict[str, str]:
        """The accepted names in snake_case, with the names that they stand for."""
        spelled = {_CAPITAL.sub(r"_\g<0>", name).lower(): name for name in self._fields}
        return {alias: name for alias, name in spelled.items() if alias != name}

    def separate(self, members: Members, partial: msgspec.Raw | None = None) -> _Separated:
        """The struct and its unknown members. `partial` is the raw object, for a field whose
        invalid members are unknown."""
        if self._protobuf and not self._aliases.keys().isdisjoint(members):
            members = self._renamed(members)
        values: dict[str, Any] = {}
        unknown: dict[str, msgspec.Raw | Unknown | dict[int, Unknown]] = {}
        fields = self._fields
        for name, raw in members.items():
            field = fields.get(name)
            if field is None:
                if name != self._tag_field:
                    unknown[name] = raw
                continue
            attribute, strict, separate = field
            try:
                values[attribute] = strict(raw)
                continue
            except DECODE_ERRORS:
                pass
            try:
                value, inner = separate(raw) if partial is None else _keep_whole(raw)
            except _Invalid as problem:
                problem.path = f".{name}{problem.path}"
                raise
            if value is not msgspec.UNSET:
                values[attribute] = value
            if inner is not None:
                unknown[name] = inner
        for attribute, name in self._required:
            if attribute not in values:
                if partial is not None:
                    return _keep_whole(partial)
                raise _Invalid("is missing", f".{name}")
        return self._kind(**values), Unknown(unknown) if unknown else None

    def _renamed(self, members: Members) -> Members:
        renamed: Members = {}
        for name, raw in members.items():
            known = self._aliases.get(name, name)
            if known in renamed:
                raise _Invalid("is given in two spellings", f".{known}")
            renamed[known] = raw
        return renamed


_node = functools.cache(_Node)


_struct = functools.cache(_Struct)


def _keep_whole(raw: msgspec.Raw) -> _Separated:
    return msgspec.UNSET, raw
