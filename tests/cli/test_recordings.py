"""What `simulate` and `explain` make of recordings with several keys, a compaction, and
a clock that runs backwards: exit codes and the main figures."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from support.three_calls import three_calls, usage

Json = dict[str, Any]
Run: TypeAlias = Callable[..., "subprocess.CompletedProcess[str]"]

#: Long enough for the minimum of the model.
QUESTION = "All of it matters to the answer. " * 900
BACKWARDS = (
    "the clock stepped back before 1 call (3), by 110.0 s at most: the time since the call before is"
    " unknown, and later times are moved by the step"
)


class Command:
    """Runs a command on a recording, and gives its report."""

    def __init__(self, run: Run, file: Path) -> None:
        self._run, self._file = run, file

    def __call__(self, command: str, lines: list[Json]) -> Json:
        ran = self.ran(command, lines)
        assert ran.returncode == 0, ran.stderr
        found: Json = json.loads(ran.stdout)
        return found

    def ran(self, command: str, lines: list[Json]) -> subprocess.CompletedProcess[str]:
        self._file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return self._run(*command.split(), str(self._file), "--json")


@pytest.fixture
def report(run: Run, tmp_path: Path) -> Command:
    return Command(run, tmp_path / "log.jsonl")


def asked(key: str, at: float, bill: Json) -> Json:
    """The same question with some key."""
    call = {"t": at, "messages": 1, "usage": bill, "breakpoints": [[0, "5m"]]}
    messages = [{"role": "user", "content": QUESTION}]
    name = {"id": f"{key} at {at}", "provider": "anthropic", "model": "claude-sonnet-4-5"}
    return {**name, "account": key, "messages": messages, "calls": [call]}


class TestSeveralKeys:
    lines = [  # noqa: RUF012
        asked("one", 1000.0, usage(0, 7000)),
        asked("two", 1010.0, usage(0, 7000)),
        asked("one", 1020.0, usage(7000, 0)),
        asked("two", 1030.0, usage(7000, 0)),
    ]

    def test_a_key_reads_what_it_wrote_itself(self, report: Command) -> None:
        found = report("simulate", self.lines)
        assert found["total"]["exact"] == 4
        reads = {one["conversation"]: one["predicted"]["read"] for one in found["conversations"]}
        assert reads == {
            "one at 1000.0": 0,
            "one at 1020.0": 7000,
            "two at 1010.0": 0,
            "two at 1030.0": 7000,
        }

    def test_with_one_key_the_second_call_should_have_read(self, report: Command) -> None:
        lines = [{**line, "account": "one"} for line in self.lines]
        assert report("simulate", lines)["total"]["exact"] == 3

    def test_nothing_broke(self, report: Command) -> None:
        assert report("explain", self.lines)["summary"]["broke"] == 0


class TestCompaction:
    """The third call sends a summary in place of what was sent before."""

    lines = [three_calls(usage(0, 2000))]  # noqa: RUF012

    def test_simulate_names_the_cause(self, report: Command) -> None:
        found = report("simulate", self.lines)
        assert found["causes"] == {"prompt_changed": 1}
        assert (found["total"]["pairs"], found["total"]["right"]) == (2, 1)

    def test_explain_names_no_loss_that_it_cannot_prove(self, report: Command) -> None:
        found = report("explain", self.lines)
        results = [turn["verdict"]["result"] for turn in found["turns"]]
        assert results == ["first", "hit", "unknown"]
        assert "the change is not known" in found["turns"][-1]["sentence"]


class TestBackwardClock:
    """The third call is before the others: its bill counts, with a notice."""

    calls = three_calls(usage(5200, 300))["calls"]
    lines = [  # noqa: RUF012
        three_calls({}, calls=[*calls[:2], {**calls[2], "t": 900.0}]),
        three_calls(usage(5200, 300), id="other"),
    ]

    def test_simulate(self, report: Command) -> None:
        found = report("simulate", self.lines)
        assert (found["total"]["calls"], found["total"]["billed_calls"]) == (6, 6)
        assert found["total"]["exact"] == 6
        assert [notice["reason"] for notice in found["notices"]] == [BACKWARDS]

    def test_explain(self, report: Command) -> None:
        found = report("explain", self.lines)
        assert (found["summary"]["first"], found["summary"]["hit"]) == (2, 4)
        assert [notice.partition(":1: ")[2] for notice in found["notices"]] == [BACKWARDS]

    def test_the_notice_is_shown(self, report: Command) -> None:
        ran = report.ran("simulate", self.lines)
        assert ran.returncode == 0
        assert BACKWARDS in ran.stdout
