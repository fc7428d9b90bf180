"""Where a configuration came from, so that what is wrong with it is said with file and line."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from anaphora.errors import InvalidConfig
from anaphora.marked import Lines, spoken

E = TypeVar("E", bound=InvalidConfig)


class Origin(msgspec.Struct, frozen=True):
    """A file and the line of each field; both are empty for what a program made up."""

    file: str = ""
    lines: Lines = {}

    def line(self, *path: str | int) -> int | None:
        """The line of a field, or of what it would stand in."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return None

    def error(self, reason: str, *path: str | int, kind: type[E]) -> E:
        said = f"{spoken(path)}: {reason}" if path else reason
        return kind(said, file=self.file, line=self.line(*path))

    def invalid(self, reason: str, *path: str | int) -> InvalidConfig:
        return self.error(reason, *path, kind=InvalidConfig)
