"""The SDKs for Node and agent programs as apps of the daemon, which holds the only key.

The programs are those of test_strangers.py; where one cannot be installed, its tests are skipped.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from strangers import programs
from strangers.environment import Unavailable
from strangers.environment import programs as programs_of
from support.daemon import KEY, running_daemon
from support.missing import skip_without
from test_programs_through_proxy import PROGRAMS, Place

from anaphora import emulator
from anaphora.emulator import EmulatorOptions, Script

_FINAL = "The marker is 4711."
GRANT: dict[str, Any] = {
    "capabilities_grant": ["llm_complete", "llm_stream"],
    "llm": {
        "providers": ["anthropic", "openai", "openai-chat", "gemini"],
        "models": ["*"],
        "tools": ["*"],
        "usd_per_day": "unlimited",
        "allow": ["stored_responses", "server_tools", {"fields": ["client_metadata"]}],
    },
}


@pytest.fixture
def folder() -> Iterator[Path]:
    # Some programs are still writing when they have ended.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        yield Path(name)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_through_the_daemon(name: str, folder: Path) -> None:
    program = PROGRAMS[name]
    try:
        programs_of("npm")
    except Unavailable as problem:
        skip_without(problem)
    text = programs.PROGRAMS[program.script].script if program.script else "replies: []\n"
    options = EmulatorOptions(
        script=Script.decode(text, f"the script of {name}"), keys=frozenset({KEY})
    )
    with (
        emulator.running(options) as emu,
        running_daemon(folder, emu, extensions={"demo": GRANT}) as daemon,
    ):
        token = daemon.token()
        keys = dict.fromkeys(
            ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "CODEX_API_KEY"), token
        )
        place = Place(program, folder / "place", "work")
        for turn in range(len(program.turns)):
            done = place.run(turn, url=daemon.url, **keys)
            log = [line for line in daemon.log_lines() if line.get("path")]
            assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{log}"
            assert done.stdout.strip()
            if program.script and not turn:
                assert _FINAL in done.stdout
        assert emu.requests()
    written = [file for file in (folder / "place").rglob("*") if file.is_file()]
    assert not [file for file in written if KEY.encode() in file.read_bytes()]
