"""Prometheus series add up to the records, and their number is bounded."""

from __future__ import annotations

import gc
import weakref
from decimal import Decimal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter
from support.records import ANSWERED, BARE, FAILED, FULL, LOST
from support.tables import each_row

from anaphora.cache.verdict import Verdict
from anaphora.client.observe import Metrics
from anaphora.client.response import BlockShare, Record
from anaphora.values import Usage

CALL = {"provider": "main", "model": "claude-sonnet-4-5"}


def counted(*records: Record) -> CollectorRegistry:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    for record in records:
        metrics(record)
    return registry


def series(registry: CollectorRegistry, name: str) -> dict[tuple[str, ...], float]:
    """The values of a metric, by the values of its labels."""
    return {
        tuple(sample.labels.values()): sample.value
        for metric in registry.collect()
        for sample in metric.samples
        if sample.name == name
    }


MAIN = ("main", "claude-sonnet-4-5")


@each_row(
    "name, expected",
    [
        ("calls_total", {(*MAIN, "ok"): 2, (*MAIN, "Overloaded"): 1}),
        ("attempts_total", {("main", "Overloaded"): 3, ("main", "ok"): 2}),
        (
            "tokens_total",
            {
                (*MAIN, "uncached"): 60,
                (*MAIN, "read"): 1400,
                (*MAIN, "written_5m"): 400,
                (*MAIN, "written_1h"): 140,
                (*MAIN, "output"): 100,
            },
        ),
        (
            "block_tokens_total",
            {
                (*MAIN, "tool search"): 200,
                (*MAIN, "guide"): 1000,
                (*MAIN, "memory"): 400,
                (*MAIN, "conversation"): 400,
            },
        ),
        ("cost_usd_total", {MAIN: 0.0042}),
        ("unpriced_calls_total", {MAIN: 1}),
        ("saved_usd_total", {MAIN: 0.0038}),
        ("unsaved_usd_total", {}),
        ("verdicts_total", {("partial", "system_changed"): 2}),
        ("lost_tokens_total", {("system_changed",): 400}),
        ("lost_usd_total", {("system_changed",): 0.0012}),
        ("call_seconds_count", {MAIN: 3}),
        ("call_seconds_sum", {MAIN: 9}),
        ("first_byte_seconds_count", {MAIN: 2}),
        ("first_byte_seconds_sum", {MAIN: 6}),
        ("queued_seconds_sum", {MAIN: 1.5}),
    ],
)
def test_two_successful_calls_and_a_failed_one(
    name: str, expected: dict[tuple[str, ...], float]
) -> None:
    found = series(counted(FULL, FULL, LOST), f"anaphora_{name}")
    assert found == pytest.approx(expected)


def test_unreported_values_have_no_series() -> None:
    registry = counted(BARE)
    assert series(registry, "anaphora_tokens_total") == {}
    assert series(registry, "anaphora_cost_usd_total") == {}
    assert series(registry, "anaphora_unpriced_calls_total") == {("local", "qwen3:8b"): 1}


def test_hit_has_no_lost_tokens() -> None:
    hit = Verdict(result="hit", left=700, billed=700, cost_usd=Decimal(0))
    registry = counted(msgspec.structs.replace(FULL, verdict=hit))
    assert series(registry, "anaphora_verdicts_total") == {("hit", "none"): 1}
    assert series(registry, "anaphora_lost_tokens_total") == {}
    assert series(registry, "anaphora_lost_usd_total") == {}


def test_unread_write_does_not_decrease_a_counter() -> None:
    wrote = msgspec.structs.replace(FULL, saved=Decimal("-0.0005"))
    registry = counted(wrote, FULL)
    assert series(registry, "anaphora_saved_usd_total")[MAIN] == pytest.approx(0.0019)
    assert series(registry, "anaphora_unsaved_usd_total")[MAIN] == pytest.approx(0.0005)


def test_attempts_count_for_their_provider() -> None:
    spare = msgspec.structs.replace(ANSWERED, provider="spare")
    registry = counted(msgspec.structs.replace(FULL, attempts=(FAILED, spare)))
    found = series(registry, "anaphora_attempts_total")
    assert found == {("main", "Overloaded"): 1, ("spare", "ok"): 1}


def labelled(start: int, stop: int) -> Record:
    blocks = (BlockShare(label=f"b{n}", section="system", tokens=1) for n in range(start, stop))
    return msgspec.structs.replace(FULL, blocks=tuple(blocks))


def test_labels_are_bounded_within_a_call_and_over_many() -> None:
    registry = counted(labelled(0, 150), labelled(100, 350), labelled(0, 10))
    found = series(registry, "anaphora_block_tokens_total")
    assert len(found) == 201
    assert sum(found.values()) == 150 + 250 + 10  # nothing is lost, but its name
    assert found[*MAIN, "b0"] == 2  # the first blocks keep their own labels


def test_models_and_providers_are_bounded() -> None:
    many = (
        msgspec.structs.replace(BARE, model=f"m{n}", provider=f"p{n}", attempts=())
        for n in range(230)
    )
    found = series(counted(*many), "anaphora_calls_total")
    assert (len(found), found["other", "other", "ok"]) == (201, 30)


counts = st.none() | st.integers(0, 10**6)


@given(
    st.lists(
        st.builds(
            Usage,
            uncached=counts,
            read=counts,
            written=st.none()
            | st.dictionaries(st.sampled_from(["5m", "1h", "unsplit"]), st.integers(0, 10**6)),
            output=counts,
            reasoning=counts,
        ),
        max_size=5,
    )
)
def test_tokens_are_a_partition(usages: list[Usage]) -> None:
    registry = counted(*(msgspec.structs.replace(FULL, usage=usage) for usage in usages))
    found = series(registry, "anaphora_tokens_total")
    assert sum(found.values()) == sum((u.input or 0) + (u.output or 0) for u in usages)


def test_several_on_one_registry_count_together() -> None:
    registry = CollectorRegistry()
    Metrics(registry)(FULL)
    Metrics(registry)(FULL)
    assert series(registry, "anaphora_calls_total") == {(*MAIN, "ok"): 2}
    assert series(counted(FULL), "anaphora_calls_total") == {(*MAIN, "ok"): 1}


def test_registry_is_freed_with_its_last_owner() -> None:
    registry = counted(FULL)
    gone = weakref.ref(registry)
    del registry
    gc.collect()
    assert gone() is None


def test_taken_metric_name_is_an_error_and_leaves_the_registry_unchanged() -> None:
    registry = CollectorRegistry()
    taken = Counter("anaphora_cost_usd", "the app's own", registry=registry)
    with pytest.raises(ValueError, match="anaphora_cost_usd"):
        Metrics(registry)
    assert [metric.name for metric in registry.collect()] == ["anaphora_cost_usd"]
    registry.unregister(taken)
    Metrics(registry)(FULL)
    assert series(registry, "anaphora_calls_total") == {(*MAIN, "ok"): 1}
