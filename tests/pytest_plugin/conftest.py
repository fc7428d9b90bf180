"""What all tests of the pytest plugin need."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture(autouse=True)
def no_other_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The projects in these tests have an agent.py, as the examples of this repository do."""
    monkeypatch.delitem(sys.modules, "agent", raising=False)
