"""The commands and the file of docs/guides/replay-offline.md; its programs run in tests/test_docs.py."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from anaphora import emulator
from anaphora.replay.rules import ReplaySettings

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "replay-offline.md"


def fenced(language: str) -> list[str]:
    found = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return [str(each) for each in found]


def test_the_commands_record_and_replay(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(fenced("python")[-1])
    commands = next(text for text in fenced("text") if text.startswith("anaphora")).splitlines()
    kept = {"PATH", "HOME", "PYTHONPATH", "LANG"}
    environ = {name: value for name, value in os.environ.items() if name in kept}
    outputs = []

    def run(command: str, **variables: str) -> None:
        words = [sys.executable if word == "python" else word for word in shlex.split(command)[1:]]
        done = subprocess.run(
            [sys.executable, "-m", "anaphora", *words],
            cwd=tmp_path,
            env=environ | variables,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)

    with emulator.running() as emu:
        run(commands[0], ANTHROPIC_API_KEY="any", ANTHROPIC_BASE_URL=emu.url)
    for command in commands[1:]:
        run(command)
    assert outputs[0] == outputs[1] != ""


def test_the_rules_are_valid() -> None:
    (text,) = fenced("toml")
    settings = ReplaySettings.decode(text)
    assert (len(settings.rule), len(settings.redact)) == (2, 1)
