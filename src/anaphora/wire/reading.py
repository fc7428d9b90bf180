"""Typed decoding of JSON that others wrote, without losing what the types do not name.

A `LenientDecoder` decodes strictly first. Where that fails it separates each object's unknown
members from the known ones, decodes the known ones, and returns the unknown ones beside the value.
Errors name the JSON path.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, ParamSpec, TypeAlias, TypeVar, Union, get_args, get_origin

import msgspec

from anaphora.errors import AnaphoraError, InvalidRequest, Parse
from anaphora.values import Extras

T = TypeVar("T")
P = ParamSpec("P")

#: The members of a JSON object, each as it was sent.
Members: TypeAlias = dict[str, msgspec.Raw]

#: What decoding foreign bytes may raise: invalid JSON, invalid UTF-8, nesting too deep.
DECODE_ERRORS = (msgspec.DecodeError, UnicodeError, RecursionError)

#: Makes the error for a reason and a path: `Parse` for replies, `InvalidRequest` for requests.
ErrorFactory = Callable[[str, str], AnaphoraError]

decode_members = msgspec.json.Decoder(Members).decode
decode_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_optional_elements = msgspec.json.Decoder(list[msgspec.Raw] | None).decode
_encode = msgspec.json.Encoder().encode
_FIRST_IDS = tuple(f"m{index}" for index in range(256))


# ── Errors ───────────────────────────────────────────────────────────────────────────────────────


def reply_error(reason: str, path: str) -> Parse:
    return Parse(reason, path=path)


def request_error(reason: str, path: str) -> InvalidRequest:
    return InvalidRequest(reason, path=path)


def decode_reason(problem: Exception) -> str:
    """Why bytes cannot be decoded, without quoting them."""
    if isinstance(problem, UnicodeDecodeError):
        return f"a value is not UTF-8 at its byte {problem.start}"
    return "nested too deep" if isinstance(problem, RecursionError) else str(problem)


def as_anaphora_error(problem: Exception) -> AnaphoraError:
    """The error itself when it is one of ours, and a `Parse` for bytes that cannot be decoded."""
    if isinstance(problem, AnaphoraError):
        return problem
    return reply_error(decode_reason(problem), "stream")


def converts_errors(fail: ErrorFactory) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorates readers of whole bodies, so that they raise nothing but our errors."""

    def decorate(read: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(read)
        def reading(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return read(*args, **kwargs)
            except DECODE_ERRORS as problem:
                raise fail(decode_reason(problem), "$") from None

        return reading

    return decorate


def _located(problem: Exception, path: str, fail: ErrorFactory) -> AnaphoraError:
    """The error for a value at `path`; msgspec names the place inside it."""
    reason, _, inner = decode_reason(problem).partition(" - at `$")
    return fail(reason, path + inner.rstrip("`"))


# ── What the types do not name ───────────────────────────────────────────────────────────────────


class Unknown:
    """The members of an object that its struct does not name, and those of values inside it."""

    __slots__ = ("members",)

    def __init__(self, members: dict[str, msgspec.Raw | Unknown | dict[int, Unknown]]) -> None:
        self.members = members

    def take(self, name: str) -> Unknown | None:
        """Removes and returns the unknown members of the object in this field."""
        inner = self.members.get(name)
        if not isinstance(inner, Unknown):
            return None
        del self.members[name]
        return inner

    def take_elements(self, name: str) -> dict[int, Unknown]:
        """Removes and returns the unknown members of the list elements in this field, by index."""
        inner = self.members.pop(name, None)
        return inner if isinstance(inner, dict) else {}

    def remaining(self, *, nulls: bool = False) -> Members:
        """All that was not taken, in the order it was sent; without nulls unless asked for."""
        rest: Members = {}
        for name, value in self.members.items():
            if isinstance(value, Unknown):
                if inner := value.remaining(nulls=nulls):
                    rest[name] = msgspec.Raw(_encode(inner))
            elif isinstance(value, msgspec.Raw) and (nulls or bytes(value) != b"null"):
                rest[name] = value
        return rest

    def extras(self, wire: str, *, nulls: bool = False) -> Extras | None:
        """All that was not taken, as extras of that wire."""
        return extras_of(wire, self.remaining(nulls=nulls))


class OtherBlock(msgspec.Struct, frozen=True):
    """An object of a tagged union whose tag is not known here."""

    tag: str
    members: Members
    """All of it, the tag included."""
    raw: msgspec.Raw
    """The same, as it was sent."""


def extras_of(wire: str, members: Members) -> Extras | None:
    """Members as extras of that wire; None where there are none."""
    return {wire: _encode(members).decode()} if members else None


def encode_members(members: Members) -> bytes:
    """A JSON object of these members, each as it was sent."""
    return _encode(members)


def object_members(raw: bytes | msgspec.Raw, path: str, fail: ErrorFactory) -> Members:
    """The members of an object; an error where it is none."""
    try:
        return decode_members(raw)
    except DECODE_ERRORS as problem:
        raise fail(f"not a JSON object: {problem}", path) from None


def list_elements(raw: bytes | msgspec.Raw, path: str, fail: ErrorFactory) -> list[msgspec.Raw]:
    """The elements of a list; none where it is null."""
    try:
        return _decode_optional_elements(raw) or []
    except DECODE_ERRORS as problem:
        raise _located(problem, path, fail) from None


def decode_value(raw: bytes | msgspec.Raw, kind: Any, path: str, fail: ErrorFactory) -> Any:
    """One value of that type; the error names the path."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except DECODE_ERRORS as problem:
        raise _located(problem, path, fail) from None


def known_text(members: Members, name: str) -> str:
    """A member that is a text; empty where it is none."""
    raw = bytes(members.get(name, b""))
    return str(msgspec.json.decode(raw)) if raw.startswith(b'"') else ""


def message_ids(count: int) -> Sequence[str]:
    """`m0`, `m1`, … for that many messages."""
    if count <= len(_FIRST_IDS):
        return _FIRST_IDS[:count]
    return [*_FIRST_IDS, *(f"m{index}" for index in range(len(_FIRST_IDS), count))]


# ── The decoder ──────────────────────────────────────────────────────────────────────────────────


class LenientDecoder(Generic[T]):
    """Decodes one type of struct, union of tagged structs, or list of them.

    The structs forbid unknown fields. A tag that no struct has gives an `OtherBlock`. Options name
    fields of the outermost struct: of those in `whole` a value that does not decode is unknown as a
    whole, of those in `partial` each member that does not decode is unknown by itself.
    `default_tag` stands for a missing tag. `respell` gives another spelling of a
    field's name, which is accepted as well.
    """

    def __init__(
        self,
        kind: Any,
        *,
        whole: Iterable[str] = (),
        partial: Iterable[str] = (),
        default_tag: str | None = None,
        respell: Callable[[str], str] | None = None,
    ) -> None:
        self.strict: Callable[[bytes | msgspec.Raw], T] = msgspec.json.Decoder(kind).decode
        known: dict[Any, _Node] = {}
        self._node = _node(kind, known, default_tag)
        if isinstance(self._node, _Object):
            self._node.replace(whole, _Whole)
            self._node.replace(partial, _Partial)
        if respell is not None:
            for node in known.values():
                if isinstance(node, _Object):
                    node.accept(respell)

    def decode(
        self, data: bytes | msgspec.Raw, path: str, fail: ErrorFactory
    ) -> tuple[T, Unknown | None]:
        """The value, and the members that have no name in it; None where there are none."""
        try:
            return self.strict(data), None
        except DECODE_ERRORS:
            return self.separate(data, path, fail)

    def separate(
        self, data: bytes | msgspec.Raw, path: str, fail: ErrorFactory
    ) -> tuple[T, Unknown | None]:
        """The same for data that is known not to decode strictly."""
        value, unknown = self._separate(data, path, fail)
        return value, unknown if isinstance(unknown, Unknown) else None

    def decode_list(
        self, data: bytes | msgspec.Raw, path: str, fail: ErrorFactory
    ) -> tuple[T, dict[int, Unknown]]:
        """A value that may be a list, and the unknown members of its elements by their index."""
        try:
            return self.strict(data), {}
        except DECODE_ERRORS:
            pass
        value, unknown = self._separate(data, path, fail)
        return value, unknown if isinstance(unknown, dict) else {}

    def _separate(self, data: bytes | msgspec.Raw, path: str, fail: ErrorFactory) -> _Separated:
        try:
            return self._node.separate(data)
        except _Invalid as problem:
            raise fail(problem.reason, path + problem.path) from None


_Separated: TypeAlias = "tuple[Any, Unknown | msgspec.Raw | dict[int, Unknown] | None]"


class _Invalid(Exception):
    """A value that is not of its type; the path grows on the way out."""

    def __init__(self, reason: str, path: str = "") -> None:
        self.reason = reason
        self.path = path


class _Node:
    """A type that is decoded as a whole: text, numbers, literals, raw JSON."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        self.strict = msgspec.json.Decoder(kind).decode

    def separate(self, raw: bytes | msgspec.Raw) -> _Separated:
        """The value and its unknown members, where the strict decoder has failed."""
        try:
            return self.strict(raw), None
        except DECODE_ERRORS as problem:
            reason, _, inner = decode_reason(problem).partition(" - at `$")
            raise _Invalid(reason, inner.rstrip("`")) from None


class _Object(_Node):
    """A struct."""

    def __init__(self, kind: Any, known: dict[Any, _Node]) -> None:
        super().__init__(kind)
        known[kind] = self
        self._tag_field = kind.__struct_config__.tag_field
        fields = msgspec.structs.fields(kind)
        self._fields: dict[str, tuple[str, Callable[[msgspec.Raw], Any], _Node]] = {}
        for field in fields:
            node = _node(field.type, known)
            self._fields[field.encode_name] = field.name, node.strict, node
        self._required = [field.encode_name for field in fields if field.required]
        self._aliases: dict[str, str] = {}

    def accept(self, respell: Callable[[str], str]) -> None:
        """Accepts the fields under another spelling, too."""
        self._aliases = _aliases(self._fields, respell)
        for _, _, node in self._fields.values():
            if isinstance(node, _Partial):
                node.accept(respell)

    def replace(self, names: Iterable[str], kind: type[_Node]) -> None:
        """Decodes these fields another way."""
        for name in names:
            attribute, _, node = self._fields[name]
            other = kind(node.kind)
            self._fields[name] = attribute, other.strict, other

    def separate(self, raw: bytes | msgspec.Raw) -> _Separated:
        return self.from_members(_object(raw))

    def from_members(self, members: Members) -> _Separated:
        if self._aliases:
            members = _renamed(members, self._aliases)
        values: dict[str, Any] = {}
        unknown: dict[str, msgspec.Raw | Unknown | dict[int, Unknown]] = {}
        fields = self._fields
        for name, raw in members.items():
            if name not in fields:
                if name != self._tag_field:
                    unknown[name] = raw
                continue
            attribute, strict, node = fields[name]
            try:
                values[attribute] = strict(raw)
                continue
            except DECODE_ERRORS:
                pass
            try:
                value, inner = node.separate(raw)
            except _Invalid as problem:
                problem.path = f".{name}{problem.path}"
                raise
            if value is not msgspec.UNSET:
                values[attribute] = value
            if inner is not None:
                unknown[name] = inner
        for name in self._required:
            if name not in members:
                raise _Invalid("is missing", f".{name}")
        return self.kind(**values), Unknown(unknown) if unknown else None


class _Union(_Node):
    """One of several structs, selected by a tag."""

    def __init__(self, kinds: Sequence[Any], known: dict[Any, _Node], default: str | None) -> None:
        super().__init__(Union[tuple(kinds)])  # noqa: UP007
        known[tuple(kinds)] = self
        if default is None and len(kinds) == 1:
            default = str(kinds[0].__struct_config__.tag)  # as msgspec does
        self._default = default
        self._decode_tag: Callable[[msgspec.Raw], str | None]
        self._decode_tag = msgspec.json.Decoder(str if default is None else str | None).decode
        self._tag_field = str(kinds[0].__struct_config__.tag_field)
        self._by_tag = {str(kind.__struct_config__.tag): _Object(kind, known) for kind in kinds}

    def separate(self, raw: bytes | msgspec.Raw) -> _Separated:
        members = _object(raw)
        tag = self._default
        if self._tag_field in members:
            try:
                tag = self._decode_tag(members[self._tag_field]) or tag or ""
            except DECODE_ERRORS as problem:
                raise _Invalid(decode_reason(problem), f".{self._tag_field}") from None
        if tag is None:
            raise _Invalid("is missing", f".{self._tag_field}")
        node = self._by_tag.get(tag)
        if node is None:
            return OtherBlock(tag, members, msgspec.Raw(raw)), None
        return node.from_members(members)


class _Choice(_Node):
    """A union of a list or an object with plain values, such as `str | list[Block] | None`."""

    def __init__(self, kind: Any, inner: Sequence[_Node]) -> None:
        super().__init__(kind)
        self._list = next((node for node in inner if isinstance(node, _List)), None)
        self._object = next((node for node in inner if isinstance(node, _Object | _Union)), None)

    def separate(self, raw: bytes | msgspec.Raw) -> _Separated:
        first = bytes(raw)[:1]
        node = self._list if first == b"[" else self._object if first == b"{" else None
        return super().separate(raw) if node is None else node.separate(raw)


class _List(_Node):
    """A list whose elements have members of their own."""

    def __init__(self, kind: Any, element: _Node) -> None:
        super().__init__(kind)
        self._element = element

    def separate(self, raw: bytes | msgspec.Raw) -> _Separated:
        try:
            elements = decode_elements(raw)
        except DECODE_ERRORS as problem:
            raise _Invalid(decode_reason(problem)) from None
        strict, separate = self._element.strict, self._element.separate
        values: list[Any] = []
        unknown: dict[int, Unknown] = {}
        unusual = False
        for index, element in enumerate(elements):
            if not unusual:
                try:
                    values.append(strict(element))
                    continue
                except DECODE_ERRORS:
                    pass
            try:
                value, inner = separate(element)
            except _Invalid as problem:
                problem.path = f"[{index}]{problem.path}"
                raise
            values.append(value)
            # Where one element has unknown members, the next one likely has them too.
            unusual = isinstance(inner, Unknown)
            if isinstance(inner, Unknown):
                unknown[index] = inner
        return values, unknown or None


class _Whole(_Node):
    """A value that is unknown as a whole where it does not decode."""

    def separate(self, raw: bytes | msgspec.Raw) -> _Separated:
        return msgspec.UNSET, msgspec.Raw(raw)


class _Partial(_Whole):
    """An object whose members are unknown one by one where they do not decode. All of them are
    when one that the struct requires does not."""

    def __init__(self, kind: Any) -> None:
        super().__init__(kind)
        self._struct = next(each for each in (kind, *get_args(kind)) if _is_struct(each))
        self._fields = {
            field.encode_name: (field.name, field.required, msgspec.json.Decoder(field.type).decode)
            for field in msgspec.structs.fields(self._struct)
        }
        self._aliases: dict[str, str] = {}

    def accept(self, respell: Callable[[str], str]) -> None:
        self._aliases = _aliases(self._fields, respell)

    def separate(self, raw: bytes | msgspec.Raw) -> _Separated:
        if bytes(raw)[:1] != b"{":
            return super().separate(raw)
        rest = {n: v for n, v in decode_members(raw).items() if bytes(v) != b"null"}
        if self._aliases:
            rest = _renamed(rest, self._aliases)
        values = {}
        for name, (attribute, required, decode) in self._fields.items():
            try:
                values[attribute] = decode(rest[name])
            except (KeyError, *DECODE_ERRORS):
                if required:
                    return super().separate(raw)
            else:
                del rest[name]
        return self._struct(**values), Unknown(dict(rest)) if rest else None


def _aliases(names: Iterable[str], respell: Callable[[str], str]) -> dict[str, str]:
    return {spelled: name for name in names if (spelled := respell(name)) != name}


def _renamed(members: Members, aliases: dict[str, str]) -> Members:
    """The members, those under another spelling of a known name under that name."""
    if aliases.keys().isdisjoint(members):
        return members
    renamed: Members = {}
    for name, raw in members.items():
        known = aliases.get(name, name)
        if known in renamed:
            raise _Invalid("is given in two spellings", f".{known}")
        renamed[known] = raw
    return renamed


def _object(raw: bytes | msgspec.Raw) -> Members:
    try:
        return decode_members(raw)
    except DECODE_ERRORS as problem:
        raise _Invalid(f"not a JSON object: {decode_reason(problem)}") from None


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _node(kind: Any, known: dict[Any, _Node], default_tag: str | None = None) -> _Node:
    """The node for a type; `known` holds those of structs, which may be recursive."""
    if _is_struct(kind):
        if kind.__struct_config__.tag is not None:
            return known.get((kind,)) or _Union((kind,), known, default_tag)
        return known.get(kind) or _Object(kind, known)
    if get_origin(kind) is list:
        element = _node(get_args(kind)[0], known, default_tag)
        return _Node(kind) if type(element) is _Node else _List(kind, element)
    if get_origin(kind) in (Union, types.UnionType):
        structs = tuple(each for each in get_args(kind) if _is_struct(each))
        others = tuple(each for each in get_args(kind) if not _is_struct(each))
        inner = [_node(each, known, default_tag) for each in others]
        if len(structs) > 1:
            union = known.get(structs) or _Union(structs, known, default_tag)
            if not others:
                return union
            inner.append(union)
        elif structs:
            inner.append(_node(structs[0], known, default_tag))
        if any(type(node) is not _Node for node in inner):
            return _Choice(kind, inner)
    return _Node(kind)
