"""bench/cachebench: its results file, and what is skipped."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(ROOT / "bench")
    from cachebench import runner

    yield runner
    for name in [each for each in sys.modules if each.split(".")[0] == "cachebench"]:
        del sys.modules[name]


class Part:
    """A part of a benchmark with the result that it is given."""

    def __init__(self, result: dict[str, Any] | Exception) -> None:
        self._result = result

    def run(self, progress: Any, quick: bool) -> dict[str, Any]:
        if isinstance(self._result, Exception):
            raise self._result
        return dict(self._result)

    def headline(self, found: dict[str, Any]) -> dict[str, Any]:
        return {"calls": found["calls"]}


def test_one_part_is_merged_into_the_results(
    runner: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "results.json"
    peers: dict[str, Any] = {"calls": 3, "versions": {"openai": "3.0"}}
    monkeypatch.setitem(sys.modules, "cachebench.peers", Part(peers))
    monkeypatch.setitem(sys.modules, "cachebench.engine", Part(runner.Unavailable("no model")))
    runner.main(["--only", "peers", "--results", str(file)])
    runner.main(["--only", "engine", "--results", str(file)])
    written = json.loads(file.read_text())
    assert written["schema_version"] == 1
    assert written["parts"] == {"peers": {"calls": 3}, "engine": {"skipped": "no model"}}
    assert written["versions"]["openai"] == "3.0"
    assert set(written["machine"]) == {"cpu", "cores", "memory", "python", "kernel"}
    lines = capsys.readouterr().out.splitlines()
    assert json.loads(lines[-1]) == {"engine": {"skipped": "no model"}}
    monkeypatch.setitem(sys.modules, "cachebench.peers", Part({"calls": 4}))
    runner.main(["--only", "peers", "--results", str(file), "--quick"])
    assert json.loads(file.read_text())["parts"]["peers"] == {"calls": 4, "quick": True}


def test_unknown_part_is_rejected(runner: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        runner.main(["--only", "peer"])
    assert (
        "expected some of peers, gateways, engine, ourselves, got peer" in capsys.readouterr().err
    )


def test_progress_names_part_step_and_time_left(runner: Any) -> None:
    out, times = io.StringIO(), iter([100.0, 130.0])
    progress = runner.Progress("peers", 60.0, out=out, clock=lambda: next(times))
    progress.total(4)
    progress.step("LiteLLM, Anthropic")
    assert out.getvalue() == "peers     1 of 4  LiteLLM, Anthropic  (about 2.5 min left)\n"


def test_command_has_help() -> None:
    command = [sys.executable, "bench/cachebench", "--help"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "--only" in run.stdout
