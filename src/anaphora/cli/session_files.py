"""Session files of agent programs on this machine, for commands that are given none."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import click

from anaphora.analysis.trace.log_lines import Problem
from anaphora.usage.places import FOLDERS, TITLES, session_files
from anaphora.wording import counted

#: How many sessions are explained.
_NEWEST = 20


def found_sessions(problems: list[Problem]) -> tuple[Path, ...]:
    """The newest session files of all programs, the oldest of them first. How many there are of
    each program is a notice. Raises if there is none."""
    try:
        home = Path.home()
    except RuntimeError:
        raise click.UsageError("no FILES are given, and no home folder is known") from None
    files = [*session_files((), os.environ, home, problems)]
    for (folder, program), number in Counter((one.folder, one.program) for one in files).items():
        kept = f"{counted(number, 'session file')} of {TITLES[program]}"
        problems.append(Problem(_shown(folder, home), kept, "notice"))
    if not files:
        places = (path for one in FOLDERS for path in one.paths(os.environ, home))
        looked = ", ".join(_shown(path, home) for path in places)
        raise click.UsageError(
            f"no FILES are given, and no session file of an agent program is in {looked}"
        )
    files.sort(key=lambda one: (one.mtime, one.path))
    if len(files) > _NEWEST:
        reason = f"the newest {_NEWEST:,} of {len(files):,} are explained; name others as FILES"
        problems.append(Problem("session files", reason, "notice"))
    return tuple(one.path for one in files[-_NEWEST:])


def _shown(path: Path, home: Path) -> str:
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)
