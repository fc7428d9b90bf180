"""Reads YAML files strictly, into structs; errors name file, line and field.

    config, origin = read_yaml(text, "llm.yaml", ClientConfig)
    raise origin.error("is empty", "routes", "main")        for checks that follow

A struct checks its own fields in `__post_init__`: a `ValueError` that begins with `name: ` is an
error of that field. Its class variable `example` is shown if there is no mapping in its place.

Messages show no text that could be a key, since a key may be in any field by mistake.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn, TypeAlias, TypeVar

import msgspec
from msgspec import inspect

from anaphora import canonical
from anaphora.errors import InvalidConfig, InvalidJson
from anaphora.redaction import quoted, shown_name, shown_text
from anaphora.values.codec import loads

T = TypeVar("T")
E = TypeVar("E", bound=InvalidConfig)

Path: TypeAlias = tuple[str | int, ...]
Node: TypeAlias = Any  # of yaml, which is loaded when a file is read

#: Seconds of each unit of time.
TIME_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}

_TIME = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])\Z", re.ASCII)
_STEP = re.compile(r"\.([^.\[`]+)|\[(\d+|\.\.\.)\]")
#: Bits of the largest integer that converts to a float.
_WIDEST = 1023
#: More than any configuration has; a few lines of aliases may expand to more.
_MOST_VALUES = 100_000
#: Brackets that may be open at a time.
_MOST_OPEN = 100
_TAG = "tag:yaml.org,2002:"
#: Parts of PyYAML's messages, and their replacements.
_REASONS = {
    "'\\t'": "a tab; YAML is indented with spaces",
    "found another document": "a second document begins here",
    "<stream end>": "the file ends inside of a list, a mapping or a quoted text",
    "unexpected end of stream": "the file ends inside of a quoted text",
    "expected <block end>": "the indentation does not fit the lines above",
    "mapping values are not allowed here": "a colon in a value; quote the value, or check the"
    " indentation",
    "could not find expected ':'": "a key without a colon",
}
_KINDS = {
    "str": "a text",
    "int": "a number",
    "float": "a number",
    "bool": "true or false",
    "NoneType": "nothing",
    "list": "a list",
    "dict": "a mapping",
}
_WANTED = _KINDS | {"int": "a whole number", "array": "a list", "object": "a mapping"}


class Origin(msgspec.Struct, frozen=True):
    """The file and the line of each field; both empty for values made by a program."""

    file: str = ""
    lines: dict[str, int] = {}
    """The lines by path: `routes.main[0].provider`."""
    numbers: dict[str, str] = {}
    """The text of each number, for amounts that must not pass through a float."""

    def line(self, *path: str | int) -> int | None:
        """The line of a field or, if it is missing, of its mapping."""
        for length in range(len(path), -1, -1):
            if (line := self.lines.get(dotted(path[:length]))) is not None:
                return line
        return None

    def error(self, reason: str, *path: str | int, kind: type[E]) -> E:
        message = f"{shown_path(path)}: {reason}" if path else reason
        return kind(message, file=self.file, line=self.line(*path))

    def invalid(self, reason: str, *path: str | int) -> InvalidConfig:
        return self.error(reason, *path, kind=InvalidConfig)


def read_yaml(text: str, file: str, kind: type[T]) -> tuple[T, Origin]:
    """The content of a file; an empty one is an empty mapping."""
    import yaml

    class Loader(yaml.SafeLoader):
        def fetch_flow_collection_start(self, token: type[yaml.Token]) -> None:
            # PyYAML looks at every open bracket again with each character.
            if self.flow_level == _MOST_OPEN:
                raise RecursionError
            super().fetch_flow_collection_start(token)

    origin = Origin(file, {}, {})
    try:
        loader = Loader(text)
        node = loader.get_single_node()
        if node is None:
            return msgspec.convert({}, kind), origin
        _note_lines(loader, node, "", origin, iter(range(_MOST_VALUES)))
        return _decode(loader.construct_document(node), kind, origin), origin
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        reason = problem.problem or problem.context or "cannot be read"
        line = None if mark is None else mark.line + 1
        reason = next((words for part, words in _REASONS.items() if part in reason), reason)
        raise InvalidConfig(f"not YAML: {shown_text(reason)}", file=file, line=line) from None
    except yaml.reader.ReaderError as problem:
        line = text.count("\n", 0, problem.position) + 1
        raise InvalidConfig(f"not YAML: {problem.reason}", file=file, line=line) from None
    except RecursionError:
        raise InvalidConfig("nested too deeply", file=file) from None


def from_python(value: Any, kind: type[T], origin: Origin | None = None) -> T:
    """`read_yaml` for a value that is not from a file, or is a part of the file of `origin`."""
    return _decode(value, kind, origin or Origin())


def dotted(path: Path) -> str:
    """A path as text: `routes.main[0].provider`."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")


def shown_path(path: Path) -> str:
    """A path as text for messages, without steps that could be a secret."""
    return dotted(tuple(step if isinstance(step, int) else shown_name(step) for step in path))


def nearest(name: str, known: Iterable[str], alike: float = 0.6) -> str:
    """The closest known name; empty if none is close, on a scale from 0 to 1."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(name, tuple(known), n=1, cutoff=alike)), "")


def seconds_with_unit(text: str) -> float | None:
    """The seconds of a time with its unit: 20ms, 1.5s, 30m, 2h, 7d, 4w. None for other texts."""
    found = _TIME.match(text)
    return None if found is None else float(found[1]) * TIME_UNITS[found[2]]


def seconds_in(value: float | str, field: str) -> float:
    """A number of seconds, or a time with its unit: 20ms, 1.5s, 2h."""
    if isinstance(value, str):
        seconds = seconds_with_unit(value)
        if seconds is None:
            example = "write 20ms, 1.5s, 2h, or a number of seconds"
            raise ValueError(f"{field}: {quoted(value)} is not a time; {example}")
        return seconds
    if value < 0:
        raise ValueError(f"{field}: expected a number >= 0, found {value:g}")
    return float(value)


def _note_lines(
    loader: Any,
    node: Node,
    path: str,
    origin: Origin,
    left: Iterator[int],
    above: tuple[Node, ...] = (),
) -> None:
    """Record the line of each field: that of its name, if it has one. Raise for values that YAML
    permits and JSON does not. `left` ends after too many values."""
    within = (*above, node)

    def fail(reason: str, at: Node) -> NoReturn:
        place = f"{shown_text(path)}: " if path else ""
        raise InvalidConfig(f"{place}{reason}", file=origin.file, line=at.start_mark.line + 1)

    if next(left, None) is None:
        fail(f"more than {_MOST_VALUES:,} values; an alias counts wherever it is used", node)
    if node in above:  # the same one: nodes are compared by identity
        fail("a value that contains itself", node)
    origin.lines.setdefault(path, node.start_mark.line + 1)
    if node.id == "sequence":
        for index, item in enumerate(node.value):
            _note_lines(loader, item, f"{path}[{index}]", origin, left, within)
    elif node.id == "mapping":
        names: set[str] = set()
        merged_first = sorted(node.value, key=lambda entry: entry[0].tag != _TAG + "merge")
        for key, value in merged_first:
            name = str(key.value)
            if key.tag == _TAG + "merge":  # `<<` adds the missing fields of other mappings
                # Of several, the first decides: its fields are noted last.
                for other in reversed(value.value) if value.id == "sequence" else [value]:
                    _note_lines(loader, other, path, origin, left, within)
                continue
            if key.tag != _TAG + "str":
                fail(f"the name {shown_name(name)} is not a text; put it in quotes", key)
            if name in names:
                fail(f"{shown_name(name)} is given twice", key)
            names.add(name)
            field = f"{path}.{name}".removeprefix(".")
            origin.lines[field] = key.start_mark.line + 1
            _note_lines(loader, value, field, origin, left, within)
    else:
        try:
            value = loader.construct_object(node)
        except (ValueError, LookupError, ArithmeticError, AttributeError):
            # 0x_ matches as a number but is not one; !!int may precede anything.
            kind = shown_text(node.tag.removeprefix(_TAG))
            fail(f"looks like {kind} and cannot be read as such; put it in quotes", node)
        if not isinstance(value, str | int | float | None):
            fail(f"a {type(value).__name__} is not a JSON value; put it in quotes", node)
        if isinstance(value, int) and value.bit_length() > _WIDEST:
            fail("the number is too large", node)
        if isinstance(value, int | float) and not isinstance(value, bool):
            origin.numbers[path] = node.value


def _decode(data: Any, kind: type[T], origin: Origin) -> T:
    try:
        data = loads(canonical.dumps(data, path="$"))
    except InvalidJson as error:
        where = error.path.removeprefix("$").removeprefix(".")
        reason = shown_text(f"{where}: {error.reason}" if where else error.reason)
        raise InvalidConfig(reason, file=origin.file, line=origin.lines.get(where)) from None
    except RecursionError:
        raise InvalidConfig("nested too deeply", file=origin.file) from None
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        reason, path, place = _explain(data, kind, error)
    message = f"{shown_path(path)}: {reason}" if path else reason
    raise InvalidConfig(message, file=origin.file, line=origin.line(*place))


def _explain(data: Any, kind: type, error: msgspec.ValidationError) -> tuple[str, Path, Path]:
    """The reason, the path of the value, and the path whose line is named. msgspec writes `[...]`
    for any entry of a mapping; converting with one entry at a time finds which."""
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
        return f"{quoted(value)} is none of {', '.join(_type_at(kind, path).values)}", path, path
    if expected := re.match(r"Expected `([^`]*)`(?: of length >= (1)| ([<>]=? .*))?", reason):
        example = getattr(getattr(_type_at(kind, path), "cls", None), "example", "")
        hint = f"; {example}" if example and not isinstance(value, dict) else ""
        return _mismatch(value, *expected.groups()) + hint, path, path
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
    """The type of a field, without null."""
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
    return f"unknown field {quoted(name)}; {meant}there are {', '.join(known)}"


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
