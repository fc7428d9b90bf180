"""What `/metrics` shows: requests, denials, time, and the state of the daemon.

Counting is one addition to a dictionary; prometheus_client is loaded and fed when the page is
asked for. The number of series is bounded by the apps, the routes and the statuses.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

import msgspec

from anaphora.client.observe import Watcher
from anaphora.client.observe.export import BoundedNames
from anaphora.errors import Upstream

from .values import kind_of

#: Upper bounds of the histogram, in seconds.
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_MOST_APPS, _MOST_ROUTES = 500, 60
_UI = "/ui"
_PAGES = frozenset(("/healthz", "/readyz", "/metrics", "/rpc", _UI))
#: Where a 404 is about the model.
_CALLS = frozenset(
    (
        "/v1/messages", "/v1/messages/*", "/v1/chat/*", "/v1/responses", "/api/chat",
        "/v1beta/models/*:generateContent", "/v1beta/models/*:streamGenerateContent",
        "/v1beta/models/*:countTokens",
    )
)  # fmt: skip
#: A path without the ids in it: its first two steps, and the verb after a colon.
_ROUTE = re.compile(r"(/[\w.-]{1,40})?(/[\w.-]{1,40})?(.*?)(:\w{1,40})?", re.DOTALL)

Values: TypeAlias = Mapping[tuple[str, ...], float]
"""By the values of the labels."""


class Gauge(msgspec.Struct, frozen=True):
    """A value that is looked up when the page is asked for."""

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
    """Counts in one event loop."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, str]] = Counter()
        self._denied: Counter[str] = Counter()
        self._seconds: dict[str, _Histogram] = {}
        self._apps = BoundedNames(_MOST_APPS)
        self._routes = BoundedNames(_MOST_ROUTES)
        self._route_of = lru_cache(maxsize=512)(route_of)
        self._gauges: list[Gauge] = []
        self._registries: list[Any] = []
        started = time.time()
        self.gauge("anaphora_daemon_start_seconds", "Start, since 1970", lambda: started)

    def request(self, app: str, method: str, path: str, status: int, seconds: float) -> None:
        # Paths of strangers, and paths that there are not, would use up the names.
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
        """An error that the daemon itself answered with."""
        self._denied[kind_of(problem)] += 1

    def gauge(self, name: str, help: str, value: Callable[[], float]) -> None:
        async def values() -> Values:
            return {(): value()}

        self.gauges(Gauge(name, help, values))

    def gauges(self, *gauges: Gauge) -> None:
        self._gauges += gauges

    def calls(self) -> Watcher:
        """A watcher of calls whose metrics are on the page too: tokens, costs, verdicts, times."""
        from prometheus_client import CollectorRegistry

        from anaphora.client.observe import Metrics

        registry = CollectorRegistry()
        self._registries.append(registry)
        return Metrics(registry)

    async def page(self) -> tuple[str, bytes]:
        """The content type and the text."""
        from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest

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
    """A collector of families that are already there."""

    def __init__(self, families: Iterable[Any]) -> None:
        self._families = list(families)

    def collect(self) -> list[Any]:
        return self._families
