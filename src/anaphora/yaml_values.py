"""Reads YAML files strictly, into structs; errors name file, line and field.

    config, origin = read_yaml(text, "llm.yaml", ClientConfig)
    raise origin.error("is empty", "routes", "main")        for checks that follow

A struct checks its own fields in `__post_init__`: a `ValueError` that begins with `name: ` is an
error of that field.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any, NoReturn, TypeAlias, TypeVar

import msgspec
from msgspec import inspect

from anaphora.errors import InvalidConfig

T = TypeVar("T")
E = TypeVar("E", bound=InvalidConfig)

Path: TypeAlias = tuple[str | int, ...]
Node: TypeAlias = Any  # of yaml, which is loaded when a file is read

_TIME = re.compile(r"(\d+(?:\.\d+)?)(ms|s)\Z")
_LONE = re.compile(r"[\ud800-\udfff]")
_STEP = re.compile(r"\.([^.\[`]+)|\[(\d+|\.\.\.)\]")
#: Bits of the largest integer that converts to a float.
_WIDEST = 1023
_TAG = "tag:yaml.org,2002:"
_KINDS = {
    "str": "a text",
    "int": "a number",
    "float": "a number",
    "bool": "true or false",
    "NoneType": "nothing",
    "null": "nothing",
    "timestamp": "a date",
    "list": "a list",
    "seq": "a list",
    "dict": "a mapping",
    "map": "a mapping",
}
_WANTED = _KINDS | {"int": "a whole number", "array": "a list", "object": "a mapping"}


class Origin(msgspec.Struct, frozen=True):
    """The file and the line of each field; both empty for values made by a program."""

    file: str = ""
    lines: dict[Path, int] = {}

    def line(self, *path: str | int) -> int | None:
        """The line of a field, or of the mapping that it would be in."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return None

    def error(self, reason: str, *path: str | int, kind: type[E]) -> E:
        message = f"{dotted(path)}: {reason}" if path else reason
        return kind(message, file=self.file, line=self.line(*path))

    def invalid(self, reason: str, *path: str | int) -> InvalidConfig:
        return self.error(reason, *path, kind=InvalidConfig)


def read_yaml(text: str, file: str, kind: type[T]) -> tuple[T, Origin]:
    """The content of a file; an empty one is an empty mapping."""
    import yaml

    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        reason = problem.problem or problem.context or "cannot be read"
        line = None if mark is None else mark.line + 1
        raise InvalidConfig(f"not YAML: {reason}", file=file, line=line) from None
    except yaml.reader.ReaderError as problem:
        line = text.count("\n", 0, problem.position) + 1
        raise InvalidConfig(f"not YAML: {problem.reason}", file=file, line=line) from None
    except RecursionError:
        raise InvalidConfig("nested too deeply", file=file) from None
    if node is None:
        return from_python({}, kind)[0], Origin(file)
    return _decode(node, Origin(file, {}), kind)


def from_python(value: Any, kind: type[T]) -> tuple[T, Origin]:
    """The same for a value that is not from a file."""
    import yaml

    try:
        node = yaml.representer.SafeRepresenter(sort_keys=False).represent_data(value)
    except yaml.YAMLError:
        raise InvalidConfig("contains a value that YAML cannot represent") from None
    except RecursionError:
        raise InvalidConfig("nested too deeply") from None
    return _decode(node, Origin(), kind)


def dotted(path: Path) -> str:
    """A path as text: `routes.main[0].provider`."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")


def nearest(name: str, known: Iterable[str]) -> str:
    """The closest known name; empty if none is close."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(name, tuple(known), n=1)), "")


def seconds_in(value: float | str, field: str) -> float:
    """A number of seconds, or a time with its unit: 20ms, 1.5s."""
    if isinstance(value, str):
        found = _TIME.match(value)
        if found is None:
            example = "write 20ms, 1.5s, or a number of seconds"
            raise ValueError(f"{field}: {value!r} is not a time; {example}")
        return float(found[1]) * (0.001 if found[2] == "ms" else 1.0)
    if value < 0:
        raise ValueError(f"{field}: expected a number >= 0, found {value:g}")
    return float(value)


# ── YAML nodes as plain values ───────────────────────────────────────────────────────────────────


def _decode(node: Node, origin: Origin, kind: type[T]) -> tuple[T, Origin]:
    try:
        data = _NodeReader(origin).read(node, (), node)
    except RecursionError:
        raise InvalidConfig("nested too deeply", file=origin.file) from None
    try:
        return msgspec.convert(data, kind), origin
    except msgspec.ValidationError as error:
        reason, path, place = _explain(data, kind, error)
    line = origin.line(*place)
    message = f"{dotted(path)}: {reason}" if path else reason
    raise InvalidConfig(message, file=origin.file, line=line)


class _NodeReader:
    """Reads JSON values, and notes the line of each in `origin`."""

    def __init__(self, origin: Origin) -> None:
        import yaml

        self._origin = origin
        self._constructor = yaml.constructor.SafeConstructor()

    def read(self, node: Node, path: Path, at: Node, above: tuple[Node, ...] = ()) -> Any:
        """`at` has the line of the value: its name, or the value itself."""
        if at.start_mark is not None:
            self._origin.lines[path] = at.start_mark.line + 1
        if (node.id, node.tag) == ("sequence", _TAG + "seq"):
            within = self._inside(node, path, above)
            items = enumerate(node.value)
            return [self.read(item, (*path, index), item, within) for index, item in items]
        if (node.id, node.tag) == ("mapping", _TAG + "map"):
            entries, within = self._entries(node, path, above), self._inside(node, path, above)
            return {
                name: self.read(value, (*path, name), key, within)
                for name, (key, value) in entries.items()
            }
        return self._scalar(node, path)

    def _entries(
        self, node: Node, path: Path, above: tuple[Node, ...]
    ) -> dict[str, tuple[Node, Node]]:
        """Keys and values by name, none twice. `<<` adds the missing ones of another mapping, or of
        several."""
        if node.id != "mapping":
            self._fail(f"expected a mapping, found {_kind(node)}", path, node)
        within = self._inside(node, path, above)
        found: dict[str, tuple[Node, Node]] = {}
        others: list[Node] = []
        for key, value in node.value:
            if key.tag == _TAG + "merge":
                others += value.value if value.id == "sequence" else [value]
                continue
            if (key.id, key.tag) != ("scalar", _TAG + "str"):
                self._fail(f"expected a text, found {_kind(key)}; put it in quotes", path, key)
            name = self._scalar(key, path)
            if name in found:
                self._fail(f"{name} is given twice", path, key)
            found[name] = key, value
        for other in others:
            for name, pair in self._entries(other, path, within).items():
                found.setdefault(name, pair)
        return found

    def _inside(self, node: Node, path: Path, above: tuple[Node, ...]) -> tuple[Node, ...]:
        if any(outer is node for outer in above):
            self._fail("a value that contains itself", path)
        return (*above, node)

    def _scalar(self, node: Node, path: Path) -> Any:
        import yaml

        kind = _kind(node)
        try:
            value = self._constructor.construct_object(node)
        except (ValueError, LookupError, ArithmeticError, yaml.YAMLError):
            # 0x_ looks like a number and is none; !!int may precede anything.
            self._fail(f"looks like {kind} and cannot be read as such; put it in quotes", path)
        if isinstance(value, str) and _LONE.search(value):
            self._fail("half a character: write both surrogates, or the character itself", path)
        if not isinstance(value, str | int | float | None):
            self._fail(f"{kind} is not a JSON value; put it in quotes", path)
        if isinstance(value, float) and not math.isfinite(value):
            self._fail(f"{value} is not a JSON value", path)
        if isinstance(value, int) and value.bit_length() > _WIDEST:
            self._fail("the number is too large", path)
        return value

    def _fail(self, reason: str, path: Path, at: Node | None = None) -> NoReturn:
        if at is not None and at.start_mark is not None:
            self._origin.lines[path] = at.start_mark.line + 1
        raise self._origin.invalid(reason, *path) from None


def _kind(node: Node) -> str:
    name: str = node.tag
    return _KINDS.get(name.removeprefix(_TAG), name)


# ── Errors of msgspec ────────────────────────────────────────────────────────────────────────────


def _explain(data: Any, kind: type, error: msgspec.ValidationError) -> tuple[str, Path, Path]:
    """The reason, the path of the value, and the path whose line is named.

    msgspec writes `[...]` for any entry of a mapping; converting with one entry at a time finds
    which.
    """
    reason, _, where = str(error).rpartition(" - at `")
    if not reason:
        reason, where = str(error), "$`"
    value = data
    path: Path = ()
    for name, index in _STEP.findall(where):
        step: str | int = name or index
        if index == "...":
            step = next(key for key in value if _fails(data, path, key, kind, str(error)))
        elif index:
            step = int(index)
        value, path = value[step], (*path, step)
    if where.startswith("key` in `"):
        return "expected a non-empty text as a key", path, path
    if field := re.match(r"Object contains unknown field `(.*)`", reason, re.DOTALL):
        known = [each.encode_name for each in _type_at(kind, path).fields]
        return _unknown_field(field[1], known), path, (*path, field[1])
    if field := re.match(r"Object missing required field `(.*)`", reason):
        return f"{field[1]} is missing", path, path
    if reason.startswith("Invalid enum value"):
        return f"{value!r} is none of {', '.join(_type_at(kind, path).values)}", path, path
    if expected := re.match(r"Expected `([^`]*)`(?: of length >= (1)| ([<>]=? .*))?", reason):
        return _mismatch(value, *expected.groups()), path, path
    name, colon, rest = reason.partition(": ")
    if colon and isinstance(value, dict) and name in value:
        return rest, (*path, name), (*path, name)
    return reason, path, path


def _fails(data: Any, path: Path, key: str, kind: type, message: str) -> bool:
    """Whether converting raises the same error with `key` as the only entry of a mapping."""

    def reduced(value: Any, steps: Path) -> Any:
        if not steps:
            return {key: value[key]}
        copied = value.copy()
        copied[steps[0]] = reduced(value[steps[0]], steps[1:])
        return copied

    try:
        msgspec.convert(reduced(data, path), kind)
    except msgspec.ValidationError as error:
        return str(error) == message
    return False


def _type_at(kind: type, path: Path) -> Any:
    """The type of a field; of its values other than null."""
    info: Any = inspect.type_info(kind)
    for step in (*path, None):
        if isinstance(info, inspect.UnionType):
            info = next(each for each in info.types if not isinstance(each, inspect.NoneType))
        if isinstance(info, inspect.StructType) and step is not None:
            info = next(each.type for each in info.fields if each.encode_name == step)
        elif isinstance(info, inspect.DictType):
            info = info.value_type
        elif step is not None:
            info = info.item_type
    return info


def _unknown_field(name: str, known: Iterable[str]) -> str:
    near = nearest(name, known)
    meant = f"did you mean {near}? " if near else ""
    return f"unknown field {name!r}; {meant}there are {', '.join(known)}"


def _mismatch(value: Any, types: str, filled: str | None, bound: str | None) -> str:
    names = [_WANTED[name] for name in types.split(" | ") if name != "null"]
    wanted = " or ".join(names)
    if filled:
        return f"expected a non-empty {wanted.removeprefix('a ')}"
    if bound:
        return f"expected {wanted} {bound.removesuffix('.0')}, found {value}"
    found = _KINDS[type(value).__name__]
    if value is None:
        found += "; leave it out, or give it a value"
    elif names == ["a text"] and isinstance(value, bool | int | float):
        found += "; put it in quotes"
    elif wanted.endswith("number") and isinstance(value, str):
        # YAML reads 1e3 as a text as well.
        found += "; write it in digits, without quotes"
    elif isinstance(value, float):
        found = str(value)
    return f"expected {wanted}, found {found}"
