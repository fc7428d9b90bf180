"""Measure the structure of the package: size, circles, duplicates, what one call runs through.

    python scripts/house.py [--check] [--no-trace] [--list]

Counts every file of src and examples, prints a table and, as the last line, one JSON object.
`--check`, which `make check` runs, exits with 1 when a limit is exceeded, and lists what counts
towards it. docs/decisions/0032 says what each figure is for, and who raised a limit.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from math import inf
from pathlib import Path
from typing import Any

from structure import (
    ROOT,
    circles,
    docstring_lines,
    duplicate_classes,
    functions,
    memos,
    modules,
    single_bases,
    wire_branches,
)

#: Lines that changes were allowed to add to the third edition, by subject; files grow by a 200th.
ALLOWED = {
    "attacks on the daemon, predictions from bills (decisions 0026 to 0031)": 10_910,
    "real programs and operators": 4_500,
    "speed": 2_500,
    "the clouds": 7_000,
    "usage": 3_500,
    "budgets, alerts, cold guard, summaries, hosts, remedies": 4_000,
    "the first release": 500,
}
LIMITS = {
    "lines": 125_000 + sum(ALLOWED.values()),
    "files": 545 + sum(ALLOWED.values()) // 200,
    "files_over_400": 25,
    "duplicate_class_names": 0,
    "import_circles": 0,
    "import_circles_with_types": 39,
    "wire_branches": 5,
    "memo_objects": 16,
    "single_subclass_bases": 8,
    "longest_function": 60,
    "most_parameters": 10,
    "session_turn_files": 40,
    "session_turn_lines": 7_500,
    "daemon_call_files": 85,
    "daemon_call_lines": 22_000,
    "daemon_call_functions": 1_250,
    "watched_call_files": 60,
    "watched_call_functions": 1_300,
    "reader_disagreements": 0,
}
#: Figures above their limit, and what they may not exceed until then. docs/decisions/0032 says why.
ABOVE = {
    "lines": 176_000,
    "files": 790,
    "wire_branches": 9,
    "memo_objects": 22,
    "single_subclass_bases": 13,
    "session_turn_files": 44,
    "session_turn_lines": 11_250,
    "daemon_call_files": 128,
    "daemon_call_lines": 32_200,
    "watched_call_files": 84,
}
_LONG_FILE, _LONG_FUNCTION, _PARAMETERS = 400, 60, 10
#: How often calls are traced until no limit is exceeded: on a busy machine coroutines wait more.
_TRACES = 3


# ── One call ─────────────────────────────────────────────────────────────────────────────────────


def last_line(program: str) -> Any:
    """The JSON object at the end of the output of a program in this folder."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name(program))],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return json.loads(done.stdout.splitlines()[-1])


def traced() -> tuple[dict[str, int], dict[str, list[str]]]:
    """What warm calls run through: the figures, and the files with their lines and calls."""
    figures: dict[str, int] = {}
    lists: dict[str, list[str]] = {}
    for kind, calls in last_line("trace_calls.py").items():
        by_file: dict[str, int] = defaultdict(int)
        for file, _, _, count in calls:
            by_file[file] += count
        lines = {file: Path(file).read_text().count("\n") for file in by_file}
        figures[f"{kind}_files"] = len(by_file)
        figures[f"{kind}_lines"] = sum(lines.values())
        figures[f"{kind}_functions"] = sum(by_file.values())
        lists[f"{kind}_files"] = [
            f"{lines[file]:5} lines {by_file[file]:5} calls  {Path(file).relative_to(ROOT)}"
            for file in sorted(by_file)
        ]
        lists[f"{kind}_functions"] = [
            f"{count:5}  {Path(file).relative_to(ROOT)}:{line} {name}"
            for file, line, name, count in sorted(calls, key=lambda call: -call[3])
        ]
    return figures, lists


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail when a limit is exceeded")
    parser.add_argument("--no-trace", action="store_true", help="only read files, run nothing")
    parser.add_argument("--list", action="store_true", help="show each hit, not only the counts")
    options = parser.parse_args()
    found = modules()
    lengths = functions(found)
    lists = {
        "files_over_400": [f"{m.lines:5} {m.place}" for m in found if m.lines > _LONG_FILE],
        "duplicate_class_names": [
            f"{k}: {', '.join(v)}" for k, v in duplicate_classes(found).items()
        ],
        "import_circles": [name for circle in circles(found) for name in circle],
        "import_circles_with_types": [
            name for circle in circles(found, with_types=True) for name in circle
        ],
        "wire_branches": wire_branches(found),
        "memo_objects": memos(found),
        "single_subclass_bases": single_bases(found),
    }
    figures: dict[str, int] = {
        "lines": sum(module.lines for module in found),
        "files": len(found),
        **{name: len(hits) for name, hits in lists.items()},
        "longest_function": max(length for length, _, _ in lengths),
        "most_parameters": max(count for _, count, _ in lengths),
        "docstring_lines": docstring_lines(found),
    }
    lists["longest_function"] = [f"{n} {place}" for n, _, place in lengths if n > _LONG_FUNCTION]
    lists["most_parameters"] = [f"{n} {place}" for _, n, place in lengths if n > _PARAMETERS]
    allowed = LIMITS | ABOVE
    if not options.no_trace:
        for _ in range(_TRACES):
            of_calls, files = traced()
            figures |= of_calls
            lists |= files
            if all(figures[name] <= allowed.get(name, inf) for name in of_calls):
                break
        if not options.check:  # tests/laws/test_readers.py checks it
            figures |= {
                "reader_disagreements": last_line("reader_disagreements.py")["reader_disagreements"]
            }
    exceeded = [name for name, most in allowed.items() if figures.get(name, 0) > most]
    for name, value in figures.items():
        limit = LIMITS.get(name)
        note = "" if limit is None else f"  (limit {limit:,})"
        if name in ABOVE:
            note += f"  (for now {ABOVE[name]:,})"
        print(f"{name:28}{value:>8,}{note}")
        if options.list or (options.check and name in exceeded):
            for hit in lists.get(name, ()):
                print(f"    {hit}")
    print(json.dumps(figures))
    return 1 if options.check and exceeded else 0


if __name__ == "__main__":
    raise SystemExit(main())
