"""Clocks: a call that begins before the one whose answer it follows cannot be placed in time."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from anaphora.analysis.trace.form import TraceCall

from .lines import Entry, Problem, Source


def orderly(source: Source) -> Iterator[Entry]:
    """The conversation, with a problem for each call whose clock runs backwards. Such a call was
    made and keeps its place, but it has no time, and its bill is not held against anything."""
    calls: list[TraceCall] = []
    last: float | None = None
    for index, call in enumerate(source.trace.calls):
        wrong = _wrong(call, last)
        if wrong is None:
            last = call.at if call.at is not None else last
        else:
            yield Problem(source.place, f"calls[{index}] {wrong}: the clock runs backwards")
            call = replace(call, t=None, t_end=None, dur=None, usage=None)
        calls.append(call)
    yield Source(source.place, replace(source.trace, calls=tuple(calls)))


def _wrong(call: TraceCall, last: float | None) -> str | None:
    if call.t is not None and call.t_end is not None and call.t_end < call.t:
        return f"ends {call.t - call.t_end:.1f} s before it begins"
    if call.at is not None and last is not None and call.at < last:
        return f"is {last - call.at:.1f} s earlier than the call before it"
    return None
