"""The hash chain: each row ends with a hash of the row before and its own bytes.

    {"schema_version":1,"seq":7,"row":"call",…,"hash":"<64 hex digits>"}

The hash is BLAKE3 over the 64 digits of the row before, then the row's bytes before `,"hash":`. The
first row follows 64 zeros. Bytes are hashed, so any change of a stored row is found, even one that
leaves its JSON value equal.

Anyone can compute hashes, and so rewrite a chain. The log of a daemon has a key, which is not in
the log: before the hash, its rows have `"mac":"<64 hex digits>"`, BLAKE3 with that key over the
same digits, then the row's bytes before `,"mac":`. The hash covers it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec
from blake3 import blake3

from anaphora.errors import AnchorMismatch, ChainBroken, MacMismatch

from .envelope import (
    SCHEMA_VERSION,
    AuditRow,
    Boundary,
    PrunedRow,
    SegmentRow,
    decode,
    encode,
)

ZERO = "0" * 64

_HASH = b',"hash":"'
#: The bytes of a line after those that are hashed.
_TAIL = len(_HASH) + 64 + len(b'"}')
_MAC = b',"mac":"'
#: The bytes of a MAC, before those of the hash.
_MAC_LENGTH = len(_MAC) + 64 + len(b'"')
#: Beginnings of the rows that matter to the chain: pruned, segment.
_LOOKED_AT = (b"prun", b"segm")


class ChainHead(msgspec.Struct, frozen=True):
    """The last row of a chain: its number and its hash. Number 0: before the first row."""

    seq: int = 0
    hash: str = ZERO


class RowKey(msgspec.Struct, frozen=True, kw_only=True):
    """The key of the MACs of a log, and the first row that must have one."""

    key: bytes
    since: int


def seal(head: ChainHead, row: AuditRow, key: bytes = b"") -> tuple[bytes, ChainHead]:
    """The line of a row that follows `head`, without the line break, and the new head. With a
    `key`, the row has a MAC."""
    seq = head.seq + 1
    encoded = encode(row)
    body = b'{"schema_version":%d,"seq":%d,%b' % (SCHEMA_VERSION, seq, encoded[1:-1])
    if key:
        body += b'%b%b"' % (_MAC, blake3(head.hash.encode() + body, key=key).hexdigest().encode())
    digest = blake3(head.hash.encode() + body).hexdigest()
    return b'%b%b%b"}' % (body, _HASH, digest.encode()), ChainHead(seq, digest)


class ChainChecker:
    """Checks lines one after another. `head` is the last valid row."""

    def __init__(
        self,
        head: ChainHead,
        *,
        anchor: ChainHead | None = None,
        row_key: RowKey | None = None,
    ) -> None:
        """With `row_key`, MACs are checked as well."""
        self.head = head
        self._start = head
        self._anchor = anchor
        self._pruned: list[Boundary] = []
        self._row_key = row_key

    def check(self, lines: Iterable[bytes], place: Callable[[int], str]) -> Iterator[int]:
        """Yields the number of lines checked, from time to time. `place` describes the line at an
        index."""
        seq, previous = self.head.seq, self.head.hash.encode()
        anchored = -1 if self._anchor is None else self._anchor.seq
        try:
            for index, line in enumerate(lines):
                begin = b'{"schema_version":%d,"seq":%d,"row":"' % (SCHEMA_VERSION, seq + 1)
                digest = blake3(previous + line[:-_TAIL]).hexdigest().encode()
                sealed = line[-_TAIL:] == b'%b%b"}' % (_HASH, digest)
                if not sealed or not line.startswith(begin):
                    self._refuse(line, seq + 1, place(index))
                if self._row_key is not None:
                    _check_mac(line, previous, seq + 1, self._row_key)
                if line[len(begin) : len(begin) + 4] in _LOOKED_AT:
                    self._look(line, previous.decode(), seq + 1, place(index))
                seq, previous = seq + 1, digest
                if seq == anchored:
                    self._compare(seq, digest.decode())
                if not seq % 1000:
                    yield index
        finally:
            self.head = ChainHead(seq, previous.decode())

    def finish(self) -> None:
        """Checks the beginning of the chain, and the anchor."""
        start = self._start
        if start.seq and Boundary(start.seq, start.hash) not in self._pruned:
            raise ChainBroken(
                f"rows 1 to {start.seq:,} are missing, and no row says that they were pruned",
                row=1,
            )
        if self._anchor is not None:
            self._check_anchor(self._anchor)
        since = 0 if self._row_key is None else self._row_key.since
        if self.head.seq < since:
            raise MacMismatch(
                f"the log ends with row {self.head.seq:,}, and rows have a MAC from row"
                f" {since:,} on: it was cut off or rewritten",
                row=self.head.seq + 1,
            )

    def _check_anchor(self, anchor: ChainHead) -> None:
        start = self._start
        if anchor.seq > self.head.seq:
            raise AnchorMismatch(
                f"the log was cut off: it ends with row {self.head.seq:,}, and the anchor names row"
                f" {anchor.seq:,}",
                row=self.head.seq + 1,
            )
        if anchor.seq == start.seq:
            self._compare(start.seq, start.hash)
        elif anchor.seq < start.seq:
            raise AnchorMismatch(
                f"the anchor names row {anchor.seq:,}, which was pruned; prune with --anchor, so"
                " that it follows",
                row=anchor.seq,
            )

    def _compare(self, seq: int, digest: str) -> None:
        if self._anchor is not None and self._anchor.hash != digest:
            raise AnchorMismatch(
                f"row {seq:,} is not the one that the anchor names: the log was rewritten", row=seq
            )

    def _look(self, line: bytes, previous: str, seq: int, place: str) -> None:
        content = decode(line, place).content
        if isinstance(content, PrunedRow):
            self._pruned += (Boundary(one.through, one.hash) for one in content.boundaries)
        elif isinstance(content, SegmentRow) and content.prev != previous:
            raise ChainBroken(
                "the segment does not continue the one before it", row=seq, place=place
            )

    def _refuse(self, line: bytes, seq: int, place: str) -> None:
        """Raises an error that says what is wrong with a line."""
        if not line.strip():
            raise ChainBroken("an empty line", row=seq, place=place)
        if not line.endswith(b'"}'):
            raise ChainBroken("the row is cut off", row=seq, place=place)
        try:
            stored = decode(line, place)
        except ChainBroken as problem:
            raise ChainBroken(problem.reason, row=seq, place=place) from None
        if stored.seq != seq:
            raise ChainBroken(
                f"expected row {seq:,} and found row {stored.seq:,}: rows were deleted, inserted"
                " or moved",
                row=seq,
                place=place,
            )
        raise ChainBroken(
            "its hash is not that of its content and the row before it: one of them was changed",
            row=seq,
            place=place,
        )


def _check_mac(line: bytes, previous: bytes, seq: int, key: RowKey) -> None:
    if seq < key.since:
        return
    body, mac = line[: -_TAIL - _MAC_LENGTH], line[-_TAIL - _MAC_LENGTH : -_TAIL]
    if mac == b'%b%b"' % (_MAC, blake3(previous + body, key=key.key).hexdigest().encode()):
        return
    if not mac.startswith(_MAC):
        raise MacMismatch(
            f"row {seq:,} has no MAC, and rows have one from row {key.since:,} on: it was not"
            " written by this daemon",
            row=seq,
        )
    raise MacMismatch(
        f"row {seq:,}: its MAC is not of the key of this home: it was not written by this"
        " daemon, or tokens.key was replaced",
        row=seq,
    )
