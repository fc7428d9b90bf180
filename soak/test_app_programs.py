"""Every program of `anaphora apps add --for`, and pi, in their newest versions: a loop of three calls
through `watch`, `record`, `replay` in another folder on another day, and the daemon, as an app with
the grant, the environment and the command that are printed.

What cannot be installed is skipped, and fails in CI.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from strangers.environment import Unavailable, programs
from strangers.more_agents import AGENTS
from support.agent_programs import ProgramPlace
from support.missing import skip_without
from support.program_checks import check_daemon, check_replayed, check_watched
from test_programs_through_proxy import another_day

from anaphora.daemon.home.app_programs import programs as app_programs

__all__ = ["another_day"]


@pytest.fixture
def folder() -> Iterator[Path]:
    # Programs are still writing when they have ended. Codex refuses homes below /tmp.
    with tempfile.TemporaryDirectory(dir=Path.home(), ignore_cleanup_errors=True) as name:
        yield Path(name)


def place(name: str, root: Path, work: str = "work") -> ProgramPlace:
    program = AGENTS[name]
    try:
        return ProgramPlace(program, root, work, folder=programs(program.family))
    except Unavailable as problem:
        skip_without(problem)


def test_every_program_is_here() -> None:
    assert {one.grant for one in AGENTS.values()} - {""} == app_programs().keys()


#: Programs without session files that `anaphora usage` reads.
NO_SESSIONS = ("Qwen Code", "aider", "LangChain")


@pytest.mark.parametrize("name", AGENTS)
def test_watched(name: str, folder: Path) -> None:
    # Codex asks for a WebSocket first, and falls back.
    expected = ["responses_websocket"] if name == "Codex" else []
    there, has_sessions = place(name, folder / "home"), not name.startswith(NO_SESSIONS)
    check_watched(there, folder, expected=expected, has_sessions=has_sessions)


@pytest.mark.parametrize("name", AGENTS)
def test_recorded_and_replayed_elsewhere(
    name: str, folder: Path, another_day: dict[str, str]
) -> None:
    there = place(name, folder / "recorded")
    elsewhere = place(name, folder / "elsewhere" / "far away", "another project")
    changed = dict(another_day)
    if name == "pi":  # a clock that is ahead takes the proxy's certificate for an expired one
        changed.pop("LD_PRELOAD", None)
    check_replayed(there, elsewhere, folder, **changed)


#: Homes with one provider; the others have all of support/daemon.py.
ONE_PROVIDER = {
    "opencode with OpenAI": "openai",
    "aider with OpenAI": "openai-chat",
    "LangChain with OpenAI": "openai-chat",
    "LangChain with Google": "gemini",
}


@pytest.mark.parametrize(
    ("name", "provider"),
    [
        *((name, ONE_PROVIDER.get(name, "")) for name, one in AGENTS.items() if one.grant),
        ("Qwen Code", "openai"),
        ("opencode", "gemini"),
        ("aider", "gemini"),
    ],
)
def test_through_the_daemon(name: str, provider: str, folder: Path) -> None:
    providers = [provider] if provider else []
    check_daemon(place(name, folder / "place"), folder, providers=providers)
