"""LiteLLM and pydantic-ai with their caching on, as clients of the emulator: the second call reads
what the first one wrote, by the emulator's journal.

They live in an environment of their own (strangers/environment.py); where there is no package
registry the tests are skipped.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from anaphora import emulator

HERE = Path(__file__).parent / "strangers"


@pytest.fixture(scope="module")
def python() -> str:
    """The interpreter of an environment with the pinned clients in it."""
    made = subprocess.run(
        [sys.executable, str(HERE / "environment.py")], capture_output=True, text=True, check=False
    )
    if made.returncode:
        pytest.skip(made.stderr.strip())
    return made.stdout.strip()


def calls(python: str, *words: str) -> list[dict[str, Any]]:
    """What the journal tells of the calls that a program makes, the first one first."""
    with emulator.running() as emu:
        program, *more = words
        # Nothing of ours, and no price list from the network.
        env = {**os.environ, "PYTHONPATH": "", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        run = subprocess.run(
            [python, str(HERE / program), emu.url, *more],
            capture_output=True,
            text=True,
            check=False,
            env=env,
        )
        assert run.returncode == 0, run.stderr[-3000:]
        requests = emu.requests()[::-1]
    assert [one["status"] for one in requests] == [200, 200], [one["error"] for one in requests]
    return requests


def test_litellm_reads_what_it_wrote(python: str) -> None:
    first, second = calls(python, "through_litellm.py")
    assert first["markers"] == second["markers"] == [{"path": "system[0]", "ttl": "5m"}]
    assert first["read"] == 0
    assert second["read"] == first["written"]["5m"] > 4000
    assert second["written"] == {}
    assert second["verdict"]["result"] == "hit"


def test_pydantic_ai_reads_what_it_wrote_at_anthropic(python: str) -> None:
    first, second = calls(python, "through_pydantic_ai.py", "anthropic")
    assert [mark["path"] for mark in first["markers"]] == ["system[0]", "messages[0].content[0]"]
    assert first["read"] == 0
    assert second["read"] == first["written"]["5m"] > 4000
    assert second["written"]["5m"] > 0, "the marker moves on with the conversation"


@pytest.mark.parametrize(
    "wire, path", [("chat", "/v1/chat/completions"), ("responses", "/v1/responses")]
)
def test_pydantic_ai_reads_what_it_left_at_openai(python: str, wire: str, path: str) -> None:
    """OpenAI tells no writes; what can be read comes in steps of 128."""
    first, second = calls(python, "through_pydantic_ai.py", wire)
    assert first["path"] == second["path"] == path
    assert first["read"] == 0
    assert second["read"] % 128 == 0
    assert first["uncached"] - 128 < second["read"] <= first["uncached"]
