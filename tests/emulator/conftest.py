"""One emulator for all of these tests, reset before each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from anaphora import emulator
from anaphora.emulator.server import Emulator


@pytest.fixture(scope="session")
def _running() -> Iterator[Emulator]:
    with emulator.running() as running:
        yield running


@pytest.fixture
def emu(_running: Emulator) -> Emulator:
    _running.reset()
    return _running
