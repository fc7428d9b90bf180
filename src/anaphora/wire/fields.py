"""Reading JSON objects field by field, so that nothing in them is lost.

A field is taken out by name and type; what is left at the end has no name here and is carried
along as it came. Errors name the path.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast, overload

import msgspec

from anaphora.canonical import string
from anaphora.errors import AnaphoraError
from anaphora.values import Extras

from .reading import DECODE_ERRORS, ErrorFactory, Members, reply_error

T = TypeVar("T")

_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


def rest_for(wire: str, members: dict[str, msgspec.Raw]) -> Extras | None:
    """What is left of an object as extras of that wire, each member as it came."""
    return {wire: _encode(members).decode()} if members else None


@functools.cache
def _members(kind: Any) -> tuple[msgspec.structs.FieldInfo, ...]:
    """A struct's fields; finding them takes longer than reading a request."""
    return msgspec.structs.fields(kind)


@functools.cache
def _decoder(kind: Any) -> Callable[[msgspec.Raw], Any]:
    """Making one takes longer than a field does."""
    return msgspec.json.Decoder(kind).decode


@functools.cache
def _or_none(kind: Any) -> Callable[[msgspec.Raw], Any]:
    return msgspec.json.Decoder(kind | None).decode


class Fields:
    """One JSON object. `take` gives a field and crosses it off; `rest` is what nobody took."""

    __slots__ = ("_fields", "failure", "path")

    def __init__(
        self, data: bytes | str | msgspec.Raw | Members, path: str, fail: ErrorFactory = reply_error
    ) -> None:
        self.path = path
        self.failure = fail
        try:
            self._fields = data.copy() if isinstance(data, dict) else _decode(data)
        except DECODE_ERRORS as problem:
            raise fail(f"not a JSON object: {problem}", path) from None

    def __contains__(self, name: str) -> bool:
        return name in self._fields

    @overload
    def take(self, name: str, kind: type[T]) -> T: ...
    @overload
    def take(self, name: str, kind: Any) -> Any: ...
    def take(self, name: str, kind: Any) -> Any:
        """A field that must be there."""
        if name not in self._fields:
            raise self.failure("is missing", f"{self.path}.{name}")
        return self._decoded(name, _decoder(kind))

    @overload
    def maybe(self, name: str, kind: type[T]) -> T | None: ...
    @overload
    def maybe(self, name: str, kind: Any) -> Any: ...
    def maybe(self, name: str, kind: Any) -> Any:
        """A field that may be missing or null."""
        return self._decoded(name, _or_none(kind)) if name in self._fields else None

    def _decoded(self, name: str, decode: Callable[[msgspec.Raw], Any]) -> Any:
        try:
            return decode(self._fields.pop(name))
        except DECODE_ERRORS as problem:
            reason, _, inner = str(problem).partition(" - at `$")
            raise self.failure(reason, f"{self.path}.{name}{inner.rstrip('`')}") from None

    def known(self, name: str, kind: type[T]) -> T | None:
        """A field that is understood whole. One that is not stays where it is, for the rest."""
        raw = self._fields.get(name)
        if raw is None:
            return None
        try:
            value: T = _decoder(cast(Any, kind))(raw)
        except DECODE_ERRORS:
            return None
        del self._fields[name]
        return value

    def partly(self, name: str, kind: type[T]) -> T | None:
        """A field that is an object, as a struct of those members that are understood, each by
        itself. The others stay for the rest, under the object's name; all of them do when one that
        the struct needs is not understood."""
        raw = self._fields.get(name)
        if raw is None or bytes(raw)[:1] != b"{":
            return None
        inner = Fields(raw, f"{self.path}.{name}", self.failure)
        inner.drop_nulls()
        known: dict[str, Any] = {}
        for field in _members(kind):  # type: ignore[arg-type]
            value = inner.known(field.encode_name, field.type)
            if value is not None:
                known[field.name] = value
            elif field.required:
                return None
        if inner._fields:
            self._fields[name] = msgspec.Raw(inner.whole().encode())
        else:
            del self._fields[name]
        return kind(**known)

    def raw(self, name: str) -> bytes | None:
        """A field as it came; None when it is missing."""
        raw = self._fields.pop(name, None)
        return None if raw is None else bytes(raw)

    def look(self, name: str) -> bytes | None:
        """A field as it came, without crossing it off; None when it is missing."""
        raw = self._fields.get(name)
        return None if raw is None else bytes(raw)

    def before(self, name: str) -> bytes:
        """What stands before a field's value in `rest`."""
        members = list(self._fields.items())
        ahead = members[: [key for key, _ in members].index(name)]
        said = b"".join(string(key) + b":" + bytes(raw) + b"," for key, raw in ahead)
        return said + string(name) + b":"

    def put(self, name: str, raw: bytes) -> None:
        """What is left of a field that was taken, for the rest."""
        self._fields[name] = msgspec.Raw(raw)

    def rename(self, name_of: Callable[[str], str]) -> None:
        """Gives every field the name that `name_of` gives; two that get the same are an error."""
        if all(name_of(name) == name for name in self._fields):
            return
        fields: dict[str, msgspec.Raw] = {}
        for name, raw in self._fields.items():
            if name_of(name) in fields:
                raise self.fail("is said twice, in two spellings", name_of(name))
            fields[name_of(name)] = raw
        self._fields = fields

    def nested(self, name: str) -> Fields | None:
        """A field that is an object itself; None when it is missing or null."""
        raw = self.raw(name)
        if raw is None or raw == b"null":
            return None
        return Fields(raw, f"{self.path}.{name}", self.failure)

    def fail(self, reason: str, name: str = "") -> AnaphoraError:
        return self.failure(reason, f"{self.path}.{name}" if name else self.path)

    def peek(self, name: str) -> Any:
        """A field's value without crossing it off; None when it is missing."""
        raw = self._fields.get(name)
        return None if raw is None else msgspec.json.decode(raw)

    def known_text(self, name: str) -> str:
        """A text field without crossing it off; empty when there is none."""
        raw = self._fields.get(name)
        if raw is None or not bytes(raw).startswith(b'"'):
            return ""
        return str(msgspec.json.decode(raw))

    def whole(self) -> str:
        """The object as it came, less what was taken."""
        return _encode(self._fields).decode()

    def left(self) -> dict[str, bytes]:
        """What nobody took, field by field."""
        return {name: bytes(raw) for name, raw in self._fields.items()}

    def rest(self) -> bytes:
        """What nobody took, as members of an object, in the order they came; empty when nothing."""
        return _encode(self._fields)[1:-1]

    def rest_for(self, wire: str) -> Extras | None:
        """What nobody took, as extras of that wire."""
        return rest_for(wire, self._fields)

    def drop_nulls(self) -> None:
        """Forgets fields that are null: they say what a missing field says."""
        for name in [name for name, raw in self._fields.items() if bytes(raw) == b"null"]:
            del self._fields[name]
