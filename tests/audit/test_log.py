"""The writer: one at a time, group commit, segments, pruning, and what happens when it cannot
write."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from support.audit_logs import envelope, settle, with_tests, written
from support.waiting import PATIENCE

from anaphora.audit import AuditEnvelope, AuditLog, prune, rows, verify
from anaphora.audit.envelope import LostRow, PrunedRow, RecoveryRow, SegmentRow, StartRow
from anaphora.audit.writer import AuditError
from anaphora.errors import AnchorMismatch, ChainBroken, InvalidRequest, Io, OtherSchema

DAY = 86_400.0


def kinds(path: Path) -> list[str]:
    return [type(row.content).__name__.removesuffix("Row") for row in rows(path)]


def request_ids(path: Path) -> list[str | None]:
    contents = [row.content for row in rows(path)]
    return [one.request_id for one in contents if isinstance(one, AuditEnvelope)]


def test_rows_are_chained_in_the_order_of_the_calls(tmp_path: Path) -> None:
    path = written(tmp_path / "audit", 3, app="shop", node="n1")
    assert kinds(path) == ["Segment", "Start", *["AuditEnvelope"] * 3, "Stop"]
    assert [row.seq for row in rows(path)] == [1, 2, 3, 4, 5, 6]
    call = [row.content for row in rows(path)][2]
    assert isinstance(call, AuditEnvelope)
    assert (call.app, call.node, call.epoch) == ("shop", "n1", 1)
    assert verify(path).rows == 6


def test_a_log_is_continued_under_the_next_epoch(tmp_path: Path) -> None:
    path = written(tmp_path / "audit", 1)
    written(path, 1)
    starts = [row.content for row in rows(path) if isinstance(row.content, StartRow)]
    assert [start.epoch for start in starts] == [1, 2]
    assert starts[0].key_id == starts[1].key_id
    assert not any(isinstance(row.content, RecoveryRow) for row in rows(path))
    assert request_ids(path) == ["req-0", "req-0"]
    verify(path)


def test_only_the_owner_can_read_the_files(tmp_path: Path) -> None:
    path = written(tmp_path / "audit", 1, anchor=tmp_path / "anchor")
    files = [one for one in tmp_path.rglob("*") if one.is_file()]
    assert "audit.key" in {one.name for one in files}
    assert {stat.S_IMODE(one.stat().st_mode) for one in files} == {0o600}
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    key = (tmp_path / "audit.key").read_text().strip()
    log_files = [one for one in files if not one.name.endswith(".key")]
    assert all(key.encode() not in one.read_bytes() for one in log_files)


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    with AuditLog(tmp_path / "audit") as log:
        with pytest.raises(Io, match=f"process {os.getpid()} is writing this log"):
            AuditLog(tmp_path / "audit")
        with pytest.raises(Io, match="one writer at a time"):
            prune(tmp_path / "audit", keep_days=1)
        log.append(envelope())
    written(tmp_path / "audit", 1)
    assert request_ids(tmp_path / "audit") == ["req-0", "req-0"]


def test_flush_returns_when_rows_are_on_the_disk(tmp_path: Path) -> None:
    with AuditLog(tmp_path / "audit") as log:
        for number in range(500):
            log.append(envelope(number))
        log.flush()
        assert log.head.seq == 502
        assert len(request_ids(tmp_path / "audit")) == 500
        assert verify(tmp_path / "audit").writing
    with pytest.raises(Io, match="closed"):
        log.append(envelope())
    log.close()


def test_what_arrives_during_a_commit_goes_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, begun, goes_on, commits = os.fsync, threading.Event(), threading.Event(), []

    def slow(file: int) -> None:
        begun.set()
        assert goes_on.wait(PATIENCE)
        commits.append(file)
        real(file)

    with AuditLog(tmp_path / "audit") as log:
        monkeypatch.setattr("anaphora.audit.log_file.os.fsync", slow)
        log.append(envelope(0))
        assert begun.wait(PATIENCE)
        for number in range(1, 100):
            log.append(envelope(number))
        goes_on.set()
        log.flush()
        assert len(commits) == 2
    assert request_ids(tmp_path / "audit") == [f"req-{number}" for number in range(100)]


def test_a_log_that_is_not_closed_is_closed_at_exit(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from anaphora.audit import AuditLog;"
        "from support.audit_logs import envelope;"
        "log = AuditLog(Path(sys.argv[1])); log.append(envelope(7))"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "audit")]
    subprocess.run(command, check=True, env=with_tests())
    assert kinds(tmp_path / "audit") == ["Segment", "Start", "AuditEnvelope", "Stop"]


def test_a_forked_process_needs_its_own_log(tmp_path: Path) -> None:
    with AuditLog(tmp_path / "audit") as log:
        child = os.fork()
        if not child:
            code = 1
            try:
                log.append(envelope())
            except Io as problem:
                code = 0 if "open one in each process" in str(problem) else 2
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        log.append(envelope())
    assert request_ids(tmp_path / "audit") == ["req-0"]


@pytest.mark.parametrize(
    "name, advice",
    [("calls.jsonl", "an audit log is a folder: write .*calls$"), ("calls.csv", "is a folder")],
)
def test_a_name_that_would_be_a_file_is_refused(name: str, advice: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=advice):
        AuditLog(tmp_path / name)


@pytest.mark.parametrize("options", [{"keep_days": 0}, {"keep_days": -1}, {"segment_bytes": 0}])
def test_invalid_options_are_named(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(options))):
        AuditLog(tmp_path / "audit", **options)


def test_a_file_that_is_no_log_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    with pytest.raises(InvalidRequest, match="an audit log is a folder"):
        AuditLog(tmp_path / "text")


def test_a_broken_key_is_named(tmp_path: Path) -> None:
    (tmp_path / "audit.key").write_text("no key")
    with pytest.raises(Io, match="not a key of 64 hex digits"):
        AuditLog(tmp_path / "audit")


# ── Opening a log that was changed ───────────────────────────────────────────────────────────────


def test_a_log_whose_end_was_changed_is_not_continued(tmp_path: Path) -> None:
    path = written(tmp_path / "audit", 3)
    file = path / "000001.jsonl"
    file.write_bytes(file.read_bytes().replace(b"req-1", b"req-9"))
    with pytest.raises(ChainBroken) as broken:
        AuditLog(path)
    assert broken.value.row == 4


def test_a_log_that_is_not_the_anchors_is_not_continued(tmp_path: Path) -> None:
    """The anchor would move on, and the change would no longer be found."""
    path, anchor = written(tmp_path / "audit", 3, anchor=tmp_path / "anchor"), tmp_path / "anchor"
    written(tmp_path / "longer-audit", 9)
    shutil.rmtree(path)
    with pytest.raises(AnchorMismatch, match="cut off"):
        AuditLog(path, anchor=anchor)
    (tmp_path / "longer-audit").rename(path)
    with pytest.raises(AnchorMismatch, match="rewritten"):
        AuditLog(path, anchor=anchor)


def test_a_newer_log_is_not_continued(tmp_path: Path) -> None:
    path = written(tmp_path / "audit", 1)
    file = path / "000001.jsonl"
    file.write_bytes(file.read_bytes().replace(b'"schema_version":1', b'"schema_version":2'))
    with pytest.raises(OtherSchema, match="upgrade anaphora"):
        AuditLog(path)


# ── Segments and pruning ─────────────────────────────────────────────────────────────────────────


def test_segments_are_begun_by_size_and_each_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_800_000_000.0
    monkeypatch.setattr(time, "time", lambda: now)
    with AuditLog(tmp_path / "audit", segment_bytes=2_000) as log:
        for number in range(10):
            log.append(envelope(number))
            log.flush()
        by_size = len(list((tmp_path / "audit").iterdir()))
        now += DAY
        log.append(envelope(10))
    segments = [row.content for row in rows(tmp_path / "audit")]
    numbers = [one.segment for one in segments if isinstance(one, SegmentRow)]
    assert 2 <= by_size < 10
    assert numbers == list(range(1, by_size + 2))
    assert request_ids(tmp_path / "audit") == [f"req-{number}" for number in range(11)]
    verify(tmp_path / "audit")


def test_pruning_leaves_a_chain_that_can_be_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, path, anchor = 1_800_000_000.0, tmp_path / "audit", tmp_path / "anchor"
    monkeypatch.setattr(time, "time", lambda: now)
    for day in range(5):
        now = 1_800_000_000.0 + day * DAY
        with AuditLog(path, anchor=anchor) as log:
            log.append(envelope(day, at=now))
    assert verify(path, anchor=anchor).first == 1
    result = prune(path, keep_days=2.5, anchor=anchor)
    assert result.through > 1
    left = verify(path, anchor=anchor)
    assert left.first == result.through + 1
    # Of a folder, segments that were ended before.
    assert request_ids(path) == ["req-1", "req-2", "req-3", "req-4"]
    assert [row.content for row in rows(path) if isinstance(row.content, PrunedRow)]
    # Nothing is old enough now.
    assert prune(path, keep_days=2.5).through == 0
    # More must not be taken away.
    min(path.iterdir()).unlink()
    with pytest.raises(ChainBroken, match="are missing, and no row says that they were pruned"):
        verify(path)


def test_keep_days_prunes_while_the_log_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, path = 1_800_000_000.0, tmp_path / "audit"
    monkeypatch.setattr(time, "time", lambda: now)
    for day in range(6):
        now = 1_800_000_000.0 + day * DAY
        with AuditLog(path, keep_days=2) as log:
            log.append(envelope(day, at=now))
    assert request_ids(path) == ["req-2", "req-3", "req-4", "req-5"]
    assert verify(path).first > 1


def test_keep_days_prunes_a_log_that_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, path = 1_800_000_000.0, tmp_path / "audit"
    monkeypatch.setattr(time, "time", lambda: now)
    with AuditLog(path, keep_days=2) as log:
        for day in range(6):
            now = 1_800_000_000.0 + day * DAY
            log.append(envelope(day, at=now))
            log.flush()
    assert request_ids(path) == ["req-2", "req-3", "req-4", "req-5"]
    verify(path)


def test_a_prune_that_fails_writes_no_row_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, path = 1_800_000_000.0, tmp_path / "audit"
    monkeypatch.setattr(time, "time", lambda: now)

    def fails(*_: object) -> None:
        raise PermissionError(errno.EACCES, "not allowed")

    monkeypatch.setattr("anaphora.audit.log_file.FileStore.remove", fails)
    with AuditLog(path, keep_days=2) as log:
        for day in range(5):
            now = 1_800_000_000.0 + day * DAY
            log.append(envelope(day, at=now))
            log.flush()
    assert request_ids(path) == [f"req-{day}" for day in range(5)]
    assert {error.message for error in log.errors} == {"not allowed"}
    verify(path)


def test_a_prune_that_was_killed_is_accepted(tmp_path: Path) -> None:
    """The row that says so comes first, the files go one by one."""
    path = tmp_path / "audit"
    with AuditLog(path, segment_bytes=500) as log:
        for number in range(8):
            log.append(envelope(number))
            log.flush()
    kept = {file.name: file.read_bytes() for file in path.iterdir()}
    prune(path, keep_days=1e-9)
    gone = sorted(set(kept) - {file.name for file in path.iterdir()})
    assert len(gone) > 3
    for name in reversed(gone):
        (path / name).write_bytes(kept[name])
        verify(path)


# ── Failures ─────────────────────────────────────────────────────────────────────────────────────


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_rows_wait_until_the_disk_has_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[AuditError] = []
    with AuditLog(tmp_path / "audit", on_error=reported.append) as log:
        with monkeypatch.context() as patch:
            patch.setattr("anaphora.audit.log_file.os.fsync", full)
            log.append(envelope(1))
            with pytest.raises(Io, match="No space left on device"):
                log.flush()
            states = [log.failing]
            log.append(envelope(2))
        settle(log)
        assert [*states, log.failing] == [True, False]
    assert request_ids(tmp_path / "audit") == ["req-1", "req-2"]
    assert [error.message for error in reported] == ["No space left on device"]
    assert log.errors == tuple(reported)
    verify(tmp_path / "audit")


def test_a_part_of_a_row_that_was_written_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = os.write, []

    def half(file: int, data: bytes) -> int:
        calls.append(1)
        if len(calls) == 1:
            return real(file, data[:20])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with AuditLog(tmp_path / "audit") as log:
        with monkeypatch.context() as patch:
            patch.setattr("anaphora.audit.log_file.os.write", half)
            log.append(envelope(1))
            with pytest.raises(Io):
                log.flush()
        settle(log)
    assert request_ids(tmp_path / "audit") == ["req-1"]
    verify(tmp_path / "audit")


def test_rows_that_cannot_wait_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anaphora.audit.writer.MOST_WAITING", 3)
    with AuditLog(tmp_path / "audit") as log:
        with monkeypatch.context() as patch:
            patch.setattr("anaphora.audit.log_file.os.fsync", full)
            for number in range(3):
                log.append(envelope(number))
            for number in range(5):
                with pytest.raises(Io, match="no more rows can wait"):
                    log.append(envelope(number))
        settle(log)
    lost = [row.content for row in rows(tmp_path / "audit") if isinstance(row.content, LostRow)]
    assert [one.rows for one in lost] == [5]
    assert len(request_ids(tmp_path / "audit")) == 3


def test_rows_that_are_lost_at_the_end_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = AuditLog(tmp_path / "audit")
    monkeypatch.setattr("anaphora.audit.log_file.os.fsync", full)
    log.append(envelope(1))
    log.append(envelope(2))
    log.close()
    assert "2 rows were not written: No space left on device" in log.errors[-1].message
    monkeypatch.undo()
    AuditLog(tmp_path / "audit").close()
    reasons = [row.content for row in rows(tmp_path / "audit")]
    assert [one.reason for one in reasons if isinstance(one, RecoveryRow)]
    verify(tmp_path / "audit")


def test_a_segment_that_is_truncated_meanwhile_gets_no_more_rows(tmp_path: Path) -> None:
    """The next rows are in a new one, which names the row that is missing."""
    path = tmp_path / "audit"
    with AuditLog(path) as log:
        for number in range(3):
            log.append(envelope(number))
        log.flush()
        [segment] = path.glob("*.jsonl")
        whole = segment.read_bytes()
        cut = whole[: whole.rstrip(b"\n").rindex(b"\n") + 1]
        os.truncate(segment, len(cut))
        log.append(envelope(4))
        settle(log)
    assert segment.read_bytes() == cut
    assert len([*path.glob("*.jsonl")]) == 2
    with pytest.raises(ChainBroken):
        verify(path)


def test_a_log_that_is_deleted_meanwhile_is_continued_and_the_gap_is_found(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    with AuditLog(path) as log:
        log.append(envelope(1))
        log.flush()
        shutil.rmtree(path)
        log.append(envelope(2))
        with pytest.raises(Io):
            log.flush()
        settle(log)
    assert request_ids(path) == ["req-2"]
    with pytest.raises(ChainBroken, match="rows 1 to 3 are missing"):
        verify(path)
    assert log.errors


@pytest.mark.skipif(os.name == "nt", reason="folders cannot be made read-only")
def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("")
    with pytest.raises(Io, match="file"):
        AuditLog(place / "audit")


def test_an_anchor_that_cannot_be_written_does_not_stop_the_log(tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    with AuditLog(tmp_path / "audit", anchor=folder / "anchor") as log:
        shutil.rmtree(folder)
        log.append(envelope(1))
        log.flush()
        assert log.errors
    assert request_ids(tmp_path / "audit") == ["req-1"]


def test_a_function_for_errors_that_fails_does_not_stop_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(error: AuditError) -> None:
        raise ValueError(error)

    with AuditLog(tmp_path / "audit", on_error=fails) as log:
        with monkeypatch.context() as patch:
            patch.setattr("anaphora.audit.log_file.os.fsync", full)
            log.append(envelope(1))
            with pytest.raises(Io):
                log.flush()
        settle(log)
    assert request_ids(tmp_path / "audit") == ["req-1"]


def test_a_check_does_not_keep_a_writer_from_starting(tmp_path: Path) -> None:
    path = written(tmp_path / "audit", 3)
    ended = threading.Event()

    def check() -> None:
        while not ended.is_set():
            verify(path)

    checking = threading.Thread(target=check)
    checking.start()
    try:
        for _ in range(20):
            AuditLog(path).close()
    finally:
        ended.set()
        checking.join()


def test_a_row_that_is_being_written_is_not_there_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, half, goes_on = os.write, threading.Event(), threading.Event()

    def slow(file: int, data: bytes) -> int:
        if half.is_set():
            return real(file, data)
        done = real(file, data[:50])
        half.set()
        assert goes_on.wait(PATIENCE)
        return done

    with AuditLog(tmp_path / "audit") as log:
        monkeypatch.setattr("anaphora.audit.log_file.os.write", slow)
        log.append(envelope(1))
        assert half.wait(PATIENCE)
        checked = verify(tmp_path / "audit")
        goes_on.set()
    assert (checked.rows, checked.writing) == (2, True)
    assert verify(tmp_path / "audit").rows == 4
