"""Bring JSON bodies into one form, so that those with the same meaning are equal.

A path is field names joined by dots, `[]` for every item of a list and `[0]` for its first; `|`
separates alternatives: `system[]|messages[].content[]`. The rules of each wire are in `rules`.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

import msgspec

from anaphora.values import Notice

Body: TypeAlias = dict[str, Any]


class Edit(NamedTuple):
    """A change, made in place to every object at a path."""

    where: str
    change: Callable[[Body], object]
    notice: str = ""
    """Only where rendering gave a notice of this code."""

    def when(self, wanted: Callable[[Body], bool]) -> Edit:
        """The same for some of the objects only."""
        return self._replace(change=lambda holder: wanted(holder) and self.change(holder))


Rules: TypeAlias = dict[str, list[Edit]]
"""What means the same, and the edits that make one form of the other."""


def normalise(body: Body, rules: Rules, notices: Iterable[Notice] = ()) -> dict[str, int]:
    """Changes the body in place; returns how many objects each rule has changed."""
    codes = {"", *(notice.code for notice in notices)}
    changed: Counter[str] = Counter()
    for name, edits in rules.items():
        for edit in edits:
            for holder in objects_at(body, edit.where) if edit.notice in codes else ():
                before = msgspec.json.encode(holder, order="sorted")
                edit.change(holder)
                changed[name] += before != msgspec.json.encode(holder, order="sorted")
    return {name: count for name, count in changed.items() if count}


def objects_at(body: Body, where: str) -> list[Body]:
    """The objects at a path; the body itself for an empty one."""
    return [found for path in where.split("|") for found in _objects(body, path)]


def _objects(body: Body, path: str) -> list[Body]:
    found = [body]
    for step in path.split(".") if path else ():
        name, bracket, index = step.partition("[")
        values = [holder.get(name) for holder in found]
        if bracket:
            end = 1 if index == "0]" else None
            values = [item for value in values if isinstance(value, list) for item in value[:end]]
        found = [value for value in values if isinstance(value, dict)]
    return found


def drop(where: str, **defaults: Any) -> Edit:
    """Drops fields that have their default value."""

    def change(holder: Body) -> None:
        for name, default in defaults.items():
            value = holder.get(name, change)
            if value == default and type(value) is type(default):
                del holder[name]

    return Edit(where, change)


def fill(where: str, **values: Any) -> Edit:

    def change(holder: Body) -> None:
        for name in values.keys() - holder.keys():
            holder[name] = copy.deepcopy(values[name])

    return Edit(where, change)


def remove(where: str, name: str) -> Edit:
    return Edit(where, lambda holder: holder.pop(name, None))


def replace(where: str, name: str, function: Callable[[Any], Any]) -> Edit:
    """Replaces the value of a field that is present."""

    def change(holder: Body) -> None:
        if name in holder:
            holder[name] = function(holder[name])

    return Edit(where, change)


def keep(where: str, name: str, wanted: Callable[[Any], bool]) -> Edit:
    """Drops the items of a list that are not wanted."""
    return replace(
        where, name, lambda items: list(filter(wanted, items)) if isinstance(items, list) else items
    )


def drop_nulls(*opaque: str) -> Edit:
    """Drops fields that are null, except inside of `opaque` ones."""

    def change(value: Any) -> None:
        if isinstance(value, dict):
            for name in [name for name, item in value.items() if item is None]:
                del value[name]
            value = [item for name, item in value.items() if name not in opaque]
        if isinstance(value, list):
            for item in value:
                change(item)

    return Edit("", change)


def difference(one: Any, two: Any, path: str = "$") -> str:
    """The path to the first place where two decoded bodies differ; empty where they agree."""
    if isinstance(one, dict) and isinstance(two, dict):
        for name in sorted({*one, *two}):
            here = f"{path}.{name}"
            if name not in one or name not in two:
                return here
            if found := difference(one[name], two[name], here):
                return found
        return ""
    if isinstance(one, list) and isinstance(two, list):
        for index, (mine, other) in enumerate(zip(one, two, strict=False)):
            if found := difference(mine, other, f"{path}[{index}]"):
                return found
        return "" if len(one) == len(two) else f"{path}[{min(len(one), len(two))}]"
    return "" if one == two else path
