"""Recorded exchanges with real services, as test cases.

They live beside the repository (see their README) and are never copied into it. They were
re-serialised with sorted keys, so they prove meaning, not bytes.
"""

from __future__ import annotations

import functools
import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

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
    """Decorators that run a test for each exchange of a wire, as its argument `record`."""

    def __init__(self, wire: str) -> None:
        self._records = list(records(wire))
        self.request = self._cases(lambda record: True)
        self.reply = self._cases(lambda record: record["status"] == 200 and not record["stream"])
        self.stream = self._cases(lambda record: record["status"] == 200 and record["stream"])
        self.error = self._cases(lambda record: record["status"] != 200)

    def _cases(self, wanted: Callable[[Json], bool]) -> pytest.MarkDecorator:
        cases = [
            pytest.param(record, id=f"{record['host']}-{record['id']}")
            for record in self._records
            if wanted(record)
        ]
        if not FILE.exists():
            cases = [pytest.param({}, id="none", marks=needs_exchanges)]
        return pytest.mark.parametrize("record", cases)
