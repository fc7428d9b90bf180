"""Counters and histograms for Prometheus: calls, tokens, costs, verdicts, times.

The number of series is bounded: the first 200 providers, models and block labels have their own;
others count as `other`. Counting adds to a dictionary; the sums reach prometheus_client when the
series are collected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, Any

from anaphora.client.response import Record

from .export import BoundedNames, block_label, label, missing_extra, outcome, queued, shares, word

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
except ModuleNotFoundError as error:
    raise missing_extra(
        error, "metrics", module="prometheus_client", package="prometheus-client"
    ) from None

if TYPE_CHECKING:
    from anaphora.cache.verdict import Verdict

#: Block labels are the application's, model names may be a user's.
MAX_LABELS = 200
MAX_MODELS = 200

_CALL = ("provider", "model")
_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)
_QUEUED = (0.001, 0.01, 0.1, 0.5, 1, 5, 10, 30, 60, 120, 300)

#: Observations of times that are kept until the next collection.
_MOST_OBSERVED = 3000
#: Series of calls and blocks that are found by names as they are in a record.
_MOST_KNOWN = 1000

_lock = Lock()


class _Counter(Counter):
    """Adds pending counts before it is collected."""

    add_pending: Callable[[], None] = staticmethod(lambda: None)

    def collect(self) -> Iterable[Any]:
        self.add_pending()
        return super().collect()


class _Histogram(Histogram):
    add_pending: Callable[[], None] = staticmethod(lambda: None)

    def collect(self) -> Iterable[Any]:
        self.add_pending()
        return super().collect()


class Metrics:
    """Counts in a registry, by default the one that prometheus_client exposes. Several `Metrics` on
    one registry share their counters."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._families = _Families.of(REGISTRY if registry is None else registry)

    def __call__(self, record: Record) -> None:
        self._families.count(record)


class _CallSeries:
    """The series that the calls of a model have used so far: series are created on first use."""

    __slots__ = ("blocks", "counters", "names")

    def __init__(self, families: _Families, provider: str, model: str) -> None:
        self.names = families.providers(label(provider)), families.models(word(model))
        self.counters: dict[str, Counter] = {}
        """Those of calls without an error."""
        self.blocks: dict[tuple[str, str], Counter] = {}
        """By label and section."""


class _Families:
    """Every metric, once for each registry."""

    @classmethod
    def of(cls, registry: CollectorRegistry) -> _Families:
        """The registry's families, created on first use and kept on the registry itself."""
        with _lock:
            families: _Families | None = getattr(registry, "anaphora_families", None)
            if families is None:
                families = cls(registry)
                setattr(registry, "anaphora_families", families)  # noqa: B010
            return families

    def __init__(self, registry: CollectorRegistry) -> None:
        self.providers = BoundedNames(MAX_MODELS)
        self.models = BoundedNames(MAX_MODELS)
        self.labels = BoundedNames(MAX_LABELS)
        self._lock = Lock()
        self._added: dict[Counter, float] = {}
        self._observed: list[tuple[Histogram, float]] = []
        """Counts that are not in the series yet."""
        self._known: dict[tuple[str, str], _CallSeries] = {}
        """By provider and model."""

        families: list[_Counter | _Histogram] = []

        # `cache`: a series is found four times as fast as by `labels`.
        def counter(name: str, help: str, by: tuple[str, ...] = _CALL) -> Callable[..., Counter]:
            family = _Counter(f"anaphora_{name}", help, by, registry=None)
            family.add_pending = self._add_pending
            families.append(family)
            return cache(family.labels)

        def histogram(name: str, help: str, buckets: tuple[float, ...]) -> Callable[..., Histogram]:
            family = _Histogram(f"anaphora_{name}", help, _CALL, buckets=buckets, registry=None)
            family.add_pending = self._add_pending
            families.append(family)
            return cache(family.labels)

        self.calls = counter("calls_total", "Finished calls", (*_CALL, "outcome"))
        self.prewarms = counter("prewarm_calls_total", "Calls that only write or refresh a prefix")
        self.attempts = counter("attempts_total", "Requests sent", ("provider", "outcome"))
        self.tokens = counter("tokens_total", "Tokens billed, each once", (*_CALL, "kind"))
        self.blocks = counter("block_tokens_total", "Tokens sent, by block", (*_CALL, "label"))
        self.cost_usd = counter("cost_usd_total", "Cost of calls")
        self.unpriced = counter("unpriced_calls_total", "Calls without a known price")
        self.saved = counter("saved_usd_total", "Savings by the cache")
        self.unsaved = counter("unsaved_usd_total", "Cost of cache writes beyond savings")
        self.verdicts = counter("verdicts_total", "Cache verdicts", ("result", "cause"))
        self.lost = counter(
            "lost_tokens_total", "Tokens that could have been read and were not", ("cause",)
        )
        self.lost_usd = counter("lost_usd_total", "Cost of those tokens", ("cause",))
        self.seconds = histogram("call_seconds", "Duration of a call", _SECONDS)
        self.first = histogram("first_byte_seconds", "Time to the first byte", _SECONDS)
        self.queued = histogram("queued_seconds", "Time queued by client-side limits", _QUEUED)
        _register(families, registry)

    def count(self, record: Record) -> None:
        with self._lock:
            self._count(record)
        if len(self._observed) > _MOST_OBSERVED:
            self._add_pending()

    def _add_pending(self) -> None:
        with self._lock:
            added, self._added = self._added, {}
            observed, self._observed = self._observed, []
        for counter, amount in added.items():
            counter.inc(amount)
        for histogram, seconds in observed:
            histogram.observe(seconds)

    def _add(self, amounts: Iterable[tuple[Counter, float]]) -> None:
        added = self._added
        for counter, amount in amounts:
            if amount < 0:
                raise ValueError("a counter only rises")
            added[counter] = added.get(counter, 0.0) + amount

    def _series(self, record: Record) -> _CallSeries:
        key = record.provider, record.model
        series = self._known.get(key)
        if series is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            series = self._known[key] = _CallSeries(self, *key)
        return series

    def _count(self, record: Record) -> None:
        series, usage, amounts = self._series(record), record.usage, list[tuple[Counter, float]]()
        call, known, observed, add = series.names, series.counters, self._observed, amounts.append
        if record.error is None:
            add((known.get("ok") or known.setdefault("ok", self.calls(*call, "ok")), 1))
        else:
            add((self.calls(*call, outcome(record.error)), 1))
        if record.operation == "prewarm":
            add((self.prewarms(*call), 1))
        observed.append((self.seconds(*call), record.seconds))
        observed.append((self.queued(*call), queued(record)))
        if record.first is not None:
            observed.append((self.first(*call), record.first))
        for attempt in record.attempts:
            provider = call[0]
            if attempt.provider != record.provider:
                provider = self.providers(label(attempt.provider))
            result = "ok" if attempt.error is None else outcome(attempt.error)
            add((self.attempts(provider, result), 1))
        for kind, tokens in (
            ("uncached", usage.uncached),
            ("read", usage.read),
            ("output", usage.output),
        ):
            if tokens is not None:
                add((known.get(kind) or known.setdefault(kind, self.tokens(*call, kind)), tokens))
        for ttl, tokens in (usage.written or {}).items():
            if tokens is not None:
                add((self.tokens(*call, f"written_{ttl}"), tokens))
        if record.cost_usd is None:
            add((self.unpriced(*call), 1))
        else:
            add((self.cost_usd(*call), float(record.cost_usd)))
        if record.saved is not None:
            # A counter only rises, so a call that wrote more than it saved has its own.
            saved = float(record.saved)
            add(((self.saved if saved >= 0 else self.unsaved)(*call), abs(saved)))
        self._count_blocks(record, series, amounts)
        if record.verdict is not None:
            self._count_verdict(record.verdict, amounts)
        self._add(amounts)

    def _count_blocks(
        self, record: Record, series: _CallSeries, amounts: list[tuple[Counter, float]]
    ) -> None:
        if len(record.blocks) > MAX_LABELS:
            for name, tokens in shares(record.blocks, MAX_LABELS).items():
                amounts.append((self.blocks(*series.names, self.labels(name)), tokens))
            return
        for block in record.blocks:
            key = block.label, block.section
            counter = series.blocks.get(key)
            if counter is None:
                if len(series.blocks) >= _MOST_KNOWN:
                    series.blocks.clear()
                name = self.labels(block_label(*key))
                counter = series.blocks[key] = self.blocks(*series.names, name)
            amounts.append((counter, block.tokens))

    def _count_verdict(self, verdict: Verdict, amounts: list[tuple[Counter, float]]) -> None:
        cause = verdict.causes[0].kind if verdict.causes else "none"
        amounts.append((self.verdicts(verdict.result, cause), 1))
        if not verdict.lost:
            return
        for kind, tokens in verdict.losses.items():
            amounts.append((self.lost(kind), tokens))
            if verdict.cost_usd is not None:
                share = float(verdict.cost_usd) * tokens / verdict.lost
                amounts.append((self.lost_usd(kind), max(0.0, share)))


def _register(families: Sequence[Counter | Histogram], registry: CollectorRegistry) -> None:
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
