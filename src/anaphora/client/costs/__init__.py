"""The cost of one attempt: its bound before it is sent, and its settlement afterwards. Clients and
daemon use the same rules. Amounts are whole nano-dollars."""

from __future__ import annotations

from typing import Literal, TypeAlias

NANO = 1_000_000_000
"""Nano-dollars per dollar."""

#: Nine million dollars in nano-dollars. Sums of such amounts fit into 64 bits.
LARGEST_AMOUNT = 2**53

Settled: TypeAlias = Literal["billed", "estimated", "bound", "free", "disputed"]
"""The source of an amount: the bill; an estimate from what was received; the held bound, since the
bill never came; nothing was charged; the held bound, since the bill is impossible."""
