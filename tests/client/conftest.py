from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.emulated_client import AT_ONCE

from anaphora import emulator
from anaphora.emulator import EmulatorOptions
from anaphora.emulator.replies.script import Script
from anaphora.emulator.server import Emulator


@pytest.fixture(scope="module")
def _scripted(request: pytest.FixtureRequest) -> Iterator[Emulator]:
    script = Script.decode(request.module.SCRIPT, "script.yaml")
    with emulator.running(EmulatorOptions(latency=AT_ONCE, script=script)) as running:
        yield running


@pytest.fixture
def scripted(_scripted: Emulator) -> Emulator:
    """It plays `SCRIPT` of the module."""
    _scripted.reset()
    return _scripted
