"""Claude Code and Codex through `watch`, `record`, `replay` in another folder, and the daemon."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.agent_programs import BIN, ON_BEDROCK, ON_VERTEX, PROGRAMS, AgentProgram, ProgramPlace
from support.agent_programs import KEY as PROGRAM_KEY
from support.daemon import GRANT, KEY, llm_yaml, running_daemon
from support.missing import skip_without
from support.program_checks import (
    bills_of,
    check_bills,
    check_daemon,
    check_replayed,
    check_run,
    check_watched,
)
from support.servers import ServerMissing
from support.waiting import PATIENCE

from anaphora import emulator


@pytest.fixture
def folder() -> Iterator[Path]:
    # Programs are still writing when they have ended. Codex refuses homes below /tmp.
    with tempfile.TemporaryDirectory(dir=Path.home(), ignore_cleanup_errors=True) as name:
        yield Path(name)


def place(name: str, root: Path, work: str = "work") -> ProgramPlace:
    return place_of(PROGRAMS[name], root, work)


def place_of(program: AgentProgram, root: Path, work: str = "work") -> ProgramPlace:
    try:
        return ProgramPlace(program, root, work)
    except ServerMissing as missing:
        skip_without(missing)


@pytest.mark.parametrize(
    ("name", "websockets"), [("claude", False), ("codex", True), ("codex", False)]
)
@pytest.mark.long
def test_watched(name: str, websockets: bool, folder: Path) -> None:
    # Codex reports the 426, and uses HTTP.
    expected = ["responses_websocket"] if name == "codex" and not websockets else []
    there = place(name, folder / "home")
    check_watched(there, folder, websockets=websockets, expected=expected)


@pytest.mark.parametrize("name", ["claude", pytest.param("codex", marks=pytest.mark.soak)])
def test_recorded_and_replayed_in_another_folder(name: str, folder: Path) -> None:
    there = place(name, folder / "recorded")
    elsewhere = place(name, folder / "elsewhere" / "far away", "another project")
    check_replayed(there, elsewhere, folder)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.long
def test_through_the_daemon(name: str, folder: Path) -> None:
    check_daemon(place(name, folder / "place"), folder)


@pytest.mark.long
def test_claude_code_runs_with_the_status_line_and_its_usage_is_summed(folder: Path) -> None:
    there = place("claude", folder / "home")

    def ours(*arguments: str) -> str:
        words = [sys.executable, "-m", "anaphora", *arguments]
        environ = {"HOME": str(there.home), "PATH": os.environ["PATH"]}
        return subprocess.run(words, env=environ, capture_output=True, text=True, check=True).stdout

    assert "the status line is set" in ours("statusline", "--install")
    with emulator.running(there.program.options()) as emu:
        check_run(there.run(variables={"ANTHROPIC_BASE_URL": emu.url}))
        calls = check_bills(there, bills_of(emu))
    settings = json.loads((there.home / ".claude" / "settings.json").read_text())
    assert "anaphora-statusline" in settings["statusLine"]["command"]
    report = json.loads(ours("usage", "session", "--json"))
    assert report["total"]["calls"] == len(calls)
    assert {row["name"] for row in report["rows"]} == {call.session for call in calls}
    assert {row["project"] for row in report["rows"]} == {str(there.work)}
    assert float(report["total"]["usd"]) > 0


@pytest.mark.soak
def test_claude_code_shows_the_status_line(folder: Path) -> None:
    """On a terminal, before and after a call."""
    there = place("claude", folder / "home")
    approved = {"approved": [PROGRAM_KEY[-20:]], "rejected": []}
    trusted = {str(there.work): {"hasTrustDialogAccepted": True}}
    seen = {"hasCompletedOnboarding": True, "theme": "dark"}
    known = seen | {"customApiKeyResponses": approved, "projects": trusted}
    (there.home / ".claude.json").write_text(json.dumps(known))
    with emulator.running(there.program.options()) as emu:
        environ = {
            "HOME": str(there.home),
            "PATH": os.pathsep.join((str(BIN), os.environ["PATH"])),
            "TERM": "xterm-256color",
            "LANG": "C.UTF-8",
            "ANTHROPIC_API_KEY": PROGRAM_KEY,
            "ANTHROPIC_BASE_URL": emu.url,
            **there.program.variables,
        }
        words = [sys.executable, "-m", "anaphora", "statusline", "--install"]
        subprocess.run(words, env=environ, capture_output=True, check=True)
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 140, 0, 0))
        program = subprocess.Popen(
            ["claude", "--model", "claude-sonnet-4-5"],
            cwd=there.work,
            env=environ,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        try:
            shown = _until(ours, b"", rb"Sonnet 4.5 .* session")
            os.write(ours, b"Hello?")
            shown = _until(ours, shown, rb"Hello\?")
            os.write(ours, b"\r")
            _until(ours, shown, rb"context \d+% .* session .* cache \d+% read .* expires in \d min")
        finally:
            program.kill()
            program.wait()
            os.close(ours)
            os.close(theirs)


def _until(terminal: int, shown: bytes, pattern: bytes) -> bytes:
    """What the terminal shows, until it has the pattern; escape codes count as blanks."""
    end = time.monotonic() + PATIENCE
    while True:
        plain = re.sub(rb"\x1b\[[0-9;?>=]*[a-zA-Z]|\x1b\][^\x07]*\x07|[\r\n]", b" ", shown)
        if re.search(pattern, plain):
            return shown
        assert time.monotonic() < end, plain[-2000:].decode("utf-8", "replace")
        if select.select([terminal], [], [], 1)[0]:
            shown += os.read(terminal, 65_536)


AT_CLOUDS = [
    pytest.param(ON_BEDROCK, id="bedrock"),
    pytest.param(ON_VERTEX, id="vertex", marks=pytest.mark.soak),
]


@pytest.mark.parametrize("program", AT_CLOUDS)
@pytest.mark.long
def test_claude_code_at_a_cloud_is_watched(program: AgentProgram, folder: Path) -> None:
    # The emulator lists no inference profiles.
    check_watched(place_of(program, folder / "home"), folder, expected=["1 error"])


@pytest.mark.soak
@pytest.mark.parametrize("program", AT_CLOUDS)
def test_claude_code_at_a_cloud_is_recorded_and_replayed(
    program: AgentProgram, folder: Path
) -> None:
    """Replayed without the credentials."""
    there = place_of(program, folder / "recorded")
    secret = ("AWS_", "ANTHROPIC_AUTH", "CLAUDE_CODE_SKIP")
    variables = {
        name: value for name, value in program.variables.items() if not name.startswith(secret)
    }
    bare = program._replace(variables=variables)
    elsewhere = place_of(bare, folder / "elsewhere" / "far away", "another project")
    check_replayed(there, elsewhere, folder)


@pytest.mark.long
def test_claude_code_at_an_emulated_bedrock(folder: Path) -> None:
    """Each call of the loop after the first reads the cache."""
    there = place_of(ON_BEDROCK, folder / "home")
    with emulator.running(ON_BEDROCK.options()) as emu:
        done = there.run(key="", variables={"ANTHROPIC_BEDROCK_BASE_URL": emu.url})
        calls = [call for call in reversed(emu.requests()) if call["stream"]]
    check_run(done)
    assert {(call["provider"], call["status"]) for call in calls} == {("bedrock", 200)}
    first, *others = calls
    assert first["written"]
    assert len(others) >= 2
    assert all(call["read"] for call in others)


def test_claude_code_on_bedrock_through_the_daemon(folder: Path) -> None:
    """It sends the token of its app with InvokeModel; the provider speaks Converse."""
    there = place_of(ON_BEDROCK, folder / "home")
    with emulator.running(ON_BEDROCK.options(keys=frozenset({KEY}))) as emu:
        llm = llm_yaml(emu.url)
        llm["providers"]["bedrock"] = {
            "dialect": "bedrock",
            "region": "us-east-1",
            "base_url": emu.url,
            "key": {"secret": "PROVIDER_KEY"},
        }
        limits = {"providers": ["bedrock"], "max_tokens": 64_000, "over_max_tokens": "clamp"}
        allow = ["service_tiers", {"fields": ["*"], "betas": ["*"]}]
        grant = {**GRANT, "llm": {**GRANT["llm"], **limits, "allow": allow}}
        with running_daemon(folder, emu, llm=llm, extensions={"demo": grant}) as daemon:
            variables = {
                "ANTHROPIC_BEDROCK_BASE_URL": daemon.url,
                "AWS_BEARER_TOKEN_BEDROCK": daemon.token(),
            }
            done = there.run(key="", variables=variables)
            log = [line for line in daemon.log_lines() if line.get("path")]
            assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{log}"
        calls = [call for call in reversed(emu.requests()) if call["stream"]]
    check_run(done)
    assert {(call["provider"], call["status"]) for call in calls} == {("bedrock", 200)}
    assert sum(call["read"] > 1000 for call in calls) >= 2, calls
