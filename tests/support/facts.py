"""A catalog's figure, found by its path and held to a value and a source."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from anaphora.catalog import Figure


def figures(value: Any) -> Iterator[Figure[Any]]:
    """Every figure in a profile or in rules, those in tables too."""
    if isinstance(value, Figure):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from figures(item)
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from figures(getattr(value, name))


def figure_of(holder: object, path: str) -> Figure[Any]:
    name, _, key = path.partition(".")
    found = getattr(holder, name)
    if key:
        found = found[key]
    assert isinstance(found, Figure)
    return found


def holds(figure: Figure[Any], value: object, source: str) -> None:
    """The source is a part of the real one; "?" leads that of a stand-in."""
    assert figure.value == value
    assert source.removeprefix("?") in figure.source
    assert figure.verified == (not source.startswith("?"))
