"""Shared by the readers of bills: typed decoding of a line, numbers of tokens and times."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from types import GenericAlias
from typing import Annotated, Any, TypeAlias

import msgspec

from anaphora.analysis.trace.format import TraceUsage
from anaphora.analysis.trace.log_lines import Answer
from anaphora.analysis.trace.programs.recorded import served_by
from anaphora.catalog.pricing import STANDARD_TIERS
from anaphora.usage.records import CallBill
from anaphora.wire.reading import DECODE_ERRORS, decode_reason

Tokens: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""A number of tokens, as a line has it."""


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
    messages: Iterable[msgspec.Raw], read: Callable[[msgspec.Raw], Iterable[CallBill]]
) -> Iterator[CallBill]:
    """The bills of all messages. Raises `ValueError` at the end if one is broken."""
    wrong = ""
    for index, message in enumerate(messages):
        try:
            yield from read(message)
        except ValueError as problem:
            wrong = wrong or f"messages[{index}]: {problem}"
    if wrong:
        raise ValueError(wrong)


class BillReader(ABC):
    """Reads the bills of one file of lines, from its first line or from the last one read."""

    def __init__(self, known: Any = None) -> None:
        self.known = known
        """What it knows between two lines, as msgspec can encode it: for `restore`."""
        self._served: dict[tuple[str, ...], tuple[str, str]] = {}

    def begin(self, file: str) -> None:
        """The next lines are of this file, which may tell more by what lies beside it."""
        del file

    @abstractmethod
    def read(self, line: bytes, number: int) -> Iterable[CallBill]:
        """The bills in a line, mostly one or none. A line that completes an earlier one (the last
        line of a reply has its whole output) gives the same key again: it replaces the earlier,
        unless that has more output. Raises `ValueError` for a line that is broken; the next one
        can be read."""

    def restore(self, state: Any) -> None:
        self.known = msgspec.convert(state, type(self.known))

    def served(self, provider: object, model: object) -> tuple[str, str]:
        """The catalog's provider and model, by the names that a program uses."""
        names = (name if isinstance(name, str) else "" for name in (provider, model))
        found = self._served.get(key := tuple(names))
        if found is None:
            found = self._served[key] = served_by(*key)
        return found

    def call(
        self,
        answer: Answer,
        usage: TraceUsage,
        by: tuple[str, str],
        at: float | None,
        line: int,
        *,
        tier: str = "",
        subagent: bool = False,
    ) -> CallBill:
        """A bill of the session that is known."""
        return CallBill(
            answer.key,
            at,
            self.known.id,
            *by,
            usage.input,
            usage.cache_read,
            usage.cache_write_5m,
            usage.cache_write_30m,
            usage.cache_write_1h,
            usage.output or 0,
            line,
            self.known.project,
            tier,
            subagent,
            answer.untimed,
            answer.copied,
        )


def tier_of(service: object) -> str:
    """The service tier, if it is not the standard one."""
    return service if isinstance(service, str) and service not in STANDARD_TIERS else ""
