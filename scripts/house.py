"""Measure the structure of the package: size, circles, duplicates, what one call runs through.

    python scripts/house.py [--check] [--no-trace] [--list]

Counts every file of src and examples, prints a table and, as the last line, one JSON object.
`--check`, which `make check` runs, exits with 1 when a limit is exceeded, and lists what counts
towards it. docs/decisions/0032 says what each figure is for. Four figures count elsewhere:

- `test_lines`: lines of the Python files in tests and soak.
- `public_names`: the lines `name …` of tests/public_surface.txt, which a test holds to the code.
- `commands`: commands that run: leaves of `anaphora`'s tree, and groups that run by themselves.
- `options`: the options of all these and of their groups, hidden ones as well, without `--help` and
  `--version`.
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

import click
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

from anaphora.cli.common import anaphora as anaphora_command

#: The most that each figure may be. A limit only falls: whoever removes code lowers it.
LIMITS = {
    "lines": 149_300,
    "files": 665,
    "test_lines": 167_900,
    "public_names": 185,
    "commands": 48,
    "options": 190,
    "files_over_400": 20,
    "duplicate_class_names": 0,
    "import_circles": 0,
    "import_circles_with_types": 10,
    "wire_branches": 1,
    "memo_objects": 15,
    "single_subclass_bases": 7,
    "longest_function": 60,
    "most_parameters": 10,
    "session_turn_files": 48,
    "session_turn_lines": 12_200,
    "daemon_call_files": 126,
    "daemon_call_lines": 32_500,
    "daemon_call_functions": 1_560,
    "watched_call_files": 81,
    "watched_call_functions": 930,
    "reader_disagreements": 0,
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


# ── Tests and names ──────────────────────────────────────────────────────────────────────────────


def outside() -> dict[str, int]:
    """The four figures that are not read off the source."""
    commands, options = counted(anaphora_command)
    surface = (ROOT / "tests" / "public_surface.txt").read_text().splitlines()
    return {
        "test_lines": sum(
            path.read_text().count("\n")
            for folder in ("tests", "soak")
            for path in (ROOT / folder).rglob("*.py")
        ),
        "public_names": sum(line.startswith("name ") for line in surface),
        "commands": commands,
        "options": options,
    }


def counted(command: click.Command) -> tuple[int, int]:
    """How many commands and options a command has, those below it counted in."""
    options = sum(
        isinstance(param, click.Option) and not {"--help", "--version"} & set(param.opts)
        for param in command.params
    )
    if not isinstance(command, click.Group):
        return 1, options
    context = click.Context(command)
    found = [command.get_command(context, name) for name in command.list_commands(context)]
    below = [counted(each) for each in found if each is not None]
    runs = command.invoke_without_command and command is not anaphora_command
    return sum(n for n, _ in below) + runs, sum(n for _, n in below) + options


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
        **outside(),
        **{name: len(hits) for name, hits in lists.items()},
        "longest_function": max(length for length, _, _ in lengths),
        "most_parameters": max(count for _, count, _ in lengths),
        "docstring_lines": docstring_lines(found),
    }
    lists["longest_function"] = [f"{n} {place}" for n, _, place in lengths if n > _LONG_FUNCTION]
    lists["most_parameters"] = [f"{n} {place}" for _, n, place in lengths if n > _PARAMETERS]
    if not options.no_trace:
        for _ in range(_TRACES):
            of_calls, files = traced()
            figures |= of_calls
            lists |= files
            if all(figures[name] <= LIMITS.get(name, inf) for name in of_calls):
                break
        if not options.check:  # tests/laws/test_readers.py checks it
            figures |= {
                "reader_disagreements": last_line("reader_disagreements.py")["reader_disagreements"]
            }
    exceeded = [name for name, most in LIMITS.items() if figures.get(name, 0) > most]
    for name, value in figures.items():
        limit = LIMITS.get(name)
        note = "" if limit is None else f"  (limit {limit:,})"
        print(f"{name:28}{value:>8,}{note}")
        if options.list or (options.check and name in exceeded):
            for hit in lists.get(name, ()):
                print(f"    {hit}")
    print(json.dumps(figures))
    return 1 if options.check and exceeded else 0


if __name__ == "__main__":
    raise SystemExit(main())
