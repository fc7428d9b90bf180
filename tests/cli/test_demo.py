"""`anaphora demo`: colours, widths, JSON, and no network."""

from __future__ import annotations

import io
import json
import os
import re
import socket
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from rich.console import Console
from support.terminals import on_terminal

from anaphora.cli.common import anaphora
from tour import play, show
from tour.play import TourReport

ESCAPE = "\x1b"
BREAKS = "prompts that break their prefix are what the demo shows"


def settled(shown: str) -> str:
    """Without what moved: the last time that the bill was drawn, and what followed."""
    return re.sub(r"\x1b\[[\d;?]*[A-Za-z]|\r", "", shown[shown.rindex("The bill for") :])


def demo(*arguments: str) -> str:
    """The output to a pipe, without a key, and without leaving this machine."""
    real = socket.socket.connect

    def connect(self: socket.socket, address: Any) -> None:
        assert address[0] == "127.0.0.1", "the demo leaves this machine"
        real(self, address)

    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ:
            if name in ("FORCE_COLOR", "COLUMNS") or name.endswith(("_KEY", "_TOKEN")):
                patch.delenv(name)
        patch.setattr(socket.socket, "connect", connect)
        shown = CliRunner().invoke(anaphora, ["demo", *arguments], catch_exceptions=False)
    assert (shown.exit_code, shown.stderr) == (0, "")
    return shown.stdout


@pytest.fixture(scope="module")
def data() -> Any:
    return json.loads(demo("--json"))


@pytest.fixture(scope="module")
def piped() -> str:
    return demo()


def test_demo_needs_no_network_and_no_key(piped: str) -> None:
    assert "One change, found and explained" in piped


def test_piped_output_is_plain_text(piped: str) -> None:
    assert ESCAPE not in piped
    lines = piped.splitlines()
    assert lines == [line.rstrip() for line in lines]


def test_text_shows_the_figures_of_the_json(piped: str, data: Any) -> None:
    for one in data["providers"]:
        (row,) = [line for line in piped.splitlines() if f"  {one['model']}  " in line]
        for layout in play.LAYOUTS:
            paid = [turn["cost_usd"] for turn in one[layout]["turns"]]
            assert ("–" if None in paid else f"${sum(map(Decimal, paid)):.4f}") in row
    broken, text = data["prefix_break"], " ".join(piped.split())
    for expected in (
        broken["verdict"],
        broken["before"].strip("…"),
        broken["after"].strip("…"),
        broken["warning"][1:],
        f"{broken['restored_read']:,} of {broken['restored_input']:,} tokens",
        f"{data['calls']:,} calls",
    ):
        assert " ".join(expected.split()) in text


@pytest.mark.parametrize("columns", [40, 59, 60, 79, 80, 111, 112, 200, 10_000])
def test_nothing_is_truncated_at_any_width(columns: int, data: Any) -> None:
    report = msgspec.convert(data, TourReport)
    pages = [
        show.opening(len(report.providers), columns),
        show.bills(report.turns, report.providers, columns),
        show.after_bills(report.providers, columns),
        show.closing(report, columns),
    ]
    paper = io.StringIO()
    console = Console(width=columns, file=paper, color_system=None, highlight=False)
    for page in pages:
        console.print(page)
    shown = paper.getvalue()
    assert max(map(len, shown.splitlines())) <= columns
    assert set(re.findall(r"\S*…", shown)) <= {"…"}, "a cell was cut short"
    for one in report.providers:
        assert re.search(rf"\s{re.escape(one.model)}\s", shown)
        for cost in one.costs:
            assert cost.cost_usd is None or f"${cost.cost_usd:.4f}" in shown


@pytest.mark.breaks_prefix(reason=BREAKS)
@pytest.mark.long
def test_default_shows_the_tokens_of_one_conversation_by_turn() -> None:
    runner = CliRunner()
    shown = runner.invoke(anaphora, ["demo", "--json"], catch_exceptions=False)
    report = json.loads(shown.stdout)
    (one,) = report["providers"]
    assert report["calls"] == 62
    text = runner.invoke(anaphora, ["demo"], catch_exceptions=False).stdout
    assert "sent to one API by one client" in " ".join(text.split())
    bars = re.findall(r"^ +(\d+)  ([░▒█]+) +([░▒█]+)$", text, re.MULTILINE)
    assert [int(number) for number, *_ in bars] == list(range(1, 21))
    most = max(turn["input"] for name in ("usual", "anaphora") for turn in one[name]["turns"])
    width = max(len(bar) for _, *both in bars for bar in both)
    for place, layout in enumerate(("usual", "anaphora"), 1):
        turns = one[layout]["turns"]
        for bar, turn in zip((row[place] for row in bars), turns, strict=True):
            assert len(bar) == round(turn["input"] * width / most)
            assert bar.count("░") == round(turn["read"] * width / most)
        label = {"usual": "usual", "anaphora": "Anaphora"}[layout]
        for kind in ("read", "written"):
            total = sum(turn[kind] for turn in turns)
            assert re.search(rf"^   . {kind} .*{label} +{total:,}\b", text, re.MULTILINE)


@pytest.mark.long
def test_terminal_has_colours_and_progress(environment: Any) -> None:
    shown = on_terminal(["demo"], 80, environment())
    assert "\x1b[1;32m" in shown
    assert "\x1b[31m" in shown
    assert "Turn 3 of 20" in shown
    last = settled(shown)
    assert "Turn 3 of 20" not in last
    assert max(map(len, last.splitlines())) <= 80


@pytest.mark.long
def test_no_color_and_dumb_terminals(environment: Any) -> None:
    dull = on_terminal(["demo"], 100, environment(NO_COLOR="1"))
    assert not re.search(r"\x1b\[[\d;]*[1-9]m", dull)
    assert ESCAPE not in on_terminal(["demo"], 100, environment(TERM="dumb"))


@pytest.mark.long
def test_pipe_without_unicode(run_process: Any) -> None:
    shown = run_process("demo", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "The bill for 20 turns" in shown.stdout
    assert ESCAPE not in shown.stdout


def test_suggested_commands_exist(run: Any, piped: str) -> None:
    commands = re.findall(r"^   anaphora (\w+)", piped.partition("Try next")[2], re.MULTILINE)
    assert len(commands) == 4
    for command in set(commands):  # test_bare_install runs them
        assert run(command, "--help").returncode == 0, command
