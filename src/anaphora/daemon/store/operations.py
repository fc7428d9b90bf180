"""What a batch is made of, and how each of its operations ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

from anaphora.errors import AnaphoraError, InvalidRequest

from . import LARGEST_AMOUNT, Hold, Settled, Settlement, SpendLimits
from .corrections import Correction


class HoldRequest(msgspec.Struct, eq=False):
    """A hold and the limits that it must not exceed."""

    hold: Hold
    limits: SpendLimits

    def __post_init__(self) -> None:
        if not 0 <= self.hold.bound <= LARGEST_AMOUNT:
            reason = f"must be 0 to {LARGEST_AMOUNT:,} nano-dollars, got {self.hold.bound:,}"
            raise InvalidRequest(reason)


class TableChange(msgspec.Struct, frozen=True):
    """A change to the tables of tokens and handles."""

    sql: str
    values: Sequence[Any]


class AuditedCalls(msgspec.Struct, frozen=True):
    """The audit rows of these calls are durable."""

    request_ids: Sequence[str]


Operation: TypeAlias = HoldRequest | Settlement | TableChange | AuditedCalls | Correction
Outcome: TypeAlias = AnaphoraError | None
"""Why an operation was refused. Others of its batch are not affected."""


def corrects(settlement: Settlement, kind: Settled) -> bool:
    """Whether a late settlement changes an entry: one at the bound gets the actual amount, all
    others are final."""
    return kind == "bound" and settlement.kind != "bound"
