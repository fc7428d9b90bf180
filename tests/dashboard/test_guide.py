"""The commands of docs/dashboard.md work as written."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.daemon import create_home
from support.dashboard_data import fill_log, varied_calls

from anaphora.cli.main import main
from anaphora.emulator.server import Emulator

PAGE = Path(__file__).parents[2] / "docs" / "dashboard.md"
COMMANDS = [
    line.removeprefix("$ ")
    for line in PAGE.read_text().splitlines()
    if line.startswith("$ anaphora ")
]
#: Runs until it is interrupted: tests/emulator/test_server.py starts it.
SERVERS = {"anaphora emulate --port 8787"}


@pytest.fixture(scope="module")
def home(running_emulator: Emulator, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A daemon's home with calls, and a program that calls no model."""
    folder = tmp_path_factory.mktemp("guide") / "home"
    create_home(folder, running_emulator)
    fill_log(folder / "audit", varied_calls(time.time(), 3))
    (folder / "agent.py").write_text("print('done')\n")
    return folder


@pytest.mark.parametrize("command", [each for each in COMMANDS if each not in SERVERS])
@pytest.mark.long
def test_command(command: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    words = shlex.split(command.replace("/srv/anaphora", str(home)))[1:]
    if words[0] == "serve":
        words.append("--check")
    if words[0] == "watch":  # it starts another program, and answers signals
        words = [sys.executable if word == "python" else word for word in words]
        subprocess.run([sys.executable, "-m", "anaphora", *words], capture_output=True, check=True)
    else:
        assert main(words) == 0
    if "--html" in words:
        page = (home / words[words.index("--html") + 1]).read_text()
        assert re.match("<!doctype html>", page)
        assert "<script" not in page


def test_every_kind_of_report_is_shown() -> None:
    reports = [shlex.split(each)[1] for each in COMMANDS if "--html" in each]
    assert reports == ["spend", "audit", "watch"]
    assert set(COMMANDS) > SERVERS
