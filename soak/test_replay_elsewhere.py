"""Claude Code and opencode, recorded in one folder and replayed in another: with another home, another
folder for temporary files, outside of a git repository, and 40 days later.

The recorded answers call tools with paths of the first folder; replayed, the tools write into the
second one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from strangers.environment import Unavailable
from strangers.environment import programs as programs_of
from support.missing import skip_without
from support.recordings import reported
from test_programs_through_proxy import another_day, folders

from anaphora import emulator
from anaphora.emulator import EmulatorOptions, Script
from anaphora.replay.store import FixtureStore

__all__ = ["another_day", "folders"]

SOURCES = Path(__file__).resolve().parent.parent / "src"
CANARY = "sk-canary-0123456789abcdef"
_TIMEOUT = 240
_QUIET = (
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC",
    "DISABLE_AUTOUPDATER",
    "DISABLE_TELEMETRY",
    "OPENCODE_DISABLE_AUTOUPDATE",
)


class PathProgram(NamedTuple):
    """A program, and its tools that take paths."""

    family: str
    words: tuple[str, ...]
    write: str
    read: str
    run: str
    path: str
    base: str


PROGRAMS = {
    "Claude Code": PathProgram(
        "npm",
        ("claude", "-p", "Count the files.", "--model", "claude-sonnet-4-5",
         "--allowedTools", "Bash,Write,Read"),
        "Write", "Read", "Bash", "file_path", "",
    ),
    "opencode": PathProgram(
        "npm-agents",
        ("opencode", "run", "--model", "anthropic/claude-sonnet-4-5", "Count the files."),
        "write", "read", "bash", "filePath", "/v1",
    ),
}  # fmt: skip


def script(program: PathProgram, work: Path) -> str:
    """Writes a file, prints it, reads it, and names it."""
    file = str(work / "note.txt")
    calls = [
        (program.write, {program.path: file, "content": f"made in {work}\n"}),
        (program.run, {"command": f"cd '{work}' && pwd && cat note.txt", "description": "Print"}),
        (program.read, {program.path: file}),
    ]
    matches: list[dict[str, str]] = [{"text": "Count the files", "tool": program.write}]
    matches += [{"result_of": name} for name, _ in calls]
    replies: list[dict[str, Any]] = [
        {"tool_calls": [{"name": name, "arguments": arguments}]} for name, arguments in calls
    ]
    replies.append({"text": f"I wrote {file}."})
    rows = [{"match": one, "reply": two} for one, two in zip(matches, replies, strict=True)]
    rows.append({"match": {"tool": program.write}, "reply": {"text": "Understood."}})
    return json.dumps({"replies": rows})


class WorkPlace:
    """A home, a folder for temporary files, and a working directory with a blank in its name."""

    def __init__(self, root: Path) -> None:
        self.home, self.tmp, self.work = root / "home", root / "tmp", root / "some work"
        for each in (self.home, self.tmp, self.work):
            each.mkdir(parents=True)
        settings = self.home / "config" / "opencode" / "opencode.json"
        settings.parent.mkdir(parents=True)
        settings.write_text(json.dumps({"permission": "allow", "share": "disabled"}))

    def run(self, program: PathProgram, *before: str, **more: str) -> Any:
        path = os.pathsep.join((str(programs_of(program.family)), os.environ.get("PATH", "")))
        environ = {
            "PATH": path, "HOME": str(self.home), "TMPDIR": str(self.tmp), "LANG": "C.UTF-8",
            "PYTHONPATH": str(SOURCES), **dict.fromkeys(_QUIET, "1"),
        }  # fmt: skip
        for name in ("DATA", "CONFIG", "CACHE", "STATE"):
            environ[f"XDG_{name}_HOME"] = str(self.home / name.lower())
        preload = more.pop("LD_PRELOAD", "")
        day = ["env", f"LD_PRELOAD={preload}"] if preload else []
        return subprocess.run(
            [sys.executable, "-m", "anaphora", *before, "--", *day, *program.words],
            cwd=self.work,
            env={**environ, **more},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            check=False,
        )


def git(place: WorkPlace) -> None:
    """The folder becomes a repository with a commit."""
    identity = ["-c", "user.name=Ada", "-c", "user.email=ada@example.com"]
    for words in (["init", "-q", "-b", "trunk"], ["commit", "-q", "--allow-empty", "-m", "First"]):
        subprocess.run(["git", *identity, *words], cwd=place.work, check=True)


@pytest.mark.parametrize("name", PROGRAMS)
def test_recording_is_replayed_elsewhere(
    name: str, folders: Path, another_day: dict[str, str]
) -> None:
    program = PROGRAMS[name]
    try:
        programs_of(program.family)
    except Unavailable as problem:
        skip_without(problem)
    made, there = folders / "made", WorkPlace(folders / "there")
    git(there)
    options = EmulatorOptions(script=Script.decode(script(program, there.work), name))
    with emulator.running(options) as emu:
        url = {"ANTHROPIC_BASE_URL": emu.url + program.base, "ANTHROPIC_API_KEY": CANARY}
        done = there.run(program, "record", "--dir", str(made), **url)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"I wrote {there.work}/note.txt." in done.stdout
    (there.work / "note.txt").unlink()
    here = WorkPlace(folders / "far away" / "here")
    words = ("replay", "--dir", str(made))
    done = here.run(program, *words, **another_day)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not reported(done.stderr)[2]
    assert f"I wrote {here.work}/note.txt." in done.stdout
    assert (here.work / "note.txt").read_text() == f"made in {here.work}\n"
    assert list(there.work.glob("note.txt")) == []
    store = FixtureStore.open(made)
    recorded = [store.fixture(entry.path).variables for entry in store.entries]
    assert any(str(there.work) in each.values() for each in recorded)
