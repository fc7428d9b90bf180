"""`observe` and `observing` with what the development environment has not: the previous major versions
of the official SDKs, and the frameworks of docs/frameworks.md, each in an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from strangers import environment
from strangers.environment import Unavailable
from support.framework_pages import FRAMEWORKS
from support.missing import skip_without

from anaphora import emulator
from anaphora.emulator import EmulatorOptions, Latency
from anaphora.emulator.server import Emulator

HERE = Path(__file__).parent
ROOT = HERE.parent
#: The environment of each framework: they ask for different versions of openai.
FAMILIES = {
    "OpenAI Agents": "observed-agents",
    "LlamaIndex": "observed-frameworks",
    "smolagents": "observed-agents",
    "LiteLLM": "observed-frameworks",
}


@pytest.fixture(scope="module")
def emu() -> Iterator[Emulator]:
    with emulator.running(EmulatorOptions(any_model=True, latency=Latency(first=0.0))) as running:
        yield running


def run(family: str, program: str, *words: str, **variables: str) -> Any:
    """The last line that a program of ours prints in an environment, as JSON."""
    try:
        python = environment.programs(family) / "python" if family else Path(sys.executable)
    except Unavailable as problem:
        skip_without(problem)
    paths = os.pathsep.join((str(ROOT / "src"), str(ROOT / "tests")))
    done = subprocess.run(
        [str(python), str(HERE / "strangers" / program), *words],
        env={**os.environ, "PYTHONPATH": paths, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("family", ["", "observed-previous"], ids=["newest", "previous"])
def test_every_sdk_is_judged_sync_async_and_streamed(emu: Emulator, family: str) -> None:
    found = run(family, "observed_sdks.py", emu.url)
    print(found["versions"])
    assert {name: turns for name, turns in found["results"].items() if turns != [1, 2]} == {}


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_frameworks_run_as_their_page_says(emu: Emulator, name: str) -> None:
    emu.reset()
    address = f"{emu.url}/v1"
    keys = {"OPENAI_API_KEY": "any", "OPENAI_BASE_URL": address, "OPENAI_API_BASE": address}
    found = run(FAMILIES[name], "observed_framework.py", name, **keys)
    assert found == [[1, True], [2, True]]
