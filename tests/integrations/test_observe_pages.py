"""The pages on `observe` and on frameworks, run as written against the emulator."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from support.framework_pages import DOCS, FRAMEWORKS, fences, program_of

from anaphora.emulator.server import Emulator
from anaphora.integrations.observation import shared

KEYS = {"ANTHROPIC_API_KEY": "any", "OPENAI_API_KEY": "any"}


@pytest.fixture
def reader(emu: Emulator, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A reader's machine, whose calls go to the emulator."""
    addresses = {"ANTHROPIC_BASE_URL": emu.url, "OPENAI_BASE_URL": f"{emu.url}/v1"}
    addresses["OPENAI_API_BASE"] = f"{emu.url}/v1"
    for name, value in (KEYS | addresses).items():
        monkeypatch.setenv(name, value)
    shared.cache_clear()
    yield
    shared.cache_clear()


def run(program: str, page: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    module = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    exec(compile(program, page, "exec"), module.__dict__)
    return module.__dict__


def without_figures(text: str) -> str:
    return re.sub(r"\d[\d,.]*", "0", text)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_page_runs_as_one_program_and_prints_its_output(
    reader: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    programs = fences("observe.md", "python")
    assert programs[0].count("anaphora.observe(") == 1, "the first screen shows the one line"
    run("\n".join(programs), "observe.md", monkeypatch)
    printed = capsys.readouterr().out.splitlines()
    (output,) = fences("observe.md", "text")
    expected = output.splitlines()
    assert list(map(without_figures, printed[: len(expected)])) == list(
        map(without_figures, expected)
    )
    assert re.fullmatch(r"1 call, \d+% read, \$[\d.]+", printed[-1])


def test_the_cost_on_the_page_is_at_most_the_limit() -> None:
    """1.5 ms of CPU a call."""
    (figure,) = re.findall(r"\*\*Cost\*\*: ([\d.]+) ms of CPU", (DOCS / "observe.md").read_text())
    assert float(figure) <= 1.5


def test_every_framework_of_the_page_has_its_program() -> None:
    assert [program_of(name) for name in FRAMEWORKS]
    assert len(fences("frameworks.md", "python")) == len(FRAMEWORKS)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_framework_where_it_is_installed(
    name: str, reader: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them run in `make soak`, in environments of their own."""
    module = FRAMEWORKS[name].module
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        pytest.skip(f"{module} is not installed")
    seen = run(program_of(name), "frameworks.md", monkeypatch)["seen"]
    assert [call.turn for call in seen.calls] == [1, 2]
