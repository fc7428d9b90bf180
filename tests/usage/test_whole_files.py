"""Bills of files that are read as a whole: opencode's database and tree, and Gemini CLI's older
files."""

from __future__ import annotations

import gzip
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from support.session_bills import billed, in_conversations
from support.session_samples import CANARY, gemini, lines_of, opencode_message

from anaphora.analysis.trace.log_lines import Problem
from anaphora.usage.log_files import lines_of as lines_in
from anaphora.usage.pieces import is_whole, read_file
from anaphora.usage.places import session_files
from anaphora.usage.records import CallBill

PACKED = Path(__file__).parents[1] / "analysis" / "trace" / "sessions" / "opencode.db.gz"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    file = tmp_path / "opencode.db"
    file.write_bytes(gzip.decompress(PACKED.read_bytes()))
    return file


def change(database: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute(statement, values)


def test_database_has_the_bills_of_its_conversations(database: Path) -> None:
    sessions = [line.data for line in lines_in(database, [])]
    expected = in_conversations("opencode", sessions)
    assert len(expected) == 7  # a fork repeats two of the nine
    assert is_whole(database, "opencode")
    found = [*read_file(database, "opencode")]
    assert billed(found) == expected
    assert billed(read_file(PACKED, "opencode")) == expected
    numbers = {one.line for one in found if isinstance(one, CallBill)}
    assert numbers == {*range(1, len(sessions) + 1)}
    projects = {one.project for one in found if isinstance(one, CallBill)}
    assert projects == {"/tmp/session-files/oc/work"}


def test_only_changed_rows_of_a_database_are_read_again(database: Path) -> None:
    later = 1_900_000_000
    assert [*read_file(database, "opencode", since=later)] == []
    newest = "SELECT max(rowid) FROM message WHERE instr(data, '\"assistant\"')"
    change(database, f"UPDATE message SET time_updated = ? WHERE rowid = ({newest})", later * 1000)
    (one,) = read_file(database, "opencode", since=later)
    assert isinstance(one, CallBill)


def test_a_broken_row_is_named_and_the_others_are_read(database: Path) -> None:
    change(
        database,
        "UPDATE message SET data = ? WHERE rowid = (SELECT min(rowid) FROM message)",
        f'{{"role":"assistant","x":"{CANARY}',
    )
    found = [*read_file(database, "opencode")]
    problems = [one for one in found if isinstance(one, Problem)]
    assert [one.place for one in problems] == [f"{database}:1"]
    assert CANARY not in problems[0].reason
    assert len(found) - len(problems) == 9


def test_a_file_that_is_no_database_of_opencode_is_a_problem(tmp_path: Path) -> None:
    file = tmp_path / "opencode.db"
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("CREATE TABLE other (id)")
    (problem,) = read_file(file, "opencode")
    assert str(problem).startswith(f"{file}: no database of opencode that can be read: no such")


def test_tree_of_files(tmp_path: Path) -> None:
    storage = tmp_path / "storage"
    _, lines = lines_of("opencode")
    session = json.loads(lines[0])
    put = {"session/p/ses_1.json": session["info"]}
    for number, message in enumerate(session["messages"]):
        id = message["info"].setdefault("id", f"msg_u{number}")
        put[f"message/ses_1/{id}.json"] = message["info"]
        for index, part in enumerate(message["parts"]):
            put[f"part/{id}/prt_{index}.json"] = part
    for name, value in put.items():
        (storage / name).parent.mkdir(parents=True, exist_ok=True)
        (storage / name).write_text(json.dumps(value))
    expected = in_conversations("opencode", lines)
    assert len(expected) == 3
    assert billed(read_file(storage, "opencode")) == expected
    (file,) = session_files((storage,), {}, tmp_path, [])
    assert (file.program, file.path) == ("opencode", storage)
    (storage / "message/ses_1/msg_1.json").write_text(f'{{"{CANARY}')
    problems = [str(one) for one in read_file(storage, "opencode") if isinstance(one, Problem)]
    assert problems == [f"{storage}/message/ses_1/msg_1.json: Input data was truncated"]


@pytest.mark.parametrize("indent", [None, 2])
def test_exported_session_of_opencode(tmp_path: Path, indent: int | None) -> None:
    file = tmp_path / "export.json"
    session = {"info": {"id": "ses_1"}, "messages": [opencode_message(1), None]}
    file.write_text(json.dumps(session, indent=indent))
    call, problem = read_file(file, "opencode")
    assert isinstance(call, CallBill)
    assert str(problem) == f"{file}:1: messages[1]: Expected `object`, got `null`"


@pytest.mark.parametrize("indent", [None, 2])
def test_older_file_of_gemini_cli(tmp_path: Path, indent: int | None) -> None:
    file = tmp_path / "session-1.json"
    messages = [gemini(1, "1"), gemini(2, "2", input=-1), gemini(3, "3")]
    chat = {"sessionId": "g", "projectHash": "h", "messages": messages}
    file.write_text(json.dumps(chat, indent=indent))
    assert is_whole(file, "gemini_cli")
    *calls, problem = read_file(file, "gemini_cli")
    assert billed(calls) == in_conversations("gemini_cli", [json.dumps(chat).encode()])
    assert len(calls) == 2
    assert str(problem) == f"{file}:1: messages[1]: usage.input is negative: -1"
