"""Shared by the readers of bills: typed decoding of a line, numbers of tokens and times."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from types import GenericAlias
from typing import Annotated, Any, TypeAlias

import msgspec

from anaphora.analysis.trace.format import TraceUsage
from anaphora.analysis.trace.log_lines import Answer, seconds
from anaphora.analysis.trace.programs.recorded import served_by
from anaphora.catalog.pricing import STANDARD_TIERS
from anaphora.usage.records import BilledCall
from anaphora.wire.reading import DECODE_ERRORS, decode_reason

Tokens: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""A number of tokens, as a line has it."""

#: The last second of the year 9999: later times are not times.
_LAST = 253_402_300_799.0


def fields(names: str = "", *, rename: dict[str, str] | None = None, **typed: Any) -> Any:
    """A type with these fields of a line, each of which may be missing. The others are skipped.
    `[T]` is a list of T."""
    of_any_type = [(name, Any, None) for name in names.split()]
    types = {n: GenericAlias(list, *t) if isinstance(t, list) else t for n, t in typed.items()}
    optional = [(name, type | None, None) for name, type in types.items()]
    return msgspec.defstruct("Fields", [*of_any_type, *optional], rename=rename)


def decoder(of: Any) -> Callable[[bytes | msgspec.Raw], Any]:
    """Decodes a line. Raises `ValueError` with a reason that does not quote the line."""
    decode = msgspec.json.Decoder(of).decode

    def decoded(line: bytes | msgspec.Raw) -> Any:
        try:
            return decode(line)
        except DECODE_ERRORS as problem:
            raise ValueError(decode_reason(problem, line)) from None

    return decoded


def of_messages(
    messages: Iterable[msgspec.Raw], read: Callable[[msgspec.Raw], Iterable[BilledCall]]
) -> Iterator[BilledCall]:
    """The bills of all messages. Raises `ValueError` at the end if one is broken."""
    wrong = ""
    for index, message in enumerate(messages):
        try:
            yield from read(message)
        except ValueError as problem:
            wrong = wrong or f"messages[{index}]: {problem}"
    if wrong:
        raise ValueError(wrong)


class KnownBetweenLines:
    """What a reader knows between two lines, for `BillReader`."""

    known: Any = None

    def begin(self, file: str) -> None:
        del file

    def state(self) -> Any:
        return self.known

    def restore(self, state: Any) -> None:
        self.known = msgspec.convert(state, type(self.known))

    def call(
        self,
        answer: Answer,
        usage: TraceUsage,
        by: tuple[str, str],
        at: float | None,
        line: int,
        **more: Any,
    ) -> BilledCall:
        """A bill of the session that is known."""
        known = self.known
        own = {"session": known.id, "project": known.project}
        return billed_call(answer, usage, by, at=at, line=line, **own, **more)


def moment(stamp: object) -> float | None:
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
