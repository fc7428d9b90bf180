"""Session files of agent programs: their documented places, and named files and folders."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from anaphora.analysis.trace.log_lines import Problem
from anaphora.analysis.trace.programs import ProgramName
from anaphora.usage.places import repository, session_files

SESSIONS = Path(__file__).parents[1] / "analysis" / "trace" / "sessions"
CLAUDE = b'{"type":"user","sessionId":"s","parentUuid":null,"message":{"role":"user"}}\n'


def put(file: Path, data: bytes = b"{}\n") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    return file


def found(
    home: Path,
    *places: Path,
    program: ProgramName | None = None,
    environ: Mapping[str, str] = MappingProxyType({}),
) -> list[tuple[str, str]]:
    problems: list[Problem] = []
    files = [*session_files(places, environ, home, problems, program)]
    assert problems == []
    return [(file.program, str(file.path.relative_to(home))) for file in files]


def test_default_places_of_all_programs(tmp_path: Path) -> None:
    places = [
        ("claude_code", ".claude/projects/-work/a.jsonl"),
        ("claude_code", ".claude/projects/-work/a/subagents/agent-b.jsonl"),
        ("claude_code", ".config/claude/projects/-work/c.jsonl"),
        ("codex", ".codex/sessions/2026/11/02/rollout-a.jsonl"),
        ("codex", ".codex/archived_sessions/rollout-b.jsonl"),
        ("gemini_cli", ".gemini/tmp/work/chats/session-a.json"),
        ("gemini_cli", ".gemini/tmp/work/chats/a/b.jsonl"),
        ("gemini_cli", ".gemini/tmp/work/chats/session-b.jsonl"),
        ("opencode", ".local/share/opencode/opencode.db"),
        ("opencode", ".local/share/opencode/storage"),
        ("copilot", ".copilot/session-state/a/events.jsonl"),
        ("pi", ".pi/agent/sessions/--work--/a.jsonl"),
    ]
    for _, name in places:
        if name.endswith("storage"):
            put(tmp_path / name / "session" / "p" / "ses_a.json")
            put(tmp_path / name / "message" / "ses_a" / "msg_a.json")
        else:
            put(tmp_path / name)
    for beside in (
        ".claude/history.jsonl",
        ".codex/history.jsonl",
        ".gemini/tmp/work/logs.json",
        ".local/share/opencode/log/a.log",
        ".copilot/config.json",
        ".pi/agent/settings.json",
    ):
        put(tmp_path / beside)
    expected = [(program, name) for program, name in places]
    files = found(tmp_path)
    assert sorted(files) == sorted(expected)
    assert [program for program, _ in files] == [program for program, _ in expected]
    assert files == found(tmp_path)
    assert found(tmp_path, program="pi") == expected[-1:]


@pytest.mark.parametrize(
    ("variable", "value", "name"),
    [
        ("CLAUDE_CONFIG_DIR", "{home}/x", "x/projects/-w/a.jsonl"),
        ("XDG_CONFIG_HOME", "{home}/x", "x/claude/projects/-w/a.jsonl"),
        ("CODEX_HOME", "{home}/x", "x/sessions/rollout-a.jsonl"),
        ("GEMINI_CLI_HOME", "{home}/x", "x/.gemini/tmp/p/chats/a.jsonl"),
        ("XDG_DATA_HOME", "{home}/x", "x/opencode/opencode.db"),
        ("OPENCODE_DATA_DIR", "{home}/x", "x/opencode-dev.db"),
        ("OPENCODE_DB", "{home}/x/mine.db", "x/mine.db"),
        ("OPENCODE_DB", "mine.db", ".local/share/opencode/mine.db"),
        ("COPILOT_HOME", "{home}/x", "x/session-state/a/events.jsonl"),
        ("PI_CODING_AGENT_DIR", "{home}/x", "x/sessions/a/b.jsonl"),
        ("PI_CODING_AGENT_SESSION_DIR", "{home}/x", "x/a/b.jsonl"),
    ],
)
def test_environment_variables(variable: str, value: str, name: str, tmp_path: Path) -> None:
    put(tmp_path / name)
    assert found(tmp_path) == [] or name.startswith(".local")
    files = found(tmp_path, environ={variable: value.format(home=tmp_path)})
    assert [path for _, path in files] == [name]


def test_several_folders_of_claude_code(tmp_path: Path) -> None:
    put(tmp_path / "a" / "projects" / "w" / "1.jsonl")
    put(tmp_path / "b, c" / "projects" / "w" / "2.jsonl")
    put(tmp_path / ".claude" / "projects" / "w" / "3.jsonl")
    (tmp_path / "d").symlink_to(tmp_path / "a")
    several = f"{tmp_path}/a, {tmp_path}/d,,{tmp_path}/missing"
    assert found(tmp_path, environ={"CLAUDE_CONFIG_DIR": several}) == [
        ("claude_code", "a/projects/w/1.jsonl")
    ]
    comma = f"{tmp_path}/b, c"
    assert found(tmp_path, environ={"CLAUDE_CONFIG_DIR": comma}) == [
        ("claude_code", "b, c/projects/w/2.jsonl")
    ]


def test_a_linked_folder_counts_once(tmp_path: Path) -> None:
    put(tmp_path / ".claude" / "projects" / "w" / "1.jsonl")
    (tmp_path / ".config").mkdir()
    (tmp_path / ".config" / "claude").symlink_to(tmp_path / ".claude")
    (tmp_path / ".claude" / "projects" / "loop").symlink_to(tmp_path / ".claude")
    assert found(tmp_path) == [("claude_code", ".claude/projects/w/1.jsonl")]


def test_named_files_are_recognised_by_their_content(tmp_path: Path) -> None:
    database = gzip.decompress((SESSIONS / "opencode.db.gz").read_bytes())
    pi = next((SESSIONS / "pi").glob("*.jsonl")).read_bytes()
    put(tmp_path / "in" / "opencode.db", database)
    put(tmp_path / "in" / "a.jsonl", pi)
    put(tmp_path / "in" / "b.jsonl.gz", gzip.compress(CLAUDE))
    chat = b'{\n "sessionId": "s",\n "projectHash": "h",\n "messages": []\n}\n'
    put(tmp_path / "in" / "c.json", chat)
    assert found(tmp_path, tmp_path / "in") == [
        ("pi", "in/a.jsonl"),
        ("claude_code", "in/b.jsonl.gz"),
        ("gemini_cli", "in/c.json"),
        ("opencode", "in/opencode.db"),
    ]
    assert found(tmp_path, tmp_path / "in" / "c.json") == [("gemini_cli", "in/c.json")]


def test_files_of_no_program_are_problems(tmp_path: Path) -> None:
    other = put(tmp_path / "other.jsonl", b'{"a": 1}\n')
    missing = tmp_path / "missing.jsonl"
    problems: list[Problem] = []
    assert [*session_files((other, missing), {}, tmp_path, problems)] == []
    assert [str(problem) for problem in problems] == [
        f"{other}: no session file of an agent program",
        f"{missing}: cannot be read: No such file or directory",
    ]


def test_a_folder_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    put(tmp_path / ".codex" / "archived_sessions" / "b.jsonl")
    sessions = tmp_path / ".codex" / "sessions"
    sessions.symlink_to(sessions)
    problems: list[Problem] = []
    files = [*session_files((), {}, tmp_path, problems)]
    assert [file.path.name for file in files] == ["b.jsonl"]
    reason = "cannot be read: Too many levels of symbolic links"
    assert [str(problem) for problem in problems] == [f"{sessions}: {reason}"]


def test_changes_show_in_time_or_size(tmp_path: Path) -> None:
    database = put(tmp_path / ".local/share/opencode/opencode.db")
    (before,) = session_files((), {}, tmp_path, [])
    put(database.with_name("opencode.db-wal"), b"more")
    (after,) = session_files((), {}, tmp_path, [])
    assert (before.mtime, before.size) != (after.mtime, after.size)


def test_folders_and_worktrees_of_a_repository_are_one_project(tmp_path: Path) -> None:
    top = tmp_path / "shop"
    put(top / ".git" / "HEAD")
    put(tmp_path / "linked" / ".git", b"gitdir: %s/.git/worktrees/linked\n" % bytes(top))
    put(tmp_path / "own" / ".git", b"gitdir: ../shop/.git/modules/own\n")
    for folder in ("shop", "shop/api/v2", "linked/api", "shop/.claude/worktrees/gone/api"):
        assert repository(str(tmp_path / folder)) == str(top)
    assert repository(str(tmp_path / "own")) == str(tmp_path / "own")
    # Folders of other machines, and those that are gone: by the session's other folders.
    assert repository("D:\\shop\\api", ["D:\\shop", "D:\\shop\\api"]) == "D:\\shop"
    assert repository("/gone/shop/.claude/worktrees/a/api") == "/gone/shop"
    assert repository("/gone/shopping", ["/gone/shop"]) == "/gone/shopping"
    assert repository("") == ""
