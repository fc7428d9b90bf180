"""The log of a daemon and its metrics.

    {"time":"2026-11-16T10:00:00.123Z","level":"info","message":"request","request_id":"req_…",…}

The log has one JSON object per line, with the request's id. A thread writes the lines, so that a
full pipe or slow disk delays no call. It contains no bodies, headers or query strings.

Requests are counted many at a time; prometheus_client is loaded and fed when `/metrics` is
requested. The number of series is bounded by the apps, the routes and the statuses.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import threading
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from anaphora.client.observe import Watcher
from anaphora.client.observe.export import BoundedNames
from anaphora.errors import Io, Upstream
from anaphora.wording import visible_json

from .values import kind_of

REQUEST_ID: ContextVar[str] = ContextVar("anaphora_request_id", default="")
"""Id of the current request, added to each line logged for it."""

#: Maximum number of waiting lines; more are counted and dropped.
_MOST_WAITING = 10_000
#: Seconds for which lines are collected and then written together.
_COLLECT_SECONDS = 0.05
_encode = msgspec.json.Encoder(enc_hook=str).encode


class JsonLog:
    """Writes to standard output, or to a file that `reopen` opens again after a rename."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._descriptor = _opened(file)
        self._waiting: deque[tuple[float, str, str, str, dict[str, Any]]] = deque()
        self._left_out = 0
        self._wake = threading.Event()
        self._writing = threading.Lock()
        self._closed = False
        self._second = (0, "")
        self._thread = threading.Thread(target=self._run, name="anaphora-log", daemon=True)
        self._thread.start()

    def _timestamp(self, seconds: float) -> str:
        whole = int(seconds)
        second, text = self._second
        if second != whole:
            text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole))
            self._second = whole, text
        return f"{text}.{int((seconds - whole) * 1000):03d}Z"

    def line(self, level: str, message: str, /, **fields: Any) -> None:
        """Queues a line without waiting."""
        if len(self._waiting) >= _MOST_WAITING:
            self._left_out += 1
            return
        request_id = "" if "request_id" in fields else REQUEST_ID.get()
        self._waiting.append((time.time(), level, message, request_id, fields))
        if not self._wake.is_set():
            self._wake.set()

    def reopen(self) -> None:
        """After a rotation: writes further lines to a new file of the same name."""
        if self._file is not None:
            opened = _opened(self._file)
            with self._writing:
                os.dup2(opened, self._descriptor)
                os.close(opened)

    def close(self) -> None:
        """Writes the waiting lines."""
        self._closed = True
        self._wake.set()
        self._thread.join(5.0)
        with self._writing:
            if self._file is not None and self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1

    def _run(self) -> None:
        while not self._closed:
            self._wake.wait()
            if not self._closed:
                time.sleep(_COLLECT_SECONDS)
            self._wake.clear()
            self._write()
        self._write()

    def _write(self) -> None:
        lines = []
        with contextlib.suppress(IndexError):
            while True:
                at, level, message, request_id, fields = self._waiting.popleft()
                row = {"time": self._timestamp(at), "level": level, "message": message}
                if request_id:
                    row["request_id"] = request_id
                lines.append(visible_json(_encode(row | fields)))
        left_out, self._left_out = self._left_out, 0
        if left_out:
            text = f"{left_out:,} log lines were left out: the log is written too slowly"
            row = {"time": self._timestamp(time.time()), "level": "warning", "message": text}
            lines.append(_encode(row))
        data = memoryview(b"".join(line + b"\n" for line in lines))
        # A full disk or a closed pipe must not end the daemon.
        with self._writing, contextlib.suppress(OSError):
            while data:
                data = data[os.write(self._descriptor, data) :]


def _opened(file: Path | None) -> int:
    if file is None:
        return sys.__stdout__.fileno() if sys.__stdout__ is not None else 1
    try:
        return os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Io(f"{file}: the log cannot be opened: {error.strerror or error}") from None


class _Handler(logging.Handler):
    """Passes records of `logging` to the JSON log, without exceptions, whose messages may quote a
    prompt."""

    def __init__(self, log: JsonLog) -> None:
        super().__init__(logging.INFO)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(Exception):
            message, _, trace = record.getMessage().partition("\n")
            more = {"trace": trace} if trace else {}
            self._log.line(record.levelname.lower(), message, logger=record.name, **more)


@contextlib.contextmanager
def logging_to(log: JsonLog) -> Iterator[None]:
    """Sends the package's log records to `log` while the block runs."""
    handler, logger = _Handler(log), logging.getLogger("anaphora")
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(min(level or logging.INFO, logging.INFO))
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


# ── Metrics ───────────────────────────────────────────────────────────────────────────────────────


#: Upper bounds of the histogram, in seconds.
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_MOST_APPS, _MOST_ROUTES = 500, 60
#: Requests that are counted together.
_MOST_UNCOUNTED = 64
_UI = "/ui"
_PAGES = frozenset(("/healthz", "/readyz", "/metrics", "/rpc", _UI))
#: Routes on which a 404 concerns the model.
_CALLS = frozenset(
    (
        "/v1/messages", "/v1/messages/*", "/v1/chat/*", "/v1/responses",
        "/v1/embeddings", "/v1beta/models/*:generateContent",
        "/v1beta/models/*:streamGenerateContent", "/v1beta/models/*:countTokens",
        "/model/*/converse", "/model/*/converse-stream", "/model/*/invoke",
    )
)  # fmt: skip
_OF_BEDROCK = frozenset(
    "converse converse-stream invoke invoke-with-response-stream count-tokens".split()
)
#: A path without ids: its first two segments, and the verb after a colon.
_ROUTE = re.compile(r"(/[\w.-]{1,40})?(/[\w.-]{1,40})?(.*?)(:\w{1,40})?", re.DOTALL)

Values: TypeAlias = Mapping[tuple[str, ...], float]
"""By the values of the labels."""


class Gauge(msgspec.Struct, frozen=True):
    """A metric computed at scrape time."""

    name: str
    help: str
    values: Callable[[], Awaitable[Values]]
    labels: tuple[str, ...] = ()
    only_grows: bool = False
    """Its name on the page ends with `_total`."""


def route_of(path: str) -> str:
    """`/v1beta/models/gemini-3:generateContent` → `/v1beta/models/*:generateContent`; all pages of
    the dashboard are one."""
    if path.startswith(f"{_UI}/"):
        return _UI
    if path.startswith("/model/"):
        last = path.rpartition("/")[2]
        return f"/model/*/{last}" if last in _OF_BEDROCK else "/model/*"
    match = _ROUTE.fullmatch(path)
    assert match is not None
    first, second, rest, verb = match.groups("")
    return f"{first}{second}{'/*' if rest.strip('/') else ''}{verb}" or "/"


class _Histogram:
    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(_SECONDS) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(_SECONDS, seconds)] += 1
        self.total += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative, as Prometheus has them."""
        running, out = 0, []
        for bound, count in zip((*map(str, _SECONDS), "+Inf"), self.counts, strict=True):
            running += count
            out.append((bound, float(running)))
        return out


class DaemonMetrics:
    """Counts requests. Used from one event loop."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, str]] = Counter()
        self._denied: Counter[str] = Counter()
        self._seconds: dict[str, _Histogram] = {}
        self._ended: list[tuple[str, str, str, int, float]] = []
        """Requests that are not counted yet."""
        self.before_page: list[Callable[[], None]] = []
        """Called before the page is made."""
        self._apps = BoundedNames(_MOST_APPS)
        self._routes = BoundedNames(_MOST_ROUTES)
        self._route_of = lru_cache(maxsize=512)(route_of)
        self._gauges: list[Gauge] = []
        self._registries: list[Any] = []
        started = time.time()
        self.gauge("anaphora_daemon_start_seconds", "Start, since 1970", lambda: started)

    def request(self, app: str, method: str, path: str, status: int, seconds: float) -> None:
        self._ended.append((app, method, path, status, seconds))
        if len(self._ended) >= _MOST_UNCOUNTED:
            self._count_ended()

    def _count_ended(self) -> None:
        ended, self._ended = self._ended, []
        for request in ended:
            self._count(*request)

    def _count(self, app: str, method: str, path: str, status: int, seconds: float) -> None:
        # Unauthenticated and unknown paths would make too many series.
        route = self._route_of(path)
        known = route in _PAGES or (app and (status not in (404, 405) or route in _CALLS))
        route = self._routes(route) if known else "none"
        key = f"{method} {route}" if len(method) <= 7 else route
        self._requests[self._apps(app), key, str(status)] += 1
        histogram = self._seconds.get(route)
        if histogram is None:
            histogram = self._seconds[route] = _Histogram()
        histogram.add(seconds)

    def denied(self, problem: Upstream) -> None:
        """Counts an error that the daemon itself answered with."""
        self._denied[kind_of(problem)] += 1

    def gauge(self, name: str, help: str, value: Callable[[], float]) -> None:
        async def values() -> Values:
            return {(): value()}

        self.gauges(Gauge(name, help, values))

    def gauges(self, *gauges: Gauge) -> None:
        self._gauges += gauges

    def calls(self) -> Watcher:
        """A watcher of calls whose metrics are added to the page: tokens, costs, verdicts,
        times."""
        from prometheus_client import CollectorRegistry

        from anaphora.client.observe import Metrics

        registry = CollectorRegistry()
        self._registries.append(registry)
        return Metrics(registry)

    async def page(self) -> tuple[str, bytes]:
        """The content type and text of the metrics page."""
        from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest

        self._count_ended()
        for prepare in self.before_page:
            prepare()
        looked_up = [(gauge, await gauge.values()) for gauge in self._gauges]
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Collected(self._families(looked_up)))
        text = b"".join(map(generate_latest, (registry, *self._registries)))
        return CONTENT_TYPE_PLAIN_0_0_4, text

    def _families(self, gauges: Iterable[tuple[Gauge, Values]]) -> Iterator[Any]:
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        requests = CounterMetricFamily(
            "anaphora_daemon_requests", "Requests answered", labels=("app", "route", "status")
        )
        for labels, count in self._requests.items():
            requests.add_metric(labels, count)
        yield requests
        denied = CounterMetricFamily(
            "anaphora_daemon_refused",
            "Requests refused before they reached a method",
            labels=("kind",),
        )
        for kind, count in self._denied.items():
            denied.add_metric((kind,), count)
        yield denied
        seconds = HistogramMetricFamily(
            "anaphora_daemon_request_seconds", "Duration of requests", labels=("route",)
        )
        for route, histogram in self._seconds.items():
            seconds.add_metric((route,), histogram.buckets(), histogram.total)
        yield seconds
        for gauge, values in gauges:
            family_of = CounterMetricFamily if gauge.only_grows else GaugeMetricFamily
            family = family_of(gauge.name, gauge.help, labels=gauge.labels)
            for of, value in values.items():
                family.add_metric(of, value)
            yield family


class _Collected:
    """A collector of given metric families."""

    def __init__(self, families: Iterable[Any]) -> None:
        self._families = list(families)

    def collect(self) -> list[Any]:
        return self._families
