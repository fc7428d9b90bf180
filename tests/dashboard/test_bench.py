"""bench/dashboard.py with few calls: its log has groups, and pages are made with their filter."""

from __future__ import annotations

import runpy
from contextlib import closing
from pathlib import Path

from anaphora.audit.reading import calls
from anaphora.dashboard.past_calls.source import LogCalls

BENCH = Path(__file__).parents[2] / "bench" / "dashboard.py"
NOW = 1_800_000_000.0


def test_pages_of_a_group_are_made(tmp_path: Path) -> None:
    bench, log = runpy.run_path(str(BENCH)), tmp_path / "audit"
    bench["write_log"](log, 200, NOW)
    groups = {call.group for _, call in calls(log)}
    assert groups == {"", "group-0", "group-1", "group-2", "group-3"}
    with closing(LogCalls(tmp_path / "dashboard.db", log, clock=lambda: NOW)) as source:
        bench["fill"](source)
        assert source.state().calls == 200
        pages = [one for one in bench["pages"](source, NOW) if "group=" in one[2]]
        assert [path for _, path, _ in pages] == ["", "blocks", "audit"]
        for _, path, query in pages:
            wall, cpu = bench["page_time"](
                source, path, query, NOW
            )  # ends if the status is not 200
            assert min(wall, cpu) > 0
