"""Programs and test suites that we did not write, as clients of the emulator: nothing that the
provider would accept fails, and what is sent twice is read from the cache, by the emulator's journal.

They live in environments of their own (strangers/environment.py); where one cannot be made, for want of
a package registry or of npm, its tests are skipped and the reason is printed. Prints a table in the end.
"""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from strangers import environment, programs, suites
from strangers.environment import Unavailable
from strangers.environment import programs as programs_of
from strangers.results import CaseResult, table
from support.missing import skip_without

from anaphora import emulator

HERE = Path(__file__).parent / "strangers"


@pytest.fixture(scope="module")
def results() -> Iterator[list[CaseResult]]:
    """All results, which are printed in the end."""
    found: list[CaseResult] = []
    yield found
    print(f"\n\n{table(found)}")


@pytest.mark.parametrize("name", [*programs.PROGRAMS, *suites.SUITES])
def test_nothing_that_the_provider_accepts_fails(name: str, results: list[CaseResult]) -> None:
    play = programs.play if name in programs.PROGRAMS else suites.play
    try:
        own = play(name)
    except Unavailable as problem:
        results.append(CaseResult(name, "installation", "skipped", str(problem)))
        skip_without(problem)
    results += own
    assert any(result.verdict == "passed" for result in own)
    assert [result for result in own if result.verdict == "failed"] == []


@pytest.mark.parametrize(
    ("message", "verdict"),
    [
        ("Error code: 404 - {'message': 'no response response_id'}", "refused"),
        ("Error code: 404 - Not found: POST /v1/responses/response_id/other", "failed"),
        ("Error code: 404 - The model `gpt-5.4` does not exist", "failed"),
        (
            "Error code: 404 - {'message': 'model: claude-opus-4-0 (It retired on 2026-06-15.)'}",
            "refused",
        ),
        ("Error code: 404 - {'message': 'model: claude-opus-4-9'}", "failed"),
        ("Error code: 400 - previous_response_id is not known here", "failed"),
        ("AssertionError: 404", "failed"),
    ],
)
def test_missing_paths_and_models_are_failures(message: str, verdict: str) -> None:
    case = ElementTree.Element("testcase", name="test")
    ElementTree.SubElement(case, "failure", message=message)
    assert suites.read_case("a suite", case).verdict == verdict


def test_missing_path_is_a_failure_though_the_test_passes() -> None:
    with emulator.running() as emu:
        httpx.get(f"{emu.url}/v1/models", headers={"authorization": "Bearer k"})
        assert suites.missing_routes("a suite", emu.requests()) == []
        httpx.post(f"{emu.url}/v1/responses/response_id/other")
        (found,) = suites.missing_routes("a suite", emu.requests())
    assert (found.case, found.verdict) == ("POST /v1/responses/response_id/other", "failed")


def test_missing_npm_is_a_reason_to_skip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(environment, "SOAK", tmp_path)
    with pytest.raises(Unavailable, match="npm is not installed"):
        programs.play("Codex")


def test_documented_commands_run(tmp_path: Path) -> None:
    """The commands of docs/emulator.md, with the address of this emulator."""
    try:
        folders = [str(programs_of(family)) for family in ("npm", "llm")]
    except Unavailable as problem:
        skip_without(problem)
    page = (HERE.parent.parent / "docs" / "emulator.md").read_text()
    block = page.partition("## Real programs")[2].partition("```text\n")[2].partition("```")[0]
    (tmp_path / ".gemini").mkdir()
    settings = '{"security": {"auth": {"selectedType": "gemini-api-key"}}}'
    assert settings in page
    (tmp_path / ".gemini" / "settings.json").write_text(settings)
    path = os.pathsep.join((*folders, os.environ.get("PATH", "")))
    with emulator.running() as emu:
        for command in block.splitlines():
            run = subprocess.run(
                ["sh", "-c", command.replace("http://127.0.0.1:8787", emu.url)],
                cwd=tmp_path,
                env={"PATH": path, "HOME": str(tmp_path), "LANG": "C.UTF-8"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=240,
                check=False,
            )
            assert run.returncode == 0, f"{command}: {run.stderr[-600:]}"
        assert {one["wire"] for one in emu.requests() if "verdict" in one} == {
            "anthropic",
            "openai_responses",
            "gemini",
        }


# ── LiteLLM and pydantic-ai, with their caching on ───────────────────────────────────────────────


@pytest.fixture(scope="module")
def python() -> str:
    """The interpreter of the environment with both in it."""
    try:
        return str(programs_of("frameworks") / "python")
    except Unavailable as problem:
        skip_without(problem)


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
    assert {one["status"] for one in requests} == {200}, [one["error"] for one in requests]
    return requests


def test_litellm_reads_what_it_wrote(python: str) -> None:
    first, second = calls(python, "through_litellm.py", "anthropic/claude-sonnet-4-5")
    assert first["markers"] == second["markers"] == [{"path": "system[0]", "ttl": "5m"}]
    assert first["read"] == 0
    assert second["read"] == first["written"]["5m"] > 4000
    assert second["written"] == {}
    assert second["verdict"]["result"] == "hit"


def test_litellm_reads_replies_of_groq(python: str) -> None:
    """It does not without a service tier in them."""
    model = "groq/openai/gpt-oss-120b"
    first, second = calls(python, "through_litellm.py", model, "/groq/openai/v1")
    assert {first["provider"], second["provider"]} == {"groq"}
    assert second["read"] > first["read"] == 0


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


def test_pydantic_ai_at_google_sends_a_header_twice(python: str) -> None:
    first, second = calls(python, "through_pydantic_ai.py", "google")
    assert first["read"] == 0
    assert second["read"] > 3000


@pytest.mark.parametrize("arguments", [[], ["unknown"], ["llm", "aider"]])
def test_environment_without_a_known_name_says_how_it_is_called(arguments: list[str]) -> None:
    command = [sys.executable, str(HERE / "environment.py"), *arguments]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr.startswith("usage: ")
    assert "langchain" in run.stderr
