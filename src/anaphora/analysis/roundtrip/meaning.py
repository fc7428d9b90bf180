"""Whether two JSON bodies of one wire mean the same, and what had to be overlooked to say so.

A wire lists its normalisations one by one (`wire.<name>.meaning`). Each changes a decoded body in
place into the one form that it means the same as, and counts how often it did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import msgspec

from anaphora.values import Notice

Body: TypeAlias = dict[str, Any]


class Normalisation(msgspec.Struct, frozen=True):
    """`name` says which two forms mean the same; `apply` gives how often the other one stood."""

    name: str
    apply: Callable[[Body], int]
    notice: str = ""
    """Only where the render gave a notice of this code: the forms differ in something."""


def normalise(
    body: Body, rules: tuple[Normalisation, ...], notices: Iterable[Notice] = ()
) -> dict[str, int]:
    """Changes the body in place; gives how often each rule was needed."""
    codes = {"", *(notice.code for notice in notices)}
    counts = {rule.name: rule.apply(body) for rule in rules if rule.notice in codes}
    return {name: count for name, count in counts.items() if count}


def drop_nulls(value: Any) -> int:
    """A field that is null means the same as one that is missing."""
    dropped = 0
    if isinstance(value, dict):
        for name in [name for name, item in value.items() if item is None]:
            del value[name]
            dropped += 1
        dropped += sum(drop_nulls(item) for item in value.values())
    elif isinstance(value, list):
        dropped += sum(drop_nulls(item) for item in value)
    return dropped


def drop_when(body: Body, name: str, default: Any) -> int:
    """A field that says its default means the same as one that is missing."""
    if name in body and body[name] == default and type(body[name]) is type(default):
        del body[name]
        return 1
    return 0


def keep(items: list[Any], wanted: Callable[[int], bool]) -> int:
    """Drops the items of a list that are not wanted, by their place; gives how many."""
    kept = [item for at, item in enumerate(items) if wanted(at)]
    dropped = len(items) - len(kept)
    items[:] = kept
    return dropped


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
        for index, (mine, theirs) in enumerate(zip(one, two, strict=False)):
            if (found := difference(mine, theirs, f"{path}[{index}]")) is not None:
                return found
        return None if len(one) == len(two) else f"{path}[{min(len(one), len(two))}]"
    return None if one == two else path
