"""`anaphora watch --cold`: real programs in a real terminal, whose calls are asked about, refused or
reported. A call that was never cached counts as cold, so no clock has to be moved."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.emulated_client import AT_ONCE
from support.waiting import PATIENCE

from anaphora.audit.reading import calls
from anaphora.emulator import EmulatorOptions, running
from anaphora.emulator.server import Emulator

AGENT = f"""#!{sys.executable}
import json, os, sys, urllib.error, urllib.request

def ask(question, **headers):
    marked = {{"type": "text", "text": "It stays the same. " * 9000,
               "cache_control": {{"type": "ephemeral"}}}}
    body = {{"model": "claude-opus-5-5", "max_tokens": 20, "system": [marked],
             "messages": [{{"role": "user", "content": question}}]}}
    url = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"
    fields = {{"x-api-key": "any", "anthropic-version": "2023-06-01",
               "content-type": "application/json", **headers}}
    try:
        urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), fields)).read()
        print("answered", flush=True)
    except urllib.error.HTTPError as error:
        text = json.load(error)["error"]["message"]
        print(error.code, error.headers["x-should-retry"], text, flush=True)

"""
#: A program that reads keys by itself, as one that draws on the terminal.
RAW = """
import termios, tty
before = termios.tcgetattr(0)
tty.setcbreak(0)
ask("Rome?"); ask("Rome?")
termios.tcsetattr(0, termios.TCSADRAIN, before)
"""


@pytest.fixture(scope="module")
def emu() -> Iterator[Emulator]:
    with running(EmulatorOptions(latency=AT_ONCE)) as emulator:
        yield emulator


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    kept["PATH"] = f"{tmp_path}{os.pathsep}{kept['PATH']}"
    return {**kept, "ANTHROPIC_API_KEY": "any", "XDG_STATE_HOME": str(tmp_path)}


def program(folder: Path, body: str, name: str = "agent.py") -> str:
    file = folder / name
    file.write_text(AGENT + body)
    file.chmod(0o755)
    return str(file)


def watch(emu: Emulator, *words: str) -> list[str]:
    upstream = ("--upstream", f"anthropic={emu.url}")
    return [sys.executable, "-m", "anaphora", "watch", *upstream, *words]


class InTerminal:
    """A command in a terminal of its own."""

    def __init__(self, command: list[str], environ: dict[str, str]) -> None:
        self._child, self._terminal = pty.fork()
        if self._child == 0:  # pragma: no cover - the new process
            os.execve(command[0], command, environ)
        self.shown = ""

    def until(self, text: str) -> None:
        end = time.monotonic() + PATIENCE
        while text not in self.shown:
            assert time.monotonic() < end, self.shown
            if select.select([self._terminal], [], [], 1.0)[0]:
                self.shown += os.read(self._terminal, 65536).decode()

    def type(self, text: str) -> None:
        self.shown = ""
        os.write(self._terminal, text.encode())

    def ended(self) -> int:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and select.select([self._terminal], [], [], 60)[0]:
            try:
                self.shown += os.read(self._terminal, 65536).decode()
            except OSError:  # the terminal is closed
                break
        os.close(self._terminal)
        self.shown = re.sub(r"\x1b\[[0-9;]*m|\r", "", self.shown)
        return os.waitstatus_to_exitcode(os.waitpid(self._child, 0)[1])


def test_question_is_asked_on_the_terminal(
    emu: Emulator, tmp_path: Path, environ: dict[str, str]
) -> None:
    agent = program(tmp_path, 'ask("Rome?"); ask("Rome?"); ask("Oslo?")\n')
    emu.reset()
    run = InTerminal(watch(emu, "--cold", "ask:0.01", "--", agent), environ)
    run.until("send it? [y/N] ")
    asked = re.sub(r"\r", "", run.shown)
    assert (
        "before calls that cost $0.0100 more than from the cache, a question is asked here" in asked
    )
    assert re.search(
        r"claude-opus-5-5: the [\d,]+ tokens of the prompt are not cached, .*: it costs \$[\d.]+"
        r" \(\$[\d.]+ to \$[\d.]+\) more .* Instead, compact the conversation, start a new one, or"
        r" use a smaller model",
        asked,
    )
    run.type("n\n")
    run.until("402 false cold cache:")
    assert "the answer was no" in run.shown
    run.until("send it? [y/N] ")  # a "no" lets nothing pass
    run.type("y\n")
    run.until("answered")
    assert run.ended() == 0
    assert run.shown.count("answered") == 2  # the last one is warm
    assert "send it?" not in run.shown
    assert "1 refused" in run.shown
    assert len(emu.requests()) == 2


@pytest.mark.parametrize("name", ["agent.py", "claude"])
@pytest.mark.long
def test_program_that_owns_the_terminal_shows_the_refusal_itself(
    emu: Emulator, tmp_path: Path, environ: dict[str, str], name: str
) -> None:
    program(tmp_path, RAW, name)
    emu.reset()
    run = InTerminal(watch(emu, "--cold", "ask:0.01", "--", name), environ)
    assert run.ended() == 0
    assert "send it?" not in run.shown
    assert "402 false cold cache: the" in run.shown
    assert "Send it again within 10 minutes to let it pass" in run.shown
    assert "answered" in run.shown.partition("402 false")[2]
    assert ("the command draws on the terminal" in run.shown) is (name == "claude")
    assert len(emu.requests()) == 1


def alone(command: list[str], environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Without a terminal."""
    return subprocess.run(
        command,
        env=environ,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        start_new_session=True,
    )


def test_without_a_terminal_ask_refuses_and_says_so(
    emu: Emulator, tmp_path: Path, environ: dict[str, str]
) -> None:
    agent = program(tmp_path, 'ask("Rome?"); ask("Rome?")\n')
    done = alone(watch(emu, "--cold", "ask:0.01", "--", agent), environ)
    assert done.returncode == 0
    assert "there is no terminal to ask on: calls that cost $0.0100 more" in done.stderr
    assert "are refused; the same call passes if it is sent again within 10 minutes" in done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith("402 false cold cache: the")
    assert second == "answered"


@pytest.mark.long
def test_refusals_and_warnings_without_asking(
    emu: Emulator, tmp_path: Path, environ: dict[str, str]
) -> None:
    once = program(tmp_path, 'ask("Rome?")\n')
    allowed = program(tmp_path, 'ask("Rome?", **{"anaphora-cold": "allow"})\n', "allowed.py")
    lines = tmp_path / "lines.jsonl"
    refused = alone(watch(emu, "--cold", "refuse:0.01", "--", once), environ)
    assert "402 false cold cache" in refused.stdout
    assert re.search(r"#1 .* · 402 refused: cold cache: the", refused.stderr)
    assert alone(watch(emu, "--cold", "refuse:0.01", "--", allowed), environ).stdout == "answered\n"
    warned = alone(
        watch(emu, "--cold", "warn:0.01", "--json", "--log", str(lines), "--", once), environ
    )
    assert warned.stdout == "answered\n"
    written = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [each["type"] for each in written] == ["start", "notice", "call", "summary"]
    assert written[1]["message"].startswith("claude-opus-5-5: the ")
    high = alone(watch(emu, "--cold", "refuse:$5", "--", once), environ)
    assert high.stdout == "answered\n"


@pytest.mark.parametrize(
    "words, reason",
    [
        (("--cold", "never"), "'never' is not one of"),
        (("--cold", "warn:"), "'' is not an amount in dollars"),
        (("--cold", "warn:-1"), "'-1' is not an amount in dollars"),
        (("--cold", "warn:a lot"), "'a lot' is not an amount in dollars"),
    ],
)
@pytest.mark.long
def test_wrong_options_are_named(
    emu: Emulator, environ: dict[str, str], words: tuple[str, ...], reason: str
) -> None:
    done = alone(watch(emu, *words, "--", "true"), environ)
    assert done.returncode == 2
    assert reason in done.stderr


def test_refused_call_is_in_the_report_and_the_audit_log(
    emu: Emulator, tmp_path: Path, environ: dict[str, str]
) -> None:
    agent = program(tmp_path, 'ask("Rome?"); ask("Rome?")\n')
    options = ("--cold", "refuse:0.01", "--audit", str(tmp_path / "log"))
    report = tmp_path / "report.html"
    done = alone(watch(emu, *options, "--html", str(report), "--", agent), environ)
    assert done.returncode == 0
    rows = [row for _, row in calls(tmp_path / "log")]
    assert [(row.outcome, row.status, bool(row.cost_nano_usd)) for row in rows] == [
        ("Denied", 402, False),
        ("ok", 200, True),
    ]
    assert "Denied" in report.read_text()
