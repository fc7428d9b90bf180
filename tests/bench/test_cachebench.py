"""bench/cachebench: its results file, and what is skipped."""

from __future__ import annotations

import io
import itertools
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
        "expected some of peers, gateways, engine, ourselves, picture, got peer"
        in capsys.readouterr().err
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


# ── Peers ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.long
def test_each_call_continues_the_one_before(runner: Any, tmp_path: Path) -> None:
    """A call has what is new, and the replies that the emulator gives are those in the history."""
    from cachebench import workload

    told = {family.name: family for family in workload.families(6, traces=tmp_path)}
    loop = told["append_only"].calls
    assert [call.keep for call in loop] == [0, 1, 3, 5, 7, 9]
    assert all(call.new[0] == {"reply": True} for call in loop[1:])
    for call, after in itertools.pairwise(loop):
        assert call.at < after.at
        results = [each["id"] for new in after.new[1:] for each in new.get("results", ())]
        assert results == [made["id"] for made in call.reply["calls"]]
    assert len(told["tool_added"].calls[-1].tools) == len(told["tool_added"].calls[0].tools) + 1
    assert [len(call.tail) for call in told["moved_message"].calls] == [1] * 6
    other = workload.careless(told["append_only"]).calls
    assert len({call.system for call in other}) == len(other)
    assert other[0].tools != loop[0].tools
    assert sorted(tool["name"] for tool in other[0].tools) == [
        tool["name"] for tool in loop[0].tools
    ]


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.long
def test_one_conversation_is_billed_through_real_code(
    runner: Any, tmp_path: Path, fixed: bool
) -> None:
    """Our client, and `watch --fix` before it: the emulator bills reads, and nothing is refused."""
    from cachebench import cell, workload

    family = next(iter(workload.families(4, traces=tmp_path)))
    ours = cell.Cell(
        "anaphora", "ours", (sys.executable,), {}, "anthropic", "claude-sonnet-4-6", fixed
    )
    (bill,) = cell.measure(ours, [family])
    assert (bill.calls, bill.refused, bill.errors) == (4, 0, [])
    assert bill.read > bill.written > bill.wasted > 0
    assert bill.foresight is not None
    assert bill.foresight <= bill.dollars < 1.1 * bill.foresight
    assert all(seconds > 0 for seconds in bill.cpu)


@pytest.mark.long
def test_each_family_has_a_new_proxy(runner: Any, tmp_path: Path) -> None:
    """The second family is the first again: a proxy that knew it would mark its first call."""
    from cachebench import cell, workload

    family = next(iter(workload.families(2, traces=tmp_path)))
    fixed = cell.Cell(
        "anaphora", "ours", (sys.executable,), {}, "bedrock", "us.anthropic.claude-sonnet-4-6", True
    )
    first, second = cell.measure(fixed, [family, family])
    assert first.errors == second.errors == []
    assert (first.written, first.read) == (second.written, second.read)


@pytest.mark.long
def test_the_time_as_state_leaves_the_beginning_alone(runner: Any, tmp_path: Path) -> None:
    from cachebench import cell, workload

    careless = workload.careless(next(iter(workload.families(3, traces=tmp_path))))
    billed = {}
    for module in ("ours", "ours_with_state"):
        ours = cell.Cell(
            "anaphora", module, (sys.executable,), {}, "openai", "gpt-5.1", fixed=False
        )
        (billed[module],) = cell.measure(ours, [careless])
        assert billed[module].errors == []
    assert billed["ours"].read == 0
    assert billed["ours_with_state"].read > billed["ours_with_state"].tokens / 2


def test_other_prompts_are_reported(runner: Any) -> None:
    from cachebench import peers

    def row(peer: str, tokens: int) -> dict[str, Any]:
        layouts = {layout: {"one": {"tokens": tokens}} for layout in ("stable", "careless")}
        return {"peer": peer, "provider": "openai", "families": layouts, "layouts": {}}

    found = peers.deviations([row("sdk", 1000), row("litellm", 1019), row("langchain", 1021)])
    place = {"peer": "langchain", "provider": "openai", "family": "one", "tokens": 0.021}
    assert found == [{**place, "layout": layout} for layout in ("stable", "careless")]


def test_missing_peer_is_skipped_with_the_command_that_installs_it(
    runner: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from cachebench import peers
    from strangers import environment

    monkeypatch.setattr(environment, "SOAK", tmp_path)
    found, rows = peers.cells()
    assert {cell.peer for cell in found} == {"anaphora", "anaphora-state"}
    reasons = {row["skipped"] for row in rows if row["peer"] == "litellm"}
    assert reasons == {
        "the environment frameworks is not installed, or out of date; run make bench-peers"
    }
    assert not list(tmp_path.iterdir())


def test_headline_has_dollars_and_foresight_by_provider(runner: Any) -> None:
    from cachebench import peers

    bill = {"dollars": 2.0, "foresight_dollars": 1.5}
    measured = {"layouts": {"stable": bill, "careless": bill}}
    rows: list[dict[str, Any]] = [
        {"peer": "sdk", "provider": "openai", **measured},
        {"peer": "litellm", "provider": "openai", **measured},
        {"peer": "litellm", "provider": "gemini", "skipped": "not installed"},
    ]
    found = peers.foresight(rows)
    assert found == {"openai": {"stable": 1.5, "careless": 1.5}}
    chosen = peers.headline({"rows": rows, "foresight": found})
    assert chosen == {"openai": {"foresight": 1.5, "sdk": 2.0, "litellm": 2.0}}
