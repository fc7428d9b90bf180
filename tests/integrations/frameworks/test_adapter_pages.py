"""The pages on pydantic-ai, inspect_ai and DSPy, run as written against the emulator."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.framework_pages import fences, installed_path

from anaphora import emulator
from anaphora.emulator import EmulatorOptions, Latency, Script
from anaphora.emulator.server import Emulator

#: The line that each page adds to a program.
LINES = {
    "pydantic_ai": "AnaphoraModel(",
    "inspect_ai": "anaphora/claude-sonnet-5-5",
    "dspy": "AnaphoraLM(",
}

#: DSPy 3.1 asks for JSON in the prompt alone, which the emulator does not read.
SCRIPT = """
replies:
  - match: {text: "[[ ## question ## ]]"}
    reply: {text: '{"answer": "Yes."}'}
"""


@pytest.fixture
def emu() -> Iterator[Emulator]:
    options = EmulatorOptions(latency=Latency(first=0.0), script=Script.decode(SCRIPT, "test"))
    with emulator.running(options) as running:
        yield running


@pytest.mark.parametrize("framework", LINES)
def test_the_first_screen_shows_the_added_line(framework: str) -> None:
    language = "text" if framework == "inspect_ai" else "python"
    page = f"{framework.replace('_', '-')}.md"
    assert LINES[framework] in fences(page, language)[0]


@pytest.mark.parametrize("framework", LINES)
def test_the_page_runs_as_one_program(
    framework: str, emu: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(framework)
    if framework == "pydantic_ai":
        pytest.importorskip("openai")  # of the smaller way
    monkeypatch.setenv("ANTHROPIC_API_KEY", "any")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", emu.url)
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    monkeypatch.setenv("OPENAI_BASE_URL", f"{emu.url}/v1")
    monkeypatch.setenv("PYTHONPATH", installed_path(tmp_path))
    program = tmp_path / "page.py"
    program.write_text("\n".join(fences(f"{framework.replace('_', '-')}.md", "python")))
    command = [sys.executable, str(program)]
    done = subprocess.run(
        command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    billed = [entry for entry in emu.requests() if "read" in entry]
    if framework != "pydantic_ai":
        assert len(billed) >= 20
        paid = [max(sum(e["written"].values()), e["uncached"]) > 1000 for e in billed]
        assert sum(paid) <= 2
