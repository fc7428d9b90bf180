"""`anaphora config`: validation of llm.yaml, and missing keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from anaphora.cli.config import command
from anaphora.daemon.home.config import schema

CANARY = "sk-canary-8d2e"
TEXT = """
providers:
  claude:
    wire: anthropic
    key: {env: CLAUDE_FOR_THIS_TEST}
    model: claude-sonnet-4-5
  deepseek:
    dialect: deepseek
    key: {secret: DEEPSEEK}
  here:
    wire: openai_chat
    base_url: http://localhost:8080
routes:
  main:
    - {provider: claude, weight: 3}
    - {provider: deepseek, model: deepseek-v4-pro, weight: 1}
    - {provider: here}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "secrets").mkdir()
    secret = tmp_path / "secrets" / "DEEPSEEK.txt"
    secret.write_text(CANARY)
    secret.chmod(0o600)
    (tmp_path / "llm.yaml").write_text(TEXT)
    return tmp_path / "llm.yaml"


def checked(file: Path, *options: str, **environ: str | None) -> Result:
    run = CliRunner().invoke(command, ["check", str(file), *options], env=environ)
    assert CANARY not in run.output
    return run


def test_valid_file(file: Path) -> None:
    run = checked(file, CLAUDE_FOR_THIS_TEST=CANARY)
    assert (run.exit_code, run.stderr) == (0, "")
    assert [" ".join(line.split()) for line in run.stdout.splitlines()] == [
        "provider wire address key model",
        "claude anthropic https://api.anthropic.com from $CLAUDE_FOR_THIS_TEST (set) claude-sonnet-4-5",
        "deepseek deepseek/openai_chat https://api.deepseek.com from secrets/DEEPSEEK.txt (found)",
        "here openai_chat http://localhost:8080 none",
        "route main: claude ×3, deepseek/deepseek-v4-pro ×1, then here",
        "ok",
    ]


def test_missing_key(file: Path) -> None:
    (file.parent / "secrets" / "DEEPSEEK.txt").unlink()
    run = checked(file, CLAUDE_FOR_THIS_TEST=None)
    assert run.exit_code == 7
    assert "from $CLAUDE_FOR_THIS_TEST (missing)" in run.stdout
    assert "ok" not in run.stdout.splitlines()
    first, second = run.stderr.splitlines()
    assert first == (
        f"anaphora: {file}:5: providers.claude.key:"
        " the environment variable $CLAUDE_FOR_THIS_TEST is not set"
    )
    assert second.startswith(f"anaphora: {file}:9: providers.deepseek.key: there is no file ")


def test_readable_secret_file_is_reported(file: Path) -> None:
    (file.parent / "secrets" / "DEEPSEEK.txt").chmod(0o644)
    run = checked(file, CLAUDE_FOR_THIS_TEST=CANARY)
    assert run.exit_code == 0
    assert "note: providers.deepseek.key: " in run.stdout


def test_json_output(file: Path) -> None:
    report = json.loads(checked(file, "--json", CLAUDE_FOR_THIS_TEST=CANARY).stdout)
    assert report["ok"] is True
    assert report["missing"] == []
    assert report["providers"][0] == {
        "id": "claude",
        "wire": "anthropic",
        "base_url": "https://api.anthropic.com",
        "auth_header": "x-api-key",
        "key": {"from": "$CLAUDE_FOR_THIS_TEST", "found": True},
        "model": "claude-sonnet-4-5",
        "notices": [],
    }
    assert report["providers"][2]["key"] is None
    assert report["routes"]["main"][0] == {"provider": "claude", "model": None, "weight": 3.0}
    run = checked(file, "--json", CLAUDE_FOR_THIS_TEST=None)
    report = json.loads(run.stdout)
    assert (run.exit_code, report["ok"], report["providers"][0]["key"]["found"]) == (
        7,
        False,
        False,
    )


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_token_in_a_url_is_not_printed(file: Path, options: tuple[str, ...]) -> None:
    file.write_text(TEXT.replace("localhost:8080", f"localhost:8080/{CANARY}/openai"))
    run = checked(file, *options, CLAUDE_FOR_THIS_TEST=CANARY)
    assert run.exit_code == 0
    assert "http://localhost:8080/…/openai" in run.stdout


@pytest.mark.parametrize("field", ["key: KEY", "key: {env: KEY}", "model: KEY", "KEY: x"])
def test_misplaced_key_is_not_printed(file: Path, run: Any, field: str) -> None:
    key = f"{CANARY}-0123456789"
    file.write_text(f"providers:\n  a:\n    wire: anthropic\n    {field.replace('KEY', key)}\n")
    done = run("config", "check", str(file))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"anaphora: {file}:4: providers.a")
    assert CANARY not in done.stderr


def test_invalid_file(file: Path, run: Any) -> None:
    file.write_text(TEXT.replace("model:", "modle:", 1))
    done = run("config", "check", str(file))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(
        f"anaphora: {file}:6: providers.claude: unknown field 'modle'; did you mean model?"
    )
    file.write_text(TEXT.replace("dialect: deepseek", "dialect: depseek"))
    assert run("config", "check", str(file)).returncode == 2


def test_missing_file(run: Any, tmp_path: Path) -> None:
    done = run("config", "check", str(tmp_path / "llm.yaml"))
    assert done.returncode == 2
    assert "does not exist" in done.stderr


def test_daemon_section_is_checked(file: Path) -> None:
    file.write_text(f"{TEXT}daemon: {{prot: 1}}\n")
    run = checked(file, CLAUDE_FOR_THIS_TEST=CANARY)
    assert run.exit_code == 1
    assert "daemon: unknown field 'prot'" in str(run.exception)


def test_schema() -> None:
    run = CliRunner().invoke(command, ["schema"])
    assert run.exit_code == 0
    assert json.loads(run.stdout) == json.loads(msgspec.json.encode(schema()))


def test_credentials_of_a_cloud_are_named(tmp_path: Path) -> None:
    file = tmp_path / "llm.yaml"
    file.write_text(
        "providers:\n"
        "  a: {dialect: azure, account: {resource: r}, credentials: {azure: {client_id: mine}}}\n"
        "  v: {dialect: vertex, account: {project: p}}\n"
    )
    shown = CliRunner().invoke(command, ["check", str(file)])
    assert shown.exit_code == 0, shown.output
    assert "azure: client_id mine" in shown.output
    assert "google: ambient" in shown.output
