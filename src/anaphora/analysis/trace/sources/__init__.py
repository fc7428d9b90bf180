"""Conversations out of the files that others keep: lines in, traces and problems out.

    for entry in sources.read("claude_code", sources.numbered(lines, "session.jsonl")):
        entry is a Source (a trace and its place) or a Problem (a place and what is wrong there)

Nothing is raised for bad input: whoever reads decides whether to pass it over or to refuse it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, TypeAlias

from . import claude_code, codex, form
from .lines import Entry, Line, Problem, Source, numbered, objects
from .orderly import orderly

Format: TypeAlias = Literal["trace", "claude_code", "codex"]

_READERS: dict[Format, Callable[[Iterator[Line]], Iterator[Entry]]] = {
    "trace": form.read,
    "claude_code": claude_code.read,
    "codex": codex.read,
}

_RECOGNISED: dict[Format, Callable[[dict[str, object]], bool]] = {
    "trace": form.recognises,
    "claude_code": claude_code.recognises,
    "codex": codex.recognises,
}


def detect(one: dict[str, object]) -> Format | None:
    """The format of a file by one of its objects; None when that one does not tell."""
    return next((name for name, recognises in _RECOGNISED.items() if recognises(one)), None)


def read(format: Format, lines: Iterator[Line]) -> Iterator[Entry]:
    """All conversations of a file, and what is wrong with it."""
    for entry in _READERS[format](lines):
        if isinstance(entry, Problem):
            yield entry
        else:
            yield from orderly(entry)


__all__ = [
    "Entry",
    "Format",
    "Line",
    "Problem",
    "Source",
    "detect",
    "numbered",
    "objects",
    "orderly",
    "read",
]
