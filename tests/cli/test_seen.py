"""The index of beginnings as `ask`, `map` and `watch --fix` use it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from anaphora.emulator.server import Emulator

from .conftest import Run

SYSTEM = "Look before you leap, and say what you saw. " * 400


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, emu: Emulator) -> Path:
    monkeypatch.delenv("ANAPHORA_REMEMBER")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for variable in ("OPENAI_API_KEY", "GEMINI_API_KEY", "ANAPHORA_CONFIG"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", emu.url)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache" / "anaphora" / "seen.sqlite"


def ask(run: Run, question: str, *options: str, **extra: str) -> None:
    model = ("-m", "anthropic/claude-sonnet-4-5")
    done = run("ask", *model, "-s", SYSTEM, "-q", *options, question, **extra)
    assert done.returncode == 0, done.stderr


def test_ask_learns_that_its_questions_are_not_continued(
    run: Run, emu: Emulator, cache: Path
) -> None:
    for question in ("One?", "Two?", "Three?"):
        ask(run, question)
    first, second, third = reversed([call for call in emu.requests() if "read" in call])
    assert first["written"]
    assert first["uncached"] == 0
    # From then on only the system prompt is marked, which comes back.
    for call in (second, third):
        assert call["read"]
        assert call["uncached"] > 0
        assert not call["written"]
    assert cache.exists()


def test_map_of_one_line_marks_what_the_next_one_reads(run: Run, emu: Emulator) -> None:
    Path("system.txt").write_text(SYSTEM)
    for number in range(3):
        Path(f"{number}.jsonl").write_text(json.dumps({"prompt": f"Question {number}?"}) + "\n")
        model = ("-m", "anthropic/claude-sonnet-4-5")
        done = run("map", f"{number}.jsonl", *model, "--system-file", "system.txt")
        assert done.returncode == 0, done.stderr
    calls = [call for call in reversed(emu.requests()) if "read" in call]
    assert [bool(call["written"]) for call in calls] == [False, True, False]
    assert calls[-1]["read"]


def test_a_preview_shows_the_markers_that_are_sent(run: Run, emu: Emulator, cache: Path) -> None:
    def previewed(**extra: str) -> list[str]:
        model = ("-m", "anthropic/claude-sonnet-4-5", "-s", SYSTEM)
        done = run("ask", *model, "--preview", "--json", "Three?", **extra)
        assert done.returncode == 0, done.stderr
        markers: list[str] = json.loads(done.stdout)["markers"]
        return markers

    assert len(previewed()) == 2
    assert not cache.exists()
    ask(run, "One?")
    ask(run, "Two?")
    assert previewed() == ["system[0] 5m"]
    assert previewed(ANAPHORA_REMEMBER="0") != ["system[0] 5m"]


AGENT = """
import json, os, sys, urllib.request
address = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"
headers = {"x-api-key": "k", "anthropic-version": "2023-06-01", "content-type": "application/json"}
body = {"model": "claude-sonnet-4-5", "max_tokens": 9, "system": sys.argv[1],
        "messages": [{"role": "user", "content": sys.argv[2]}]}
urllib.request.urlopen(urllib.request.Request(address, json.dumps(body).encode(), headers)).read()
"""


def test_watch_marks_what_earlier_runs_began_with(run: Run, emu: Emulator) -> None:
    for question, extra in (("1?", {}), ("2?", {}), ("3?", {}), ("4?", {"ANAPHORA_REMEMBER": "0"})):
        command = (sys.executable, "-c", AGENT, SYSTEM, question)
        upstream = ("--upstream", f"anthropic={emu.url}")
        done = run("watch", "--fix", *upstream, "--", *command, **extra)
        assert done.returncode == 0, done.stderr
    calls = [call for call in reversed(emu.requests()) if "read" in call]
    found = ["read" if each["read"] else "written" if each["written"] else "-" for each in calls]
    assert found == ["-", "written", "read", "-"]


def test_the_variable_keeps_commands_from_it(run: Run, cache: Path) -> None:
    ask(run, "One?", ANAPHORA_REMEMBER="0")
    assert not cache.exists()


def test_the_emulator_has_nothing_to_remember(run: Run, cache: Path) -> None:
    done = run("ask", "--emulate", "-s", SYSTEM, "One?")
    assert done.returncode == 0, done.stderr
    assert not cache.exists()
