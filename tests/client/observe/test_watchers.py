"""A failing watcher does not break the call, and is logged."""

from __future__ import annotations

import logging

import pytest
from support.records import FULL

from anaphora.client.observe import Watchers
from anaphora.client.response import Record


def breaks(record: Record) -> None:
    raise ValueError(f"cannot count {record.attempts[0].reason}")


class Breaks:
    def __call__(self, record: Record) -> None:
        raise KeyError(record.model)

    def __repr__(self) -> str:
        raise AssertionError("a watcher's repr may show anything")


def test_every_watcher_gets_the_record_once() -> None:
    first: list[Record] = []
    second: list[Record] = []
    Watchers([first.append, second.append])(FULL)
    assert first == second == [FULL]


def test_failing_watcher_stops_neither_the_call_nor_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[Record] = []
    tell = Watchers([breaks, seen.append, Breaks()])
    tell(FULL)
    tell(FULL)
    assert seen == [FULL, FULL]
    assert [(found.name, found.levelno) for found in caplog.records] == [
        ("anaphora", logging.WARNING)
    ] * 2  # one for each watcher, not for each time
    function, instance = (found.getMessage() for found in caplog.records)
    assert "watcher breaks failed with ValueError at " in function
    assert "test_watchers.py:" in function
    assert "watcher Breaks failed with KeyError" in instance
    assert "doctor" not in caplog.text  # the exception's message may quote the record


def test_failing_watcher_is_logged_once_per_client(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        Watchers([breaks])(FULL)
    assert len(caplog.records) == 2


def test_cancellation_is_not_a_failure_of_the_watcher() -> None:
    def stops(record: Record) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Watchers([stops])(FULL)


def test_empty_watchers_are_falsy() -> None:
    assert not Watchers()
    assert Watchers([breaks])
