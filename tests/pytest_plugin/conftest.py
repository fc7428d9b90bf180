"""What all tests of the pytest plugin need."""

from __future__ import annotations

import sys

# A project that is tested in this process forgets the modules that it was the first to import, and
# the next one would import them again.
import anthropic  # noqa: F401
import granian.server.embed  # noqa: F401
import httpcore2  # noqa: F401
import pytest


@pytest.fixture(autouse=True)
def no_other_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The projects in these tests have an agent.py, as the examples of this repository do."""
    monkeypatch.delitem(sys.modules, "agent", raising=False)


@pytest.fixture(autouse=True)
def fewer_plugins(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in pyproject.toml: importing this plugin takes most of a project's run."""
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:schemathesis")
