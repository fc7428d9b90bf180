"""Claude Code and Codex through `watch`, `record`, `replay` in another folder, and the daemon."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import skip_without
from support.agent_programs import FINAL, KEY, PROGRAMS, ProgramPlace
from support.daemon import KEY as DAEMON_KEY
from support.daemon import running_daemon
from support.servers import ServerMissing
from support.waiting import PATIENCE

from anaphora import emulator

Json = dict[str, Any]


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


def loop_of(calls: list[Json]) -> list[Json]:
    """The calls of the conversation in which the tool is called."""
    judged = [call for call in calls if call["kind"] == "judged"]
    numbers = [call["conversation"] for call in judged]
    longest = max(set(numbers), key=numbers.count)
    return [call for call in judged if call["conversation"] == longest]


def errors_in(text: str) -> list[str]:
    """Lines that report an error."""
    return [line for line in text.splitlines() if "error" in line.lower()]


@pytest.mark.parametrize(
    ("name", "websockets"), [("claude", False), ("codex", True), ("codex", False)]
)
def test_watched(name: str, websockets: bool, folder: Path) -> None:
    there, log = place(name, folder / "home"), folder / "calls.jsonl"
    with emulator.running(there.program.options(websockets=websockets)) as emu:
        upstream = ("--upstream", f"{there.program.provider}={emu.url}")
        done = there.run("watch", "--json", "--log", str(log), *upstream)
    assert done.returncode == 0, done.stdout + done.stderr
    assert FINAL in done.stdout
    found = errors_in(done.stderr)
    if name == "codex" and not websockets:  # it reports the 426, and uses HTTP
        found = [line for line in found if "responses_websocket" not in line]
    assert found == []
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    calls = loop_of([line for line in lines if line["type"] == "call"])
    assert len(calls) == 3
    assert all(call["usage"]["read"] > 1000 for call in calls[1:])
    assert all(call["verdict"]["result"] == "hit" for call in calls[1:])
    assert KEY not in log.read_text() + done.stderr


@pytest.mark.parametrize("name", PROGRAMS)
def test_recorded_and_replayed_in_another_folder(name: str, folder: Path) -> None:
    made = str(folder / "recordings")
    there = place(name, folder / "recorded")
    with emulator.running(there.program.options()) as emu:
        upstream = ("--upstream", f"{there.program.provider}={emu.url}")
        done = there.run("record", "--dir", made, "--json", *upstream)
    assert done.returncode == 0, done.stdout + done.stderr
    assert FINAL in done.stdout
    elsewhere = place(name, folder / "elsewhere" / "far away", "another project")
    played = elsewhere.run("replay", "--dir", made, "--json", key="")
    report = json.loads(played.stderr.splitlines()[-1])
    assert report["misses"] == []
    assert played.returncode == 0, played.stdout + played.stderr
    assert played.stdout == done.stdout
    assert report["replayed"] >= 3


@pytest.mark.parametrize("name", PROGRAMS)
def test_through_the_daemon(name: str, folder: Path) -> None:
    """With the grant, the environment and the command that `apps add --for` prints."""
    there = place(name, folder / "place")
    words = ["apps", "add", "me", "--for", there.program.grant, "--write", "--json"]
    with (
        emulator.running(there.program.options(keys=frozenset({DAEMON_KEY}))) as emu,
        running_daemon(folder, emu) as daemon,
    ):
        grants = daemon.home / "extensions.yaml"
        grants.write_text(yaml.safe_dump(yaml.safe_load(grants.read_text())))  # as people write it
        made = subprocess.run(
            [sys.executable, "-m", "anaphora", *words, "--url", daemon.url, "--home", daemon.home],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        assert made.returncode == 0, made.stderr
        setup = json.loads(made.stdout)
        done = there.run(command=setup["command"], key="", **setup["environment"])
        log = [line for line in daemon.log_lines() if line.get("path")]
        assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{log}"
        assert FINAL in done.stdout
        assert errors_in(done.stderr) == []
        calls = [one for one in emu.requests() if one.get("verdict")]
    assert len(calls) >= 3
    # The newest first: the calls of the loop but for its first one read the cache.
    assert sum(one["read"] > 1000 for one in calls) >= 2
