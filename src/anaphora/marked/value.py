"""YAML that is read strictly: whatever is not as it should be is an error with file and line."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NoReturn, Self

from anaphora.errors import InvalidRequest

if TYPE_CHECKING:
    from yaml.nodes import Node

_TIME = re.compile(r"(\d+(?:\.\d+)?)(ms|s)\Z")
_PLAIN = {
    "tag:yaml.org,2002:" + kind: name
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


class Marked:
    """One value of a file, and the line it stands in."""

    __slots__ = ("_file", "_loader", "_node")

    def __init__(self, node: Node, loader: Any, file: str) -> None:
        self._node = node
        self._loader = loader
        self._file = file

    @classmethod
    def read(cls, text: str, file: str) -> Self | None:
        """The whole file; None when there is nothing in it."""
        import yaml

        try:
            loader = yaml.SafeLoader(text)
            node = loader.get_single_node()
        except yaml.MarkedYAMLError as problem:
            mark = problem.problem_mark or problem.context_mark
            place = file if mark is None else f"{file}:{mark.line + 1}"
            told = problem.problem or problem.context or "cannot be read"
            raise InvalidRequest(f"not YAML: {told}", path=place) from None
        except yaml.YAMLError as problem:
            raise InvalidRequest(f"not YAML: {problem}", path=file) from None
        return None if node is None else cls(node, loader, file)

    def wrong(self, reason: str) -> NoReturn:
        line = self._node.start_mark.line + 1
        raise InvalidRequest(reason, path=f"{self._file}:{line}")

    @property
    def kind(self) -> str:
        """What it is, for people."""
        return _PLAIN.get(self._node.tag, self._node.tag)

    @property
    def is_list(self) -> bool:
        return self.kind == "a list"

    def fields(self, known: Iterable[str], needed: Iterable[str] = ()) -> dict[str, Marked]:
        """A mapping's values by name: only known names, none twice, none missing."""
        if self.kind != "a mapping":
            self.wrong(f"expected a mapping, found {self.kind}")
        names = tuple(known)
        found: dict[str, Marked] = {}
        for key_node, value_node in self._node.value:
            key = Marked(key_node, self._loader, self._file)
            name = key.text()
            if name not in names:
                key.wrong(f"unknown field {name!r}; there are {', '.join(names)}")
            if name in found:
                key.wrong(f"{name} is given twice")
            found[name] = Marked(value_node, self._loader, self._file)
        for name in needed:
            if name not in found:
                self.wrong(f"{name} is missing")
        return found

    def items(self) -> list[Marked]:
        if not self.is_list:
            self.wrong(f"expected a list, found {self.kind}")
        return [Marked(node, self._loader, self._file) for node in self._node.value]

    def text(self) -> str:
        if self.kind != "a text":
            self.wrong(f"expected a text, found {self.kind}; put it in quotes")
        return str(self._node.value)

    def choice(self, among: Iterable[str]) -> str:
        names = tuple(among)
        # 500 is a number to YAML, and a name to people.
        said = str(self._node.value) if self.kind in ("a text", "a number") else self.text()
        if said not in names:
            self.wrong(f"{said!r} is none of {', '.join(names)}")
        return said

    def number(self, least: float = -math.inf, most: float = math.inf) -> float:
        value = self._loader.construct_object(self._node) if self.kind == "a number" else None
        if value is None:
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
        return self._plain(())

    def _plain(self, above: tuple[Node, ...]) -> Any:
        if any(node is self._node for node in above):
            self.wrong("a value that holds itself")
        within = (*above, self._node)
        if self.is_list:
            return [each._plain(within) for each in self.items()]
        if self.kind == "a mapping":
            names = [Marked(key, self._loader, self._file).text() for key, _ in self._node.value]
            return {name: each._plain(within) for name, each in self.fields(names).items()}
        value = self._loader.construct_object(self._node)
        if not isinstance(value, str | int | float | bool | None):
            self.wrong(f"{self.kind} is nothing that JSON has; put it in quotes")
        if isinstance(value, float) and not math.isfinite(value):
            self.wrong(f"{value} is nothing that JSON has")
        return value
