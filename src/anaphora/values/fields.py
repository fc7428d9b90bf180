"""Checks the fields of a value when it is made, and freezes them.

The memo of a wire has values as keys. So a value must not change, and `True`, `1` and `1.0`, which
are equal but render to different bytes, must not be confused:

    every field    of its declared type, or `InvalidRequest` names it: `Tool.strict`
    lists          become tuples, dictionaries become `FrozenDict`s
    subclasses     of `str`, `int`, `float` and `bytes` become the value they hold

Values that msgspec decoded or a wire made have exact types already: for those, this costs little.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Callable, Mapping
from typing import (
    Any,
    Literal,
    NamedTuple,
    NoReturn,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from msgspec.structs import astuple, force_setattr

from anaphora.errors import InvalidRequest

K = TypeVar("K")
V = TypeVar("V")

#: Other fields of a provider's block: wire name -> JSON object text.
Extras: TypeAlias = Mapping[str, str]


class FrozenDict(dict[K, V]):
    """A dictionary that cannot be changed; equal to a `dict` with the same items."""

    __slots__ = ()

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("fields of values cannot be changed; make a new value")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[type, tuple[dict[K, V]]]:
        return FrozenDict, (dict(self),)


class FrozenExtras(FrozenDict[str, str]):
    """Texts by name that were checked: values use them without another check."""

    __slots__ = ()


#: The types of extras that need no check.
CHECKED = frozenset({types.NoneType, FrozenExtras})


class _Mismatch(Exception):
    """A value is not of the declared type; `place` is where it is inside its field."""

    def __init__(self, value: object, wanted: str) -> None:
        actual = repr(value) if isinstance(value, str) and len(value) < 40 else _name(type(value))
        super().__init__(f"must be {wanted}, not {actual}")
        self.place = ""


class _FieldType(NamedTuple):
    """The allowed values of a field."""

    exact: frozenset[type]
    """Types whose values need no further check."""
    freeze: Callable[[Any], Any]
    """Returns any other value as the field holds it; raises `_Mismatch`."""
    wanted: str
    """For error messages."""


_fields: dict[type, list[tuple[str, _FieldType]]] = {}


def check_fields(value: msgspec.Struct) -> None:
    """Check and freeze every field. For `__post_init__`; raises `InvalidRequest`."""
    kind = type(value)
    fields = _fields.get(kind)
    if fields is None:
        hints = get_type_hints(kind)
        fields = _fields[kind] = [
            (name, _field_type(hints[name])) for name in value.__struct_fields__
        ]
    for held, (name, (exact, freeze, _)) in zip(astuple(value), fields, strict=True):
        if type(held) in exact:
            continue
        try:
            kept = freeze(held)
        except _Mismatch as problem:
            hint = getattr(value, "field_hints", {}).get(name, "")
            path = f"{kind.__name__}.{name}{problem.place}"
            raise InvalidRequest(f"{problem}{hint}", path=path) from None
        if kept is not held:
            force_setattr(value, name, kept)


class Value(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of values: immutable, of the declared types, strict when decoded, compact when encoded.

    Parts are created by the thousand. The most common ones check the types of their fields
    themselves, and call `check_fields` only for unusual types.
    """

    def __post_init__(self) -> None:
        check_fields(self)


class PartValue(Value, frozen=True, tag_field="type", gc=False):
    """No part can hold itself, so the garbage collector need not look at them."""


def frozen(value: Any, hint: Any, path: str) -> Any:
    """The value as a field of that type would hold it; raises `InvalidRequest`."""
    try:
        return _field_type(hint).freeze(value)
    except _Mismatch as problem:
        raise InvalidRequest(str(problem), path=path + problem.place) from None


def _field_type(hint: Any) -> _FieldType:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Union or origin is types.UnionType:
        return _union([_field_type(each) for each in arguments])
    if origin is Literal:
        return _literal(arguments)
    if origin is tuple:
        return _tuple(_field_type(arguments[0]))
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(_field_type(arguments[0]), _field_type(arguments[1]))
    assert isinstance(hint, type), f"{hint} is not supported as the type of a field"
    return _BUILTIN.get(hint) or _instance(hint)


def _instance(kind: type) -> _FieldType:
    wanted = f"{_article(kind.__name__)} {kind.__name__}"
    if issubclass(kind, enum.Enum):
        wanted += f" ({', '.join(member.name for member in kind)})"

    def freeze(value: object) -> object:
        if not isinstance(value, kind):
            raise _Mismatch(value, wanted)
        return value

    return _FieldType(frozenset({kind}), freeze, wanted)


def _scalar(kind: type, bases: tuple[type, ...], convert: Callable[[Any], Any]) -> _FieldType:
    """A built-in type; subclasses become the value they hold. A bool is not a number."""
    wanted = f"{_article(kind.__name__)} {kind.__name__}"

    def freeze(value: object) -> object:
        if not isinstance(value, bases) or type(value) is bool:
            raise _Mismatch(value, wanted)
        return convert(value)

    return _FieldType(frozenset({float, int} if kind is float else {kind}), freeze, wanted)


def _literal(values: tuple[str, ...]) -> _FieldType:
    wanted = f"one of {', '.join(map(repr, values))}" if len(values) > 1 else repr(values[0])
    known = {value: value for value in values}

    def freeze(value: object) -> object:
        found = known.get(value) if isinstance(value, str) else None
        if found is None:
            raise _Mismatch(value, wanted)
        return value if type(value) is str else found

    return _FieldType(frozenset(), freeze, wanted)


def _tuple(item: _FieldType) -> _FieldType:
    exact, freeze_item, _ = item

    def freeze(values: object) -> object:
        if not isinstance(values, tuple | list):
            raise _Mismatch(values, "a tuple or a list")
        if exact.issuperset(map(type, values)):
            return values if type(values) is tuple else tuple(values)
        frozen = []
        for index, value in enumerate(values):
            try:
                frozen.append(value if type(value) in exact else freeze_item(value))
            except _Mismatch as problem:
                problem.place = f"[{index}]{problem.place}"
                raise
        return tuple(frozen)

    return _FieldType(frozenset(), freeze, "a tuple or a list")


def _mapping(key: _FieldType, item: _FieldType) -> _FieldType:
    held = FrozenExtras if key == item == _TEXT else FrozenDict

    def freeze(values: Any) -> object:
        if type(values) is FrozenExtras and held is FrozenExtras:
            return values
        if not isinstance(values, Mapping):
            raise _Mismatch(values, "a dict")
        frozen = {}
        for name, value in values.items():
            try:
                known = name if type(name) in key.exact else key.freeze(name)
                frozen[known] = value if type(value) in item.exact else item.freeze(value)
            except _Mismatch as problem:
                problem.place = f"[{name!r}]{problem.place}"
                raise
        return held(frozen)

    return _FieldType(frozenset(), freeze, "a dict")


def _union(members: list[_FieldType]) -> _FieldType:
    names = [each.wanted for each in members if each is not _NONE]
    wanted = " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))

    def freeze(value: object) -> object:
        for member in members:
            try:
                return member.freeze(value)
            except _Mismatch as problem:
                if problem.place:  # of this member, and wrong inside
                    raise
        raise _Mismatch(value, wanted)

    return _FieldType(frozenset().union(*(each.exact for each in members)), freeze, wanted)


def _number(value: int | float) -> int | float:
    """An int stays one: 1 and 1.0 are different bytes."""
    return int.__int__(value) if isinstance(value, int) else float.__float__(value)


def _article(name: str) -> str:
    return "an" if name[0] in "aeiouAEIO" else "a"


def _name(kind: type) -> str:
    return "None" if kind is types.NoneType else kind.__qualname__


_NONE, _TEXT = _instance(types.NoneType), _scalar(str, (str,), str.__str__)
_BUILTIN: dict[type, _FieldType] = {
    types.NoneType: _NONE,
    bool: _instance(bool),
    str: _TEXT,
    int: _scalar(int, (int,), int.__int__),
    float: _scalar(float, (float, int), _number),
    bytes: _scalar(bytes, (bytes, bytearray, memoryview), bytes),
}
