"""The tables of docs/simulator.md are what bench/simulator.py prints."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TRACES = ROOT.parent / "shared" / "traces"
PAGE = ROOT / "docs" / "simulator.md"


def bench(*arguments: str) -> str:
    command = [sys.executable, "bench/simulator.py", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def between(name: str) -> str:
    result = re.search(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", PAGE.read_text(), re.DOTALL)
    assert result is not None
    return result.group(1).strip()


@pytest.fixture(scope="module")
def printed() -> str:
    if not TRACES.exists():
        pytest.skip(f"no recorded conversations at {TRACES}")
    return bench("--calls", "0")


def test_documented_tables_are_current(printed: str) -> None:
    *tables, causes = printed.split("\n\n")[:4]
    assert between("accuracy") == "\n\n".join(tables)
    assert between("causes") == causes


def test_the_last_line_has_figures_above_the_targets(printed: str) -> None:
    figures = json.loads(printed.splitlines()[-1])
    assert list(figures) == [
        "anthropic_loop_exact",
        "worst_exact_gain",
        "worst_class_gain",
        "bill_error_median",
        "tokens_p99",
        "deepseek_within_granule",
        "call_cost_growth",
    ]
    assert figures["anthropic_loop_exact"] >= 0.99
    assert figures["worst_exact_gain"] >= 0
    assert figures["worst_class_gain"] >= 0
    assert figures["deepseek_within_granule"] >= 0.95


def test_missing_recordings_are_reported(tmp_path: Path) -> None:
    prompt, figures = bench("--traces", str(tmp_path)).splitlines()
    assert prompt == f"skipped: no recorded conversations at {tmp_path}"
    assert figures == "{}"


def test_other_traces_are_accepted_and_unknown_providers_counted(tmp_path: Path) -> None:
    line = {
        "id": "one",
        "provider": "anthropic",
        "model": "claude-sonnet-4-5",
        "messages": [{"role": "user", "content": "q"}] * 2,
        "calls": [
            {"t": 0, "messages": 1, "usage": {"cache_write_5m": 5000}},
            {"t": 9, "messages": 2, "usage": {"cache_read": 5000}},
        ],
        "system_tokens_unknown": True,
    }
    lines = [line, {**line, "provider": "nobody"}, {**line, "model": "claude-99"}, "broken"]
    file = tmp_path / "mine.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in lines))
    printed = bench("--traces", str(tmp_path), "--calls", "20000")
    for why in ("1 × unknown provider 'nobody'", "1 × broken line"):
        assert why in printed
    figures = json.loads(printed.splitlines()[-1])
    assert (figures["anthropic_loop_exact"], figures["worst_class_gain"]) == (None, 0.0)
    assert figures["deepseek_within_granule"] is None
    assert figures["call_cost_growth"] > 0
