"""Notebook display without importing what renders it: `_repr_html_` methods call `html_of`."""

from __future__ import annotations

from collections.abc import Callable

#: Set by `anaphora/__init__.py`; loads `anaphora.notebook` at the first call.
renderer: Callable[[object], str] = repr


def html_of(value: object) -> str:
    return renderer(value)
