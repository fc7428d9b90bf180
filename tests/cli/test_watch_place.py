"""`anaphora watch --place`, and what the summary says about markers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from anaphora.emulator.server import Emulator

Run: TypeAlias = Callable[..., "subprocess.CompletedProcess[str]"]

KEY = "sk-canary-3Kd8Lp1Zx"

#: An agent that does not mark anything.
AGENT = """
import json, os, urllib.request
address = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"
headers = {"x-api-key": os.environ["ANTHROPIC_API_KEY"], "anthropic-version": "2023-06-01",
           "content-type": "application/json"}
tools = [{"name": "read", "description": "Reads a file.", "input_schema": {"type": "object"}}]
messages = []
for turn in range(4):
    messages.append({"role": "user", "content": f"Question {turn}: " + "what is it? " * 50})
    body = {"model": "claude-opus-4-8", "max_tokens": 20, "tools": tools, "messages": messages,
            "tool_choice": {"type": "none"}, "system": "Be brief. " * 3000}
    data = json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(address, data, headers)) as response:
        reply = json.load(response)
    messages.append({"role": "assistant", "content": reply["content"]})
"""


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.delenv("ANTHROPIC_BASE_URL", raising=False)


def watch(run: Run, emu: Emulator, folder: Path, *options: str) -> tuple[dict[str, Any], str]:
    """The summary as JSON, and standard error."""
    agent, log = folder / "agent.py", folder / "log.jsonl"
    agent.write_text(AGENT)
    log.unlink(missing_ok=True)
    upstream = ("--upstream", f"anthropic={emu.url}", "--json", "--log", str(log))
    done = run("watch", *options, *upstream, "--", sys.executable, str(agent))
    assert done.returncode == 0, done.stderr
    assert KEY not in done.stderr + log.read_text()
    summary: dict[str, Any] = json.loads(log.read_text().splitlines()[-1])
    return summary, done.stderr


def test_summary_says_what_our_markers_would_have_cost(
    emu: Emulator, run: Run, tmp_path: Path
) -> None:
    without, shown = watch(run, emu, tmp_path)
    assert [call["markers"] for call in emu.requests()] == [[]] * 4
    savings = without["savings"]
    assert (savings["calls"], savings["placed"]) == (4, 0)
    assert savings["share"] > 0.5
    assert "Anaphora's markers would have saved $" in shown
    emu.reset()

    placed, shown = watch(run, emu, tmp_path, "--place")
    assert all(call["markers"] for call in emu.requests())
    assert sum(call["read"] for call in emu.requests()) > 20_000
    assert placed["savings"]["placed"] == 4
    assert "Anaphora's markers saved $" in shown
    predicted = Decimal(savings["with_markers"]["cost_usd"])
    billed = Decimal(placed["savings"]["billed"]["cost_usd"])
    assert abs(predicted - billed) <= billed / 100
