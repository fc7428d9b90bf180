"""`anaphora-statusline`, and its installer."""

from __future__ import annotations

import datetime
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.usage_home import CANARY, IDLE, claude_session, write_home

import anaphora_statusline

USAGE = {"input_tokens": 10, "cache_read_input_tokens": 900, "cache_creation_input_tokens": 90}
GIVEN: dict[str, Any] = {
    "session_id": IDLE,
    "model": {"id": "claude-opus-5-5", "display_name": "Opus 5.5"},
    "cost": {"total_cost_usd": 3.214, "total_duration_ms": 1},
    "context_window": {"used_percentage": 42, "current_usage": USAGE},
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def line(given: object, *, raw: bytes | None = None) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "anaphora_statusline"],
        input=json.dumps(given).encode() if raw is None else raw,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    (text,) = done.stdout.decode().splitlines()
    return text


def test_all_that_claude_code_passes_is_shown() -> None:
    cache = {"warm": True, "caching_observed": True, "ttl": "5m", "expires_at": time.time() + 250}
    assert line(GIVEN | {"prompt_cache": cache}) == (
        "Opus 5.5 · context 42% · $3.21 session · cache 90% read · expires in 4 min"
    )
    expired = cache | {"expires_at": time.time() - 5}
    assert line(GIVEN | {"prompt_cache": expired}).endswith(" · cache expired")
    assert line(GIVEN | {"prompt_cache": cache | {"expires_at": None}}).endswith("90% read")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"junk",
        b"[]",
        b"null",
        b"{",
        b"\xff",
        b"[" * 100_000,
        b'{"model": 3, "cost": [], "context_window": "x"}',
        b'{"cost": {"total_cost_usd": 1e999}}',
    ],
    ids=range(9),
)
def test_bad_input_is_no_failure(raw: bytes) -> None:
    assert line(None, raw=raw) == "anaphora"


def test_a_call_that_read_nothing_is_shown() -> None:
    window = {"current_usage": USAGE | {"cache_read_input_tokens": 0}}
    assert line({"context_window": window}) == "cache 0% read"


def test_missing_and_odd_fields_are_left_out() -> None:
    assert line({"model": {"id": "m\x1b[31m\nn"}}) == "m [31m n"
    assert (
        line({"cost": {"total_cost_usd": "0.5"}, "transcript_path": "/nowhere"}) == "$0.50 session"
    )


def test_the_end_of_the_session_says_what_the_json_lacks(tmp_path: Path) -> None:
    """As of versions before 2.1.251."""
    began = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=4)
    file = tmp_path / "session.jsonl"
    # A call now: the last one was 3 minutes and some seconds ago.
    file.write_bytes(b"x" * 400_000 + b"\n" + claude_session("s", began, [0, 0.5], "/work"))
    shown = line({"model": {"id": "m"}, "transcript_path": str(file)})
    assert shown in (
        "m · cache 98% read · expires in 1 min",
        "m · cache 98% read · expires in < 1 min",
    )
    assert CANARY not in shown
    hour = file.read_bytes().replace(
        b'"ephemeral_1h_input_tokens": 0', b'"ephemeral_1h_input_tokens": 9'
    )
    file.write_bytes(hour)
    assert re.search("expires in 5[56] min$", line({"transcript_path": str(file)}))


def test_cost_of_today_is_of_the_last_usage(home: Path, run: Any) -> None:
    write_home(home)
    now = datetime.datetime.now(datetime.UTC)
    file = home / ".claude" / "projects" / "-work-shop" / "now.jsonl"
    file.write_bytes(claude_session("now", now - datetime.timedelta(seconds=9), [0], "/work/now"))
    assert "today" not in line(GIVEN)
    assert run("usage").returncode == 0
    other = GIVEN | {"session_id": "other", "cost": {"total_cost_usd": 0}}
    own = GIVEN | {"session_id": "now"}
    assert " · $0.08 today · " in line(other)
    assert " · ~$3.21 today · " in line(own), "the sums have the first $0.08 of it"
    kept = home / ".cache" / "anaphora" / "today.json"
    sums = json.loads(kept.read_text())
    kept.write_text(json.dumps(sums | {"at": time.time() - 600}))
    assert " · ~$0.08 today · " in line(other)
    kept.write_text(json.dumps(sums | {"day": "2026-01-01"}))
    assert " · ~$0.00 today · " in line(other)
    for broken in ("{", "[]", '{"version": 2}', '{"version": 1, "usd": "x", "at": 1}'):
        kept.write_text(broken)
        assert "today" not in line(other)


def test_it_loads_neither_the_package_nor_a_dependency() -> None:
    program = (
        "import sys; import anaphora_statusline; anaphora_statusline.main()\n"
        "heavy = {'anaphora', 'msgspec', 'click', 'typing', 'sqlite3', 'subprocess', 'pathlib'}\n"
        "sys.exit(' '.join(heavy & set(sys.modules)) or 0)"
    )
    words = [sys.executable, "-S", "-c", program]
    folder = str(Path(anaphora_statusline.__file__).parent)
    env = {"PYTHONPATH": folder, "HOME": os.environ["HOME"]}
    done = subprocess.run(words, input=b"{}", capture_output=True, env=env, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_command_prints_the_same(run_process: Any) -> None:
    assert run_process("statusline").stdout == "anaphora\n"


# ── The installer ─────────────────────────────────────────────────────────────────────────────────


def install(run: Any, *arguments: str, **extra: str) -> Any:
    return run("statusline", "--install", *arguments, **extra)


def test_settings_are_kept(home: Path, run: Any) -> None:
    file = home / ".claude" / "settings.json"
    file.parent.mkdir()
    old = (
        '{"model": "opus", "statusLine": {"type": "command", "command": "old"}, "env": {"A": "ü"}}'
    )
    file.write_text(old)
    file.chmod(0o640)
    done = install(run)
    assert done.returncode == 0, done.stderr
    settings = json.loads(file.read_text())
    assert [*settings] == ["model", "statusLine", "env"]
    assert settings["env"] == {"A": "ü"}
    command = settings["statusLine"].pop("command")
    assert settings["statusLine"] == {"type": "command", "refreshInterval": 30}
    assert file.stat().st_mode & 0o777 == 0o640
    shown = subprocess.run(command, shell=True, input=b"{}", capture_output=True, check=True)
    assert shown.stdout == b"anaphora\n"
    (undo,) = (text for text in done.stdout.splitlines() if text.startswith("To undo it: "))
    assert "already" in install(run).stdout
    assert len([*file.parent.iterdir()]) == 2
    subprocess.run(undo.removeprefix("To undo it: "), shell=True, check=True)
    assert file.read_text() == old


def test_a_missing_file_is_made(home: Path, run: Any, tmp_path: Path) -> None:
    assert install(run, CLAUDE_CONFIG_DIR=str(tmp_path / "other")).returncode == 0
    assert "statusLine" in json.loads((tmp_path / "other" / "settings.json").read_text())
    assert not (home / ".claude").exists()


@pytest.mark.parametrize("content", ["{", "[]", "// comment\n{}", "\0"])
def test_broken_settings_are_refused(home: Path, run: Any, content: str) -> None:
    file = home / ".claude" / "settings.json"
    file.parent.mkdir()
    file.write_text(content)
    done = install(run)
    assert done.returncode == 2
    assert "nothing was changed" in done.stderr
    assert file.read_text() == content
    assert os.listdir(file.parent) == ["settings.json"]


def test_a_link_stays_one(home: Path, run: Any, tmp_path: Path) -> None:
    target = tmp_path / "dotfiles.json"
    target.write_text("{}")
    (home / ".claude").mkdir()
    (home / ".claude" / "settings.json").symlink_to(target)
    assert install(run).returncode == 0
    assert (home / ".claude" / "settings.json").is_symlink()
    assert "statusLine" in json.loads(target.read_text())


def test_a_temporary_environment_is_refused(
    home: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", "/home/u/.cache/uv/archive-v0/x1")
    done = install(run)
    assert done.returncode == 7
    assert "pipx install anaphora" in done.stderr
    assert not (home / ".claude").exists()
