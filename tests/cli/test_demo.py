"""`anaphora demo` from outside: colours, widths, JSON, and the same output every time."""

from __future__ import annotations

import errno
import json
import os
import pty
import socket
import struct
import subprocess
import sys
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal
from typing import Any

import pytest
from click.testing import CliRunner

from anaphora.cli._group import anaphora

ESCAPE = "\x1b"
BREAKS = "a clock in the system prompt is what the demo shows"


def on_terminal(columns: int, environment: dict[str, str]) -> str:
    """What a terminal of that width is sent."""
    import fcntl
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    command = [sys.executable, "-m", "anaphora", "demo"]
    with subprocess.Popen(
        command, env=environment, stdin=theirs, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError as problem:  # Linux says EIO where others say "nothing more"
                if problem.errno != errno.EIO:
                    raise
                break
            if not piece:
                break
            shown += piece
    os.close(ours)
    assert process.returncode == 0
    return shown.decode().replace("\r\n", "\n")


def test_piped_it_is_plain_text(run: Any) -> None:
    piped = run("demo")
    assert (piped.returncode, piped.stderr) == (0, "")
    assert ESCAPE not in piped.stdout
    lines = piped.stdout.splitlines()
    assert lines == [line.rstrip() for line in lines]
    rows = [line for line in lines if line.endswith(("first", "kept", "broken", "kept from 8"))]
    assert len(rows) == 12
    assert len({row.index("identity 1h · knowledge 5m · m") for row in rows}) == 1, "not aligned"


def test_piped_the_width_of_the_terminal_does_not_matter(run: Any) -> None:
    assert run("demo", COLUMNS="60").stdout == run("demo").stdout


def test_a_terminal_has_colours_unless_told_otherwise(environment: Any) -> None:
    coloured = on_terminal(100, environment())
    assert "\x1b[32m" in coloured
    assert "\x1b[1;31m" in coloured
    assert ESCAPE not in on_terminal(100, environment(NO_COLOR="1"))
    assert ESCAPE not in on_terminal(100, environment(TERM="dumb"))


def test_colours_can_be_forced_into_a_pipe(run: Any) -> None:
    assert ESCAPE in run("demo", FORCE_COLOR="1").stdout
    assert ESCAPE not in run("demo", FORCE_COLOR="1", NO_COLOR="1").stdout


@pytest.mark.parametrize("columns", [80, 97, 98, 100, 131, 132, 200])
def test_every_row_is_whole_at_any_width(columns: int, run: Any, environment: Any) -> None:
    shown = on_terminal(columns, environment(NO_COLOR="1"))
    assert max(map(len, shown.splitlines())) <= columns
    for turn in json.loads(run("demo", "--json").stdout)["turns"]:
        (row,) = [line for line in shown.splitlines() if turn["fingerprint"][:12] in line]
        for expected in (turn["event"], f"{turn['added_bytes']:,}", f"{turn['reused_bytes']:,}"):
            assert expected in row
    assert "…" not in shown.partition("Turn 9 broke")[0], "a cell was cut short"


def test_a_terminal_without_check_marks_is_no_reason_to_fail(run: Any) -> None:
    poor = run("demo", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert poor.returncode == 0
    assert "? broken" in poor.stdout


def test_the_break_is_named_for_people(run: Any) -> None:
    report = json.loads(run("demo", "--json").stdout)
    shown = run("demo").stdout
    (turn,) = [turn for turn in report["turns"] if turn["broken"]]
    broken = turn["broken"]
    for expected in (
        f"Turn {turn['turn']} broke the prefix",
        f"byte {broken['offset']:,} of the prompt, block identity, system[0]",
        broken["before"],
        broken["after"],
        f"{broken['rewritten_bytes']:,} bytes, about {broken['rewritten_tokens']:,} tokens",
        "turn 10 extends turn 8",
        f"{report['serialised_bytes']:,} bytes",
        f"{report['body_bytes']:,} bytes",
    ):
        assert expected in shown


def test_the_same_every_time_and_under_every_hash_seed(run: Any) -> None:
    for arguments in (["demo"], ["demo", "--json"]):
        shown = {run(*arguments, PYTHONHASHSEED=seed).stdout for seed in ("0", "1", "31337", "1")}
        assert len(shown) == 1


@pytest.mark.breaks_prefix(reason=BREAKS)
def test_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the demo opens a socket")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    shown = CliRunner().invoke(anaphora, ["demo"], catch_exceptions=False)
    assert shown.exit_code == 0
    assert "Turn 9 broke the prefix" in shown.stdout


@pytest.mark.breaks_prefix(reason=BREAKS)
def test_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.endswith(("_KEY", "_TOKEN"))]:
        monkeypatch.delenv(name)
    shown = CliRunner().invoke(anaphora, ["demo", "--json"], catch_exceptions=False)
    assert len(json.loads(shown.stdout)["turns"]) == 12


def test_the_agent_really_fixed_it() -> None:
    """The numbers in the story are right: half even gives one cent less than half up."""

    def total(rule: str) -> Decimal:
        net = Decimal("83.65") * Decimal("0.90")
        cent = Decimal("0.01")
        return net.quantize(cent, rule) + (net * Decimal("0.10")).quantize(cent, rule)

    assert total(ROUND_HALF_EVEN) == Decimal("82.81")
    assert total(ROUND_HALF_UP) == Decimal("82.82")
