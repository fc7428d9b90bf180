"""Bills in the session files of agent programs, a module for each program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from anaphora.analysis.trace.log_lines import Problem
from anaphora.analysis.trace.programs import ProgramName
from anaphora.usage.records import CallBill

from .claude_code import ClaudeCodeBills
from .codex import CodexBills
from .copilot import CopilotBills
from .gemini_cli import GeminiCliBills
from .opencode import OpencodeBills
from .pi import PiBills


class BillReader(Protocol):
    """Reads the bills of one file of lines, from its first line or from the last one read."""

    def begin(self, file: str) -> None:
        """The next lines are of this file, which may tell more by what lies beside it."""

    def read(self, line: bytes, number: int) -> Iterable[CallBill]:
        """The bills in a line, mostly one or none. A line that completes an earlier one (the last
        line of a reply has its whole output) gives the same key again: it replaces the earlier,
        unless that has more output. Raises `ValueError` for a line that is broken; the next one
        can be read."""

    def state(self) -> Any:
        """What it knows between two lines, as msgspec can encode it: for `restore`."""

    def restore(self, state: Any) -> None: ...


#: By the program, for those whose files are lines.
READERS: dict[ProgramName, type[BillReader]] = {
    "claude_code": ClaudeCodeBills,
    "codex": CodexBills,
    "copilot": CopilotBills,
    "gemini_cli": GeminiCliBills,
    "opencode": OpencodeBills,
    "pi": PiBills,
}


def bills(
    reader: BillReader, lines: Iterable[bytes], file: str, first: int = 1
) -> Iterator[CallBill | Problem]:
    """The bills in the lines of a file, of which `first` is the number of the first. A line that
    is broken or cut off is a problem with its place."""
    reader.begin(file)
    for number, line in enumerate(lines, first):
        try:
            found = reader.read(line, number)
            if found:
                yield from found
            elif line[-2:] != b"}\n" and not line.isspace() and line.rstrip()[-1:] != b"}":
                yield Problem(f"{file}:{number}", "the line is no JSON object: it is cut off")
        except ValueError as problem:
            yield Problem(f"{file}:{number}", str(problem))
