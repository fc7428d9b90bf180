"""The commands and the file of docs/guides/replay-offline.md; its programs run in tests/test_docs.py."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from anaphora import emulator
from anaphora.cli.main import main
from anaphora.replay.rules import ReplaySettings

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "replay-offline.md"


def fenced(language: str) -> list[str]:
    found = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return [str(each) for each in found]


@pytest.mark.long
def test_the_commands_record_and_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "agent.py").write_text(fenced("python")[-1])
    commands = next(text for text in fenced("text") if text.startswith("anaphora")).splitlines()
    monkeypatch.chdir(tmp_path)
    outputs = []

    def run(command: str) -> None:
        words = [sys.executable if word == "python" else word for word in shlex.split(command)[1:]]
        code = main(words)
        out, err = capfd.readouterr()
        assert code == 0, err
        outputs.append(out)

    with emulator.running() as emu, monkeypatch.context() as patch:
        patch.setenv("ANTHROPIC_API_KEY", "any")
        patch.setenv("ANTHROPIC_BASE_URL", emu.url)
        run(commands[0])
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    for command in commands[1:]:
        run(command)
    assert outputs[0] == outputs[1] != ""


def test_the_rules_are_valid() -> None:
    (text,) = fenced("toml")
    settings = ReplaySettings.decode(text)
    assert (len(settings.rule), len(settings.redact)) == (2, 1)
