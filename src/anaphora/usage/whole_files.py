"""Bills in files that are not lines that a program appends: the older files of Gemini CLI, and
opencode's database and tree."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from anaphora.analysis.trace.log_lines import Problem
from anaphora.analysis.trace.programs import ProgramName

from .log_files import lines_of, records_of
from .opencode_files import database_replies, is_database_file
from .programs import READERS
from .programs.opencode import OpencodeBills
from .records import CallBill

#: Seconds before the last reading in which a change may have been made, but not committed.
_UNCOMMITTED = 60.0


def is_whole(path: Path, program: ProgramName) -> bool:
    """Whether a file is read as a whole when it has changed, by `read_file`."""
    return program == "opencode" or path.suffix == ".json"


def read_file(
    path: Path, program: ProgramName, since: float | None = None
) -> Iterator[CallBill | Problem]:
    """The bills of a whole file. `since` is when it was read before: of a database, only replies
    that were changed since then are read; other files are read again."""
    problems: list[Problem] = []
    if is_database_file(path):
        changed = None if since is None else since - _UNCOMMITTED
        opencode = OpencodeBills()
        for reply in database_replies(path, problems, changed):
            try:
                yield from opencode.reply(reply)
            except ValueError as problem:
                yield Problem(f"{path}:{reply.number}", f"a message of the session: {problem}")
    else:
        reader = READERS[program]()
        reader.begin(str(path))
        for line in (lines_of if path.is_dir() else records_of)(path, problems):
            try:
                yield from reader.read(line.data, int(line.place.rpartition(":")[2]))
            except ValueError as problem:
                yield Problem(line.place, str(problem))
    yield from problems
