"""YAML values that know their line, for files that are read strictly.

    whole = YamlValue.read(text, "script.yaml")     None for an empty file
    whole.fields(("replies",))                      field by field
    decode(whole, ClientConfig)                     by the types of a struct

`msgspec.convert` would find the same mistakes as `decode`, but names neither lines nor, within a
mapping, the entry. `decode` supports structs, mappings, lists, texts, numbers, booleans, and each
of them or null.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Self, TypeAlias, TypeVar, cast

from msgspec import inspect

from anaphora.errors import AnaphoraError, InvalidRequest

if TYPE_CHECKING:
    from yaml.nodes import Node

Failure: TypeAlias = Callable[[str, str, int | None], AnaphoraError]
"""Makes the error to raise from a reason, a file, and a line if there is one."""

_TIME = re.compile(r"(\d+(?:\.\d+)?)(ms|s)\Z")
_LONE = re.compile(r"[\ud800-\udfff]")
#: Bits of the largest integer that converts to a float.
_WIDEST = 1023
_YAML = "tag:yaml.org,2002:"
_PLAIN = {
    _YAML + kind: name
    for kind, name in (
        ("str", "a text"),
        ("int", "a number"),
        ("float", "a number"),
        ("bool", "true or false"),
        ("null", "nothing"),
        ("timestamp", "a date"),
        ("seq", "a list"),
        ("map", "a mapping"),
    )
}


def invalid_request(reason: str, file: str, line: int | None) -> InvalidRequest:
    return InvalidRequest(reason, path=file if line is None else f"{file}:{line}")


class _Source(NamedTuple):
    """Common to all values of a file."""

    file: str
    loader: Any
    failure: Failure
    name: str = ""


class YamlValue:
    """One value of a file, and its line."""

    __slots__ = ("_node", "_source")

    def __init__(self, node: Node, source: _Source) -> None:
        self._node = node
        self._source = source

    @classmethod
    def read(cls, text: str, file: str, failure: Failure = invalid_request) -> Self | None:
        """The whole file; None if it is empty."""
        import yaml

        try:
            loader = yaml.SafeLoader(text)
            node = loader.get_single_node()
        except yaml.MarkedYAMLError as problem:
            mark = problem.problem_mark or problem.context_mark
            reason = problem.problem or problem.context or "cannot be read"
            line = None if mark is None else mark.line + 1
            raise failure(f"not YAML: {reason}", file, line) from None
        except yaml.reader.ReaderError as problem:
            line = text.count("\n", 0, problem.position) + 1
            raise failure(f"not YAML: {problem.reason}", file, line) from None
        except RecursionError:
            raise failure("nested too deeply", file, None) from None
        return None if node is None else cls(node, _Source(file, loader, failure))

    @classmethod
    def of(cls, value: Any, name: str = "", failure: Failure = invalid_request) -> Self:
        """A value that is not from a file, without lines."""
        import yaml

        try:
            node = yaml.representer.SafeRepresenter(sort_keys=False).represent_data(value)
        except yaml.YAMLError:
            raise failure("contains a value that YAML cannot represent", name, None) from None
        except RecursionError:
            raise failure("nested too deeply", name, None) from None
        return cls(node, _Source(name, yaml.SafeLoader(""), failure))

    @property
    def line(self) -> int | None:
        mark = self._node.start_mark
        return None if mark is None else int(mark.line) + 1

    def named(self, name: str) -> YamlValue:
        """The same value; errors about it and its contents start with `name`."""
        return YamlValue(self._node, self._source._replace(name=name))

    def wrong(self, reason: str) -> NoReturn:
        file, _, failure, name = self._source
        raise failure(f"{name}: {reason}" if name else reason, file, self.line) from None

    @property
    def kind(self) -> str:
        """The type, for error messages."""
        return _PLAIN.get(self._node.tag, self._node.tag)

    @property
    def is_list(self) -> bool:
        return self.kind == "a list"

    # ── Collections ────────────────────────────────────────────────────────────────────────

    def entries(self) -> dict[str, tuple[YamlValue, YamlValue]]:
        """A mapping's keys and values by name, none twice. `<<` adds the missing ones of another
        mapping, or of several."""
        return self._entries(())

    def _entries(self, above: tuple[Node, ...]) -> dict[str, tuple[YamlValue, YamlValue]]:
        if self.kind != "a mapping":
            self.wrong(f"expected a mapping, found {self.kind}")
        within = self._inside(above)
        found: dict[str, tuple[YamlValue, YamlValue]] = {}
        others: list[YamlValue] = []
        for key_node, value_node in self._node.value:
            key, value = YamlValue(key_node, self._source), YamlValue(value_node, self._source)
            if key_node.tag == _YAML + "merge":
                others += value.items() if value.is_list else [value]
                continue
            name = key.text()
            if name in found:
                key.wrong(f"{name} is given twice")
            found[name] = key, value
        for other in others:
            for name, pair in other._entries(within).items():
                found.setdefault(name, pair)
        return found

    def fields(self, known: Iterable[str], needed: Iterable[str] = ()) -> dict[str, YamlValue]:
        """A mapping's values by name: only known names, none twice, none missing."""
        names = tuple(known)
        found: dict[str, YamlValue] = {}
        for name, (key, value) in self.entries().items():
            if name not in names:
                key.wrong(unknown_field(name, names))
            found[name] = value
        for name in needed:
            if name not in found:
                self.wrong(f"{name} is missing")
        return found

    def items(self) -> list[YamlValue]:
        if not self.is_list:
            self.wrong(f"expected a list, found {self.kind}")
        return [YamlValue(node, self._source) for node in self._node.value]

    # ── Scalars ────────────────────────────────────────────────────────────────────────────

    def text(self) -> str:
        if self.kind != "a text":
            self.wrong(f"expected a text, found {self.kind}; put it in quotes")
        text = str(self._node.value)
        if _LONE.search(text):
            self.wrong("half a character: write both surrogates, or the character itself")
        return text

    def choice(self, among: Iterable[str]) -> str:
        names = tuple(among)
        # 500 is a number to YAML, and a name here.
        name = str(self._node.value) if self.kind in ("a text", "a number") else self.text()
        if name not in names:
            self.wrong(f"{name!r} is none of {', '.join(names)}")
        return name

    def scalar(self) -> str | int | float | bool | None:
        """A text, a number, true, false, or null."""
        if self.kind == "a text":
            return self.text()
        import yaml

        try:
            value = self._source.loader.construct_object(self._node)
        except (ValueError, LookupError, ArithmeticError, yaml.YAMLError):
            # 0x_ looks like a number and is none; !!int may precede anything.
            self.wrong(f"looks like {self.kind} and cannot be read as such; put it in quotes")
        if not isinstance(value, str | int | float | bool | None):
            self.wrong(f"{self.kind} is not a JSON value; put it in quotes")
        if isinstance(value, float) and not math.isfinite(value):
            self.wrong(f"{value} is not a JSON value")
        if isinstance(value, int) and value.bit_length() > _WIDEST:
            self.wrong("the number is too large")
        return value

    def number(self, least: float = -math.inf, most: float = math.inf) -> float:
        value = self.scalar() if self.kind == "a number" else None
        if not isinstance(value, int | float):
            self.wrong(f"expected a number, found {self.kind}")
        if not least <= value <= most:
            self.wrong(f"{value} is not from {least:g} to {most:g}")
        return float(value)

    def whole(self, least: int) -> int:
        value = self.number(least)
        if value != int(value):
            self.wrong(f"{value:g} is not a whole number")
        return int(value)

    def numbers(self) -> tuple[int, ...]:
        """Whole numbers from 1: one, or a list."""
        if not self.is_list:
            return (self.whole(1),)
        found = tuple(each.whole(1) for each in self.items())
        if not found:
            self.wrong("is empty; leave it out")
        return found

    def seconds(self) -> float:
        """A number of seconds, or a time with its unit: 20ms, 1.5s."""
        if self.kind == "a number":
            return self.number(0)
        found = _TIME.match(self.text())
        if found is None:
            self.wrong(f"{self.text()!r} is not a time; write 20ms, 1.5s, or a number of seconds")
        return float(found[1]) * (0.001 if found[2] == "ms" else 1.0)

    def plain(self) -> Any:
        """Any JSON value."""
        try:
            return self._plain(())
        except RecursionError:
            self.wrong("nested too deeply")

    def _plain(self, above: tuple[Node, ...]) -> Any:
        if self.is_list:
            within = self._inside(above)
            return [each._plain(within) for each in self.items()]
        if self.kind == "a mapping":
            within = self._inside(above)
            return {name: each._plain(within) for name, (_, each) in self.entries().items()}
        return self.scalar()

    def _inside(self, above: tuple[Node, ...]) -> tuple[Node, ...]:
        if any(node is self._node for node in above):
            self.wrong("a value that contains itself")
        return (*above, self._node)


def nearest(name: str, known: Iterable[str]) -> str:
    """The closest known name; empty if none is close."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(name, tuple(known), n=1)), "")


def unknown_field(name: str, known: Iterable[str]) -> str:
    """The error message for an unknown field."""
    names = tuple(known)
    near = nearest(name, names)
    meant = f"did you mean {near}? " if near else ""
    return f"unknown field {name!r}; {meant}there are {', '.join(names)}"


# ── Structs ──────────────────────────────────────────────────────────────────────────────────────

T = TypeVar("T")

Path: TypeAlias = tuple[str | int, ...]
Lines: TypeAlias = dict[Path, int]
"""The line of each field: that of its name, where it has one."""

#: Larger structs are not described by their fields.
_FEW = 4


def decode(whole: YamlValue, kind: type[T], lines: Lines | None = None) -> T:
    """The value as a struct; `lines` collects the line of each field."""
    reader = _Reader({} if lines is None else lines)
    return cast(T, reader.read(whole, inspect.type_info(kind), (), whole))


def dotted(path: Path) -> str:
    """A path as text: `routes.main[0].provider`."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")


class _Reader:
    """`at` is the node with the line of a value: its name, or a list item itself."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines

    def read(self, value: YamlValue, info: inspect.Type, path: Path, at: YamlValue) -> Any:
        value, at = value.named(dotted(path)), at.named(dotted(path))
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

    def _struct(self, value: YamlValue, info: inspect.StructType, path: Path, at: YamlValue) -> Any:
        fields = {field.encode_name: field for field in info.fields}
        found = {}
        for name, (key, held) in value.entries().items():
            if name not in fields:
                key.wrong(unknown_field(name, fields))
            field = fields[name]
            found[field.name] = self.read(held, field.type, (*path, name), key)
        for name, field in fields.items():
            if field.required and field.name not in found:
                at.wrong(f"{name} is missing")
        try:
            return info.cls(**found)
        except ValueError as problem:
            at.wrong(str(problem))

    def _mapping(self, value: YamlValue, info: inspect.DictType, path: Path) -> dict[str, Any]:
        found = {}
        for name, (key, held) in value.entries().items():
            _scalar(key, info.key_type)
            found[name] = self.read(held, info.value_type, (*path, name), key)
        return found


# ── Types ────────────────────────────────────────────────────────────


def _kind(info: inspect.Type) -> str:
    for types, kind in _KINDS:
        if isinstance(info, types):
            return kind
    raise TypeError(f"{info} cannot be read from files")


_KINDS: tuple[tuple[Any, str], ...] = (
    ((inspect.StructType, inspect.DictType), "a mapping"),
    (inspect.VarTupleType, "a list"),
    (inspect.StrType, "a text"),
    ((inspect.IntType, inspect.FloatType), "a number"),
    (inspect.BoolType, "true or false"),
    (inspect.NoneType, "nothing"),
)


def _member(value: YamlValue, info: inspect.UnionType) -> inspect.Type:
    """The member that matches; else the one to name in the error."""
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
        return "a non-empty text"
    return _kind(info)


def _numeral(info: inspect.IntType | inspect.FloatType) -> str:
    text = "a whole number" if isinstance(info, inspect.IntType) else "a number"
    for word, bound in (("above", info.gt), ("from", info.ge), ("below", info.lt), ("to", info.le)):
        if bound is not None:
            text += f" {word} {bound:g}"
    return text


def _advice(value: YamlValue, info: inspect.Type) -> str:
    """Advice for common mistakes."""
    if value.kind == "nothing":
        return "; leave it out, or give it a value"
    if _kind(info) == "a text" and value.kind in ("a number", "true or false", "a date"):
        return "; put it in quotes"
    if _kind(info) == "a number" and value.kind == "a text":
        # YAML reads 1e3 as a text as well.
        return "; write it in digits, without quotes"
    return ""


def _scalar(value: YamlValue, info: inspect.Type) -> Any:
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
