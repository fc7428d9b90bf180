"""Recorded exchanges with real services, as test cases.

They live beside the repository (see their README) and are never copied into it. They were
re-serialised with sorted keys, so they prove meaning, not bytes.
"""

from __future__ import annotations

import functools
import gzip
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.tables import Check, Row, table

Json = dict[str, Any]

FILE = Path(__file__).parents[3] / "shared" / "exchanges" / "exchanges.jsonl.gz"
needs_exchanges = pytest.mark.skipif(not FILE.exists(), reason=f"no recorded exchanges at {FILE}")


@functools.cache
def all_records() -> tuple[Json, ...]:
    """All exchanges; none where they are not installed."""
    if not FILE.exists():
        return ()
    with gzip.open(FILE, "rt", encoding="utf-8") as lines:
        return tuple(map(json.loads, lines))


def records(wire: str) -> Iterator[Json]:
    """All exchanges of one wire."""
    return (record for record in all_records() if record["wire"] == wire)


class Exchanges:
    """Decorators of a check of one exchange, its argument `record`: one test of each exchange of a
    wire that is of that kind."""

    def __init__(self, wire: str) -> None:
        self._records = list(records(wire))
        self.request = self._table(lambda record: True)
        self.reply = self._table(lambda record: record["status"] == 200 and not record["stream"])
        self.stream = self._table(lambda record: record["status"] == 200 and record["stream"])
        self.error = self._table(lambda record: record["status"] != 200)

    def _table(self, wanted: Callable[[Json], bool]) -> Callable[[Check], Callable[[], None]]:
        rows = rows_of(filter(wanted, self._records))
        return lambda check: needs_exchanges(table(rows)(check))


def rows_of(found: Iterable[Json]) -> list[Row]:
    return [(f"{record['wire']}-{record['host']}-{record['id']}", (record,)) for record in found]
