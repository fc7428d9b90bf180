"""An emulator whose caches are never read, and what calls that begin the same then say."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from anaphora.emulator.journal import CallRecord

CALLS = 8


def never_readable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CallRecord, "begin", lambda self, now: None)
    monkeypatch.setattr(CallRecord, "end", lambda self, now: None)


def assert_noticed(notices: Iterable[Iterable[str]]) -> None:
    """The first call and three probes knew nothing of it; the others were sent anyway."""
    found = [any("calls did not read" in each for each in some) for some in notices]
    assert (found.count(False), found.count(True)) == (4, CALLS - 4)
