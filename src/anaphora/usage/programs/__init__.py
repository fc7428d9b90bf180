"""Bills in the session files of agent programs, a module for each program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from anaphora.analysis.trace.log_lines import Problem
from anaphora.analysis.trace.programs import ProgramName
from anaphora.usage.records import CallBill

from .claude_code import ClaudeCodeBills
from .codex import CodexBills
from .copilot import CopilotBills
from .gemini_cli import GeminiCliBills
from .lines import BillReader
from .opencode import OpencodeBills
from .pi import PiBills

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
        if line.isspace():
            continue
        try:
            found = reader.read(line, number)
            if found:
                yield from found
            elif line[-2:] != b"}\n" and line.rstrip()[-1:] != b"}":
                yield Problem(f"{file}:{number}", "the line is no JSON object: it is cut off")
        except ValueError as problem:
            yield Problem(f"{file}:{number}", str(problem))
