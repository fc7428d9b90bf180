"""Widths: nothing is cut off, whatever COLUMNS says, in a pipe and on a terminal."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.terminals import on_terminal

from anaphora.cli.terminal import Rows, Terminal

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
SESSION = str(EXAMPLES / "session.jsonl")
TURNS = [str(EXAMPLES / name) for name in ("turn-1.json", "turn-2-next-day.json")]

#: Commands, and texts of theirs that have no blanks: a figure, a name, an address.
COMMANDS: dict[str, tuple[list[str], list[str]]] = {
    "models": (["models", "anthropic/claude-opus-5*"], ["anthropic/claude-opus-5-5", "claude-4.7", "0.05"]),
    "models of a provider": (["models", "minimax"], ["minimax/anthropic", "https://api.minimax.io/anthropic/v1/messages"]),
    "models NAME": (["models", "anthropic/claude-sonnet-4-5"], ["minimum_tokens", "1024"]),
    "simulate": (["simulate", SESSION], ["fix-the-build@17", "82,329", "65,259", "49,004", "51,491"]),
    "explain": (["explain", *TURNS], ["1,443", "system[0].text", "(system0)."]),
    "lint": (["lint", *TURNS], ["[volatile-date]", TURNS[1]]),
}  # fmt: skip


def squeezed(text: str) -> str:
    return "".join(text.split())


@pytest.mark.parametrize("columns", ["40", "80", "200"])
@pytest.mark.parametrize("command", COMMANDS)
def test_columns_are_respected_in_a_pipe(run: Any, command: str, columns: str) -> None:
    arguments, texts = COMMANDS[command]
    shown = run(*arguments, COLUMNS=columns).stdout
    assert max(map(len, shown.splitlines())) <= int(columns)
    assert "…" not in shown
    if columns == "40":  # columns of words stand below each other, so folded words can be joined
        assert all(squeezed(text) in squeezed(shown) for text in texts)


@pytest.mark.parametrize("columns", [None, "", "0", "-5", "wide"])
@pytest.mark.parametrize("command", COMMANDS)
def test_rows_are_lines_without_columns(run: Any, command: str, columns: str | None) -> None:
    arguments, texts = COMMANDS[command]
    shown = run(*arguments, **({} if columns is None else {"COLUMNS": columns})).stdout
    assert all(text in shown for text in texts), "nothing is folded"
    assert "…" not in shown


def test_records_hold_every_cell() -> None:
    rows = Rows(("name", "", "figure"), right=["figure"])
    rows.add_row("one", "✓", "123,456,789")
    rows.add_row("two", "", "7")
    terminal = Terminal()
    for width in range(1, 40):
        terminal.width = width
        with terminal.capture() as captured:
            terminal.print(rows)
        shown = squeezed(captured.get())
        for text in ("one", "✓", "123,456,789", "two", "7"):
            assert text in shown, width


@pytest.mark.parametrize(
    "terminal, variable, width", [(60, None, 60), (200, None, 200), (200, "40", 40), (60, "0", 60)]
)
@pytest.mark.long
def test_width_of_a_terminal(
    environment: Any, terminal: int, variable: str | None, width: int
) -> None:
    arguments, texts = COMMANDS["simulate"]
    extra = {"NO_COLOR": "1"} | ({} if variable is None else {"COLUMNS": variable})
    shown = on_terminal(arguments, terminal, environment(**extra), most=1)
    assert max(map(len, shown.splitlines())) <= width
    assert "\x1b" not in shown
    assert all(squeezed(text) in squeezed(shown) for text in texts)


COLOURED = {
    "explain": ["explain", *TURNS],
    "lint": ["lint", *TURNS],
    "translate": ["translate", "--to", "gemini", TURNS[0]],
}


@pytest.mark.parametrize(
    "extra, coloured, command",
    [
        *(({}, True, command) for command in COLOURED),
        ({"NO_COLOR": "1"}, False, "explain"),
        ({"NO_COLOR": ""}, True, "lint"),
        ({"TERM": "dumb"}, False, "translate"),
        *(
            pytest.param(extra, coloured, command, marks=pytest.mark.soak)
            for extra, coloured in (
                ({"NO_COLOR": "1"}, False),
                ({"NO_COLOR": ""}, True),
                ({"TERM": "dumb"}, False),
            )
            for command in COLOURED
        ),
    ],
)
def test_colours_on_a_terminal(
    environment: Any, extra: dict[str, str], coloured: bool, command: str
) -> None:
    shown = on_terminal(COLOURED[command], 100, environment(**extra), most=1)
    assert ("\x1b[" in shown) == coloured


@pytest.mark.parametrize("command", COMMANDS)
def test_no_colours_in_a_pipe_unless_forced(run: Any, command: str) -> None:
    arguments, _ = COMMANDS[command]
    plain = run(*arguments)
    assert "\x1b" not in plain.stdout + plain.stderr
    if command in ("explain", "lint"):
        assert "\x1b" in run(*arguments, FORCE_COLOR="1").stdout
    assert "\x1b" not in run(*arguments, FORCE_COLOR="1", NO_COLOR="1").stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["models", "claude"],
        ["models", "minimax"],
        ["models", "anthropic/claude-sonnet-4-5"],
        ["simulate", SESSION],
        ["explain", *TURNS],
        ["lint", *TURNS],
        ["translate", "--to", "openai", TURNS[0]],
        ["ask", "--emulate", "hi"],
        ["ask", "--emulate", "--preview", "hi"],
        ["config", "schema"],
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_json_is_all_there_is_on_stdout(run: Any, tmp_path: Path, arguments: list[str]) -> None:
    """Also when it is to be coloured, or narrow."""
    extra = [] if arguments[0] == "config" else ["--json"]
    home = {"HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)}
    shown = run(*arguments, *extra, COLUMNS="40", FORCE_COLOR="1", **home)
    assert json.loads(shown.stdout) is not None


ASCII = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}


def check_ascii(shown: subprocess.CompletedProcess[str]) -> None:
    assert shown.returncode in (0, 1)
    assert "Unicode" not in shown.stderr
    assert "internal error" not in shown.stderr
    assert shown.stdout.isascii()


@pytest.mark.parametrize(
    "arguments",
    [COMMANDS["explain"][0], "ask --emulate -s Grüße Ça?".split()],
    ids=["explain", "ask"],
)
@pytest.mark.long
def test_locale_without_unicode(run_process: Any, arguments: list[str]) -> None:
    check_ascii(run_process(*arguments, **ASCII))


@pytest.mark.parametrize("command", COMMANDS)
def test_output_without_unicode(run: Any, command: str) -> None:
    check_ascii(run(*COMMANDS[command][0], PYTHONIOENCODING="ascii"))
