"""Bills in the session files of agent programs, a module for each program."""

from __future__ import annotations

from typing import Any, Protocol

from anaphora.analysis.trace.programs import ProgramName
from anaphora.usage.records import BilledCall


class BillReader(Protocol):
    """Reads the bills of one file of lines, from its first line or from the last one read."""

    def read(self, line: bytes, number: int) -> BilledCall | None:
        """The bill in a line. A line that completes an earlier one (the last line of a reply has
        its whole output) gives the same key again: it replaces the earlier. Raises `ValueError`
        for a line that is broken."""

    def state(self) -> Any:
        """What it knows between two lines, as msgspec can encode it: for `restore`."""

    def restore(self, state: Any) -> None: ...


#: By the program, for those whose files are lines.
READERS: dict[ProgramName, type[BillReader]] = {}
