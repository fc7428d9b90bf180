"""Everything that error collectors, debuggers and exporters can see of a failure, as text.

    with logged() as log:
        ...
    for name, text in collected(error, records, log): ...

Secrets must be in none of it.
"""

from __future__ import annotations

import copy
import gc
import logging
import pickle
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import msgspec
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest
from rich.traceback import Traceback

from anaphora.client.observe import Logs, Meters, Metrics, Traces
from anaphora.client.response import Record

#: Frames whose variables are collected for a log line: those of tests are not the product's.
_COLLECTED = ("anaphora", "aiohttp", "asyncio", "yaml")


def collected(
    error: BaseException | None, records: Iterable[Record], log: list[str]
) -> Iterator[tuple[str, str]]:
    """What each collector saw."""
    if error is not None:
        yield from of_error(error)
    for record in records:
        yield from of_record(record)
    yield "log", "\n".join(log)


def of_error(error: BaseException) -> Iterator[tuple[str, str]]:
    for each in chain(error):
        yield "str", str(each)
        yield "repr", repr(each)
        yield "attributes", f"{vars(each)} {each.args}"
        yield "pickle", pickled(each)
        yield "deepcopy", repr(vars(copy.deepcopy(each)))
        yield "traceback with locals", with_locals(each)
        yield "Sentry", "\n".join(map(sentry_frame, frames(each)))
        yield "rich", rich_locals(each)


def chain(error: BaseException) -> list[BaseException]:
    """The error and all errors that can be reached from it, those that are not printed included."""
    found: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is not None and not any(one is each for each in found):
            found.append(one)
            waiting += [one.__cause__, one.__context__]
            if isinstance(one, BaseExceptionGroup):
                waiting += one.exceptions
    return found


def frames(error: BaseException) -> list[FrameType]:
    return [frame for frame, _ in traceback.walk_tb(error.__traceback__)]


def pickled(error: BaseException) -> str:
    with suppress(TypeError, AttributeError, pickle.PicklingError):
        return pickle.dumps(error).decode("latin1")
    return ""


def with_locals(error: BaseException) -> str:
    """As `cgitb`, `pytest --showlocals` and the standard library show them."""
    shown = traceback.TracebackException.from_exception(error, capture_locals=True)
    return "".join(shown.format())


def sentry_frame(frame: FrameType) -> str:
    """Sentry calls `repr`, but walks through mappings and sequences."""
    return "\n".join(f"{name}={_walked(value)}" for name, value in frame.f_locals.items())


def _walked(value: Any, depth: int = 4) -> str:
    if depth and isinstance(value, Mapping):
        items = value.items()
        return str([(_walked(key, depth - 1), _walked(each, depth - 1)) for key, each in items])
    if (
        depth
        and isinstance(value, Sequence | Set)
        and not isinstance(value, str | bytes | bytearray)
    ):
        return str([_walked(each, depth - 1) for each in list(value)[:100]])
    with suppress(Exception):
        return repr(value)
    return ""


def rich_locals(error: BaseException) -> str:
    """`rich.traceback.install(show_locals=True)` walks through containers and `__rich_repr__`."""
    shown = Traceback.extract(
        type(error),
        error,
        error.__traceback__,
        show_locals=True,
        locals_max_length=1000,
        locals_max_string=100_000,
        locals_hide_dunder=False,
    )
    return "\n".join(
        f"{frame.name} {name}={node}"
        for stack in shown.stacks
        for frame in stack.frames
        for name, node in (frame.locals or {}).items()
    )


def of_record(record: Record) -> Iterator[tuple[str, str]]:
    yield "repr of the record", repr(record)
    yield "JSON of the record", msgspec.json.encode(record).decode()
    exporter, tracing = InMemorySpanExporter(), TracerProvider()
    tracing.add_span_processor(SimpleSpanProcessor(exporter))
    Traces(tracing.get_tracer("test"))(record)
    yield "spans", "".join(str(span.to_json()) for span in exporter.get_finished_spans())
    reader = InMemoryMetricReader()
    metering = MeterProvider([reader])
    Meters(metering.get_meter("test"))(record)
    data = reader.get_metrics_data()
    metering.shutdown()
    assert data is not None
    yield "meters", data.to_json()
    registry = CollectorRegistry()
    Metrics(registry)(record)
    yield "Prometheus", generate_latest(registry).decode()
    Logs(logging.getLogger("anaphora.calls"))(record)  # seen by `logged`


class _Collector(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__(logging.DEBUG)
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(f"{record.getMessage()} {vars(record)}")
        if record.exc_info and record.exc_info[1] is not None:
            self._lines.extend(text for _, text in of_error(record.exc_info[1]))
        # Sentry's `attach_stacktrace`
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            if str(frame.f_globals.get("__name__")).partition(".")[0] in _COLLECTED:
                self._lines.append(sentry_frame(frame))
            frame = frame.f_back


@contextmanager
def logged() -> Iterator[list[str]]:
    """All that is logged at DEBUG meanwhile, with the local variables of the frames it is from."""
    root, lines = logging.getLogger(), list[str]()
    handler, level, collects = _Collector(lines), root.level, gc.isenabled()
    # Garbage of earlier tests may log when it is collected, in whatever frame runs then.
    gc.disable()
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        yield lines
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
        if collects:
            gc.enable()
