"""Attacks by files that others wrote: Parquet, lines, packed files, databases, pipes, names."""

from __future__ import annotations

import datetime
import gzip
import json
import os
import shlex
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.usage_home import IDLE, MORNING, claude_session

from anaphora.errors import AnaphoraError, Io
from anaphora.usage import bounded_files, log_files
from anaphora.usage.collect import usage
from anaphora.usage.fleet import shuffle, sources, usage_of_logs
from anaphora.usage.log_files import lines_of, records_of
from anaphora.usage.pieces import read_file
from anaphora.usage.places import FOLDERS, session_files
from anaphora.usage.report import UsageReport

PACKED = Path(__file__).parents[1] / "analysis" / "trace" / "sessions" / "opencode.db.gz"
SECRET = "secret-of-another-file"
TIME = datetime.datetime(2026, 11, 2, tzinfo=datetime.UTC)
#: Calls in `claude_session` with these gaps.
GAPS: list[float] = [0, 2, 2]


@pytest.fixture
def session(tmp_path: Path) -> Path:
    file = tmp_path / f"{IDLE}.jsonl"
    file.write_bytes(claude_session(IDLE, MORNING, GAPS, "/work"))
    return file


def each(names: str, rows: list[Any]) -> pytest.MarkDecorator:
    """Each with a folder of its own; the rows are too long to be names."""
    return pytest.mark.parametrize(names, rows, ids=range(len(rows)))


def sums(file: Path, tmp_path: Path) -> UsageReport:
    problems: list[Any] = []
    files = session_files((file,), {}, tmp_path, problems)
    report = usage(files=files, causes=True, processes=0, index=tmp_path / "index.sqlite")
    report.problems = (*map(str, problems), *report.problems)
    return report


# ── Parquet ──────────────────────────────────────────────────────────────────────────────────────


def calls(number: int = 1, **columns: Any) -> dict[str, Any]:
    """Rows of an audit log."""
    row = {"row": "call", "at": 1.79e9, "model": "m", "system": "openai"}
    return {name: [value] * number for name, value in row.items()} | columns


_FROM = " FROM read_parquet(?, file_row_number=true) "


@each(
    "name",
    [
        f'a") AS "a", (SELECT content FROM read_text(\'{{secret}}\')) AS "conversation"){_FROM}--',
        'a") AS "a") FROM (SELECT DATE \'2026-01-01\' AS a);'
        f" COPY (SELECT 1) TO '{{target}}'; SELECT *{_FROM}--",
        'a"',
        "a' OR 1=1 --",
        "a); DROP TABLE x; --",
    ],
)
def test_column_name_is_not_run(tmp_path: Path, run: Any, name: str) -> None:
    """The first read a file and the second wrote one."""
    secret, target = tmp_path / "secret.txt", tmp_path / "written.csv"
    secret.write_text(SECRET)
    name = name.replace("{secret}", str(secret)).replace("{target}", str(target))
    file, day = tmp_path / "log.parquet", [datetime.date(2026, 1, 1)]
    table = calls(conversation=["own"], a=day) | {name: [TIME]}
    pq.write_table(pa.table(table), file)
    ((_, fields, _),) = sources.objects_in(sources.slices_of([str(file)])[0])
    assert fields == {
        **{column: values[0] for column, values in table.items()},
        name: TIME.timestamp(),
    }
    done = run("usage", "session", str(file), "--json")
    assert done.returncode == 0, done.stderr
    assert [row["name"] for row in json.loads(done.stdout)["rows"]] == ["own"]
    assert SECRET not in done.stdout + done.stderr
    assert sorted(one.name for one in tmp_path.iterdir()) == ["log.parquet", "secret.txt"]


@pytest.mark.parametrize("name", ["x[1].parquet", "x*.parquet", "x?.parquet", "{a,b}.parquet"])
def test_name_of_a_file_is_no_pattern(tmp_path: Path, name: str) -> None:
    """A pattern would read another file than the one in the folder."""
    folder = tmp_path / "own"
    folder.mkdir()
    for other in ("x1.parquet", "xy.parquet", "a.parquet"):
        pq.write_table(pa.table(calls(model=["other"])), folder / other)
    pq.write_table(pa.table(calls(model=["own"])), folder / name)
    read = [
        (place, fields["model"])
        for part in sources.slices_of([str(folder)])
        for place, fields, _ in sources.objects_in(part)
        if isinstance(fields, dict)
    ]
    assert sorted(place for place, model in read if model == "own") == [f"{folder / name}:1"]
    assert len(read) == 4


def test_folder_name_adds_no_column(tmp_path: Path) -> None:
    folder = tmp_path / "conversation=injected"
    folder.mkdir()
    pq.write_table(pa.table(calls()), folder / "log.parquet")
    assert [row.name for row in usage_of_logs([str(folder)], by="session").rows] == [""]


def test_value_that_all_rows_share_does_not_fill_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4 KB that unpack to 400 MB: 400 rows with one text of 1 MB."""
    file = tmp_path / "log.parquet"
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 400, pa.int32()), pa.array(["x" * 10**6]))
    pq.write_table(pa.table(calls(400, note=text)), file, compression="zstd", store_schema=False)
    assert file.stat().st_size < 8_000
    monkeypatch.setattr(bounded_files, "_UNPACKED", 50_000_000)
    decoded: list[int] = []
    read = sources._objects

    def noted(batch: Any) -> Any:
        for found in read(batch):
            decoded.append(batch.num_rows)
            yield found

    monkeypatch.setattr(sources, "_objects", noted)
    monkeypatch.setattr(sources, "_DECODED", 4_000_000)
    report = usage_of_logs([str(file)], processes=1)
    assert report.total.calls == 49
    assert report.problems == (f"{file}:50: this row and those after it: they unpack to too much",)
    assert max(decoded) <= 400


@each(
    "columns, limit, reason",
    [
        (calls(100_000), None, r"damaged: 100,000 rows or values in [\d,]+ bytes"),
        (calls(note=["x" * 2_000_000]), 1_000_000, "unpacks to more than 1,000,000 bytes"),
        (calls(note=[[0] * 100_000]), None, r"damaged: 100,00\d rows or values in"),
    ],
)
def test_small_file_that_unpacks_to_much_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    columns: dict[str, Any],
    limit: int | None,
    reason: str,
) -> None:
    file = tmp_path / "log.parquet"
    pq.write_table(pa.table(columns), file, compression="zstd")
    if limit is not None:
        monkeypatch.setattr(bounded_files, "_UNPACKED", limit)
    with pytest.raises(Io, match=f"log.parquet: .*{reason}"):
        usage_of_logs([str(file)])


def test_row_that_cannot_be_read_is_set_aside(tmp_path: Path) -> None:
    file = tmp_path / "log.parquet"
    texts = pa.array([b"good", b"\xff\xfe", b"good"]).view(pa.string())
    pq.write_table(pa.table(calls(3, conversation=texts)), file)
    report = usage_of_logs([str(file)], by="session")
    assert (report.total.calls, report.problems) == (2, (f"{file}:2: a value cannot be read",))


def test_columns_with_one_name_end_nothing(tmp_path: Path) -> None:
    file = tmp_path / "log.parquet"
    arrays = [pa.array([one]) for one in ("call", 1.79e9, "one", "another")]
    pq.write_table(pa.Table.from_arrays(arrays, ["row", "at", "model", "model"]), file)
    report = usage_of_logs([str(file)])
    assert report.total.calls + len(report.problems) == 1


@pytest.mark.parametrize("end", [b"", b"PAR1", b"\xff\xff\xff\x7fPAR1"])
def test_file_that_is_no_parquet_is_named(tmp_path: Path, end: bytes) -> None:
    file = tmp_path / "log.parquet"
    file.write_bytes(b"PAR1" + b"\x15" * 100 + end)
    with pytest.raises(Io, match=r"log\.parquet: cannot be read"):
        usage_of_logs([str(file)])


# ── Lines ────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def short_lines(monkeypatch: pytest.MonkeyPatch) -> int:
    """Lines may have 100,000 bytes."""
    for module in (bounded_files, sources, log_files):
        monkeypatch.setattr(module, "MOST_LINE", 100_000)
    return 100_000


@pytest.mark.parametrize("packed", [False, True])
def test_line_that_is_too_long_is_named_and_left_out(
    session: Path, tmp_path: Path, short_lines: int, packed: bool
) -> None:
    first, *others = session.read_bytes().splitlines(keepends=True)
    long = b'{"type":"user","x":"%b"}\n' % (b"x" * 5_000_000)
    content = b"".join([first, long, *others])
    session.write_bytes(gzip.compress(content) if packed else content)
    for _ in range(2):  # the second time from the index
        report = sums(session, tmp_path)
        assert report.total.calls == len(GAPS)
        assert report.problems == (f"{session}:2: skipped: longer than 100,000 bytes",)


def test_last_line_that_is_too_long_may_grow(
    session: Path, tmp_path: Path, short_lines: int
) -> None:
    """A line that a program is still writing."""
    whole, number = session.read_bytes(), session.read_bytes().count(b"\n") + 1
    skipped = f"{session}:{number}: skipped: longer than 100,000 bytes"
    end = claude_session("other", MORNING, [0], "/work")
    for added, calls in ((b"y" * 150_000, 3), (b"y" * 300_000, 3), (b"y" * 300_000 + b"\n", 3)):
        session.write_bytes(whole + added)
        report = sums(session, tmp_path)
        assert (report.total.calls, report.problems) == (calls, (skipped,))
    session.write_bytes(whole + b"y" * 300_000 + b"\n" + end)
    report = sums(session, tmp_path)
    assert (report.total.calls, report.problems) == (4, (skipped,))


def test_no_line_is_in_memory_whole_that_is_too_long(session: Path, tmp_path: Path) -> None:
    """With the real limit, of a line of 200 MB."""
    calls = session.read_bytes()
    with session.open("wb") as file:
        file.write(calls + b'{"x":"')
        file.seek(200_000_000, os.SEEK_CUR)
        file.write(b'"}\n' + claude_session("other", MORNING, [0], "/work"))
    lines: list[Any] = []
    with session.open("rb") as opened:
        for line, size in bounded_files.lines_in(opened):
            assert len(line) <= bounded_files.MOST_LINE
            lines.append(size)
    assert max(lines) > 200_000_000
    report = sums(session, tmp_path)
    assert (report.total.calls, len(report.problems)) == (4, 1)


def test_commands_name_a_line_that_is_too_long(
    session: Path, run: Any, short_lines: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with session.open("ab") as file:
        file.write(b'{"x":"%b"}\n' % (b"x" * 200_000))
    place = f"{session}:7: skipped: longer than 100,000 bytes"
    for command in (["usage"], ["simulate"], ["explain"]):
        done = run(*command, str(session))
        assert place in (done.stdout + done.stderr).replace("\n", " ").replace("  ", " "), command
    assert json.loads(run("usage", str(session), "--json").stdout)["problems"] == [place]


def test_long_line_of_logs_is_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short_lines: int
) -> None:
    """It is longer than several slices."""
    monkeypatch.setattr(sources, "SLICE_BYTES", 1 << 20)
    file = tmp_path / "log.jsonl"
    lines = [b'{"n":%d}' % n for n in range(4_000)]
    file.write_bytes(b"\n".join([*lines, b'{"x":"%b"}' % (b"x" * 3_500_000), *lines]))
    read = [
        (place, fields)
        for part in sources.slices_of([str(file)])
        for place, fields, _ in sources.objects_in(part)
    ]
    assert [place for place, _ in read] == [f"{file}:{n + 1}" for n in range(8_001)]
    assert read[4_000][1] == "skipped: longer than 100,000 bytes"
    assert all(isinstance(fields, dict) for _, fields in read[:4_000] + read[4_001:])


def test_broken_lines_are_counted_not_kept(tmp_path: Path) -> None:
    """Millions of them would fill memory with their places."""
    file = tmp_path / "log.jsonl"
    file.write_bytes(b"x\n" * 5_000)
    found = shuffle.runs_of(sources.slices_of([str(file)])[0], 1, lambda runs: {})
    assert (len(found.problems), found.others) == (100, [4_900, 0])
    report = usage_of_logs([str(file)])
    assert len(report.problems) == 101
    assert report.problems[-1] == "4,900 more records cannot be read"


def test_large_json_file_is_not_decoded_whole(tmp_path: Path, short_lines: int) -> None:
    file = tmp_path / "session.json"
    file.write_bytes(b'{\n"messages": [\n' + b"0,\n" * 50_000 + b"0]}")
    problems: list[Any] = []
    assert len([*records_of(file, problems)]) > 50_000
    (problem,) = problems
    assert str(problem) == f"{file}: not read as one JSON object: longer than 100,000 bytes"


@pytest.mark.parametrize("program", [one.program for one in FOLDERS if one.program != "opencode"])
@each(
    "line",
    [
        b"[" * 200_000,
        b'{"type":"assistant","usage":' + b'{"a":' * 100_000,
        b'{"message":{"usage":{"input_tokens":1e999}},"type":"assistant"}',
        b"\xff\xfe{}",
        b"\0" * 100_000,
    ],
)
def test_hostile_line_ends_no_reader(tmp_path: Path, program: Any, line: bytes) -> None:
    """msgspec's limit of nesting, and each reader's types, stop it."""
    file = tmp_path / "session.jsonl"
    file.write_bytes(line + b'\n{"type":"other"}\n')
    for _ in read_file(file, program):
        pass


# ── Packed files ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.long
def test_packed_session_that_unpacks_to_much_is_named(
    session: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_files, "_UNPACKED", 1_000_000)
    packed = session.with_name("session.jsonl.gz")
    packed.write_bytes(gzip.compress(session.read_bytes() + b"\n" * 3_000_000))
    report = sums(packed, tmp_path)
    assert report.total.calls == len(GAPS)
    (problem,) = report.problems
    assert "it unpacks to more than" in problem
    with pytest.raises(Io, match="it unpacks to more than"):
        usage_of_logs([str(packed)])


@each(
    "content, reason",
    [
        (b"SQLite format 3\0" + b"\0" * 10_000_000, "it unpacks to more than"),
        (None, "end-of-stream"),
    ],
)
def test_packed_database_fills_no_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, reason: str
) -> None:
    """The second is cut off."""
    monkeypatch.setattr(bounded_files, "_UNPACKED", 1_000_000)
    file = tmp_path / "opencode.db.gz"
    file.write_bytes(PACKED.read_bytes()[:-20] if content is None else gzip.compress(content))
    report = sums(file, tmp_path)
    (problem,) = report.problems
    assert problem.startswith(f"{file}: ")
    assert reason in problem


# ── Databases ────────────────────────────────────────────────────────────────────────────────────

_ENDLESS = (
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT 'id' || i AS id,"
    " NULL AS parent_id, i AS time_created, '/' AS directory FROM n"
)
_SESSION = "CREATE TABLE session (id, parent_id, time_created, directory"
_MESSAGE = "CREATE TABLE message (id, session_id, time_created, time_updated, data);"
_PART = "CREATE TABLE part (id, message_id, session_id, data);"
_LIKE = f"'{'a' * 60}' LIKE '{'%a' * 30}b'"
_MANY = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000)"


@each(
    "script, reason",
    [
        (f"CREATE VIEW session AS {_ENDLESS};{_MESSAGE}{_PART}", "no table, but of kind view"),
        (f"CREATE VIEW SESSION AS {_ENDLESS};{_MESSAGE}{_PART}", "no table, but of kind view"),
        (
            f"{_SESSION});{_MESSAGE}CREATE VIEW part AS SELECT '' AS id, '' AS message_id;",
            "no table, but of kind view",
        ),
        (
            f"{_SESSION});{_MESSAGE}{_PART}PRAGMA writable_schema = ON;UPDATE sqlite_schema SET"
            f""" sql = "CREATE VIEW session AS {_ENDLESS}" WHERE name = 'session'""",
            "kind view|malformed",
        ),
        (
            "CREATE VIRTUAL TABLE session USING fts5(id, parent_id, time_created, directory);"
            f"{_MESSAGE}{_PART}",
            "no table, but of kind virtual",
        ),
        (
            f"{_SESSION}, x AS ({_LIKE}));{_MESSAGE}{_PART}INSERT INTO session VALUES (1,2,3,4)",
            "a column of the table 'session' is computed",
        ),
        (
            f"{_SESSION});{_MESSAGE}{_PART}{_MANY} INSERT INTO session SELECT 'a', 1, 1, '/'"
            f" FROM n;{_MANY} INSERT INTO message SELECT i, 'a', 1, 1, '{{\"role\":\"assistant\"}}' FROM n",
            "its rows are more than the file can hold",
        ),
        (f"{_SESSION});", "no such table: message"),
    ],
)
def test_hostile_database_ends(tmp_path: Path, script: str, reason: str) -> None:
    file = tmp_path / "opencode.db"
    with closing(sqlite3.connect(file)) as database:
        database.executescript(script)
    problems: list[Any] = []
    assert len([*lines_of(file, problems)]) < 3_000
    report = sums(file, tmp_path)
    assert report.total.calls == 0
    found = (*map(str, problems), *report.problems)
    assert found
    for problem in found:
        assert any(part in problem for part in reason.split("|")), problem


def test_slow_database_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan of a table for each session."""
    file = tmp_path / "opencode.db"
    file.write_bytes(gzip.decompress(PACKED.read_bytes()))
    assert not sums(file, tmp_path).problems
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("UPDATE message SET time_updated = 2000000000000")
        added = "INSERT INTO message SELECT hex(randomblob(9)), 'x', 1, 1, '' FROM n"
        database.execute(f"{_MANY} {added}")
        database.execute("DROP INDEX IF EXISTS message_session_time_created_id_idx")
    monkeypatch.setattr("anaphora.sqlite_files._SECONDS", 0.0)
    monkeypatch.setattr("anaphora.sqlite_files._BYTES_A_SECOND", float("inf"))
    (problem,) = sums(file, tmp_path).problems
    assert problem.startswith(f"{file}: no database of opencode that can be read: ")
    assert "not read within 0 s" in problem or "interrupted" in problem


# ── Pipes and devices ────────────────────────────────────────────────────────────────────────────


def pipe(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)
    return path


def device(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to("/dev/zero")
    return path


each_endless = pytest.mark.parametrize("endless", [pipe, device])


@each_endless
@pytest.mark.parametrize(
    "place",
    [
        ".claude/projects/p/s.jsonl",
        ".codex/sessions/2026/s.jsonl",
        ".gemini/tmp/p/chats/s.json",
        ".local/share/opencode/opencode.db",
        ".copilot/session-state/s.jsonl",
        ".pi/agent/sessions/p/s.jsonl",
    ],
)
def test_pipe_in_a_programs_folder_is_not_opened(
    tmp_path: Path, endless: Callable[[Path], Path], place: str
) -> None:
    endless(tmp_path / place)
    problems: list[Any] = []
    assert [*session_files((), {}, tmp_path, problems)] == []


@each_endless
def test_pipe_in_a_tree_of_opencode_is_named(
    tmp_path: Path, endless: Callable[[Path], Path]
) -> None:
    file = endless(tmp_path / "storage" / "session" / "p" / "s.json")
    (tmp_path / "storage" / "message").mkdir()
    problems: list[Any] = []
    assert [*lines_of(tmp_path / "storage", problems)] == []
    assert [str(one) for one in problems] == [f"{file}: cannot be read: not a regular file"]


@each_endless
def test_pipe_beside_a_database_is_not_opened(
    tmp_path: Path, endless: Callable[[Path], Path]
) -> None:
    """A log whose reading does not end."""
    file = tmp_path / "opencode.db"
    with closing(sqlite3.connect(file)) as database:
        database.executescript(f"PRAGMA journal_mode = WAL;{_SESSION});{_MESSAGE}{_PART}")
    endless(tmp_path / "opencode.db-wal")
    (tmp_path / "opencode.db-shm").touch()
    problems: list[Any] = []
    assert [*lines_of(file, problems)] == []
    assert problems == []


@each_endless
def test_pipe_beside_chats_is_not_opened(tmp_path: Path, endless: Callable[[Path], Path]) -> None:
    """Gemini CLI writes the project's folder there."""
    file = tmp_path / "tmp" / "p" / "chats" / "s.jsonl"
    endless(tmp_path / "tmp" / "p" / ".project_root")
    file.parent.mkdir()
    file.write_bytes(b'{"sessionId":"s"}\n')
    assert [*read_file(file, "gemini_cli")] == []


@each_endless
def test_pipe_in_an_audit_log_is_not_opened(
    tmp_path: Path, run: Any, endless: Callable[[Path], Path]
) -> None:
    file = endless(tmp_path / "audit" / "000001.jsonl")
    done = run("audit", "verify", str(tmp_path / "audit"))
    assert done.returncode
    assert f"{file}: cannot be read: not a regular file" in done.stderr.replace("\n", " ")


@each_endless
def test_pipe_as_transcript_is_not_opened(tmp_path: Path, endless: Callable[[Path], Path]) -> None:
    import anaphora_statusline

    assert anaphora_statusline._last_lines(str(endless(tmp_path / "s.jsonl"))) == []


@pytest.mark.parametrize(
    "command", [["explain"], ["lint"], ["map", "--emulate"], ["translate", "--to", "openai"]]
)
def test_device_that_is_named_is_not_read_whole(
    run: Any, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anaphora.cli.common._MOST_BYTES", 1_000_000)
    name = "/dev/zero"
    done = run(*command, *([name, name] if command == ["explain"] else [name]))
    assert done.returncode
    assert "/dev/zero" in done.stderr


# ── What is printed ──────────────────────────────────────────────────────────────────────────────

HOSTILE = '--html=/tmp/x";$(id)`id`\x1b]0;owned\x07<script>alert(1)</script>\u202e'


@pytest.fixture
def hostile_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its id, project and model are hostile, and it has a loss."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / "s.jsonl"
    lines = claude_session("s", MORNING, [0, 2, 20], "/work").splitlines()
    names = {"sessionId": HOSTILE, "cwd": f"={HOSTILE}"}
    file.write_bytes(b"".join(json.dumps(json.loads(x) | names).encode() + b"\n" for x in lines))
    return file


def test_printed_command_has_no_option_of_a_file(hostile_session: Path, run: Any) -> None:
    """A session whose id is an option that writes a file."""
    target = hostile_session.with_name("page.html")
    text = hostile_session.read_text()
    hostile_session.write_text(text.replace(json.dumps(HOSTILE), json.dumps(f"--html={target}")))
    page = run("usage", "losses", str(hostile_session)).stdout
    printed = next(line for line in page.splitlines() if "usage session" in line)
    done = run(*shlex.split(printed.strip())[1:])
    assert done.returncode == 0, done.stderr
    assert f"session --html={target}" in done.stdout
    assert not target.exists()


def test_names_in_a_file_are_text_everywhere(hostile_session: Path, run: Any) -> None:
    """`visible` and htpy stop them."""
    for arguments in (["losses"], ["session"], ["project"], ["losses", "--json"], ["--html", "-"]):
        done = run("usage", *arguments, str(hostile_session))
        assert done.returncode == 0, done.stderr
        for piece in ("\x1b", "\x07", *("\u202e" * ("--html" not in arguments))):
            assert piece not in done.stdout, arguments
        if "--html" in arguments:
            assert "<script>alert" not in done.stdout


def test_broken_files_end_with_an_error_of_ours(tmp_path: Path) -> None:
    for number, data in enumerate((b"PAR1", b"", b"\x1f\x8b", b"SQLite format 3\0", b"{" * 10**6)):
        for name in ("log.parquet", "log.jsonl.gz", "log.json", "log.jsonl"):
            file = tmp_path / f"{number}-{name}"
            file.write_bytes(data)
            try:
                usage_of_logs([str(file)])
            except AnaphoraError as problem:
                named = str(problem)
            else:
                named = name
            assert name in named
            sums(file, tmp_path)
