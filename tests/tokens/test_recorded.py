"""Estimates compared with real bills. `pytest -s` shows the table.

The recordings live beside the repository and are never copied into it. The floors below are under
what was measured.
"""

from __future__ import annotations

from statistics import median

import pytest
from support import traces

from anaphora.tokens import Bills, Counts

pytestmark = pytest.mark.skipif(bool(traces.missing()), reason=traces.missing() or "")

#: File; median and ninth decile of the error, once something was billed; the share within bounds.
#: The clients of the last two add text that the recording does not hold.
FILES = {
    "pi_claude": (0.001, 0.005, 0.9),
    "deepseek_reasonix": (0.02, 0.04, 0.9),
    "inspect_openai": (0.02, 0.05, 0.9),
    "claude_code": (0.002, 0.03, 0.5),
    "gemini_cli": (0.04, 0.3, 0.1),
}


@pytest.mark.parametrize("name", FILES)
def test_estimate_after_usage(name: str) -> None:
    errors, held = list[float](), 0
    for trace in traces.traces(name):
        bills: Bills = ()
        for sent in trace.sent:
            counts = Counts(sent.rendered, bills)
            low, high = counts.bounds(trace.profile.token_error.value)
            if bills:
                errors.append(abs(counts.total - sent.billed) / sent.billed)
                held += low <= sent.billed <= high
            bills = counts.billed(sent.billed)
    middle, ninth = median(errors), sorted(errors)[9 * len(errors) // 10]
    share = held / len(errors)
    print(f"\n{name}: {len(errors)} calls, off by {middle:.2%}, nine in ten by {ninth:.2%},")
    print(f"  within bounds {share:.1%}")
    most_middle, most_ninth, least = FILES[name]
    assert middle <= most_middle
    assert ninth <= most_ninth
    assert share >= least


def test_whole_prompts_before_any_usage() -> None:
    """For recordings with system prompt and tools."""
    held = calls = 0
    for name in ("deepseek_reasonix", "inspect_openai", "opencode_recordings"):
        for trace in filter(lambda trace: trace.complete, traces.traces(name)):
            for sent in trace.sent:
                low, high = Counts(sent.rendered).bounds(trace.profile.token_error.value)
                held += low <= sent.billed <= high
                calls += 1
    print(f"\n{calls} whole prompts, within bounds {held / calls:.1%}")
    assert held / calls > 0.9
