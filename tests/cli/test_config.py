"""`anaphora serve --check`: validation of llm.yaml, its providers, and missing keys; `config schema`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, TypeAlias

import msgspec
import pytest
from click.testing import CliRunner

from anaphora.cli.config import command
from anaphora.daemon.home.config import schema

Check: TypeAlias = Callable[..., "CompletedProcess[str]"]

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
def file(tmp_path: Path, run: Any) -> Path:
    assert run("init", str(tmp_path / "home")).returncode == 0
    home = tmp_path / "home"
    secret = home / "secrets" / "DEEPSEEK.txt"
    secret.write_text(CANARY)
    secret.chmod(0o600)
    (home / "extensions.yaml").write_text("")
    (home / "llm.yaml").write_text(TEXT)
    return home / "llm.yaml"


@pytest.fixture
def checked(run: Any) -> Check:
    def checked(file: Path, **environ: str) -> CompletedProcess[str]:
        home = str(file.parent)
        words = ("serve", "--check", "--allow-env-keys", "--home", home)
        done: CompletedProcess[str] = run(*words, **environ)
        assert CANARY not in done.stdout + done.stderr
        return done

    return checked


def test_valid_file(file: Path, checked: Check) -> None:
    done = checked(file, CLAUDE_FOR_THIS_TEST=CANARY)
    assert (done.returncode, done.stderr) == (0, "")
    assert [" ".join(line.split()) for line in done.stdout.splitlines()] == [
        "provider wire address key model",
        "claude anthropic https://api.anthropic.com from $CLAUDE_FOR_THIS_TEST claude-sonnet-4-5",
        "deepseek deepseek/openai_chat https://api.deepseek.com from secrets/DEEPSEEK.txt",
        "here openai_chat http://localhost:8080 none",
        "route main: claude ×3, deepseek/deepseek-v4-pro ×1, then here",
        "apps: none",
        "ok",
    ]


def test_missing_key(file: Path, checked: Check) -> None:
    done = checked(file)
    assert (done.returncode, done.stdout) == (7, "")
    assert done.stderr == (
        f"anaphora: {file}:5: providers.claude.key:"
        " the environment variable $CLAUDE_FOR_THIS_TEST is not set\n"
    )
    (file.parent / "secrets" / "DEEPSEEK.txt").unlink()
    done = checked(file, CLAUDE_FOR_THIS_TEST=CANARY)
    assert (done.returncode, done.stdout) == (7, "")
    assert done.stderr.startswith(f"anaphora: {file}:9: providers.deepseek.key: there is no file ")


def test_token_in_a_url_is_not_printed(file: Path, checked: Check) -> None:
    file.write_text(TEXT.replace("localhost:8080", f"localhost:8080/{CANARY}/openai"))
    done = checked(file, CLAUDE_FOR_THIS_TEST=CANARY)
    assert done.returncode == 0, done.stderr
    assert "http://localhost:8080/…/openai" in done.stdout


@pytest.mark.parametrize("field", ["key: KEY", "key: {env: KEY}", "model: KEY", "KEY: x"])
def test_misplaced_key_is_not_printed(file: Path, checked: Check, field: str) -> None:
    key = f"{CANARY}-0123456789"
    file.write_text(f"providers:\n  a:\n    wire: anthropic\n    {field.replace('KEY', key)}\n")
    done = checked(file)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"anaphora: {file}:4: providers.a")


def test_invalid_file(file: Path, checked: Check) -> None:
    file.write_text(TEXT.replace("model:", "modle:", 1))
    done = checked(file)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(
        f"anaphora: {file}:6: providers.claude: unknown field 'modle'; did you mean model?"
    )
    file.write_text(TEXT.replace("dialect: deepseek", "dialect: depseek"))
    assert checked(file).returncode == 2
    file.write_text(f"{TEXT}daemon: {{prot: 1}}\n")
    assert "daemon: unknown field 'prot'" in checked(file).stderr


def test_schema() -> None:
    run = CliRunner().invoke(command, ["schema"])
    assert run.exit_code == 0
    assert json.loads(run.stdout) == json.loads(msgspec.json.encode(schema()))


def test_credentials_of_a_cloud_are_named(file: Path, checked: Check) -> None:
    file.write_text(
        "providers:\n"
        "  a: {dialect: azure, account: {resource: r}, credentials: {azure: {client_id: mine}}}\n"
        "  v: {dialect: vertex, account: {project: p}, credentials: {ambient: true}}\n"
    )
    done = checked(file)
    assert done.returncode == 0, done.stderr
    assert "azure: client_id mine" in done.stdout
    assert "google: ambient" in done.stdout
