"""The tables of the docs are what bench/simulator.py prints."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SHARED = ROOT.parent / "shared"
GUIDE = ROOT / "docs" / "guides" / "how-good-is-the-prediction.md"
SIMULATOR = ROOT / "docs" / "simulator.md"


def bench(*arguments: str) -> str:
    command = [sys.executable, "bench/simulator.py", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def between(page: Path, name: str) -> list[str]:
    result = re.search(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", page.read_text(), re.DOTALL)
    assert result is not None
    return result.group(1).strip().splitlines()


#: Of each figure: what a client changes after a user's message, and in the conversations of the
#: worst family of bills, is not recorded.
LIMITS = {
    "worst_exact_gain": (0, 1), "worst_class_gain": (0, 1),
    "anthropic_loop_exact": (0.995, 1), "codex_exact": (0.81, 1), "user_turn_class": (0.75, 1),
    "bill_error_median": (0, 0.045), "worst_bill_error_median": (0, 0.17),
    "conversation_range_share": (0.88, 1), "conversation_range_width_median": (0, 1),
    "range_share": (0.9, 1), "range_width_median": (0, 0.5),
    "said_short_over_real": (0.5, 2), "unknown_share_of_lost_usd": (0, 0.2),
    "first_call_tokens_median": (0, 0.03), "deepseek_within_granule": (0.95, 1),
    "wrong_loss_verdicts": (0, 0), "missed_losses": (0, 0.02),
}  # fmt: skip


@pytest.fixture(scope="module")
def printed() -> str:
    for name in ("traces", "gateways", "sessions", "thinking"):
        if not (SHARED / name).exists():
            pytest.skip(f"no recorded conversations at {SHARED / name}")
    return bench("--calls", "0")


@pytest.mark.long
def test_documented_tables_are_current(printed: str) -> None:
    tables = printed[printed.index("| figure") :].split("\n\n")[:4]
    summary, reads, bills, causes = (table.splitlines() for table in tables)
    assert between(GUIDE, "summary") == summary
    assert between(GUIDE, "reads") == reads
    assert between(GUIDE, "bills") == bills
    assert between(SIMULATOR, "causes") == causes


@pytest.mark.long
def test_the_last_line_has_the_figures(printed: str) -> None:
    figures = json.loads(printed.splitlines()[-1])
    outside = {
        name: figures[name]
        for name, (least, most) in LIMITS.items()
        if not least <= figures[name] <= most
    }
    assert outside == {}


def test_missing_recordings_are_reported(tmp_path: Path) -> None:
    prompt, figures = bench("--traces", str(tmp_path)).splitlines()
    assert prompt == f"skipped: no recorded conversations in {tmp_path}"
    assert figures == "{}"


@pytest.mark.long
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
    printed = bench("--traces", str(tmp_path), "--calls", "20000", "--no-planted")
    for why in ("1 × rejected: unknown provider 'nobody'", "1 × skipped"):
        assert why in printed
    figures = json.loads(printed.splitlines()[-1])
    assert (figures["anthropic_loop_exact"], figures["worst_class_gain"]) == (None, None)
    assert figures["deepseek_within_granule"] is None
    assert figures["call_cost_growth"] > 0
