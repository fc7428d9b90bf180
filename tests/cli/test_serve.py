"""`anaphora serve`: --check and its exit codes, --emulate as a newcomer starts it."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from support.daemon import KEY, NO_TLS, create_home
from support.waiting import PATIENCE

from anaphora.cli.main import main
from anaphora.emulator.server import Emulator

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def home(tmp_path: Path, emu: Emulator) -> Path:
    create_home(tmp_path / "home", emu)
    return tmp_path / "home"


def change(file: Path, edit: Callable[[Any], Any]) -> None:
    content = msgspec.json.decode(file.read_bytes())
    edit(content)
    file.write_bytes(msgspec.json.encode(content))


def test_check_of_a_valid_home(home: Path, run: Run) -> None:
    done = run("serve", "--home", str(home), "--check")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("apps: demo\nok\n")
    assert not (home / "daemon.lock").exists()


def test_check_finds_a_missing_key(home: Path, run: Run) -> None:
    (home / "secrets/PROVIDER_KEY.txt").unlink()
    done = run("serve", "--home", str(home), "--check")
    assert done.returncode == 7
    assert f"anaphora secrets set PROVIDER_KEY --home {home}" in done.stderr
    assert "PROVIDER_KEY.txt" in done.stderr


def test_check_says_how_to_repair_the_mode_of_a_key(home: Path, run: Run) -> None:
    secret = home / "secrets/PROVIDER_KEY.txt"
    secret.chmod(0o644)
    done = run("serve", "--home", str(home), "--check")
    assert done.returncode == 7
    assert done.stderr.endswith(f"has mode 0644, and must have 0600; run chmod 600 {secret}\n")


def test_check_warns_of_apps_that_can_make_no_calls(home: Path, run: Run) -> None:
    """D11: without a token, or with models that none of their providers has."""
    provider = {"wire": "anthropic", "key": {"secret": "PROVIDER_KEY"}}
    change(home / "llm.yaml", lambda config: config["providers"].update(claude=provider))
    llm = {"providers": ["claude"], "models": ["gpt-*", "claude-*"], "usd_per_day": 1}
    grant = {"capabilities_grant": ["llm_complete"], "llm": llm}
    change(home / "extensions.yaml", lambda apps: apps.update(new=grant))
    done = run("serve", "--home", str(home), "--check", COLUMNS="1000")
    lines = done.stdout.splitlines()
    no_token, no_model = [line for line in lines if line.startswith("warning: ")]
    assert no_token.endswith("new: has no token; create one with: anaphora apps add new")
    assert no_model.endswith("new: llm.models[0] matches no known model of its providers")


def _no_price(config: Any) -> None:
    del config["providers"]["ollama"]["prices"]


@pytest.mark.parametrize(
    "file, edit, expected",
    [
        ("llm.yaml", lambda config: config["daemon"].update(host="0.0.0.0"), "host: 0.0.0.0"),
        ("llm.yaml", lambda config: config["daemon"].update(prot=1), "prot"),
        ("llm.yaml", _no_price, "no price is known for qwen3:0.6b at ollama"),
        ("extensions.yaml", lambda apps: apps["demo"].update(grant=1), "grant"),
        ("extensions.yaml", lambda apps: apps["demo"]["llm"].pop("usd_per_day"), "usd_per_day"),
    ],
)
def test_check_finds_what_is_invalid(
    home: Path, run: Run, file: str, edit: Callable[[Any], Any], expected: str
) -> None:
    change(home / file, edit)
    done = run("serve", "--home", str(home), "--check")
    assert done.returncode == 2
    assert expected in done.stderr
    assert KEY not in done.stderr


@pytest.mark.parametrize(
    "file, content, expected",
    [
        ("tokens.key", None, "tokens.key: restore it from a backup"),
        ("tokens.key", "x", "tokens.key is damaged"),
        ("store.sqlite", "not a database" * 100, "store.sqlite: cannot be opened"),
    ],
)
def test_check_finds_what_serve_cannot_start_with(
    home: Path, run: Run, file: str, content: str | None, expected: str
) -> None:
    (home / file).unlink(missing_ok=True)
    if content is not None:
        (home / file).write_text(content)
        (home / file).chmod(0o600)
    done = run("serve", "--home", str(home), "--check")
    assert done.returncode == 2
    assert expected in done.stderr
    assert "ok" not in done.stdout


def test_check_of_an_empty_store(home: Path, run: Run) -> None:
    (home / "store.sqlite").write_bytes(b"")
    done = run("serve", "--home", str(home), "--check")
    assert (done.returncode, done.stderr) == (0, "")


def test_folder_that_is_no_home_is_named(tmp_path: Path, run: Run) -> None:
    done = run("serve", "--home", str(tmp_path))
    assert done.returncode == 2
    assert f"anaphora init {tmp_path}" in done.stderr


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """With room for the path of a socket below it."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.mark.long
def test_emulate_needs_nothing_and_stops_on_sigterm(short_folder: Path) -> None:
    """The printed curl line works as it is."""
    source = Path(sys.modules[main.__module__].__file__ or "").parents[2]
    process = subprocess.Popen(
        [sys.executable, "-m", "anaphora", "serve", "--emulate", "--port", "0"],
        cwd=short_folder,
        env={"PYTHONPATH": str(source), "PATH": os.environ["PATH"], "TMPDIR": str(short_folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stderr is not None
        text = ""
        while not text.endswith("}]}'\n"):
            line = process.stderr.readline()
            assert line, text
            text += line
        dashboard = re.search(
            r"^dashboard: (\S+/ui); for a token to log in: anaphora admin", text, re.M
        )
        assert dashboard is not None, text
        assert "Log in" in httpx.get(dashboard[1], verify=NO_TLS, follow_redirects=True).text
        words = shlex.split(text[text.index("curl ") :].replace("\\\n", ""))
        headers = dict(words[at + 1].split(": ") for at, word in enumerate(words) if word == "-H")
        body = words[words.index("-d") + 1]
        answer = httpx.post(words[1], headers=headers, content=body, verify=NO_TLS)
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["output_tokens"] > 0
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGINT)
        log, rest = process.communicate(timeout=PATIENCE)
    assert (process.returncode, rest) == (0, "")
    messages = [json.loads(line)["message"] for line in log.splitlines()]
    assert {"request", "reloaded", "stopping when running calls have ended"} <= set(messages)
    token = re.search(r"ana_\S+", text)
    assert token is not None
    assert token[0] not in log
    assert list(short_folder.iterdir()) == []
