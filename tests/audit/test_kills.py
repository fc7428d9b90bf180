"""Writers that are killed at random moments lose nothing that was committed."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.audit_logs import kill_writers, written

from anaphora.audit import AuditLog, rows, verify
from anaphora.audit.envelope import RecoveryRow
from anaphora.errors import ChainBroken


@pytest.mark.long
def test_fifteen_kills_of_each_kind_lose_no_committed_row(tmp_path: Path) -> None:
    kill_writers(tmp_path / "audit", 15, seed=18)


def test_an_unfinished_row_is_removed_and_marked_wherever_it_was_cut(tmp_path: Path) -> None:
    path = written(tmp_path / "audit", 2)
    segment = path / "000001.jsonl"
    whole = segment.read_bytes()
    last = len(whole.rstrip(b"\n").rpartition(b"\n")[2]) + 1
    for cut in [*range(1, last, 7), last - 1]:
        segment.write_bytes(whole[: len(whole) - last + cut])
        with pytest.raises(ChainBroken, match=r"row 5 .*: the row is cut off") as broken:
            verify(path)
        assert broken.value.row == 5
        AuditLog(path).close()
        assert verify(path).rows == 7
        marked = [row.content for row in rows(path) if isinstance(row.content, RecoveryRow)]
        assert [(one.reason, one.bytes) for one in marked] == [("unfinished_row", cut)]


def test_a_segment_that_was_killed_before_its_first_row_is_begun_again(tmp_path: Path) -> None:
    path = written(tmp_path / "audit", 2)
    for unfinished in (b"", b'{"schema_version":1,"seq":6,"row":"seg'):
        (path / "000002.jsonl").write_bytes(unfinished)
        AuditLog(path).close()
        verify(path)
        assert not (path / "000002.jsonl").exists()
