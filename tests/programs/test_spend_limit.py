"""Claude Code and Codex at the limit of `anaphora watch --max-usd`."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.agent_programs import PROGRAMS, ProgramPlace
from support.missing import skip_without
from support.servers import ServerMissing
from support.websocket_emulator import websocket_emulator


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=Path.home(), ignore_cleanup_errors=True) as name:
        yield Path(name)


@pytest.mark.parametrize("name", ["claude", pytest.param("codex", marks=pytest.mark.soak)])
def test_an_agent_is_stopped_at_the_limit(name: str, folder: Path) -> None:
    """Codex would use a WebSocket, which is not counted: it gets a 426, and uses HTTP."""
    try:
        there = ProgramPlace(PROGRAMS[name], folder / "home", "work")
    except ServerMissing as missing:
        skip_without(missing)
    log = folder / "calls.jsonl"
    with websocket_emulator(there.program.options()) as emu:
        upstream = ("--upstream", f"{there.program.provider}={emu.url}")
        options = ("--json", "--log", str(log), "--max-usd", "0.001", *upstream)
        done = there.run("watch", *options)
        billed = [each for each in emu.requests() if each.get("cost_usd")]
    assert "stopped by anaphora watch at its limit of $0.0010" in done.stdout + done.stderr
    assert "calls refused" in done.stderr or "call refused" in done.stderr
    calls = [json.loads(line) for line in log.read_text().splitlines()]
    refused = [call for call in calls if call.get("kind") == "refused"]
    assert refused
    assert all(call["status"] == 402 for call in refused)
    assert 1 <= len(billed) <= 3, "calls that were in flight together"
