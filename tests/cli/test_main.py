"""The entry point: what is printed where, and every exit code."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points, version
from typing import Any

import click
import pytest

from anaphora.cli import common
from anaphora.cli.main import main
from anaphora.errors import (
    AnaphoraError,
    InvalidConfig,
    InvalidTool,
    MissingSecret,
    NoFixture,
    Transport,
)


def test_help_names_every_command(run_process: Any) -> None:
    shown = run_process("--help")
    assert shown.returncode == 0
    assert shown.stderr == ""
    for expected in ("Usage: anaphora", "demo", "completion", "--version", "Exit codes"):
        assert expected in shown.stdout
    assert "..." not in shown.stdout.replace("[ARGS]...", ""), "a summary is cut short"


def test_every_command_has_help() -> None:
    group = common.anaphora
    context = click.Context(group)
    names = group.list_commands(context)
    assert names == sorted(common.COMMANDS)
    for name in names:
        command = group.get_command(context, name)
        assert command is not None
        assert (command.help or "").splitlines()[0] == common.COMMANDS[name]


def test_helper_modules_are_not_commands(run: Any) -> None:
    for name in ("main", "common", "terminal", "log_files", "provider_choice"):
        assert run(name).returncode == 2


def test_version(run_process: Any) -> None:
    shown = run_process("--version")
    assert (shown.returncode, shown.stdout) == (0, f"anaphora {version('anaphora')}\n")


def test_console_script_is_main() -> None:
    (script,) = entry_points(group="console_scripts", name="anaphora")
    assert script.load() is main


@pytest.mark.parametrize(
    "arguments", [["nope"], ["demo", "--nope"], ["completion"], ["--nope"], []]
)
def test_usage_errors(run: Any, arguments: list[str]) -> None:
    wrong = run(*arguments)
    assert wrong.returncode == 2
    assert wrong.stdout == ""
    assert "Usage: anaphora" in wrong.stderr
    assert "Traceback" not in wrong.stderr


def _fail_with(monkeypatch: pytest.MonkeyPatch, problem: BaseException) -> None:
    @click.command()
    def command() -> None:
        raise problem

    monkeypatch.setattr(common.Commands, "get_command", lambda *_: command)
    monkeypatch.setattr(common.Commands, "list_commands", lambda *_: ["fail"])


@pytest.mark.parametrize(
    "problem, code, message",
    [
        (InvalidTool("no name", path="tools.x"), 2, "tools.x: no name"),
        (InvalidConfig("no wire", file="llm.yaml", line=3), 2, "llm.yaml:3: no wire"),
        (MissingSecret("not set", file="llm.yaml", line=4), 7, "llm.yaml:4: not set"),
        (NoFixture(model="m", prompt_hash="h"), 1, "no replay fixture for model=m prompt_hash=h"),
        (Transport("connection refused"), 1, "connection refused"),
        (AnaphoraError("something"), 1, "something"),
        (FileNotFoundError(2, "No such file or directory", "x.json"), 1, "[Errno 2] No such file or directory: 'x.json'"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)  # fmt: skip
def test_errors_are_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    problem: BaseException,
    code: int,
    message: str,
) -> None:
    _fail_with(monkeypatch, problem)
    assert main(["fail"]) == code
    out, err = capsys.readouterr()
    assert (out, err.strip()) == ("", f"anaphora: {message}")


def test_internal_error_is_64(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("ANAPHORA_DEBUG", raising=False)
    _fail_with(monkeypatch, ZeroDivisionError("by\nnought"))
    assert main(["fail"]) == 64
    err = capsys.readouterr().err
    assert err.splitlines() == [
        "anaphora: internal error: ZeroDivisionError: by nought",
        "anaphora: set ANAPHORA_DEBUG=1 to see the traceback",
    ]
    monkeypatch.setenv("ANAPHORA_DEBUG", "1")
    assert main(["fail"]) == 64
    err = capsys.readouterr().err
    assert err.startswith("Traceback")
    assert "set ANAPHORA_DEBUG" not in err


def test_missing_required_module_is_internal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _fail_with(monkeypatch, ModuleNotFoundError("No module named 'blake3'", name="blake3"))
    assert main(["fail"]) == 64
    assert "internal error: ModuleNotFoundError" in capsys.readouterr().err


def test_exit_code_of_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    _fail_with(monkeypatch, click.exceptions.Exit(1))
    assert main(["fail"]) == 1


def _python(program: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_closed_pipe_is_no_error(environment: Any) -> None:
    """Of other commands: test_exit_codes."""
    demo = f"{sys.executable} -m anaphora demo"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {demo} | true"],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_importing_the_library_loads_no_cli(environment: Any) -> None:
    program = (
        "import anaphora, sys\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('click', 'htpy', 'rich')"
        " or name.startswith('anaphora.cli')])"
    )
    done = _python(program, environment())
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("arguments", [["--version"], ["--help"]])
def test_help_and_version_load_nothing_heavy(arguments: list[str], environment: Any) -> None:
    program = (
        "import sys\nfrom anaphora.cli.main import main\n"
        f"main({arguments!r})\n"
        "sys.exit(' '.join(n for n in ('rich', 'asyncio', 'anaphora.wire') if n in sys.modules))"
    )
    done = _python(program, environment())
    assert done.stderr.strip() == ""


def test_the_daemon_does_without_rich(environment: Any) -> None:
    """It would take megabytes for as long as the daemon runs."""
    program = (
        "import sys\nimport anaphora.cli.serve, anaphora.daemon.server\n"
        "sys.exit(' '.join(name for name in sys.modules if name.startswith('rich')))"
    )
    done = _python(program, environment())
    assert done.stderr.strip() == ""
