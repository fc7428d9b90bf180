"""The texts of a JSON value by typed paths: `messages/*<user>/content/*<image>/source<base64>/data`.

A step is a member's name, or `*` for an element of a list; an object adds its type, else its role.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def texts(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Each text in a value, with its path."""
    if isinstance(value, dict):
        named = value.get("type", value.get("role"))
        path += f"<{named}>" if isinstance(named, str) else ""
        for key, each in value.items():
            yield from texts(each, f"{path}/{key}" if path else key)
    elif isinstance(value, list):
        for each in value:
            yield from texts(each, f"{path}/*")
    elif isinstance(value, str):
        yield path, value
