"""Session files of agent programs through `explain` and `simulate`: single files, folders, gzipped,
databases and trees; answers that several files contain; prompts that must not be in a message."""

from __future__ import annotations

import gzip
import json
import shutil
import sqlite3
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args

import pytest
from click.testing import CliRunner

from anaphora.analysis.trace import Format
from anaphora.analysis.trace.programs import PROGRAMS, ProgramName
from anaphora.cli.common import anaphora

SESSIONS = Path(__file__).parents[1] / "analysis" / "trace" / "sessions"
SHARED = Path(__file__).parents[3] / "shared" / "sessions"
RESUMED = ("030df228", "6b6f4218")
#: In every prompt; no message may hold it.
CANARY = "CANARY my diagnosis"
Json = dict[str, Any]


def run(command: str, *arguments: object) -> Any:
    return CliRunner().invoke(anaphora, [command, *map(str, arguments)], catch_exceptions=False)


def report(command: str, *arguments: object) -> Json:
    ran = run(command, *arguments, "--json")
    assert ran.exit_code in (0, 1), ran.stderr
    found: Json = json.loads(ran.stdout)
    return found


def test_every_program_is_a_format() -> None:
    assert get_args(ProgramName) == tuple(sorted(PROGRAMS, key=get_args(ProgramName).index))
    formats = [name for one in get_args(Format) for name in get_args(one) or (one,)]
    assert formats == ["trace", *get_args(ProgramName)]


@pytest.fixture
def resumed() -> list[Path]:
    folder = SHARED / "claude_code"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there")
    return [next(folder.glob(f"{name}*")) for name in RESUMED]


@pytest.mark.parametrize("backwards", [pytest.param(False, marks=pytest.mark.soak), True])
def test_a_resumed_session_is_billed_once(resumed: list[Path], backwards: bool) -> None:
    files = resumed
    found = report("simulate", *(files[::-1] if backwards else files))
    # Each file alone: $103.57 and $137.79. The second repeats all answers of the first.
    assert round(Decimal(found["total"]["billed"]["cost_usd"]), 2) == Decimal("137.79")
    assert found["total"]["calls"] == 610
    calls = {one["conversation"][:8]: one["calls"] for one in found["conversations"]}
    assert calls == {"030df228": 538, "6b6f4218": 72}
    (notice,) = found["notices"]
    assert notice["place"] == str(files[1])
    assert notice["reason"] == f"538 answers repeated from {files[0]}: counted once, there"


@pytest.mark.long
def test_a_resumed_session_is_explained_once(resumed: list[Path]) -> None:
    assert report("explain", *resumed)["summary"]["turns"] == 610


def fixture(name: str, folder: Path) -> Path:
    """The sessions of a program, as they lie on a user's disk."""
    if name == "pi":
        return Path(shutil.copytree(SESSIONS / "pi", folder / "sessions" / "--work--"))
    database = folder / "opencode" / "opencode.db"
    database.parent.mkdir()
    database.write_bytes(gzip.decompress((SESSIONS / "opencode.db.gz").read_bytes()))
    return database.parent


CALLS = {"pi": 5, "opencode": 7}


@pytest.mark.parametrize("name", CALLS)
def test_a_folder_of_a_program(name: str, tmp_path: Path) -> None:
    folder = fixture(name, tmp_path)
    found = report("simulate", tmp_path)
    assert found["total"]["billed_calls"] == CALLS[name]
    assert found["skipped"] == []
    assert report("explain", folder)["summary"]["turns"] == CALLS[name]


@pytest.mark.parametrize("name", CALLS)
def test_single_files_packed_or_not(name: str, tmp_path: Path) -> None:
    files = [one for one in sorted(fixture(name, tmp_path).iterdir()) if one.is_file()]
    assert report("simulate", *files)["total"]["billed_calls"] == CALLS[name]
    packed = []
    for file in files:
        packed.append(file.with_name(f"{file.name}.gz"))
        packed[-1].write_bytes(gzip.compress(file.read_bytes()))
    assert report("simulate", *packed)["total"]["billed_calls"] == CALLS[name]
    assert len(report("explain", *packed)["turns"]) == CALLS[name]


def exported(database: Path) -> list[Json]:
    """The sessions as `opencode export` writes them."""
    with closing(sqlite3.connect(database)) as connection, connection:
        parts: dict[str, list[Json]] = {}
        for id, message, data in connection.execute("SELECT id, message_id, data FROM part"):
            parts.setdefault(message, []).append({"id": id, **json.loads(data)})
        sessions = connection.execute("SELECT id, time_created FROM session").fetchall()
        return [
            {
                "info": {"id": session, "projectID": "global", "time": {"created": created}},
                "messages": [
                    {"info": {"id": id, **json.loads(data)}, "parts": parts.get(id, [])}
                    for id, data in connection.execute(
                        "SELECT id, data FROM message WHERE session_id = ?", (session,)
                    )
                ],
            }
            for session, created in sessions
        ]


def test_the_tree_and_the_exports_of_opencode_hold_the_same_calls(tmp_path: Path) -> None:
    database = fixture("opencode", tmp_path) / "opencode.db"
    storage, exports = tmp_path / "tree" / "storage", tmp_path / "exports"
    exports.mkdir()

    def write(file: Path, value: Json) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(value))

    for session in exported(database):
        id = session["info"]["id"]
        write(exports / f"{id}.json", session)
        write(storage / "session" / "global" / f"{id}.json", session["info"])
        for message in session["messages"]:
            write(storage / "message" / id / f"{message['info']['id']}.json", message["info"])
            for part in message["parts"]:
                write(storage / "part" / message["info"]["id"] / f"{part['id']}.json", part)
    totals = [
        report("simulate", place)["total"]["billed"]
        for place in (database, storage.parent, storage, exports)
    ]
    assert totals[1:] == totals[:1] * 3


def test_a_database_of_another_program_is_reported(tmp_path: Path) -> None:
    other = tmp_path / "opencode.db"
    with closing(sqlite3.connect(other)) as connection, connection:
        connection.execute("CREATE TABLE session (id TEXT)")
    ran = run("simulate", tmp_path)
    assert ran.exit_code == 2
    assert (
        f"{other}: no database of opencode that can be read: no such table: message" in ran.stderr
    )


@pytest.mark.parametrize("state", ["closed", "open", "killed"])
def test_a_database_is_read_without_leaving_a_trace(tmp_path: Path, state: str) -> None:
    """A program that runs has files `-wal` and `-shm` beside it; one that was killed leaves the
    first, with its last changes."""
    database = fixture("opencode", tmp_path) / "opencode.db"
    connection = sqlite3.connect(database)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("DELETE FROM session WHERE id = (SELECT min(id) FROM session)")
    connection.commit()
    if state == "killed":
        left = tmp_path / "left"
        left.mkdir()
        for end in ("", "-wal"):
            shutil.copyfile(f"{database}{end}", left / f"opencode.db{end}")
        database = left / "opencode.db"
    if state != "open":
        connection.close()
    names = {"closed": [""], "open": ["", "-shm", "-wal"], "killed": ["", "-wal"]}[state]
    before = {name: Path(f"{database}{name}").read_bytes() for name in names if name != "-shm"}
    assert 0 < len(report("explain", database)["turns"]) < CALLS["opencode"]
    assert sorted(file.name for file in database.parent.iterdir()) == [
        f"opencode.db{name}" for name in names
    ]
    assert before == {name: Path(f"{database}{name}").read_bytes() for name in before}
    connection.close()


DAMAGED = {
    "text": (CANARY.encode(), "JSON is malformed"),
    "no UTF-8": (b'{"type": "text", "text": "%b\xff"}' % CANARY.encode(), "not UTF-8"),
    "nested": (b'{"a":' * 5000 + b"1" + b"}" * 5000, "nested too deep"),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_part_that_cannot_be_read_leaves_out_its_session_only(
    tmp_path: Path, damage: str
) -> None:
    data, reason = DAMAGED[damage]
    database = fixture("opencode", tmp_path) / "opencode.db"
    with closing(sqlite3.connect(database)) as connection, connection:
        part = "(SELECT id FROM part ORDER BY session_id LIMIT 1)"
        connection.execute(f"UPDATE part SET data = CAST(? AS TEXT) WHERE id = {part}", (data,))
    ran = run("explain", "--json", database)
    assert 0 < len(json.loads(ran.stdout)["turns"]) < CALLS["opencode"]
    assert reason in ran.stdout + ran.stderr
    assert CANARY not in ran.stdout + ran.stderr


@pytest.mark.parametrize("depth", [100, 400, 480, 700, 950, 5000])
@pytest.mark.parametrize("command", ["explain", "simulate"])
def test_a_line_is_read_or_reported_however_deep_it_is(
    tmp_path: Path, command: str, depth: int
) -> None:
    lines = [json.dumps(line) for line in claude_code()]
    lines[0] = lines[0].replace(f'"{CANARY}"', "[" * depth + "]" * depth)
    lines[1] = lines[1].replace("-4", "4000").replace(f'"output_tokens": "{CANARY}"', '"x": 1')
    file = tmp_path / "s.jsonl"
    file.write_text("\n".join(lines) + "\n")
    ran = run(command, "--json", file)
    assert ran.exit_code == 0
    reported = "nested too deep" in ran.stdout + ran.stderr
    assert reported or depth < 950  # between them, it depends on who calls
    assert not reported or depth > 100


def test_files_beside_the_sessions_are_no_logs(tmp_path: Path) -> None:
    folder = fixture("opencode", tmp_path)
    (folder / "log").mkdir()
    (folder / "log" / "opencode.log").write_text("started\n")
    assert report("simulate", tmp_path)["skipped"] == []


def claude_code() -> list[Json]:
    usage = {"input_tokens": -4, "output_tokens": CANARY}
    message = {"id": "m", "content": CANARY, "model": "claude-sonnet-4-5", "usage": usage}
    return [
        {"type": "user", "uuid": "u", "sessionId": "s", "message": {"content": CANARY}},
        {"type": "assistant", "uuid": "a", "parentUuid": "u", "sessionId": "s", "message": message},
    ]


def codex() -> list[Json]:
    item = {"type": "message", "role": "user", "content": CANARY}
    info = {"last_token_usage": {"input_tokens": CANARY}}
    return [
        {"type": "response_item", "payload": item},
        {"type": "event_msg", "payload": {"type": "token_count", "info": info}},
    ]


def gemini_cli() -> list[Json]:
    answer = {"type": "gemini", "id": "a", "content": CANARY, "tokens": {"input": CANARY}}
    return [{"sessionId": "s", "projectHash": "h"}, {"type": "user", "content": CANARY}, answer]


def copilot() -> list[Json]:
    usage = {"apiCallId": "c", "inputTokens": CANARY, "outputTokens": 5}
    events = [
        ("session.start", {"sessionId": "s"}),
        ("user.message", {"content": CANARY}),
        ("session.usage_record", {"usage": usage}),
        ("assistant.message", {"content": CANARY, "apiCallId": "c"}),
    ]
    return [
        {"type": type, "data": data, "id": f"e{n}", "parentId": None}
        for n, (type, data) in enumerate(events)
    ]


def pi() -> list[Json]:
    message = {"role": "assistant", "content": CANARY, "usage": {"input": CANARY}}
    return [
        {"type": "session", "id": "s", "timestamp": 1e9, "cwd": "/"},
        {"type": "message", "id": "1", "parentId": None, "message": message},
    ]


def opencode() -> list[Json]:
    info = {"id": "1", "role": "assistant", "tokens": {"input": CANARY}}
    parts = [{"type": "text", "text": CANARY}]
    return [{"info": {"id": "s"}, "messages": [{"info": info, "parts": parts}]}]


@pytest.mark.parametrize("command", ["explain", "simulate"])
@pytest.mark.parametrize("make", [claude_code, codex, gemini_cli, copilot, pi, opencode])
def test_no_prompt_is_in_a_message_about_an_invalid_file(
    make: Any, command: str, tmp_path: Path
) -> None:
    file = tmp_path / "session.jsonl"
    lines = [json.dumps(line) for line in make()]
    file.write_text("\n".join([*lines, lines[-1][:-5]]) + "\n")
    ran = run(command, file)
    assert ran.exit_code == 2
    assert ran.stderr.count(str(file)) >= 2
    assert "usage." in ran.stderr
    assert "CANARY" not in ran.stdout + ran.stderr
