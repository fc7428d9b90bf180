"""The session files of a program that resumes its session hold each bill of the emulator once."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.agent_programs import PROGRAMS, ProgramPlace
from support.missing import skip_without
from support.program_checks import bills_of, check_bills, check_run
from support.servers import ServerMissing
from support.websocket_emulator import websocket_emulator


@pytest.fixture
def folder() -> Iterator[Path]:
    # Programs are still writing when they have ended. Codex refuses homes below /tmp.
    with tempfile.TemporaryDirectory(dir=Path.home(), ignore_cleanup_errors=True) as name:
        yield Path(name)


@pytest.mark.soak
@pytest.mark.parametrize("name", PROGRAMS)
def test_bills_of_a_resumed_session(name: str, folder: Path) -> None:
    try:
        there = ProgramPlace(PROGRAMS[name], folder / "home")
    except ServerMissing as missing:
        skip_without(missing)
    with websocket_emulator(there.program.options()) as emu:
        upstream = ("--upstream", f"{there.program.provider}={emu.url}")
        check_run(there.run("watch", *upstream))
        resumed = there.run("watch", *upstream, again=True)
        assert resumed.returncode == 0, resumed.stderr
        billed = bills_of(emu)
        models = {one["model"] for one in emu.requests() if "verdict" in one}
    calls = check_bills(there, billed)
    assert len(calls) >= 4
    assert {one.model for one in calls} == models
