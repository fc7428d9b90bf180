"""What is kept of each call: its bill, and what of it was lost. No text of a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from anaphora.analysis.trace.log_lines import seconds
from anaphora.cache.verdict import CauseKind
from anaphora.values import Ttl, Usage


class CallBill(msgspec.Struct, frozen=True, array_like=True):
    """The bill of one call, as a session file or a log has it."""

    key: bytes
    """Identifies the answer in all files: a digest, as in `analysis.trace.answers`."""
    at: float | None
    """When the answer ended, in unix seconds."""
    session: str
    provider: str
    model: str
    uncached: int = 0
    read: int = 0
    written_5m: int = 0
    written_30m: int = 0
    """OpenAI's writes."""
    written_1h: int = 0
    output: int = 0
    line: int = 0
    """Of the file, counted from 1."""
    project: str = ""
    """The folder that the program worked in."""
    tier: str = ""
    """The service tier, if it is not the standard one."""
    subagent: bool = False
    untimed: bytes = b""
    """The key without its time, if files that copy the answer change its time."""
    copied: bool = False
    """The file says that it begins with another session: `untimed` is enough."""
    partial: bool = False
    """The file has only a part of its tokens, and this is the least."""

    @property
    def input(self) -> int:
        return self.uncached + self.read + self.written_5m + self.written_30m + self.written_1h


#: The end of the year 9998: later times are not times, nor have all time zones their days.
_LAST = 253_370_764_800.0


def moment(stamp: object) -> float | None:
    """A time in unix seconds."""
    at = seconds(stamp)
    return at if at is not None and 0 <= at < _LAST else None


#: The fields of a call that are numbers of tokens.
COUNTS = ("uncached", "read", "written_5m", "written_30m", "written_1h", "output")


def usage_of(counts: Sequence[int]) -> Usage:
    """Tokens in the order of COUNTS."""
    uncached, read, written_5m, written_30m, written_1h, output = counts
    written: dict[Ttl | Any, int] = {"5m": written_5m, "30m": written_30m, "1h": written_1h}
    kept = {ttl: count for ttl, count in written.items() if count}
    return Usage(uncached=uncached, read=read, written=kept, output=output)


class CallLoss(msgspec.Struct, frozen=True, array_like=True):
    """What one call lost."""

    key: bytes
    """The call's."""
    cause: CauseKind
    tokens: int
    """Tokens that could have been read and were billed again."""
    nano_usd: int | None
    """What they cost above a read, in nano-dollars; None: no price is known."""
    sentence: str
    """The verdict, without text of prompts."""
    idle: float | None = None
    """Seconds since the call before."""
    saved_nano_usd: int | None = None
    """What the cause's remedy would have saved, before dearer writes; None: nothing, or unknown."""
