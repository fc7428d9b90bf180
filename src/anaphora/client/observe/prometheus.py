"""Counters and histograms for Prometheus: calls, tokens, dollars, verdicts, times.

The series are bounded, whatever names come: of providers, models and block labels so many are told
apart, and every further one is `other`.
"""

from __future__ import annotations

from threading import Lock
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from anaphora.client.response import Record

from .exported import Bounded, label, outcome, queued, shares, word
from .extras import explained

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
except ModuleNotFoundError as problem:
    raise explained(
        problem, "metrics", module="prometheus_client", package="prometheus-client"
    ) from None

#: How many names are told apart: block labels are the app's words, model names may be a user's.
MOST_LABELS = 200
MOST_MODELS = 200

Kind = TypeVar("Kind", Counter, Histogram)

_CALL = ("provider", "model")
_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)
_QUEUED = (0.001, 0.01, 0.1, 0.5, 1, 5, 10, 30, 60, 120, 300)


class Metrics:
    """Watches into a registry; without one, into the one that prometheus_client exposes.

    Several on one registry count together.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._to = _families(REGISTRY if registry is None else registry)

    def __call__(self, record: Record) -> None:
        self._to.count(record)


class _Series(Generic[Kind]):
    """A metric whose series are found by their labels, quicker than it finds them itself."""

    __slots__ = ("_family", "_found")

    def __init__(self, family: Kind) -> None:
        self._family: Kind = family
        self._found: dict[tuple[str, ...], Kind] = {}

    def __call__(self, *values: str) -> Kind:
        found = self._found.get(values)
        if found is None:
            found = self._found[values] = self._family.labels(*values)
        return found


class _Families:
    """Every metric, once for each registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.providers = Bounded(MOST_MODELS)
        self.models = Bounded(MOST_MODELS)
        self.labels = Bounded(MOST_LABELS)

        made: list[Counter | Histogram] = []

        def counter(name: str, said: str, labels: tuple[str, ...] = _CALL) -> _Series[Counter]:
            family = Counter(f"anaphora_{name}", said, labels, registry=None)
            made.append(family)
            return _Series(family)

        def histogram(name: str, said: str, buckets: tuple[float, ...]) -> _Series[Histogram]:
            family = Histogram(f"anaphora_{name}", said, _CALL, buckets=buckets, registry=None)
            made.append(family)
            return _Series(family)

        self.calls = counter("calls_total", "Calls that are over", (*_CALL, "outcome"))
        self.attempts = counter("attempts_total", "Requests sent", ("provider", "outcome"))
        self.tokens = counter("tokens_total", "Tokens billed, each once", (*_CALL, "kind"))
        self.blocks = counter("block_tokens_total", "Tokens sent, by block", (*_CALL, "label"))
        self.cost_usd = counter("cost_usd_total", "What calls cost")
        self.unpriced = counter("unpriced_calls_total", "Calls whose price is not known")
        self.saved = counter("saved_usd_total", "What the cache took off the bill")
        self.unsaved = counter("unsaved_usd_total", "What the cache added where it did not pay")
        self.verdicts = counter("verdicts_total", "Verdicts on the cache", ("result", "cause"))
        self.lost = counter("lost_tokens_total", "Tokens paid for again", ("cause",))
        self.lost_usd = counter("lost_usd_total", "What those cost", ("cause",))
        self.seconds = histogram("call_seconds", "How long a call took", _SECONDS)
        self.first = histogram("first_byte_seconds", "How long until the answer began", _SECONDS)
        self.queued = histogram("queued_seconds", "Waiting for our own limits", _QUEUED)
        _register(made, registry)

    def count(self, record: Record) -> None:
        call = self.providers(label(record.provider)), self.models(word(record.model))
        self.calls(*call, outcome(record.error)).inc()
        self.seconds(*call).observe(record.seconds)
        self.queued(*call).observe(queued(record))
        if record.first is not None:
            self.first(*call).observe(record.first)
        for attempt in record.attempts:
            provider = self.providers(label(attempt.provider))
            self.attempts(provider, outcome(attempt.error)).inc()
        self._count_tokens(record, call)
        self._count_cost(record, call)
        self._count_verdict(record)

    def _count_tokens(self, record: Record, call: tuple[str, str]) -> None:
        usage = record.usage
        for kind, tokens in (
            ("uncached", usage.uncached),
            ("read", usage.read),
            *((f"written_{ttl}", n) for ttl, n in (usage.written or {}).items()),
            ("output", usage.output),
        ):
            if tokens is not None:
                self.tokens(*call, kind).inc(tokens)
        for name, tokens in shares(record.blocks, MOST_LABELS).items():
            self.blocks(*call, self.labels(name)).inc(tokens)

    def _count_cost(self, record: Record, call: tuple[str, str]) -> None:
        if record.cost_usd is None:
            self.unpriced(*call).inc()
        else:
            self.cost_usd(*call).inc(float(record.cost_usd))
        if record.saved is not None:
            # A counter only rises: a call that wrote more than it saved counts in the other one.
            way = self.saved if record.saved >= 0 else self.unsaved
            way(*call).inc(abs(float(record.saved)))

    def _count_verdict(self, record: Record) -> None:
        verdict = record.verdict
        if verdict is None:
            return
        cause = verdict.cause or "none"
        self.verdicts(verdict.result, cause).inc()
        if verdict.lost:
            self.lost(cause).inc(verdict.lost)
            if verdict.cost_usd is not None:
                self.lost_usd(cause).inc(max(0.0, float(verdict.cost_usd)))


def _register(families: list[Counter | Histogram], registry: CollectorRegistry) -> None:
    """All of them, or none when a name is taken."""
    done = []
    try:
        for family in families:
            registry.register(family)
            done.append(family)
    except ValueError:
        for family in done:
            registry.unregister(family)
        raise


_known: WeakKeyDictionary[CollectorRegistry, _Families] = WeakKeyDictionary()
_lock = Lock()


def _families(registry: CollectorRegistry) -> _Families:
    with _lock:
        if registry not in _known:
            _known[registry] = _Families(registry)
        return _known[registry]
