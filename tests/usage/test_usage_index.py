"""The index changes how fast a report is made, never what it says."""

from __future__ import annotations

import gzip
import os
import sqlite3
import stat
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.usage_files import CANARY, answer, files_in, session_file, user
from support.waiting import PATIENCE

from anaphora.usage import index as index_module
from anaphora.usage import pieces, tasks
from anaphora.usage.collect import usage
from anaphora.usage.index import UsageIndex, index_file
from anaphora.usage.pieces import ReadPosition, pack
from anaphora.usage.programs import READERS
from anaphora.usage.programs.claude_code import ClaudeCodeBills
from anaphora.usage.report import UsageReport
from anaphora.usage.sums import UsageQuery

BY_SESSION = UsageQuery(by="session")


def report(folder: Path, index: Path, **given: Any) -> UsageReport:
    found = usage(BY_SESSION, files_in(folder), index=index, processes=1, **given)
    found.notices = ()
    return found


def lines(*numbers: int, session: str = "s1") -> list[bytes]:
    return [
        answer(f"m{number}", 1_780_000_000 + 60 * number, sessionId=session, output_tokens=number)
        for number in numbers
    ]


# ── The law ──────────────────────────────────────────────────────────────────────────────────────

Step = tuple[str, int, int]
steps = st.lists(
    st.tuples(
        st.sampled_from(
            "append append_part copy truncate rewrite rotate remove break pack".split()
        ),
        st.integers(0, 2),
        st.integers(0, 40),
    ),
    min_size=1,
    max_size=6,
)


def change(folder: Path, step: Step) -> None:
    kind, which, number = step
    file, other = folder / f"{which}.jsonl", folder / f"{(which + 1) % 3}.jsonl"
    content = file.read_bytes() if file.exists() else b""
    new = b"".join(lines(number, number + 1, session=f"s{which}"))
    if kind == "append":
        with file.open("ab") as opened:
            opened.write(new)
    elif kind == "append_part":
        with file.open("ab") as opened:
            opened.write(new[: -max(1, number)])
    elif kind == "copy" and other.exists():
        file.write_bytes(other.read_bytes() + new)
    elif kind == "truncate":
        file.write_bytes(content[: len(content) * number // 40])
    elif kind == "rewrite":
        file.write_bytes(new + content[len(new) :])
    elif kind == "rotate" and file.exists():
        file.rename(other)
        file.write_bytes(new)
    elif kind == "remove":
        file.unlink(missing_ok=True)
    elif kind == "break":
        with file.open("ab") as opened:
            opened.write(b'{"type": "assistant", "usage"\n')
    elif kind == "pack":
        file.with_suffix(".jsonl.gz").write_bytes(gzip.compress(content + new))


@given(steps)
def test_same_report_as_without_index(made: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "sessions"
        folder.mkdir()
        for number, step in enumerate(made):
            change(folder, step)
            found = report(folder, Path(place) / "kept.sqlite")
            assert found == report(folder, Path(place) / f"{number}.sqlite")


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(1, 4000))
def test_pieces_of_any_size_give_the_same_bills(numbers: list[int], most: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "a.jsonl"
        file.write_bytes(b"".join([user(), *lines(*numbers)]))
        state = pieces.file_state(session_file(file))
        known = b""
        found: dict[bytes, Any] = {}
        while True:
            piece = pieces.read_piece(str(file), "claude_code", known, state, most)
            found |= {call.key: call for call in piece.calls}
            if piece.finished:
                break
            known = pack(piece.position)
        whole = pieces.read_piece(str(file), "claude_code", b"", state)
        assert found.keys() == {call.key for call in whole.calls}
        assert piece.position.offset == whole.position.offset == file.stat().st_size


# ── What is read ─────────────────────────────────────────────────────────────────────────────────


def test_later_run_reads_only_what_was_appended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[bytes] = []

    class Noted(ClaudeCodeBills):
        def read(self, line: bytes, number: int) -> Any:
            read.append(line)
            return super().read(line, number)

    monkeypatch.setitem(READERS, "claude_code", Noted)
    folder = tmp_path / "sessions"
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(b"".join(lines(1, 2)))
    (folder / "b.jsonl").write_bytes(b"".join(lines(3)))
    assert report(folder, tmp_path / "i.sqlite").total.calls == 3
    assert len(read) == 3
    with (folder / "a.jsonl").open("ab") as file:
        file.write(lines(4)[0] + lines(5)[0][:-20])
    read.clear()
    assert report(folder, tmp_path / "i.sqlite").total.calls == 4
    assert read == lines(4)
    with (folder / "a.jsonl").open("ab") as file:
        file.write(lines(5)[0][-20:])
    read.clear()
    assert report(folder, tmp_path / "i.sqlite").total.calls == 5
    assert read == lines(5)


def test_unchanged_file_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(b"".join(lines(1, 2)))
    os.utime(file, (1_780_000_000, 1_780_000_000))
    before = report(tmp_path, tmp_path / "i.sqlite")
    monkeypatch.setattr(pieces, "read_piece", None)
    monkeypatch.setattr(tasks, "read_piece", None)
    assert report(tmp_path, tmp_path / "i.sqlite") == before


def test_files_outside_the_selection_neither_count_nor_keep_answers(tmp_path: Path) -> None:
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    first.write_bytes(b"".join(lines(1, 2)))
    second.write_bytes(b"".join(lines(1, 2, 3, session="s2")))
    index = tmp_path / "i.sqlite"
    assert report(tmp_path, index).total.calls == 3
    alone = usage(BY_SESSION, [session_file(second)], index=index, processes=1)
    assert [(row.name, row.calls) for row in alone.rows] == [("s2", 3)]


def test_copy_with_the_most_output_counts_in_the_file_that_began_first(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_bytes(
        answer("m1", 1_780_000_000, output_tokens=2, sessionId="old")
    )
    (tmp_path / "a.jsonl").write_bytes(
        answer("m1", 1_780_000_000, output_tokens=90, sessionId="new")
        + answer("m2", 1_780_000_600, sessionId="new")
    )
    found = report(tmp_path, tmp_path / "i.sqlite")
    assert [(row.name, row.calls, row.output) for row in found.rows] == [
        ("old", 1, 90),
        ("new", 1, 5),
    ]


# ── The file ─────────────────────────────────────────────────────────────────────────────────────


def test_index_is_private_and_without_text(tmp_path: Path) -> None:
    folder = tmp_path / "sessions"
    folder.mkdir()
    broken = b'{"type": "assistant", "usage": "' + CANARY.encode() + b"\n"
    (folder / "a.jsonl").write_bytes(b"".join([user(), *lines(1, 2), broken]))
    index = tmp_path / "cache" / "anaphora" / "usage.sqlite"
    found = report(folder, index, causes=True)
    assert len(found.problems) == 1
    assert CANARY not in msgspec.json.encode(found).decode()
    for file in index.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert CANARY.encode() not in file.read_bytes()
    assert stat.S_IMODE(index.parent.stat().st_mode) == 0o700


def test_index_file_is_in_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert index_file() == tmp_path / "anaphora" / "usage.sqlite"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert index_file() == tmp_path / ".cache" / "anaphora" / "usage.sqlite"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert index_file() == tmp_path / "Library" / "Caches" / "anaphora" / "usage.sqlite"


def test_index_of_another_version_is_thrown_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"".join(lines(1, 2)))
    index = tmp_path / "i.sqlite"
    before = report(tmp_path, index)
    with closing(sqlite3.connect(index)) as database, database:
        database.execute("UPDATE calls SET output = 1000")
    assert report(tmp_path, index) != before
    monkeypatch.setattr(index_module, "__version__", "0.0.0")
    assert report(tmp_path, index) == before


@pytest.mark.parametrize("damage", ["no database", "torn page"])
def test_damaged_index_is_made_anew(tmp_path: Path, damage: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"".join(lines(*range(1, 200))))
    index = tmp_path / "i.sqlite"
    before = report(tmp_path, index)
    content = index.read_bytes()
    torn = content[:4096] + b"\xff" * (len(content) - 4096)
    index.write_bytes(torn if damage == "torn page" else b"no database" * 1000)
    found = usage(BY_SESSION, files_in(tmp_path), index=index, processes=1)
    assert found.rows == before.rows
    (notice,) = found.notices
    assert notice.startswith(f"{index}: ")
    assert notice.endswith("; the index was made anew")
    assert report(tmp_path, index) == before


def unusable(tmp_path: Path, kind: str) -> Path:
    index = tmp_path / "i.sqlite"
    if kind == "link":
        index.symlink_to(tmp_path / "elsewhere")
    elif kind == "folder":
        index.mkdir()
    else:
        (tmp_path / "file").write_text("")
        index = tmp_path / "file" / "i.sqlite"
    return index


@pytest.mark.parametrize("kind", ["link", "folder", "below a file"])
def test_without_an_index_every_file_is_read(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "sessions"
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(b"".join(lines(1, 2)))
    index = unusable(tmp_path, kind)
    for _ in range(2):
        found = usage(BY_SESSION, files_in(folder), index=index, processes=1)
        assert found.total.calls == 2
        (notice,) = found.notices
        assert notice.startswith(f"{index}: ")
        assert notice.endswith("; nothing is kept for the next run")
    assert not (tmp_path / "elsewhere").exists()


def test_file_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"".join(lines(1)))
    report(tmp_path, tmp_path / "i.sqlite")
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    found = usage(BY_SESSION, files_in(tmp_path), index=tmp_path / "i.sqlite", processes=1)
    assert found.total.calls == 1
    assert "belongs to another user" in found.notices[0]


# ── Several processes ────────────────────────────────────────────────────────────────────────────


def test_piece_is_added_only_to_its_position(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(b"".join(lines(1, 2)))
    state = pieces.file_state(session_file(file))
    one, two = UsageIndex(tmp_path / "i.sqlite"), UsageIndex(tmp_path / "i.sqlite")
    first = pieces.read_piece(str(file), "claude_code", b"", state)
    assert one.add([first]) == []
    assert two.add([first]) == [str(file)]
    known = two.position(str(file))
    assert msgspec.msgpack.decode(known, type=ReadPosition) == first.position
    with file.open("ab") as opened:
        opened.write(b"".join(lines(3)))
    later = pieces.read_piece(str(file), "claude_code", known, state)
    assert (later.anew, len(later.calls)) == (False, 1)
    assert two.add([later]) == []
    one.close()
    two.close()


RUN = """
import sys
from pathlib import Path
from support.usage_files import files_in
from anaphora.usage.collect import usage
from anaphora.usage.sums import UsageQuery
for _ in range(5):
    found = usage(UsageQuery(by="session"), files_in(Path(sys.argv[1])), index=Path(sys.argv[2]))
print(found.total.calls, found.total.output, found.notices)
"""


@pytest.mark.long
def test_processes_use_one_index_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "sessions"
    folder.mkdir()
    for number in range(20):
        content = lines(*range(number, number + 30), session=f"s{number}")
        (folder / f"{number}.jsonl").write_bytes(b"".join(content))
    expected = report(folder, tmp_path / "alone.sqlite").total
    tests = Path(__file__).parent.parent
    path = os.pathsep.join([str(tests), *sys.path])
    started = [
        subprocess.Popen(
            [sys.executable, "-c", RUN, str(folder), str(tmp_path / "i.sqlite")],
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for process in started:
        output, _ = process.communicate(timeout=PATIENCE)
        assert output.split(" ", 2) == [str(expected.calls), str(expected.output), "()\n"]
