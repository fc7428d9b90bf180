"""Bodies of unusual shape, as test cases. They live beside the repository, as `exchanges` do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

Json = dict[str, Any]

FILE = Path(__file__).parents[3] / "shared" / "exchanges" / "odd.jsonl"
needs_odd_exchanges = pytest.mark.skipif(not FILE.exists(), reason=f"no odd exchanges at {FILE}")


def odd_rows(what: str) -> list[Any]:
    """The rows of one kind: reply, request or error; none where the file is missing."""
    lines = FILE.read_text(encoding="utf-8").splitlines() if FILE.exists() else []
    rows = [json.loads(line) for line in lines]
    return [pytest.param(row, id=row["name"]) for row in rows if row["what"] == what]


def odd_row(name: str) -> Json:
    lines = FILE.read_text(encoding="utf-8").splitlines()
    return next(row for row in map(json.loads, lines) if row["name"] == name)
