"""Whoever watches gets one `Record` of each call when it is over.

    Traces()      a span for each call, by OpenTelemetry's conventions for generative AI
    Meters()      its histograms of tokens and times
    Metrics()     counters and histograms for Prometheus
    Logs()        a line for each call, through `logging`

A watcher is any function that takes a record. None of these four passes on what was asked or
answered, nor a key: `exported` is the one place that decides what may leave. The first three need
the extra `anaphora[observe]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .watchers import Watcher, Watchers

if TYPE_CHECKING:
    from .logs import Logs
    from .otel import Traces
    from .otel_meters import Meters
    from .prometheus import Metrics

__all__ = ["Logs", "Meters", "Metrics", "Traces", "Watcher", "Watchers"]

#: What is loaded only when it is asked for: each needs a package that need not be there.
_LATE = {
    "Logs": ".logs",
    "Meters": ".otel_meters",
    "Metrics": ".prometheus",
    "Traces": ".otel",
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_LATE[name], __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATE})
