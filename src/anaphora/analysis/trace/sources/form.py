"""Our own form: one conversation a line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from anaphora.analysis.trace.form import read_line
from anaphora.errors import InvalidRequest

from .lines import Entry, Line, Problem, Source


def recognises(one: dict[str, Any]) -> bool:
    return isinstance(one.get("calls"), list) and isinstance(one.get("messages"), list)


def read(lines: Iterator[Line]) -> Iterator[Entry]:
    for line in lines:
        try:
            yield Source(line.place, read_line(line.data, line.place))
        except InvalidRequest as problem:
            yield Problem(line.place, problem.reason)
