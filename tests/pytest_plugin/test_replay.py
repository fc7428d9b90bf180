"""The fixture `anaphora_replay`: recorded once, replayed without a provider."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = "pytester"

#: One call to Anthropic without an SDK.
AGENT = """
import json
import os
import urllib.error
import urllib.request


def ask(question):
    message = {"role": "user", "content": question}
    body = {"model": "claude-sonnet-4-6", "max_tokens": 64, "messages": [message]}
    url = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"
    headers = {"x-api-key": os.environ["ANTHROPIC_API_KEY"], "anthropic-version": "2023-06-01"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request) as response:
            return json.load(response)["content"][0]["text"]
    except urllib.error.HTTPError as problem:
        problem.close()
        raise
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    pytester.makepyfile(agent=AGENT)
    return pytester


def write(project: pytest.Pytester, question: str, marker: str = "") -> None:
    project.makepyfile(
        test_agent=f"""
        import pytest
        from agent import ask

        {marker}
        def test_agent(anaphora_replay, emulator):
            print("answer:", ask({question!r}))
        """
    )


def answer(result: pytest.RunResult) -> str:
    return next(line for line in result.outlines if line.startswith("answer:"))


def test_recorded_answers_are_replayed(project: pytest.Pytester) -> None:
    write(project, "Hello")
    recorded = project.runpytest_inprocess("-rP", "--anaphora-record=once")
    recorded.assert_outcomes(passed=1)
    replayed = project.runpytest_inprocess("-rP")
    replayed.assert_outcomes(passed=1)
    assert answer(replayed) == answer(recorded)


def test_without_recordings_the_test_names_the_option(project: pytest.Pytester) -> None:
    write(project, "Hello")
    result = project.runpytest_inprocess()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["*no recordings in *: record the test with --anaphora-record=once"]
    )


def test_a_changed_request_names_the_nearest_recording(project: pytest.Pytester) -> None:
    write(project, "What is the capital of France?")
    project.runpytest_inprocess("--anaphora-record=once").assert_outcomes(passed=1)
    write(project, "What is the capital of Spain?")
    result = project.runpytest_inprocess()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*recordings*",
            "*Not recorded in*",
            "*messages[[]0[]].content*",
            "*--anaphora-record=new*",
        ]
    )


def test_a_miss_fails_a_test_that_ignores_the_error(project: pytest.Pytester) -> None:
    write(project, "Hello")
    project.runpytest_inprocess("--anaphora-record=once").assert_outcomes(passed=1)
    project.makepyfile(
        test_agent="""
        import urllib.error
        import pytest
        from agent import ask

        def test_agent(anaphora_replay):
            with pytest.raises(urllib.error.HTTPError):
                ask("Goodbye")
        """
    )
    result = project.runpytest_inprocess()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*Not recorded in*"])


@pytest.mark.parametrize(
    "marker, message",
    [
        ('repeat="twice"', "*repeat is one of never, last, got 'twice'*"),
        ('mode="once"', "*anaphora_replay has no 'mode'; it takes folder, repeat, rules*"),
    ],
)
def test_invalid_options_are_named(project: pytest.Pytester, marker: str, message: str) -> None:
    write(project, "Hello", f"@pytest.mark.anaphora_replay({marker})")
    project.runpytest_inprocess().stdout.fnmatch_lines([message])


def test_parameters_have_recordings_of_their_own(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_agent="""
        import pytest
        from agent import ask

        @pytest.mark.parametrize("question", ["a/b", "a-b"])
        def test_agent(anaphora_replay, emulator, question):
            ask(question)
        """
    )
    project.runpytest_inprocess("--anaphora-record=once").assert_outcomes(passed=2)
    project.runpytest_inprocess().assert_outcomes(passed=2)
    folder = Path(project.path, "recordings", "test_agent")
    assert len(list(folder.iterdir())) == 2


def test_a_changed_recording_is_noticed(project: pytest.Pytester) -> None:
    write(project, "Hello")
    project.runpytest_inprocess("--anaphora-record=once").assert_outcomes(passed=1)
    (fixture,) = Path(project.path, "recordings").rglob("*.json")
    fixture.write_bytes(fixture.read_bytes().replace(b"200", b"201", 1))
    result = project.runpytest_inprocess()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"*{fixture.name}*"])
