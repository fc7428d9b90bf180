"""`anaphora explain` without files: it finds the sessions of agent programs on this machine."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from anaphora.cli.common import anaphora

ROOT = Path(__file__).parents[2]
SESSIONS = ROOT / "tests" / "analysis" / "trace" / "sessions"
VARIABLES = (
    "CLAUDE_CONFIG_DIR",
    "CODEX_HOME",
    "GEMINI_CLI_HOME",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "OPENCODE_DATA_DIR",
    "OPENCODE_DB",
    "PI_CODING_AGENT_SESSION_DIR",
    "COPILOT_HOME",
    "PI_CODING_AGENT_DIR",
)
AT = "2026-11-02T09:00:00.000Z"
CODEX: list[dict[str, Any]] = [
    {"type": "session_meta", "payload": {"id": "c", "model_provider": "openai"}},
    {"type": "turn_context", "payload": {"model": "gpt-5.5"}},
    {"type": "response_item", "payload": {"type": "message", "role": "user", "content": "q"}},
    {
        "type": "event_msg",
        "payload": {
            "type": "token_count",
            "info": {
                "last_token_usage": {
                    "input_tokens": 9000,
                    "cached_input_tokens": 0,
                    "output_tokens": 7,
                },
                "total_token_usage": {"total_tokens": 9007},
            },
        },
    },
]
GEMINI: list[dict[str, Any]] = [
    {"sessionId": "g", "projectHash": "h", "startTime": "", "lastUpdated": ""},
    {"id": "1", "timestamp": AT, "type": "user", "content": "q"},
    {
        "id": "2",
        "timestamp": AT,
        "type": "gemini",
        "model": "gemini-2.5-pro",
        "content": "a",
        "tokens": {"input": 9000, "output": 5, "cached": 0, "thoughts": 2, "tool": 0, "total": 0},
    },
]


def write(file: Path, lines: list[dict[str, Any]] | bytes, age: int) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    if not isinstance(lines, bytes):
        lines = b"".join(json.dumps({"timestamp": AT, **one}).encode() + b"\n" for one in lines)
    file.write_bytes(lines)
    os.utime(file, (1_790_000_000 - age, 1_790_000_000 - age))
    return file


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def sessions(home: Path) -> Path:
    """A home with sessions of five programs, and files beside them that are none."""
    claude = (ROOT / "docs" / "examples" / "session.jsonl").read_bytes()
    write(home / ".claude" / "projects" / "-work" / "one.jsonl", claude, 10)
    write(home / ".claude" / "settings.json", b"{}", 0)
    write(home / ".claude" / "history.jsonl", b"{}\n", 0)
    write(home / ".codex" / "sessions" / "2026" / "11" / "02" / "rollout-c.jsonl", CODEX, 50)
    write(home / ".gemini" / "tmp" / "h" / "chats" / "session-g.jsonl", GEMINI, 40)
    write(home / ".gemini" / "tmp" / "h" / "logs.json", b"[]", 0)
    database = gzip.decompress((SESSIONS / "opencode.db.gz").read_bytes())
    write(home / ".local" / "share" / "opencode" / "opencode.db", database, 30)
    shutil.copytree(SESSIONS / "pi", home / ".pi" / "agent" / "sessions" / "--work--")
    for file in (home / ".pi").rglob("*.jsonl"):
        os.utime(file, (1_780_000_000, 1_780_000_000))
    return home


def explain(*arguments: str) -> Any:
    return CliRunner().invoke(anaphora, ["explain", *arguments], catch_exceptions=False)


def test_sessions_of_all_programs_are_found_and_counted(sessions: Path) -> None:
    ran = explain("--json")
    assert ran.exit_code in (0, 1), ran.stderr
    report = json.loads(ran.stdout)
    pi = len([*(sessions / ".pi").rglob("*.jsonl")])
    counts = [
        "~/.claude: 1 session file of Claude Code",
        "~/.codex: 1 session file of Codex",
        "~/.gemini: 1 session file of Gemini CLI",
        "~/.local/share/opencode: 1 session file of opencode",
        f"~/.pi/agent: {pi} session files of pi",
    ]
    for line in counts:
        assert f"anaphora: {line}\n" in ran.stderr
        assert line in report["notices"]
    assert not report["problems"]
    providers = {turn["provider"] for turn in report["turns"]}
    assert {"anthropic", "openai", "google"} <= providers
    assert "are explained" not in ran.stderr


def test_the_newest_sessions_are_explained(sessions: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anaphora.cli.log_files._NEWEST", 2)
    ran = explain("--json")
    places = {turn["place"].rpartition(":")[0] for turn in json.loads(ran.stdout)["turns"]}
    claude = sessions / ".claude" / "projects" / "-work" / "one.jsonl"
    database = sessions / ".local" / "share" / "opencode" / "opencode.db"
    assert places == {str(claude), str(database)}
    assert "session files: the newest 2 of " in ran.stderr


def test_folders_that_the_programs_are_told_to_use(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CODEX_HOME", str(home / "elsewhere"))
    monkeypatch.setenv("GEMINI_CLI_HOME", str(home / "other"))
    write(home / "elsewhere" / "sessions" / "rollout-c.jsonl", CODEX, 0)
    write(home / "other" / ".gemini" / "tmp" / "h" / "chats" / "g.jsonl", GEMINI, 0)
    write(home / ".codex" / "sessions" / "rollout-d.jsonl", CODEX, 0)
    ran = explain()
    assert "anaphora: ~/elsewhere: 1 session file of Codex\n" in ran.stderr
    assert "anaphora: ~/other/.gemini: 1 session file of Gemini CLI\n" in ran.stderr
    assert "2 calls: " in ran.stdout


def test_places_are_named_if_no_session_is_found(home: Path) -> None:
    ran = explain()
    assert ran.exit_code == 2
    assert "no session file of an agent program is in ~/.claude, ~/.config/claude," in ran.stderr
