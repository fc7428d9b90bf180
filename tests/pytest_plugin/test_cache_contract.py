"""The fixture `cache_contract`, as a project that tests its agent meets it."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = "pytester"

#: An application that knows nothing of Anaphora: a conversation of three turns.
AGENT = """
import anthropic

GUIDE = "Answer in one sentence. " + "The shop sells tea, and ships on weekdays. " * 400


def run_agent(system=lambda turn: GUIDE, turns=3, model="claude-sonnet-4-6"):
    messages = []
    with anthropic.Anthropic(max_retries=0) as client:
        for turn in range(turns):
            messages.append({"role": "user", "content": f"Question {turn}: what do you sell?"})
            block = {"type": "text", "text": system(turn), "cache_control": {"type": "ephemeral"}}
            reply = client.messages.create(
                model=model, max_tokens=64, system=[block], messages=messages
            )
            messages.append({"role": "assistant", "content": reply.content[0].text})
    return reply
"""

#: The same without an SDK, which takes seconds to import in another process, and most of a test's
#: time in this one.
WITHOUT_SDK = """
import json
import os
import urllib.request

GUIDE = "Answer in one sentence. " + "The shop sells tea, and ships on weekdays. " * 400


def run_agent(system=lambda turn: GUIDE, turns=3, model="claude-sonnet-4-6"):
    messages = []
    for turn in range(turns):
        messages.append({"role": "user", "content": f"Question {turn}: what do you sell?"})
        block = {"type": "text", "text": system(turn), "cache_control": {"type": "ephemeral"}}
        body = {"model": model, "max_tokens": 64, "system": [block], "messages": messages}
        url = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"
        headers = {"x-api-key": os.environ["ANTHROPIC_API_KEY"], "anthropic-version": "2023-06-01"}
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request) as response:
            reply = json.load(response)
        messages.append({"role": "assistant", "content": reply["content"]})
    return reply
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.delenv("ANTHROPIC_BASE_URL", raising=False)
    pytester.makepyfile(agent=WITHOUT_SDK)
    return pytester


@pytest.fixture
def project_with_sdk(project: pytest.Pytester) -> pytest.Pytester:
    project.makepyfile(agent=AGENT)
    return project


def test_a_stable_prompt_passes(project_with_sdk: pytest.Pytester) -> None:
    project = project_with_sdk
    project.makepyfile(
        """
        from agent import run_agent

        def test_agent(cache_contract):
            run_agent()
            assert len(cache_contract.calls) == 3
            assert cache_contract.share_read > 0.5
            assert cache_contract.cost_usd > 0
        """
    )
    project.runpytest_inprocess().assert_outcomes(passed=1)


def test_a_broken_prefix_fails_and_names_the_field_the_excerpts_and_the_cost(
    project_with_sdk: pytest.Pytester,
) -> None:
    project = project_with_sdk
    project.makepyfile(
        """
        from agent import GUIDE, run_agent

        def test_agent(cache_contract):
            run_agent(lambda turn: f"It is 10:0{turn}. " + GUIDE)
        """
    )
    result = project.runpytest_inprocess()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*Prompt prefix broke at 2 of 3 calls: * tokens billed again, $* lost.",
            "*call 2, anthropic claude-sonnet-4-6, compared with call 1",
            "*at character * of system[[]0[]].text*",
            "*before: *10:00*",
            "*after:  *10:01*",
        ]
    )
    result.stdout.no_fnmatch_line("*Error in *")


def test_a_break_may_be_allowed_with_a_reason(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import pytest
        from agent import GUIDE, run_agent

        @pytest.mark.cache_contract(allow_breaks="the clock is what this test is about")
        def test_agent(cache_contract):
            run_agent(lambda turn: f"It is 10:0{turn}. " + GUIDE)
        """
    )
    project.runpytest_inprocess().assert_outcomes(passed=1)


@pytest.mark.parametrize(
    "options, message",
    [
        ("min_read_share=0.999", "*Read from the cache: *%. The contract requires 99.9% or more.*"),
        ("max_cost_usd=0.000001", "*Cost: $*. The contract allows $0.000001.*"),
    ],
)
def test_limits_of_the_marker(project: pytest.Pytester, options: str, message: str) -> None:
    project.makepyfile(
        f"""
        import pytest
        from agent import run_agent

        @pytest.mark.cache_contract({options})
        def test_agent(cache_contract):
            run_agent()
        """
    )
    result = project.runpytest_inprocess()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([message])


@pytest.mark.parametrize(
    "options, message",
    [
        ("min_read_share=80", "*min_read_share is a number from 0 to 1, got 80*"),
        ("max_cost_usd='cheap'", "*max_cost_usd is an amount in dollars, got 'cheap'*"),
        ("allow_breaks=True", "*allow_breaks is the reason why a prefix may break, as a text*"),
        ("max_price=1", "*cache_contract has no 'max_price'; it takes min_read_share, *"),
        ("0.8", "*the options of cache_contract are keyword arguments*"),
    ],
)
def test_invalid_options_are_named(project: pytest.Pytester, options: str, message: str) -> None:
    project.makepyfile(
        f"""
        import pytest

        @pytest.mark.cache_contract({options})
        def test_agent(cache_contract):
            pass
        """
    )
    result = project.runpytest_inprocess()
    assert result.ret != 0
    result.stdout.fnmatch_lines([message])


def test_limits_of_the_configuration(project: pytest.Pytester) -> None:
    project.makeini("[pytest]\nanaphora_min_read_share = 0.99\n")
    project.makepyfile(
        """
        from agent import run_agent

        def test_agent(cache_contract):
            run_agent()
        """
    )
    result = project.runpytest_inprocess()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*The contract requires 99.0% or more.*"])


def test_a_test_without_calls_fails_and_names_the_remedy(project: pytest.Pytester) -> None:
    project.makepyfile("def test_agent(cache_contract): pass")
    result = project.runpytest_inprocess()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*`anaphora_redirect = true`*"])


def test_a_client_that_is_created_at_import(project: pytest.Pytester) -> None:
    """With anaphora_redirect the variables are set before the application is imported."""
    project.makeini("[pytest]\nanaphora_redirect = true\n")
    project.makepyfile(
        app="""
        import anthropic

        client = anthropic.Anthropic(max_retries=0)
        """,
        test_app="""
        import anthropic
        import pytest
        from app import client

        MESSAGE = {"role": "user", "content": "Hello"}

        def ask():
            return client.messages.create(
                model="claude-sonnet-4-6", max_tokens=8, messages=[MESSAGE]
            )

        def test_contract(cache_contract):
            ask()
            assert len(cache_contract.calls) == 1

        def test_without_a_fixture():
            with pytest.raises(anthropic.APIStatusError, match="no test is running that uses"):
                ask()
        """,
    )
    project.runpytest_inprocess().assert_outcomes(passed=2)


@pytest.mark.parametrize("failure", ["assert 1 == 2", "pytest.fail('assert 1 == 2')"])
def test_a_failed_test_shows_the_break_too(project: pytest.Pytester, failure: str) -> None:
    project.makepyfile(
        f"""
        import pytest
        from agent import GUIDE, run_agent

        def test_agent(cache_contract):
            run_agent(lambda turn: f"It is 10:0{{turn}}. " + GUIDE)
            {failure}
        """
    )
    result = project.runpytest_inprocess()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*assert 1 == 2*", "*prompt cache*", "*Prompt prefix broke at*"])


def test_calls_of_another_process_are_judged(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import subprocess
        import sys

        def test_agent(cache_contract):
            subprocess.run([sys.executable, "-c", "import agent; agent.run_agent()"], check=True)
            assert len(cache_contract.calls) == 3
        """
    )
    project.runpytest_inprocess().assert_outcomes(passed=1)


def test_the_report_lists_every_contract(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        from agent import GUIDE, run_agent

        def test_stable(cache_contract):
            run_agent()

        def test_broken(cache_contract):
            run_agent(lambda turn: f"It is 10:0{turn}. " + GUIDE)
        """
    )
    report = Path(project.path, "out", "cache.md")
    result = project.runpytest_inprocess(f"--anaphora-report={report}")
    result.assert_outcomes(passed=1, failed=1)
    text = report.read_text()
    assert "❌ 1 of 2 cache contracts failed" in text
    assert "test\\_stable" in text
    assert "test\\_broken" in text
    assert "before: " in text
    assert "10:01" in text


def test_the_emulator_answers_without_a_key(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        from agent import run_agent

        def test_first(emulator):
            run_agent(turns=1)
            assert len(emulator.requests()) == 1

        def test_second_begins_empty(emulator):
            assert emulator.requests() == []
        """
    )
    project.runpytest_inprocess().assert_outcomes(passed=2)
