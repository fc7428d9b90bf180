"""Compare two JSON bodies of one wire by meaning.

A wire lists its normalisations by name (`roundtrip.<wire>`). Each changes a decoded body in place
into one canonical form, and counts how often it did. Paths are field names joined by dots, `[]` for
every item of a list: `messages[].content[]`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from anaphora.values import Notice

Body: TypeAlias = dict[str, Any]
Step: TypeAlias = Callable[[Body], int]
Where: TypeAlias = str | Callable[[Body], Iterable[Body]]
"""A path, or a function that finds objects in a body."""


class Normalisation:
    """Two forms that mean the same, and the steps that make one of the other."""

    def __init__(self, name: str, *steps: Step, notice: str = "") -> None:
        """`notice`: apply only where rendering gave a notice of this code."""
        self.name = name
        self.notice = notice
        self._steps = steps

    def apply(self, body: Body) -> int:
        """Changes the body in place; returns how often the other form was there."""
        return sum(step(body) for step in self._steps)


NULLS = "null means the same as a missing field"
DEFAULTS = "a field with its default value is left out"
UNFINISHED = "reasoning that nothing follows is refused, so it is left out with a notice"
DEVELOPER = "without developer messages, system ones"
PARALLEL = "with parallel_tool_calls, tool_choice auto is added"
NO_PARAMETERS = "a function without parameters has an empty object of them"

EMPTY_SCHEMA: dict[str, Any] = {"properties": {}, "type": "object"}


def normalise(
    body: Body, rules: tuple[Normalisation, ...], notices: Iterable[Notice] = ()
) -> dict[str, int]:
    """Changes the body in place; returns how often each rule was needed."""
    codes = {"", *(notice.code for notice in notices)}
    counts = {rule.name: rule.apply(body) for rule in rules if rule.notice in codes}
    return {name: count for name, count in counts.items() if count}


def objects_at(body: Body, where: Where) -> list[Body]:
    """The objects at a path; the body itself for an empty one."""
    if not isinstance(where, str):
        return list(where(body))
    found = [body]
    for step in where.split(".") if where else ():
        name = step.removesuffix("[]")
        values = [holder.get(name) for holder in found]
        if step.endswith("[]"):
            values = [item for value in values if isinstance(value, list) for item in value]
        found = [value for value in values if isinstance(value, dict)]
    return found


def drop(where: Where, default: Any, *names: str) -> Step:
    """Drops fields that have their default value."""

    def step(body: Body) -> int:
        dropped = 0
        for holder in objects_at(body, where):
            for name in names:
                value = holder.get(name, step)
                if value == default and type(value) is type(default):
                    del holder[name]
                    dropped += 1
        return dropped

    return step


def fill(where: Where, name: str, value: Any) -> Step:
    """Adds a missing field."""

    def step(body: Body) -> int:
        missing = [holder for holder in objects_at(body, where) if name not in holder]
        for holder in missing:
            holder[name] = copy.deepcopy(value)
        return len(missing)

    return step


def change(where: Where, name: str, function: Callable[[Any], Any]) -> Step:
    """Replaces the value of a field that is present."""

    def step(body: Body) -> int:
        changed = 0
        for holder in objects_at(body, where):
            if name in holder:
                value = function(holder[name])
                changed += value != holder[name]
                holder[name] = value
        return changed

    return step


def keep(where: Where, name: str, wanted: Callable[[Any], bool]) -> Step:
    """Drops the items of a list that are not wanted."""

    def step(body: Body) -> int:
        dropped = 0
        for holder in objects_at(body, where):
            if isinstance(holder.get(name), list):
                kept = [item for item in holder[name] if wanted(item)]
                dropped += len(holder[name]) - len(kept)
                holder[name] = kept
        return dropped

    return step


def rename_role(path: str) -> Step:
    return change(path, "role", lambda role: "system" if role == "developer" else role)


def as_text_list(kind: str) -> Callable[[Any], Any]:
    """Makes a text a list with one block of this type."""
    return lambda value: [{"type": kind, "text": value}] if isinstance(value, str) else value


def has_text(block: Any) -> bool:
    """False for a text block that is blank."""
    return block.get("type") != "text" or bool(block["text"].strip())


def auto_tool_choice(body: Body) -> int:
    if "parallel_tool_calls" not in body or "tool_choice" in body:
        return 0
    body["tool_choice"] = "auto"
    return 1


def drop_nulls(value: Any, opaque: frozenset[str] = frozenset()) -> int:
    """Drops fields that are null, except inside of `opaque` ones."""
    if isinstance(value, list):
        return sum(drop_nulls(item, opaque) for item in value)
    if not isinstance(value, dict):
        return 0
    nulls = [name for name, item in value.items() if item is None]
    for name in nulls:
        del value[name]
    inside = (item for name, item in value.items() if name not in opaque)
    return len(nulls) + sum(drop_nulls(item, opaque) for item in inside)


def difference(one: Any, two: Any, path: str = "$") -> str | None:
    """The path to the first place where two decoded bodies differ; None where they agree."""
    if isinstance(one, dict) and isinstance(two, dict):
        for name in sorted({*one, *two}):
            here = f"{path}.{name}"
            if name not in one or name not in two:
                return here
            if (found := difference(one[name], two[name], here)) is not None:
                return found
        return None
    if isinstance(one, list) and isinstance(two, list):
        for index, (mine, other) in enumerate(zip(one, two, strict=False)):
            if (found := difference(mine, other, f"{path}[{index}]")) is not None:
                return found
        return None if len(one) == len(two) else f"{path}[{min(len(one), len(two))}]"
    return None if one == two else path
