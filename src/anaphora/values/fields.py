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
    """Extras that were checked: parts use them without another check."""

    __slots__ = ()


class _Mismatch(Exception):
    """A value is not of the declared type; `place` is where it is inside its field."""

    def __init__(self, value: object, wanted: str, place: str = "") -> None:
        actual = repr(value) if isinstance(value, str) and len(value) < 40 else _name(type(value))
        super().__init__(f"must be {wanted}, not {actual}")
        self.place = place


class FieldType(msgspec.Struct, frozen=True):
    """The allowed values of a field."""

    exact: frozenset[type]
    """Types whose values need no further check."""
    freeze: Callable[[Any], Any]
    """Returns the value for the field; raises `_Mismatch`."""
    wanted: str
    """For error messages."""
    accepts: Callable[[Any], bool]
    """Whether this member of a union applies to a value."""
    inner: bool = False
    """Whether a value must be checked even if its type is right."""


class _Fields:
    """The fields of a class. If all types are those of an earlier value, only choices and the
    contents of tuples and dictionaries are checked."""

    __slots__ = ("fields", "inner", "known")

    def __init__(self, kind: type[msgspec.Struct]) -> None:
        hints = get_type_hints(kind)
        self.fields = [(name, _field_type(hints[name])) for name in kind.__struct_fields__]
        numbered = enumerate(self.fields)
        self.inner = [
            (index, name, field.freeze) for index, (name, field) in numbered if field.inner
        ]
        self.known: set[tuple[type, ...]] = set()

    def freeze_known(self, value: msgspec.Struct) -> bool:
        """Freezes the value; False if no earlier value had these types."""
        values = astuple(value)
        if tuple(map(type, values)) not in self.known:
            return False
        for index, name, freeze in self.inner:
            held = values[index]
            if held is None or held is _EMPTY:
                continue
            kept = freeze(held)
            if kept is not held:
                force_setattr(value, name, kept)
        return True

    def check(self, value: msgspec.Struct) -> None:
        given = astuple(value)
        converted = False
        for held, (name, field) in zip(given, self.fields, strict=True):
            try:
                kept = field.freeze(held)
            except _Mismatch as problem:
                path = f"{type(value).__name__}.{name}{problem.place}"
                hint = getattr(value, "field_hints", {}).get(name, "")
                raise InvalidRequest(f"{problem}{hint}", path=path) from None
            if kept is not held:
                force_setattr(value, name, kept)
                converted = converted or not field.inner
        if len(self.known) >= _MAX_KNOWN:
            self.known.clear()
        self.known.add(tuple(map(type, astuple(value) if converted else given)))


_DICTS = frozenset({dict, FrozenDict})
_MUTABLE: tuple[type, ...] = (dict, list)
#: There is only one empty tuple.
_EMPTY: tuple[()] = ()
#: The number of combinations of types that are kept for each class.
_MAX_KNOWN = 256
_fields: dict[type, _Fields] = {}


def check_fields(value: msgspec.Struct) -> None:
    """Check and freeze every field. For `__post_init__`; raises `InvalidRequest`."""
    fields = _fields.get(type(value))
    if fields is None:
        fields = _fields[type(value)] = _Fields(type(value))
    try:
        if fields.freeze_known(value):
            return
    except _Mismatch:
        pass  # the field is named now
    fields.check(value)


def check_extras(value: Any) -> None:
    """The same if everything but `extras` has its exact type."""
    extras = value.extras
    kind = type(extras)
    if kind is FrozenExtras:
        return
    if kind is FrozenDict or kind is dict:
        for name, text in extras.items():
            if type(name) is not str or type(text) is not str:
                break
        else:
            if kind is dict:
                force_setattr(value, "extras", FrozenExtras(extras))
            return
    check_fields(value)


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


def _field_type(hint: Any) -> FieldType:
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


def _instance(kind: type) -> FieldType:
    wanted = f"{_article(kind.__name__)} {kind.__name__}"
    if issubclass(kind, enum.Enum):
        wanted += f" ({', '.join(member.name for member in kind)})"

    def freeze(value: object) -> object:
        if not isinstance(value, kind):
            raise _Mismatch(value, wanted)
        return value

    return FieldType(frozenset({kind}), freeze, wanted, lambda value: isinstance(value, kind))


def _scalar(kind: type, convert: Callable[[Any], Any]) -> FieldType:
    """A built-in type; subclasses become the value they hold. A bool is not a number."""
    wanted = f"{_article(kind.__name__)} {kind.__name__}"
    exact = frozenset({float, int} if kind is float else {kind})
    bases = {bytes: (bytes, bytearray, memoryview), float: (float, int)}.get(kind, (kind,))

    def accepts(value: object) -> bool:
        return isinstance(value, bases) and type(value) is not bool

    def freeze(value: object) -> object:
        if type(value) in exact:
            return value
        if not accepts(value):
            raise _Mismatch(value, wanted)
        return convert(value)

    return FieldType(exact, freeze, wanted, accepts)


def _literal(values: tuple[str, ...]) -> FieldType:
    wanted = f"one of {', '.join(map(repr, values))}" if len(values) > 1 else repr(values[0])
    known = frozenset(values)

    def accepts(value: object) -> bool:
        return isinstance(value, str) and str.__str__(value) in known

    def freeze(value: object) -> object:
        if type(value) is str and value in known:
            return value
        if not accepts(value):
            raise _Mismatch(value, wanted)
        return str.__str__(value)

    return FieldType(frozenset(), freeze, wanted, accepts, inner=True)


def _tuple(item: FieldType) -> FieldType:
    exact, freeze_item = item.exact, item.freeze

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
        same = type(values) is tuple and all(map(_is, values, frozen))
        return values if same else tuple(frozen)

    def accepts(values: object) -> bool:
        return isinstance(values, tuple | list)

    return FieldType(frozenset(), freeze, "a tuple or a list", accepts, inner=True)


def _mapping(key: FieldType, item: FieldType) -> FieldType:
    def freeze(values: Any) -> object:
        if type(values) not in _DICTS and not isinstance(values, Mapping):
            raise _Mismatch(values, "a dict")
        exact = key.exact.issuperset(map(type, values)) and item.exact.issuperset(
            map(type, values.values())
        )
        if exact:
            return values if type(values) is FrozenDict else FrozenDict(values)
        frozen = {}
        for name, value in values.items():
            try:
                frozen[key.freeze(name)] = item.freeze(value)
            except _Mismatch as problem:
                problem.place = f"[{name!r}]{problem.place}"
                raise
        return FrozenDict(frozen)

    def accepts(values: object) -> bool:
        return isinstance(values, Mapping)

    return FieldType(frozenset(), freeze, "a dict", accepts, inner=True)


def _union(members: list[FieldType]) -> FieldType:
    names = [each.wanted for each in members if each is not _NONE]
    wanted = " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))

    exact: frozenset[type] = frozenset().union(*(each.exact for each in members))
    found = {kind: each.freeze for kind in _MUTABLE for each in members if each.accepts(kind())}

    def freeze(value: object) -> object:
        kind = type(value)
        if kind in exact:
            return value
        if kind in found:
            return found[kind](value)
        for member in members:
            if member.accepts(value):
                return member.freeze(value)
        raise _Mismatch(value, wanted)

    return FieldType(
        exact,
        freeze,
        wanted,
        lambda value: any(member.accepts(value) for member in members),
        inner=any(member.inner for member in members),
    )


def _number(value: int | float) -> int | float:
    """An int stays one: 1 and 1.0 are different bytes."""
    return int.__int__(value) if isinstance(value, int) else float.__float__(value)


def _is(one: object, other: object) -> bool:
    return one is other


def _article(name: str) -> str:
    return "an" if name[0] in "aeiouAEIO" else "a"


def _name(kind: type) -> str:
    return "None" if kind is types.NoneType else kind.__qualname__


_NONE = _instance(types.NoneType)
_BUILTIN: dict[type, FieldType] = {
    types.NoneType: _NONE,
    bool: _instance(bool),
    str: _scalar(str, str.__str__),
    int: _scalar(int, int.__int__),
    float: _scalar(float, _number),
    bytes: _scalar(bytes, bytes),
}
