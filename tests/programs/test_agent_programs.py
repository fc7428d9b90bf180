"""Claude Code and Codex through `watch`, `record`, `replay` in another folder, and the daemon."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.agent_programs import PROGRAMS, ProgramPlace
from support.missing import skip_without
from support.program_checks import check_daemon, check_replayed, check_watched
from support.servers import ServerMissing


@pytest.fixture
def folder() -> Iterator[Path]:
    # Programs are still writing when they have ended. Codex refuses homes below /tmp.
    with tempfile.TemporaryDirectory(dir=Path.home(), ignore_cleanup_errors=True) as name:
        yield Path(name)


def place(name: str, root: Path, work: str = "work") -> ProgramPlace:
    try:
        return ProgramPlace(PROGRAMS[name], root, work)
    except ServerMissing as missing:
        skip_without(missing)


@pytest.mark.parametrize(
    ("name", "websockets"), [("claude", False), ("codex", True), ("codex", False)]
)
def test_watched(name: str, websockets: bool, folder: Path) -> None:
    # Codex reports the 426, and uses HTTP.
    expected = ["responses_websocket"] if name == "codex" and not websockets else []
    there = place(name, folder / "home")
    check_watched(there, folder, websockets=websockets, expected=expected)


@pytest.mark.parametrize("name", PROGRAMS)
def test_recorded_and_replayed_in_another_folder(name: str, folder: Path) -> None:
    there = place(name, folder / "recorded")
    elsewhere = place(name, folder / "elsewhere" / "far away", "another project")
    check_replayed(there, elsewhere, folder)


@pytest.mark.parametrize("name", PROGRAMS)
def test_through_the_daemon(name: str, folder: Path) -> None:
    check_daemon(place(name, folder / "place"), folder)
