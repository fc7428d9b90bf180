"""Shared by the readers of bills: typed decoding of a line, numbers of tokens and times."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, TypeAlias, TypeVar

import msgspec

from anaphora.analysis.trace.format import TraceUsage
from anaphora.analysis.trace.log_lines import Answer, seconds
from anaphora.analysis.trace.programs.recorded import served_by
from anaphora.catalog.pricing import STANDARD_TIERS
from anaphora.usage.records import BilledCall
from anaphora.wire.reading import DECODE_ERRORS, decode_reason

Tokens: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**53)] | None
"""A number of tokens, as a line has it."""
Stamp: TypeAlias = str | float | None

#: The last second of the year 9999: later times are not times.
_LAST = 253_402_300_799.0

T = TypeVar("T")


def decoder(of: type[T]) -> Callable[[bytes | msgspec.Raw], T]:
    """Decodes a line. Raises `ValueError` with a reason that does not quote the line."""
    decode = msgspec.json.Decoder(of).decode

    def decoded(line: bytes | msgspec.Raw) -> T:
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


@lru_cache(maxsize=1024)
def _served(provider: str, model: str) -> tuple[str, str]:
    return served_by(provider, model)


def served(provider: object, model: object) -> tuple[str, str]:
    """The catalog's provider and model, by the names that a program uses."""
    names = (name if isinstance(name, str) else "" for name in (provider, model))
    return _served(*names)


def billed_call(
    answer: Answer,
    usage: TraceUsage,
    served: tuple[str, str],
    *,
    at: float | None,
    session: str,
    line: int,
    project: str = "",
    tier: str = "",
    subagent: bool = False,
) -> BilledCall:
    return BilledCall(
        answer.key,
        at,
        session,
        *served,
        usage.input,
        usage.cache_read,
        usage.cache_write_5m,
        usage.cache_write_1h,
        usage.output or 0,
        line,
        project,
        tier,
        subagent,
        answer.untimed,
        answer.copied,
        usage.cache_write_30m,
    )
