"""Counts each answer once, in an index of usage: which of its copies, by the rule of `AnswerIndex`.

The result stays in the index, for the files that were counted together. Later, only answers of
files that have changed are looked at again.
"""

from __future__ import annotations

import sqlite3
from itertools import groupby
from operator import itemgetter
from typing import Any

from anaphora.analysis.trace.answers import AnswerIndex
from anaphora.analysis.trace.log_lines import Answer

from .records import COUNTS

#: Copies of one answer in the chosen files, those of a copied one by its digest without its time.
_COPIES = (
    "SELECT answer, key, copied, file, path, began, ended, at, output"
    " FROM calls JOIN files ON files.id = file WHERE file IN chosen AND answer IN (SELECT answer"
    " FROM calls WHERE file IN chosen AND {} GROUP BY answer HAVING count(*) > 1)"
    " ORDER BY answer, path"
)
#: Answers whose copies may count differently after files have changed: theirs, those that they
#: kept, and those that they had a copy of.
_AFFECTED = (
    "INSERT OR IGNORE INTO affected SELECT answer FROM calls WHERE file IN changed",
    "INSERT OR IGNORE INTO affected SELECT answer FROM dropped JOIN calls USING (file, key)"
    " WHERE keeper IN changed",
    "INSERT OR IGNORE INTO affected SELECT answer FROM dropped JOIN calls"
    " ON calls.file = keeper AND calls.key = dropped.key WHERE dropped.file IN changed",
)
_UNCOUNT = (
    "DELETE FROM {0} WHERE file IN changed OR (file, key) IN"
    " (SELECT file, key FROM calls WHERE answer IN affected)"
)
_CHANGED = (
    "SELECT id FROM files WHERE id IN chosen AND"
    " position IS NOT (SELECT position FROM counted WHERE file = id)"
    " UNION SELECT file FROM counted WHERE file NOT IN chosen"
)
#: Copies of answers that are compared at once.
_MOST_COPIES = 5_000
#: The columns of a call whose tokens are those of a copy.
_OTHERS = ", ".join(
    [f"ours.{name}" for name in ("file", "key", "answer", "copied", "label", "at")]
    + [f"other.{name}" for name in COUNTS]
    + ["ours.line", "other.partial"]
)


def choose(database: sqlite3.Connection, paths: list[str]) -> int:
    """Fills `chosen`, and `changed` with the files that were changed, or chosen or not,
    since they were counted. Returns their number."""
    for table in ("chosen", "changed", "affected"):
        kind = "answer BLOB" if table == "affected" else "id INTEGER"
        database.execute(f"CREATE TEMP TABLE IF NOT EXISTS {table} ({kind} PRIMARY KEY)")
        database.execute(f"DELETE FROM {table}")
    ids = dict(database.execute("SELECT path, id FROM files"))
    chosen = ((ids[path],) for path in paths if path in ids)
    database.executemany("INSERT INTO chosen VALUES (?)", chosen)
    return database.execute(f"INSERT INTO changed {_CHANGED}").rowcount


def count(database: sqlite3.Connection) -> None:
    """Finds the copies of answers of the `changed` files."""
    (counted,) = database.execute("SELECT count(*) FROM counted").fetchone()
    if counted:
        for add in _AFFECTED:
            database.execute(add)
        for table in ("dropped", "richer"):
            database.execute(_UNCOUNT.format(table))
    copies = _CopiesOnce()
    rows = database.execute(_COPIES.format("answer IN affected" if counted else "true"))
    for _, same in groupby(rows, itemgetter(0)):
        copies.add([*same])
        if copies.is_full:
            _drop(database, copies)
            copies = _CopiesOnce()
    _drop(database, copies)
    database.execute("DELETE FROM counted WHERE file IN changed")
    database.execute(
        "INSERT INTO counted SELECT id, position FROM files WHERE id IN chosen AND id IN changed"
    )


def _drop(database: sqlite3.Connection, copies: _CopiesOnce) -> None:
    dropped, richer = copies.decide()
    database.executemany("INSERT INTO dropped VALUES (?, ?, ?, ?)", dropped)
    for file, key, source in richer:
        database.execute(
            f"INSERT INTO richer SELECT {_OTHERS}"
            " FROM calls AS ours JOIN calls AS other ON other.key = ours.key"
            " WHERE ours.file = ? AND ours.key = ? AND other.file = ?",
            (file, key, source),
        )
        database.execute("INSERT INTO dropped VALUES (?, ?, NULL, 0)", (file, key))


class _CopiesOnce:
    """Finds which of the copies of some answers count, by the rule of `AnswerIndex`."""

    def __init__(self) -> None:
        self._answers = AnswerIndex()
        self._files: dict[str, int] = {}
        self._rows: list[tuple[Answer, int, str, int]] = []

    @property
    def is_full(self) -> bool:
        return len(self._rows) >= _MOST_COPIES

    def add(self, rows: list[tuple[Any, ...]]) -> None:
        """All copies of an answer, as `_COPIES` returns them."""
        for same, key, copied, file, path, began, ended, at, output in rows:
            if path not in self._files:
                self._files[path] = file
                self._answers.add_times(path, began, (ended,))
            answer = Answer(key, same if same != key else b"", bool(copied))
            self._answers.add_answer(path, answer, is_last=at == ended)
            self._rows.append((answer, file, path, output))

    def decide(self) -> tuple[list[tuple[Any, ...]], list[tuple[int, bytes, int]]]:
        """Rows of `dropped`; and for calls of which another copy has more output: file, key, and
        the file of that copy."""
        dropped: list[tuple[Any, ...]] = []
        kept: dict[bytes, tuple[int, int]] = {}
        most: dict[bytes, tuple[int, int]] = {}
        for answer, file, path, output in self._rows:
            keeper = self._answers.keeper(answer)
            if keeper.file != path:
                kept_by = self._files[keeper.file]
                dropped.append((file, answer.key, kept_by, keeper.is_last))
            else:
                kept[answer.key] = output, file
            if answer.key not in most or most[answer.key][0] < output:
                most[answer.key] = output, file
        richer = [
            (file, key, most[key][1])
            for key, (output, file) in kept.items()
            if most[key][0] > output
        ]
        return dropped, richer
