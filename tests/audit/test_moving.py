"""Logs that earlier versions wrote to SQLite files, and `anaphora audit move`.

The files in `fixtures` were written by commit f17e2632: `calls.db` by two writers, with an anchor;
`pruned.db` by three, its first seven rows pruned.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import stat
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from support.audit_logs import envelope, sqlite_log, with_tests, written

from anaphora.audit import AuditLog, prune, rows, verify
from anaphora.audit.envelope import AuditEnvelope, RecoveryRow, StartRow
from anaphora.audit.moving import move_log
from anaphora.audit.side_files import WriterLock
from anaphora.cli.main import main
from anaphora.errors import ChainBroken, InvalidRequest, Io

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return shutil.copytree(FIXTURES, tmp_path / "old")


@pytest.fixture
def same_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock goes on where the logs of the fixtures end: another UTC day starts a segment."""
    with closing(sqlite3.connect(FIXTURES / "pruned.db")) as database:
        ((line,),) = database.execute("SELECT line FROM rows ORDER BY seq DESC LIMIT 1")
    behind = time.time() - (json.loads(line)["at"] + 1)
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() - behind)


def stored(path: Path) -> list[bytes]:
    with closing(sqlite3.connect(path)) as database:
        return [line for (line,) in database.execute("SELECT line FROM rows ORDER BY seq")]


@pytest.mark.usefixtures("same_day")
@pytest.mark.parametrize("name, first, last", [("calls", 1, 13), ("pruned", 8, 18)])
def test_a_moved_log_has_the_same_rows_and_is_continued(
    name: str, first: int, last: int, old: Path, tmp_path: Path
) -> None:
    source, folder = old / f"{name}.db", tmp_path / "new" / name
    before = source.read_bytes()
    moved = move_log(source, folder)
    assert (moved.rows, moved.first, moved.last) == (last - first + 1, first, last)
    assert [row.line for row in rows(folder)] == stored(source)
    verified = verify(folder)
    assert (verified.rows, verified.last, verified.hash) == (moved.rows, moved.last, moved.hash)
    assert source.read_bytes() == before
    for _ in range(2):
        written(folder, 2)
    assert verify(folder).rows == moved.rows + 8
    starts = [row.content for row in rows(folder) if isinstance(row.content, StartRow)]
    assert len({start.key_id for start in starts}) == 1, "digests stay comparable"
    assert [start.epoch for start in starts] == sorted({start.epoch for start in starts})
    assert not any(isinstance(row.content, RecoveryRow) for row in rows(folder))


@pytest.mark.usefixtures("same_day")
def test_the_anchor_of_a_moved_log_fits_and_follows(old: Path, tmp_path: Path) -> None:
    folder, anchor = tmp_path / "calls", old / "calls.anchor"
    move_log(old / "calls.db", folder)
    assert verify(folder, anchor=anchor).anchored == 13
    with AuditLog(folder, anchor=anchor) as log:
        log.append(envelope())
    assert verify(folder, anchor=anchor).anchored == 16


def test_a_moved_log_continues_in_new_segments_and_is_pruned(
    old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, now = tmp_path / "pruned", time.time()
    move_log(old / "pruned.db", folder)
    monkeypatch.setattr(time, "time", lambda: now + 3 * 86_400)
    written(folder, 2)
    assert verify(folder).segments == 2
    monkeypatch.setattr(time, "time", lambda: now + 6 * 86_400)
    assert prune(folder, keep_days=1).through == 18
    verified = verify(folder)
    assert (verified.first, verified.segments) == (19, 2)


def test_a_log_whose_writer_was_killed_is_moved(tmp_path: Path) -> None:
    lines = [row.line for row in rows(written(tmp_path / "audit", 3))]
    source = sqlite_log(tmp_path / "killed.db", lines[:-1])
    move_log(source, tmp_path / "killed")
    written(tmp_path / "killed", 1)
    contents = [row.content for row in rows(tmp_path / "killed")]
    assert [one.reason for one in contents if isinstance(one, RecoveryRow)] == ["not_closed"]
    assert sum(isinstance(one, AuditEnvelope) for one in contents) == 4
    verify(tmp_path / "killed")


def test_rows_that_are_only_in_the_write_ahead_log_are_moved(old: Path, tmp_path: Path) -> None:
    """Those of a process that was killed: SQLite did not copy them into the file."""
    lines = [row.line for row in rows(written(tmp_path / "audit", 3))]
    source = tmp_path / "wal.db"
    program = """
import os, sqlite3, sys
from support.audit_logs import sqlite_log
path, *lines = sys.argv[1:]
sqlite_log(path, [line.encode() for line in lines[:-1]])
database = sqlite3.connect(path)
database.execute("PRAGMA journal_mode=WAL")
database.execute("INSERT INTO rows VALUES (?, ?)", (len(lines), lines[-1].encode()))
database.commit()
os._exit(0)
"""
    command = [sys.executable, "-c", program, str(source), *(line.decode() for line in lines)]
    subprocess.run(command, check=True, env=with_tests())
    assert source.with_name("wal.db-wal").stat().st_size
    assert move_log(source, tmp_path / "moved").rows == len(lines)
    assert [row.line for row in rows(tmp_path / "moved")] == lines


def test_only_the_owner_can_read_a_moved_log(old: Path, tmp_path: Path) -> None:
    folder = tmp_path / "calls"
    move_log(old / "calls.db", folder)
    files = [*folder.iterdir(), tmp_path / "calls.key"]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_folder_that_holds_files_is_not_changed(old: Path, tmp_path: Path) -> None:
    folder = tmp_path / "calls"
    folder.mkdir()
    move_log(old / "calls.db", folder)  # an empty one is filled
    before = {file: file.read_bytes() for file in folder.iterdir()}
    with pytest.raises(Io, match="is not empty; name a new folder"):
        move_log(old / "pruned.db", folder)
    assert {file: file.read_bytes() for file in folder.iterdir()} == before


def test_a_key_of_another_log_is_not_replaced(old: Path, tmp_path: Path) -> None:
    key = tmp_path / "calls.key"
    key.write_text("ab" * 32)
    with pytest.raises(Io, match="is the key of another log"):
        move_log(old / "calls.db", tmp_path / "calls")
    assert key.read_text() == "ab" * 32
    assert not (tmp_path / "calls").exists()


def test_a_log_that_is_being_written_is_not_moved(old: Path, tmp_path: Path) -> None:
    for written_now in (old / "calls.db", tmp_path / "calls"):
        lock = WriterLock(written_now)
        lock.acquire()
        with pytest.raises(Io, match="is writing this log"):
            move_log(old / "calls.db", tmp_path / "calls")
        lock.release()
    assert move_log(old / "calls.db", tmp_path / "calls").rows == 13


def test_a_row_with_a_line_break_is_refused(tmp_path: Path) -> None:
    """Its hash may fit: a program that forges rows computes it."""
    from blake3 import blake3

    first, *_ = (row.line for row in rows(written(tmp_path / "audit", 1)))
    digest = first[-66:-2]
    body = b'{"schema_version":1,"seq":2,"row":"call",\n"at":1.0,"model":"m"'
    line = b'%b,"hash":"%b"}' % (body, blake3(digest + body).hexdigest().encode())
    source = sqlite_log(tmp_path / "forged.db", [first, line])
    with pytest.raises(ChainBroken):
        move_log(source, tmp_path / "forged")
    assert not (tmp_path / "forged").exists()
    assert not (tmp_path / ".forged.moving").exists()


@pytest.mark.parametrize("content", [b"", b"no database at all", None])
def test_a_file_that_is_no_log_is_not_moved(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    if content is None:
        with closing(sqlite3.connect(path)) as database:
            database.execute("CREATE TABLE mine (x)")
    else:
        path.write_bytes(content)
    with pytest.raises(Io, match=r"other\.db: holds no audit log"):
        move_log(path, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_progress_counts_rows(tmp_path: Path) -> None:
    lines = [row.line for row in rows(written(tmp_path / "audit", 2_500))]
    seen: list[int] = []
    move_log(sqlite_log(tmp_path / "long.db", lines), tmp_path / "long", progress=seen.append)
    assert seen == [999, 1_999]


def test_the_command_prints_the_result(
    old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", "move", str(old / "calls.db"), str(tmp_path / "one")]) == 0
    printed = "".join(capsys.readouterr().out.split())  # a narrow terminal breaks lines
    assert "one:13rows,andthechainiswhole" in printed
    assert main(["audit", "move", str(old / "calls.db"), str(tmp_path / "two"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "source": str(old / "calls.db"),
        "log": str(tmp_path / "two"),
        "rows": 13,
        "first": 1,
        "last": 13,
        "hash": verify(tmp_path / "two").hash,
    }
    assert main(["audit", "verify", str(tmp_path / "two")]) == 0


@pytest.mark.parametrize("words", ["verify", "show", "export", "report", "prune"])
def test_commands_name_the_command_that_moves(
    words: str, old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = old / "calls.db"
    (old / "named").write_bytes(path.read_bytes())
    more = ["--keep-days", "1"] if words == "prune" else []
    for source, folder in ((path, "calls"), (old / "named", "named-folder")):
        assert main(["audit", words, str(source), *more]) == 2
        assert f"anaphora audit move {source} {old / folder}" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["new.db", "new.sqlite", "new.sqlite3", "calls.db"])
def test_a_writer_names_the_command_that_moves(name: str, old: Path) -> None:
    files = sorted(old.iterdir())
    with pytest.raises(InvalidRequest, match=f"anaphora audit move {old / name} {old / name[:3]}"):
        AuditLog(old / name)
    assert sorted(old.iterdir()) == files


def test_watch_names_the_command_that_moves(
    old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "made"
    command = [sys.executable, "-c", f"open({str(made)!r}, 'w')"]
    assert main(["watch", "--audit", str(old / "calls.db"), "--", *command]) == 2
    assert f"anaphora audit move {old / 'calls.db'} " in capsys.readouterr().err
    assert not made.exists(), "the command does not run"
