"""`anaphora watch --fix`, and what the summary says about markers."""

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
    assert savings["share"] > 0.3
    assert "Anaphora's markers would have saved $" in shown
    emu.reset()

    placed, shown = watch(run, emu, tmp_path, "--fix")
    # Nothing is marked before a second call shows that the prompt comes back.
    markers = sorted(bool(call["markers"]) for call in emu.requests())
    assert markers == [False, True, True, True]
    assert sum(call["read"] for call in emu.requests()) > 10_000
    assert placed["savings"]["placed"] == 3
    assert "Anaphora's markers saved $" in shown
    assert "3 requests changed: place markers 3" in shown
    predicted = Decimal(savings["with_markers"]["cost_usd"])
    billed = Decimal(placed["savings"]["billed"]["cost_usd"])
    assert abs(predicted - billed) <= billed / 100


def test_changes_are_shown_before_they_are_made(emu: Emulator, run: Run, tmp_path: Path) -> None:
    watch(run, emu, tmp_path, "--fix")
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    kinds = [line["type"] for line in lines]
    assert kinds.count("fix") == 1  # not at each call
    assert kinds.index("fix") < [i for i, kind in enumerate(kinds) if kind == "call"][1]
    (fix,) = (line for line in lines if line["type"] == "fix")
    fields = {"model": "claude-opus-4-8", "kind": "place_markers", "text": "place cache markers"}
    assert fix == {"type": "fix"} | fields
    losses = [line["verdict"] for line in lines if line["type"] == "call" and line["lost"]]
    assert all(verdict["remedy"]["kind"] == "place_markers" for verdict in losses)


def test_requests_without_changes_have_a_reason(emu: Emulator, run: Run, tmp_path: Path) -> None:
    agent = tmp_path / "agent.py"
    agent.write_text(AGENT.replace("range(4)", "range(1)"))
    upstream = ("--upstream", f"anthropic={emu.url}")
    done = run("watch", "--fix", *upstream, "--", sys.executable, str(agent))
    assert done.returncode == 0, done.stderr
    assert "0 requests changed: 1 that no change is expected to make cheaper\n" in done.stderr
    assert "$0" not in done.stderr.replace("$0.", "")


def test_no_changes_without_the_option(emu: Emulator, run: Run, tmp_path: Path) -> None:
    summary, shown = watch(run, emu, tmp_path)
    assert "fix:" not in shown
    assert "--fix places them" in shown
    assert summary["savings"]["placed"] == 0
