"""A log and its surroundings: other processes, other directories, links, rows that are no rows."""

from __future__ import annotations

import logging
import os
import resource
import time
from functools import partial
from pathlib import Path

import pytest

from anaphora.audit import AuditEnvelope, AuditLog, prune, rows, verify
from anaphora.audit.envelope import LostRow
from anaphora.audit.writer import LogWriter
from anaphora.errors import InvalidRequest, Io


def call(**fields: object) -> AuditEnvelope:
    return AuditEnvelope(**({"at": time.time(), "model": "m"} | fields))  # type: ignore[arg-type]


def test_a_change_of_directory_moves_neither_log_nor_anchor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with AuditLog("audit", anchor="anchor") as log:
        monkeypatch.chdir(elsewhere)
        log.append(call())
        log.flush()
    assert list(elsewhere.iterdir()) == []
    assert verify(tmp_path / "audit", anchor=tmp_path / "anchor").rows == 4


def test_a_link_to_a_log_has_the_same_lock(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "audit")
    with AuditLog(tmp_path / "audit"), pytest.raises(Io, match="is writing this log"):
        AuditLog(tmp_path / "link")


def test_the_current_folder_can_be_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    AuditLog(tmp_path / "audit").close()
    monkeypatch.chdir(tmp_path / "audit")
    assert verify(".").rows == 3


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_cannot_use_the_log_and_keeps_no_lock(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit")
    ends, ending = os.pipe()
    results, resulting = os.pipe()
    child = os.fork()
    if child == 0:
        found = b""
        for use in (partial(log.append, call()), partial(log.flush)):
            try:
                use()
            except Io as problem:
                found += str(problem).encode() + b"\n"
        os.close(ending)
        os.write(resulting, found)
        os.read(ends, 1)
        os._exit(0)
    os.close(resulting)
    refused = os.read(results, 1000).decode()
    assert refused.count("open one in each process") == 2
    log.close()
    AuditLog(tmp_path / "audit").close()  # the child still runs
    os.close(ending)
    os.waitpid(child, 0)
    os.close(ends)
    os.close(results)
    assert verify(tmp_path / "audit").rows == 5


@pytest.mark.parametrize(
    "fields",
    [
        {"at": float("nan")},
        {"at": 1e300},
        {"seconds": float("inf")},
        {"model": "\ud800"},
        {"model": None},
        {"lost": "many"},
        {"blocks": ("text",)},
    ],
    ids=str,
)
def test_what_could_not_be_read_again_is_refused(fields: dict[str, object], tmp_path: Path) -> None:
    with AuditLog(tmp_path / "audit") as log:
        with pytest.raises(InvalidRequest, match="not a row of an audit log"):
            log.append(call(**fields))
        log.append(call())
    assert [row.content.at for row in rows(tmp_path / "audit")]


def test_a_row_that_cannot_be_encoded_is_counted_and_the_others_are_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.CRITICAL, "anaphora.audit"), AuditLog(tmp_path / "audit") as log:
        log._writer.put(lambda: call(model="\ud800"))
        log.append(call())
        log.flush()
        assert len(log.errors) == 1
    contents = [row.content for row in rows(tmp_path / "audit")]
    assert [one.rows for one in contents if isinstance(one, LostRow)] == [1]
    assert sum(isinstance(one, AuditEnvelope) for one in contents) == 1


def test_a_failed_write_leaves_no_part_of_a_row(tmp_path: Path) -> None:
    """Also where the process ends before the next attempt."""
    log = AuditLog(tmp_path / "audit")
    segment = tmp_path / "audit" / "000001.jsonl"
    before = segment.stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (before + 20, hard))
    try:
        log.append(call())
        with pytest.raises(Io, match="File too large"):
            log.flush()
        assert segment.stat().st_size == before
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        log.close()
    assert verify(tmp_path / "audit").rows == 4


def test_pruning_a_folder_that_is_no_log_writes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    with pytest.raises(Io, match="holds no audit log"):
        prune(folder, keep_days=1)
    assert [path.name for path in tmp_path.rglob("*")] == ["photos"]


def test_a_log_is_read_in_one_state_while_it_is_pruned(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    with AuditLog(path, segment_bytes=1) as log:
        for _ in range(5):
            log.append(call())
            log.flush()
        reading = rows(path)
        next(reading)
        assert isinstance(log._writer, LogWriter)
        log._writer.prune(1e-9, time.time() + 1)
        with pytest.raises(Io, match="was deleted while the log was read; try again"):
            list(reading)
    verify(path)
