"""docs/guides/test-your-cache.md, followed step by step."""

from __future__ import annotations

import datetime
import itertools
import re
import shlex
from pathlib import Path
from typing import Self

import pytest
import yaml

import anaphora.emulator

pytest_plugins = "pytester"

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "test-your-cache.md"
FENCES = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
AGENT, FIRST, BROKEN, LIMITS, EVERY, RECORDED = (body for tag, body in FENCES if tag == "python")
OUTPUT = next(body for tag, body in FENCES if tag == "text" and "broke" in body)


@pytest.fixture
def reader(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    (pytester.path / "agent.py").write_text(AGENT)
    monkeypatch.syspath_prepend(pytester.path)
    return pytester


def test_the_first_test_and_the_limits_pass(reader: pytest.Pytester) -> None:
    (reader.path / "test_agent.py").write_text(FIRST)
    (reader.path / "test_limits.py").write_text(LIMITS)
    reader.runpytest_inprocess().assert_outcomes(passed=2)


class Ticking(datetime.datetime):
    """A clock that moves 130.209 ms each time it is asked, as between the calls in the guide: which
    character changes first depends on it."""

    times = itertools.count()

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Self:
        first = cls(2026, 11, 16, 7, 59, 20, 36_560, tz)
        return first + next(cls.times) * datetime.timedelta(microseconds=130_209)


def test_the_broken_prefix_is_reported_as_the_guide_shows(
    reader: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datetime, "datetime", Ticking)
    (reader.path / "agent.py").write_text(AGENT + BROKEN)
    (reader.path / "test_agent.py").write_text(FIRST)
    result = reader.runpytest_inprocess()
    result.assert_outcomes(failed=1)
    shown = without_figures(OUTPUT)
    assert shown in without_figures(result.stdout.str())


def test_every_test_of_a_project_is_under_contract(reader: pytest.Pytester) -> None:
    reader.makeini("[pytest]\nanaphora_min_calls = 0\n")
    (reader.path / "agent.py").write_text(AGENT + BROKEN)
    (reader.path / "conftest.py").write_text(EVERY)
    (reader.path / "test_agent.py").write_text(FIRST.replace("(cache_contract)", "()"))
    (reader.path / "test_other.py").write_text("def test_other(): pass")
    reader.runpytest_inprocess().assert_outcomes(passed=1, failed=1)


def test_recorded_answers_are_replayed_without_a_network(
    reader: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The emulator stands in for the provider; afterwards nothing is at its address."""
    (reader.path / "test_recorded.py").write_text(RECORDED)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-canary-9aF3xLq8")
    replies = "replies:\n  - reply: {text: We sell tea.}\n"
    script = anaphora.emulator.Script.decode(replies, "replies.yaml")
    with anaphora.emulator.running(anaphora.emulator.EmulatorOptions(script=script)) as provider:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", provider.url)
        once = reader.runpytest_inprocess("--anaphora-record=once")
        once.assert_outcomes(passed=1)
        assert len(provider.requests()) == 1
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    reader.runpytest_inprocess().assert_outcomes(passed=1)
    recordings = reader.path / "recordings" / "test_recorded" / "test_the_answer_names_tea"
    files = [file for file in recordings.rglob("*") if file.is_file()]
    assert files
    assert not any(b"canary" in file.read_bytes() for file in files)


def test_the_workflow_runs_these_commands(reader: pytest.Pytester) -> None:
    (workflow,) = (yaml.safe_load(body) for tag, body in FENCES if tag == "yaml")
    commands = [step["run"] for step in workflow["jobs"]["cache"]["steps"] if "run" in step]
    (command,) = (each for each in commands if each.startswith("pytest"))
    (reader.path / "test_agent.py").write_text(FIRST)
    reader.runpytest_inprocess(*shlex.split(command)[1:]).assert_outcomes(passed=1)
    assert "✅ 1 cache contract held." in (reader.path / "cache.md").read_text()


def without_figures(text: str) -> str:
    return re.sub(r"\d[\d,.]*", "0", text)
