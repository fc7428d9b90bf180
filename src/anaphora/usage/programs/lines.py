"""Shared by the readers of bills: typed decoding of a line, numbers of tokens and times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeAlias, TypeVar

import msgspec

from anaphora.analysis.trace.log_lines import seconds
from anaphora.catalog.pricing import STANDARD_TIERS
from anaphora.wire.reading import DECODE_ERRORS, decode_reason

Tokens: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**53)] | None
"""A number of tokens, as a line has it."""
Stamp: TypeAlias = str | float | None

#: The last second of the year 9999: later times are not times.
_LAST = 253_402_300_799.0

T = TypeVar("T")


def decoder(of: type[T]) -> Callable[[bytes], T]:
    """Decodes a line. Raises `ValueError` with a reason that does not quote the line."""
    decode = msgspec.json.Decoder(of).decode

    def decoded(line: bytes) -> T:
        try:
            return decode(line)
        except DECODE_ERRORS as problem:
            raise ValueError(decode_reason(problem, line)) from None

    return decoded


def moment(stamp: Stamp) -> float | None:
    """A time in unix seconds."""
    at = seconds(stamp)
    return at if at is not None and 0 <= at <= _LAST else None


def tier_of(service: object) -> str:
    """The service tier, if it is not the standard one."""
    return service if isinstance(service, str) and service not in STANDARD_TIERS else ""
