"""`anaphora watch --max-usd`: real programs are stopped at a limit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest
from support.emulated_client import AT_ONCE
from support.waiting import PATIENCE

from anaphora.emulator import EmulatorOptions, running
from anaphora.emulator.server import Emulator

AGENT = """
import anthropic, openai

claude, gpt = anthropic.Anthropic(), openai.OpenAI()

def ask(question):
    claude.messages.create(
        model="claude-opus-5-5", max_tokens=300, messages=[{"role": "user", "content": question}]
    )

for question in ("Rome?", "Oslo?"):
    ask(question)
gpt.chat.completions.create(model="gpt-5.2", messages=[{"role": "user", "content": "Bern?"}])
print("three answers")
try:
    for number in range(1000):
        ask(f"What is {number}?")
except anthropic.APIStatusError as error:
    print(error.status_code, error.body["error"]["message"])
try:
    gpt.responses.create(model="gpt-5.2", input="Hello")
except openai.APIStatusError as error:
    print(error.status_code, error.message)
"""


@pytest.fixture(scope="module")
def emu() -> Iterator[Emulator]:
    with running(EmulatorOptions(latency=AT_ONCE)) as emulator:
        yield emulator


def watch(emu: Emulator, *words: str) -> subprocess.CompletedProcess[str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    keys = {"ANTHROPIC_API_KEY": "any", "OPENAI_API_KEY": "any"}
    upstreams = ("--upstream", f"anthropic={emu.url}", "--upstream", f"openai={emu.url}/v1")
    return subprocess.run(
        [sys.executable, "-m", "anaphora", "watch", *upstreams, *words],
        env=kept | keys,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@pytest.mark.long
def test_a_program_is_stopped_and_reads_why(emu: Emulator, tmp_path: Path) -> None:
    agent, log = tmp_path / "agent.py", tmp_path / "calls.jsonl"
    agent.write_text(AGENT)
    words = ("--json", "--log", str(log), "--max-usd", "0.05", "--", sys.executable, str(agent))
    done = watch(emu, *words)
    assert done.returncode == 0, done.stderr
    first, claude, gpt = done.stdout.splitlines()
    assert first == "three answers"
    why = "stopped by anaphora watch at its limit of $0.0500 (--max-usd): it is used up, with $0.05"
    assert claude.startswith(f"402 {why}")
    assert gpt.startswith("402 ")
    assert why in gpt
    *calls, summary = [json.loads(line) for line in log.read_text().splitlines()[1:]]
    refused = [call for call in calls if call["kind"] == "refused"]
    assert len(refused) == 2, "neither SDK tries again"
    assert all(why in call["reason"] for call in refused)
    spent = sum(Decimal(each["cost_usd"]) for each in emu.requests() if each.get("cost_usd"))
    assert Decimal(summary["spent_usd"]) == spent >= Decimal("0.05")
    sent = len(calls) - 2
    assert f"limit of $0.0500: ${spent:.4f} spent in {sent} calls, 2 calls refused" in done.stderr


@pytest.mark.parametrize(
    ("words", "reason"),
    [(("--max-usd", "a lot"), "'a lot' is not an amount in dollars, such as 0.50")],
)
def test_invalid_options_are_named(emu: Emulator, words: tuple[str, ...], reason: str) -> None:
    done = watch(emu, *words, "--", "true")
    assert done.returncode == 2
    assert reason in done.stderr
