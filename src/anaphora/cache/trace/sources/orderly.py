"""Clocks: a call that begins before the one whose answer it follows cannot be placed in time."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from anaphora.cache.trace.form import TraceCall

from .lines import Entry, Problem, Source


def orderly(source: Source) -> Iterator[Entry]:
    """The conversation without the calls whose clock runs backwards, and a problem for each."""
    kept: list[TraceCall] = []
    last: float | None = None
    for index, call in enumerate(source.trace.calls):
        at = call.at
        if call.t is not None and call.t_end is not None and call.t_end < call.t:
            wrong = f"ends {call.t - call.t_end:.1f} s before it begins"
        elif at is not None and last is not None and at < last:
            wrong = f"is {last - at:.1f} s earlier than the call before it"
        else:
            kept.append(call)
            last = at if at is not None else last
            continue
        yield Problem(source.place, f"calls[{index}] {wrong}: the clock runs backwards")
    if len(kept) == len(source.trace.calls):
        yield source
    else:
        yield Source(source.place, replace(source.trace, calls=tuple(kept)))
