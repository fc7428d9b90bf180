"""An agent program through `watch`, `record` and `replay`, and the daemon: its loop of three calls ends
with the scripted answer, without an error, and reads the cache from its second call on."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from support.agent_programs import FINAL, KEY, ProgramPlace
from support.daemon import KEY as DAEMON_KEY
from support.daemon import TestedDaemon, llm_yaml, running_daemon
from support.recordings import reported
from support.session_bills import calls_once
from support.waiting import PATIENCE
from support.websocket_emulator import websocket_emulator

from anaphora import emulator
from anaphora.analysis.trace.log_lines import Problem
from anaphora.emulator.server import Emulator
from anaphora.usage.places import session_files
from anaphora.usage.records import CallBill

Json = dict[str, Any]

_FILE = re.compile(r"# .* needs in (?P<name>\S+): (?P<content>.*)")


def errors_in(text: str, expected: Iterable[str] = ()) -> list[str]:
    """Lines that report an error, but for those with an expected text."""
    lines = (line for line in text.splitlines() if "error" in line.lower())
    return [line for line in lines if not any(one in line for one in expected)]


def check_run(done: subprocess.CompletedProcess[str], expected: Iterable[str] = ()) -> None:
    assert done.returncode == 0, done.stdout + done.stderr
    assert FINAL in done.stdout, done.stdout + done.stderr
    assert errors_in(done.stderr, expected) == []


def loop_of(calls: list[Json]) -> list[Json]:
    """The calls of the conversation in which the tool is called."""
    judged = [call for call in calls if call["kind"] == "judged"]
    numbers = [call["conversation"] for call in judged]
    assert numbers, calls
    longest = max(set(numbers), key=numbers.count)
    return [call for call in judged if call["conversation"] == longest]


def check_watched(
    there: ProgramPlace,
    folder: Path,
    *,
    websockets: bool = False,
    expected: Iterable[str] = (),
    has_sessions: bool = True,
) -> None:
    log = folder / "calls.jsonl"
    running = websocket_emulator if websockets else emulator.running
    with running(there.program.options()) as emu:
        upstream = ("--upstream", f"{there.program.provider}={emu.url}")
        done = there.run("watch", "--json", "--log", str(log), *upstream)
        billed = bills_of(emu)
    check_run(done, expected)
    if has_sessions:
        check_bills(there, billed)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    calls = loop_of([line for line in lines if line["type"] == "call"])
    assert len(calls) == 3
    assert all(call["usage"]["read"] > 1000 for call in calls[1:]), calls
    assert {call["verdict"]["result"] for call in calls[1:]} == {there.program.verdict}, calls
    assert KEY not in log.read_text() + done.stderr


def bills_of(emu: Emulator) -> Counter[tuple[int, ...]]:
    """What the emulator billed: uncached, read, written and output tokens of each call."""
    return Counter(
        (one["uncached"], one["read"], sum(one["written"].values()), one["output"])
        for one in emu.requests()
        if "verdict" in one
    )


def check_bills(there: ProgramPlace, billed: Counter[tuple[int, ...]]) -> list[CallBill]:
    """The program's session files are found, and hold these bills."""
    problems: list[Problem] = []
    calls = calls_once(session_files((), {}, there.home, problems), problems)
    assert problems == []
    found: Counter[tuple[int, ...]] = Counter(
        (one.uncached, one.read, one.input - one.uncached - one.read, one.output) for one in calls
    )
    assert not found - billed
    # Not recorded: Claude Code asks for one token, several times, at clouds; opencode asks once
    # for the title of a session, Gemini CLI once for a model.
    assert sum(n for bill, n in (billed - found).items() if bill[-1] > 1) <= 1
    assert {Path(one.project) for one in calls} == {there.work}
    assert "" not in {one.session for one in calls}
    return calls


def check_replayed(
    there: ProgramPlace, elsewhere: ProgramPlace, folder: Path, **changed: str
) -> None:
    """Recorded in one place, and replayed in another without a provider and a key."""
    made = str(folder / "recordings")
    with emulator.running(there.program.options()) as emu:
        upstream = ("--upstream", f"{there.program.provider}={emu.url}")
        done = there.run("record", "--dir", made, *upstream)
    assert done.returncode == 0, done.stdout + done.stderr
    assert FINAL in done.stdout
    played = elsewhere.run("replay", "--dir", made, key="", variables=changed)
    assert played.returncode == 0, played.stdout + played.stderr
    assert played.stdout == done.stdout
    _, replayed, misses = reported(played.stderr)
    assert replayed >= 3
    assert not misses


class PrintedSetup(NamedTuple):
    """What `anaphora apps add NAME --for PROGRAM` prints."""

    grant: str
    script: str
    files: dict[str, str]
    command: list[str]

    @classmethod
    def of(cls, daemon: TestedDaemon, program: str) -> PrintedSetup:
        words = ["apps", "add", "me", "--for", program, "--url", daemon.url]
        made = subprocess.run(
            [sys.executable, "-m", "anaphora", *words, "--home", str(daemon.home)],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        assert made.returncode == 0, made.stderr
        grant, _, script = made.stdout.partition("\n\n")
        files = {found["name"]: found["content"] for found in _FILE.finditer(script)}
        return cls(grant, script, files, shlex.split(script.splitlines()[-1].removeprefix("# ")))

    def environment(self) -> dict[str, str]:
        """What a shell has after the script that it had not before."""
        shell = ["env", "-i", "sh", "-c", f"{self.script}\nenv -0"]
        shown = subprocess.run(shell, capture_output=True, text=True, check=True).stdout
        found = dict(line.split("=", 1) for line in shown.split("\0") if line)
        return {name: found[name] for name in found.keys() - {"PWD", "OLDPWD", "SHLVL", "_"}}


def check_daemon(
    there: ProgramPlace,
    folder: Path,
    *,
    providers: Iterable[str] = (),
    expected: Iterable[str] = (),
) -> None:
    """With the grant, the environment and the command that `apps add --for` prints."""
    with emulator.running(there.program.options(keys=frozenset({DAEMON_KEY}))) as emu:
        llm = llm_yaml(emu.url)
        llm["providers"] = _some(llm["providers"], providers)
        with running_daemon(folder, emu, extensions={}, llm=llm) as daemon:
            setup = PrintedSetup.of(daemon, there.program.grant)
            (daemon.home / "extensions.yaml").write_text(setup.grant)
            there.write(setup.files)
            done = there.run(command=setup.command, key="", variables=setup.environment())
            log = [line for line in daemon.log_lines() if line.get("path")]
            assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{log}"
            check_run(done, expected)
        calls = [one for one in emu.requests() if one.get("verdict")]
    assert len(calls) >= 3
    # The calls of the loop but for its first one read the cache.
    assert sum(one["read"] > 1000 for one in calls) >= 2, calls
    written = [file for file in there.home.rglob("*") if file.is_file()]
    assert not [file for file in written if DAEMON_KEY.encode() in file.read_bytes()]


def _some(providers: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    chosen = set(names) or set(providers)
    return {name: one for name, one in providers.items() if name in chosen}
