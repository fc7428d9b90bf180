"""Sessions that are rewound at every turn: each branch repeats the messages before it, and so many
are played that a file costs what its size is worth."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from support.python_calls import COMMANDS, python_calls

from anaphora.analysis.trace import Format, read
from anaphora.analysis.trace.format import Trace
from anaphora.analysis.trace.log_lines import FoundTrace, Problem, numbered

Json = dict[str, Any]


def claude_code(turns: int) -> Iterator[Json]:
    """Two answers to each question; the first goes on."""
    parent = None
    for turn in range(turns):
        usage = {"input_tokens": 5, "cache_read_input_tokens": 9000 + turn, "output_tokens": 5}
        answer = {"model": "claude-sonnet-4-5", "content": f"answer {turn}", "usage": usage}
        asked, stamp = f"u{turn}", {"sessionId": "s", "timestamp": 1e9 + turn}
        content = {"content": f"question {turn}"}
        yield {"type": "user", "uuid": asked, "parentUuid": parent, "message": content, **stamp}
        for id in (f"a{turn}", f"b{turn}"):
            message = {"id": id, **answer}
            yield {"type": "assistant", "uuid": id, "parentUuid": asked, "message": message} | stamp
        parent = f"a{turn}"


def gemini_cli(turns: int) -> Iterator[Json]:
    """Each answer is taken back once."""
    yield {"sessionId": "s", "projectHash": "h"}
    for turn in range(turns):
        stamp = {"timestamp": 1e9 + turn}
        yield {"id": f"u{turn}", "type": "user", "content": f"question {turn}", **stamp}
        tokens = {"input": 9000 + turn, "output": 5, "cached": 8000}
        answer = {"type": "gemini", "model": "gemini-2.5-pro", "tokens": tokens, **stamp}
        yield {"id": f"a{turn}", "content": f"answer {turn}", **answer}
        yield {"$rewindTo": f"a{turn}"}
        yield {"id": f"b{turn}", "content": f"another {turn}", **answer}


SESSIONS = {"claude_code": claude_code, "gemini_cli": gemini_cli}


def branches(name: Format, turns: int) -> tuple[list[Trace], list[Problem]]:
    lines = [json.dumps(line).encode() for line in SESSIONS[name](turns)]
    found = list(read(name, numbered(lines, "file")))
    traces = [one.trace for one in found if isinstance(one, FoundTrace)]
    return traces, [one for one in found if isinstance(one, Problem)]


@pytest.mark.parametrize("name", SESSIONS)
def test_a_session_of_hundreds_of_rewinds_is_read_whole(name: Format) -> None:
    traces, problems = branches(name, 200)
    assert len(traces) > 200
    assert not problems


@pytest.mark.parametrize("name", SESSIONS)
def test_the_messages_of_all_branches_are_in_proportion_to_the_file(name: Format) -> None:
    few, many = (branches(name, turns)[0] for turns in (500, 1000))
    shorter, longer = (sum(len(one.messages) for one in traces) for traces in (few, many))
    assert longer < 2 * shorter


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", SESSIONS)
@pytest.mark.long
def test_a_session_of_twice_the_length_costs_about_twice_as_much(
    monkeypatch: pytest.MonkeyPatch, name: Format, command: str
) -> None:
    monkeypatch.setattr("anaphora.analysis.trace.log_lines._BRANCH_MESSAGES", 20)
    monkeypatch.setattr("anaphora.analysis.trace.log_lines._BRANCHES", 4)
    sessions = [branches(name, turns)[0] for turns in (1, 20, 40)]
    _, shorter, longer = [python_calls(partial(COMMANDS[command], traces)) for traces in sessions]
    assert longer < 2.4 * shorter
