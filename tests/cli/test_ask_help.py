"""The help of `anaphora ask`, claim by claim."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.emulated_client import AT_ONCE

from anaphora import emulator
from anaphora.client.config.environment import default_rows, key_variables

Ask = Callable[..., Any]

SCRIPT = """
replies:
  - {match: {text: from the pipe}, reply: {text: from the pipe}}
  - {match: {text: from the arguments}, reply: {text: from the arguments}}
"""


@pytest.fixture(scope="module")
def emu() -> Any:
    script = emulator.Script.decode(SCRIPT, "script.yaml")
    options = emulator.EmulatorOptions(latency=AT_ONCE, any_model=True, script=script)
    with emulator.running(options) as running:
        yield running


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, without any provider's variables; also the current folder."""
    for row in default_rows().values():
        for name in key_variables(row):
            monkeypatch.delenv(name, raising=False)
    for name in ("ANAPHORA_CONFIG", "OLLAMA_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def two(home: Path, emu: emulator.Emulator, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two providers in llm.yaml."""
    monkeypatch.setenv("KEY_FOR_THIS_TEST", "any")
    (home / "llm.yaml").write_text(
        "providers:\n"
        f"  claude: {{dialect: anthropic, base_url: '{emu.url}/anthropic', key: {{env: KEY_FOR_THIS_TEST}}, model: claude-sonnet-5-5}}\n"
        f"  gpt: {{dialect: openai, base_url: '{emu.url}/openai', key: {{env: KEY_FOR_THIS_TEST}}, model: gpt-5.2}}\n"
    )
    return home


def _help(run: Any) -> str:
    return " ".join(run("ask", "--help", COLUMNS="200").stdout.split())


def test_keys_are_looked_for_in_the_stated_order(
    run: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = [key_variables(row)[0] for row in default_rows().values()]
    (stated,) = re.findall(r"keys in the environment \(([^)]*), …\)", _help(run))
    names = stated.split(", ")
    assert names == order[: len(names)]
    documented = (Path(__file__).parents[2] / "docs" / "ask.md").read_text()
    positions = [documented.index(f"`{name}`") for name in names]
    assert positions == sorted(positions)
    # From the last to the first: each one that is set is used instead of those after it.
    for name, provider in reversed([*zip(names, default_rows(), strict=False)]):
        monkeypatch.setenv(name, "any")
        shown = run("ask", "--preview", "hi")
        assert f"using {provider}/" in shown.stderr
        assert shown.stderr.strip().endswith(f"with the key from ${name}")


def test_missing_key_names_the_same_variables(run: Any, home: Path) -> None:
    shown = run("ask", "hi")
    assert shown.returncode == 7
    (stated,) = re.findall(r"keys in the environment \(([^)]*), …\)", _help(run))
    assert stated in shown.stderr


@pytest.mark.parametrize(
    "arguments, asked",
    [
        ([], "from the pipe"),
        pytest.param(["-"], "from the pipe", marks=pytest.mark.soak),
        (["from", "the", "arguments"], "from the arguments"),
    ],
)
def test_where_the_question_comes_from(
    run: Any, two: Path, environment: Any, arguments: list[str], asked: str
) -> None:
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-m", "anaphora", "ask", *arguments],
        input="from the pipe",
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{asked}\n"


@pytest.mark.parametrize("command", ["ask", "explain", "lint", "simulate"])
def test_stated_exit_codes_are_of_the_table(run: Any, command: str) -> None:
    """Each command's help states codes that the main help explains."""
    codes = re.findall(r"(?:Exit code|,|or) (\d+) (?:when|for|also)", " ".join(run(command, "--help").stdout.split()))  # fmt: skip
    assert codes
    table = " ".join(run("--help").stdout.split())
    for code in codes:
        assert re.search(rf"\b{code} [a-z]", table)


def test_no_home_folder(run: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setattr(Path, "home", unknown)
    assert run("ask", "--emulate", "hi").returncode == 0
