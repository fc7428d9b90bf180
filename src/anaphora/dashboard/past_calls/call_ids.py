"""The ids of calls, for searching a part of one: in large pieces of text, since reading a row for
each call takes longer than looking through its text."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator

from anaphora.audit.envelope import AuditEnvelope

#: Bytes of one piece.
_PIECE = 64 * 1024
#: A longer text is no part of an id.
_LONGEST = 1_000
#: The digits of a call's number, as characters that no id has.
_DIGITS = bytes.maketrans(b"0123456789", bytes(range(16, 26)))
_FROM_DIGITS = bytes.maketrans(bytes(range(16, 26)), b"0123456789")


def id_line(seq: int, call: AuditEnvelope) -> str:
    """The ids of a call with its number; empty where it has none."""
    ids = "\t".join(filter(None, (call.request_id, call.response_id, call.call_id)))
    if not ids or not ids.replace("\t", "").isprintable():
        return ""
    return f"{ids.casefold()}\t{str(seq).encode().translate(_DIGITS).decode()}\n"


def add_ids(database: sqlite3.Connection, lines: Iterable[tuple[int, str]]) -> None:
    """Adds lines, each with the number of its call, to the last piece, or begins new ones."""
    query = "SELECT id, length(ids) FROM id_pieces ORDER BY id DESC LIMIT 1"
    found = database.execute(query).fetchone()
    id, size = (None, 0) if found is None or found[1] >= _PIECE else found
    for last, text in _pieces(lines, size):
        if id is None:
            database.execute("INSERT INTO id_pieces (last, ids) VALUES (?, ?)", (last, text))
        else:
            append = "UPDATE id_pieces SET last = ?, ids = ids || ? WHERE id = ?"
            database.execute(append, (last, text, id))
            id = None


def _pieces(lines: Iterable[tuple[int, str]], size: int) -> Iterator[tuple[int, str]]:
    """Texts with the number of the last call in each; the first goes on from `size` bytes."""
    waiting: list[str] = []
    last = 0
    for seq, line in lines:
        waiting.append(line)
        size, last = size + len(line), max(last, seq)
        if size >= _PIECE:
            yield last, "".join(waiting)
            waiting, size = [], 0
    if waiting:
        yield last, "".join(waiting)


def calls_with_id(database: sqlite3.Connection, text: str, most: int) -> list[int]:
    """The numbers of the latest calls of which an id contains the text; case is ignored."""
    wanted = text.casefold()
    if not wanted.isprintable() or len(wanted) > _LONGEST:
        return []
    needle, found = wanted.encode(errors="replace"), list[int]()
    for (piece,) in database.execute("SELECT CAST(ids AS BLOB) FROM id_pieces ORDER BY id DESC"):
        found += reversed([*_found(piece, needle)])
        if len(found) >= most:
            break
    return found[:most]


def _found(piece: bytes, needle: bytes) -> Iterator[int]:
    at = piece.find(needle)
    while at >= 0:
        end = piece.index(b"\n", at)
        begin = piece.rindex(b"\t", 0, end) + 1
        yield int(piece[begin:end].translate(_FROM_DIGITS))
        at = piece.find(needle, end)


def remove_ids(database: sqlite3.Connection, through: int) -> None:
    """Those of calls up to a number, as far as whole pieces have no later ones."""
    database.execute("DELETE FROM id_pieces WHERE last <= ?", (through,))
