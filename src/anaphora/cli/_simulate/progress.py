"""A bar on a terminal, for what takes long; it goes to standard error, and away again."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def tracked(items: Iterable[T], title: str, *, total: int, long: int) -> Iterator[T]:
    """The items, with a bar when there are `long` or more of them and somebody is looking."""
    if total < long or not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console
    from rich.progress import track

    bar = Console(stderr=True)
    yield from track(items, title, total=total, console=bar, transient=True)
