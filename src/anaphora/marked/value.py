"""A value of a YAML file and its line: what is not as it should be is an error that says where."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Self, TypeAlias

from anaphora.errors import AnaphoraError, InvalidRequest

if TYPE_CHECKING:
    from yaml.nodes import Node

Failure: TypeAlias = Callable[[str, str, int | None], AnaphoraError]
"""The error to raise: from a reason, a file, and a line where there is one."""

_TIME = re.compile(r"(\d+(?:\.\d+)?)(ms|s)\Z")
_LONE = re.compile(r"[\ud800-\udfff]")
#: Bits of a whole number that is still a float.
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
    """What all values of a file share."""

    file: str
    loader: Any
    failure: Failure
    name: str = ""


class Marked:
    """One value of a file, and the line it stands in."""

    __slots__ = ("_node", "_source")

    def __init__(self, node: Node, source: _Source) -> None:
        self._node = node
        self._source = source

    @classmethod
    def read(cls, text: str, file: str, failure: Failure = invalid_request) -> Self | None:
        """The whole file; None when there is nothing in it."""
        import yaml

        try:
            loader = yaml.SafeLoader(text)
            node = loader.get_single_node()
        except yaml.MarkedYAMLError as problem:
            mark = problem.problem_mark or problem.context_mark
            told = problem.problem or problem.context or "cannot be read"
            line = None if mark is None else mark.line + 1
            raise failure(f"not YAML: {told}", file, line) from None
        except yaml.reader.ReaderError as problem:
            line = text.count("\n", 0, problem.position) + 1
            raise failure(f"not YAML: {problem.reason}", file, line) from None
        except RecursionError:
            raise failure("nested too deeply", file, None) from None
        return None if node is None else cls(node, _Source(file, loader, failure))

    @classmethod
    def of(cls, value: Any, name: str = "", failure: Failure = invalid_request) -> Self:
        """A value that is in no file, and has no lines."""
        import yaml

        try:
            node = yaml.representer.SafeRepresenter(sort_keys=False).represent_data(value)
        except yaml.YAMLError:
            raise failure("holds something that YAML has not", name, None) from None
        except RecursionError:
            raise failure("nested too deeply", name, None) from None
        return cls(node, _Source(name, yaml.SafeLoader(""), failure))

    @property
    def line(self) -> int | None:
        mark = self._node.start_mark
        return None if mark is None else int(mark.line) + 1

    def named(self, name: str) -> Marked:
        """The same; `name` leads what is said of it, and of what it holds."""
        return Marked(self._node, self._source._replace(name=name))

    def wrong(self, reason: str) -> NoReturn:
        file, _, failure, name = self._source
        raise failure(f"{name}: {reason}" if name else reason, file, self.line) from None

    @property
    def kind(self) -> str:
        """What it is, for people."""
        return _PLAIN.get(self._node.tag, self._node.tag)

    @property
    def is_list(self) -> bool:
        return self.kind == "a list"

    # ── What holds others ────────────────────────────────────────────────────────────────────────

    def entries(self) -> dict[str, tuple[Marked, Marked]]:
        """A mapping's keys and values by name, none twice. `<<` brings what it does not say itself
        from another mapping, or from several."""
        return self._entries(())

    def _entries(self, above: tuple[Node, ...]) -> dict[str, tuple[Marked, Marked]]:
        if self.kind != "a mapping":
            self.wrong(f"expected a mapping, found {self.kind}")
        within = self._beneath(above)
        found: dict[str, tuple[Marked, Marked]] = {}
        others: list[Marked] = []
        for key_node, value_node in self._node.value:
            key, value = Marked(key_node, self._source), Marked(value_node, self._source)
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

    def fields(self, known: Iterable[str], needed: Iterable[str] = ()) -> dict[str, Marked]:
        """A mapping's values by name: only known names, none twice, none missing."""
        names = tuple(known)
        found: dict[str, Marked] = {}
        for name, (key, value) in self.entries().items():
            if name not in names:
                key.wrong(unknown(name, names))
            found[name] = value
        for name in needed:
            if name not in found:
                self.wrong(f"{name} is missing")
        return found

    def items(self) -> list[Marked]:
        if not self.is_list:
            self.wrong(f"expected a list, found {self.kind}")
        return [Marked(node, self._source) for node in self._node.value]

    # ── What does not ────────────────────────────────────────────────────────────────────────────

    def text(self) -> str:
        if self.kind != "a text":
            self.wrong(f"expected a text, found {self.kind}; put it in quotes")
        text = str(self._node.value)
        if _LONE.search(text):
            self.wrong("half a character: write both surrogates, or the character itself")
        return text

    def choice(self, among: Iterable[str]) -> str:
        names = tuple(among)
        # 500 is a number to YAML, and a name to people.
        said = str(self._node.value) if self.kind in ("a text", "a number") else self.text()
        if said not in names:
            self.wrong(f"{said!r} is none of {', '.join(names)}")
        return said

    def scalar(self) -> str | int | float | bool | None:
        """A text, a number, true, false, or nothing."""
        if self.kind == "a text":
            return self.text()
        import yaml

        try:
            value = self._source.loader.construct_object(self._node)
        except (ValueError, LookupError, ArithmeticError, yaml.YAMLError):
            # 0x_ looks like a number and is none; !!int and the like may stand before anything.
            self.wrong(f"looks like {self.kind} and cannot be read as such; put it in quotes")
        if not isinstance(value, str | int | float | bool | None):
            self.wrong(f"{self.kind} is nothing that JSON has; put it in quotes")
        if isinstance(value, float) and not math.isfinite(value):
            self.wrong(f"{value} is nothing that JSON has")
        if isinstance(value, int) and value.bit_length() > _WIDEST:
            self.wrong("is too large a number")
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
            self.wrong(f"{value:g} is no whole number")
        return int(value)

    def numbers(self) -> tuple[int, ...]:
        """Whole numbers from 1: one, or a list of some."""
        if not self.is_list:
            return (self.whole(1),)
        found = tuple(each.whole(1) for each in self.items())
        if not found:
            self.wrong("names none; leave it out")
        return found

    def seconds(self) -> float:
        """A number of seconds, or a time with its unit: 20ms, 1.5s."""
        if self.kind == "a number":
            return self.number(0)
        found = _TIME.match(self.text())
        if found is None:
            self.wrong(f"{self.text()!r} is no time; write 20ms, 1.5s, or a number of seconds")
        return float(found[1]) * (0.001 if found[2] == "ms" else 1.0)

    def plain(self) -> Any:
        """Anything that JSON has."""
        try:
            return self._plain(())
        except RecursionError:
            self.wrong("nested too deeply")

    def _plain(self, above: tuple[Node, ...]) -> Any:
        if self.is_list:
            within = self._beneath(above)
            return [each._plain(within) for each in self.items()]
        if self.kind == "a mapping":
            within = self._beneath(above)
            return {name: each._plain(within) for name, (_, each) in self.entries().items()}
        return self.scalar()

    def _beneath(self, above: tuple[Node, ...]) -> tuple[Node, ...]:
        if any(node is self._node for node in above):
            self.wrong("a value that holds itself")
        return (*above, self._node)


def nearest(name: str, known: Iterable[str]) -> str:
    """The name that was probably meant; empty when none is near."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(name, tuple(known), n=1)), "")


def unknown(name: str, known: Iterable[str]) -> str:
    """What is wrong with a field that there is not."""
    names = tuple(known)
    near = nearest(name, names)
    meant = f"did you mean {near}? " if near else ""
    return f"unknown field {name!r}; {meant}there are {', '.join(names)}"
