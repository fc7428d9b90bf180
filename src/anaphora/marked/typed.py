"""YAML into structs: the types say what is expected where, and every mistake has its line.

`msgspec.convert` would find the same mistakes; but it names neither lines nor, within a mapping,
the entry. What can be read is what configuration is made of: structs, mappings, lists, texts,
numbers, true and false, and each of them or nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, cast

from msgspec import inspect

from .value import Marked, unknown

T = TypeVar("T")

Path: TypeAlias = tuple[str | int, ...]
Lines: TypeAlias = dict[Path, int]
"""The line of each field: that of its name, where it has one."""

#: A struct with more fields than this is not described by them.
_FEW = 4


def decode(whole: Marked, kind: type[T], lines: Lines | None = None) -> T:
    """The value as `kind` has it; `lines` is told where everything stands."""
    reader = _Reader({} if lines is None else lines)
    return cast(T, reader.read(whole, inspect.type_info(kind), (), whole))


def spoken(path: Path) -> str:
    """A path for people: `routes.main[0].provider`."""
    said = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return said.removeprefix(".")


class _Reader:
    """`at` is what bears the line of a value as a whole: its name, or an item of a list itself."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines

    def read(self, value: Marked, info: inspect.Type, path: Path, at: Marked) -> Any:
        value, at = value.named(spoken(path)), at.named(spoken(path))
        if at.line is not None:
            self._lines[path] = at.line
        if isinstance(info, inspect.UnionType):
            info = _member(value, info)
        if isinstance(info, inspect.NoneType):
            return None
        if value.kind != _kind(info):
            found = value.kind + _advice(value, info)
            value.wrong(f"expected {_wanted(info)}, found {found}")
        if isinstance(info, inspect.StructType):
            return self._struct(value, info, path, at)
        if isinstance(info, inspect.DictType):
            return self._mapping(value, info, path)
        if isinstance(info, inspect.VarTupleType):
            return tuple(
                self.read(each, info.item_type, (*path, index), each)
                for index, each in enumerate(value.items())
            )
        return _scalar(value, info)

    def _struct(self, value: Marked, info: inspect.StructType, path: Path, at: Marked) -> Any:
        fields = {field.encode_name: field for field in info.fields}
        found = {}
        for name, (key, held) in value.entries().items():
            if name not in fields:
                key.wrong(unknown(name, fields))
            field = fields[name]
            found[field.name] = self.read(held, field.type, (*path, name), key)
        for name, field in fields.items():
            if field.required and field.name not in found:
                at.wrong(f"{name} is missing")
        try:
            return info.cls(**found)
        except ValueError as problem:
            at.wrong(str(problem))

    def _mapping(self, value: Marked, info: inspect.DictType, path: Path) -> dict[str, Any]:
        found = {}
        for name, (key, held) in value.entries().items():
            _scalar(key, info.key_type)
            found[name] = self.read(held, info.value_type, (*path, name), key)
        return found


# ── What is there, and what should be ────────────────────────────────────────────────────────────


def _kind(info: inspect.Type) -> str:
    for types, kind in _KINDS:
        if isinstance(info, types):
            return kind
    raise TypeError(f"{info} is not read from files")


_KINDS: tuple[tuple[Any, str], ...] = (
    ((inspect.StructType, inspect.DictType), "a mapping"),
    (inspect.VarTupleType, "a list"),
    (inspect.StrType, "a text"),
    ((inspect.IntType, inspect.FloatType), "a number"),
    (inspect.BoolType, "true or false"),
    (inspect.NoneType, "nothing"),
)


def _member(value: Marked, info: inspect.UnionType) -> inspect.Type:
    """Which of several is there; else the one to say that it should be."""
    for each in info.types:
        if _kind(each) == value.kind:
            return each
    return next(each for each in info.types if not isinstance(each, inspect.NoneType))


def _wanted(info: inspect.Type) -> str:
    if isinstance(info, inspect.StructType) and len(info.fields) <= _FEW:
        return f"a mapping ({', '.join(field.encode_name for field in info.fields)})"
    if isinstance(info, inspect.IntType | inspect.FloatType):
        return _numeral(info)
    if isinstance(info, inspect.StrType) and info.min_length:
        return "a text that is not empty"
    return _kind(info)


def _numeral(info: inspect.IntType | inspect.FloatType) -> str:
    said = "a whole number" if isinstance(info, inspect.IntType) else "a number"
    for word, bound in (("above", info.gt), ("from", info.ge), ("below", info.lt), ("to", info.le)):
        if bound is not None:
            said += f" {word} {bound:g}"
    return said


def _advice(value: Marked, info: inspect.Type) -> str:
    """What to do about the usual mistakes."""
    if value.kind == "nothing":
        return "; leave it out, or give it a value"
    if _kind(info) == "a text" and value.kind in ("a number", "true or false", "a date"):
        return "; put it in quotes"
    if _kind(info) == "a number" and value.kind == "a text":
        # To YAML, 1e3 is a text as well.
        return "; write it in digits, without quotes"
    return ""


def _scalar(value: Marked, info: inspect.Type) -> Any:
    found = value.scalar()
    if isinstance(info, inspect.FloatType) and isinstance(found, int):
        found = float(found)
    if isinstance(info, inspect.IntType) and isinstance(found, float) and found.is_integer():
        found = int(found)
    if isinstance(found, str):
        if isinstance(info, inspect.StrType) and len(found) < (info.min_length or 0):
            value.wrong(f"expected {_wanted(info)}, found an empty one")
    elif isinstance(info, inspect.IntType | inspect.FloatType) and not _within(found, info):
        value.wrong(f"expected {_wanted(info)}, found {found}")
    return found


def _within(found: Any, info: inspect.IntType | inspect.FloatType) -> bool:
    if isinstance(info, inspect.IntType) and not isinstance(found, int):
        return False
    bounds: tuple[tuple[float | None, Callable[[float], bool]], ...] = (
        (info.gt, lambda bound: found > bound),
        (info.ge, lambda bound: found >= bound),
        (info.lt, lambda bound: found < bound),
        (info.le, lambda bound: found <= bound),
    )
    return all(bound is None or holds(bound) for bound, holds in bounds)
