"""Recorded session files, copied under ids of their own until they have a size."""

from __future__ import annotations

import datetime
import gzip
import re
from collections.abc import Callable
from pathlib import Path

SESSIONS = Path(__file__).parents[2] / "shared" / "sessions"
PROGRAMS = ("claude_code", "codex", "copilot")
_UUID = rb"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"
_NAMED = rb"\b(?:msg|req|resp|toolu|call|rs|fc)_[0-9A-Za-z]{12,}"
_DAY = rb"\b20\d\d-\d\d-\d\d(?=T\d\d:)"
_CHANGED = re.compile(rb"(" + _UUID + rb"|" + _NAMED + rb")|(" + _DAY + rb")")


def copies(folder: Path, size: int) -> list[Path]:
    """The copies, of all programs in turn; days are moved, since some answers have no id."""
    originals = [
        (program, path.name.removesuffix(".gz"), _content(path))
        for program in PROGRAMS
        for path in sorted((SESSIONS / program).glob("*.jsonl*"))
    ]
    made: list[Path] = []
    total = number = 0
    while total < size:
        changed = _changed(number)
        for program, name, content in originals:
            path = (
                folder / program / f"{number:04d}" / _CHANGED.sub(changed, name.encode()).decode()
            )
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(_CHANGED.sub(changed, content))
            made.append(path)
            total += len(content)
        number += 1
    return made


def _content(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if path.suffix == ".gz" else data


def _changed(number: int) -> Callable[[re.Match[bytes]], bytes]:
    """Ids get a number of the same length in the middle, days are moved back."""
    own, days = b"%05x" % number, {}
    moved = datetime.timedelta(days=number)

    def change(found: re.Match[bytes]) -> bytes:
        id, day = found.groups()
        if id:
            return id[:-5] + own
        if day not in days:
            try:
                days[day] = str(datetime.date.fromisoformat(day.decode()) - moved).encode()
            except ValueError:
                days[day] = day
        return days[day]

    return change
