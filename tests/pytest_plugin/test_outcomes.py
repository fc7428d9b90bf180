"""What a contract says when its test is skipped, fails by itself or leaves calls open; and how the
plugin gets along with other plugins and a project's own fixtures."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from pytest_plugin.test_cache_contract import WITHOUT_SDK

from anaphora.emulator import Emulator

pytest_plugins = "pytester"

KEY = "sk-ant-canary-5Tq0Zx81LmNv"


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    pytester.makepyfile(agent=WITHOUT_SDK)
    return pytester


def test_the_report_tells_a_broken_prefix_from_a_test_that_did_not_run(
    project: pytest.Pytester,
) -> None:
    project.makepyfile(
        test_agent="""
        import unittest

        import pytest
        from agent import GUIDE, run_agent

        def clock(turn):
            return f"It is 10:0{turn}. " + GUIDE

        @pytest.fixture
        def database():
            raise RuntimeError("no database")

        def test_held(cache_contract):
            run_agent()

        def test_skipped(cache_contract):
            pytest.skip("not today")

        @pytest.mark.xfail
        def test_expected(cache_contract):
            run_agent(clock)

        def test_failed_before_its_calls(cache_contract):
            assert 1 == 2

        def test_not_set_up(cache_contract, database):
            run_agent()

        class TestOld(unittest.TestCase):
            @pytest.fixture(autouse=True)
            def contract(self, cache_contract):
                self.contract = cache_contract

            def test_broken(self):
                run_agent(clock)

            def test_broken_and_failed(self):
                run_agent(clock)
                self.assertEqual(1, 2)

            def test_skipped_too(self):
                self.skipTest("not today")
        """
    )
    result = project.runpytest_inprocess("--anaphora-report=cache.md", "--junitxml=junit.xml")
    result.assert_outcomes(passed=1, failed=3, errors=1, skipped=2, xfailed=1)
    text = Path("cache.md").read_text()
    assert "❌ 2 of 8 cache contracts failed, 3 skipped, 2 not checked since" in text
    rows = re.findall(r"^\| (\S+) test\\_agent\.py::(?:TestOld::)?(\S+)", text, re.M)
    states = {name.replace("\\_", "_"): mark for mark, name in rows}
    assert states == {
        "test_held": "✅",
        "test_skipped": "⏭️",
        "test_expected": "⏭️",
        "test_failed_before_its_calls": "⚠️",
        "test_not_set_up": "⚠️",
        "test_broken": "❌",
        "test_broken_and_failed": "❌",
        "test_skipped_too": "⏭️",
    }
    assert "No call reached" not in text + result.stdout.str()
    result.stdout.fnmatch_lines(["*AssertionError: 1 != 2", "*prompt cache*", "*prefix broke at*"])
    # Calls are numbered within their test.
    assert set(re.findall(r"call (\d), anthropic", text)) == {"2", "3"}
    assert "Prompt prefix broke" in Path("junit.xml").read_text()


def test_a_marker_uses_its_fixture(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import pytest
        from agent import run_agent

        @pytest.mark.parametrize(
            "turns", [1, pytest.param(3, marks=pytest.mark.cache_contract(max_cost_usd=0))]
        )
        def test_agent(emulator, turns):
            run_agent(turns=turns)
        """
    )
    result = project.runpytest_inprocess()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*The contract allows $0.*", "FAILED *[[]3[]]*"])


def test_every_test_of_a_project_may_have_a_contract(project: pytest.Pytester) -> None:
    project.makeini("[pytest]\nanaphora_min_calls = 0\nfilterwarnings = error\n")
    project.makeconftest(
        """
        import pytest

        @pytest.fixture(autouse=True)
        def contract(cache_contract):
            pass
        """
    )
    project.makepyfile(
        """
        import pytest
        from agent import GUIDE, run_agent

        def test_without_calls():
            pass

        def test_stable():
            run_agent()

        def test_broken():
            run_agent(lambda turn: f"It is 10:0{turn}. " + GUIDE)

        @pytest.mark.cache_contract(min_calls=2)
        def test_too_few():
            run_agent(turns=1)
        """
    )
    result = project.runpytest_inprocess()
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(["*The test made 1 call. The contract requires 2 or more."])


def test_a_project_may_have_an_emulator_of_its_own(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import pytest
        from agent import run_agent

        @pytest.fixture
        def emulator():
            return "of a database"

        def test_agent(emulator, cache_contract):
            assert emulator == "of a database"
            run_agent()
        """
    )
    project.runpytest_inprocess().assert_outcomes(passed=1)


@pytest.mark.usefixtures("more_faults")
@pytest.mark.long
def test_a_stream_that_is_left_open_is_no_call_of_the_next_test(
    project: pytest.Pytester, emu: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anaphora.pytest_plugin.redirect._SETTLE_SECONDS", 0.2)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", f"{emu.url}/anthropic")
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    project.makepyfile(
        agent=WITHOUT_SDK,
        test_agent="""
        import http.client
        import json
        import os
        from urllib.parse import urlsplit

        import pytest
        from agent import run_agent
        from anaphora.emulator.faults import HEADER

        opened = []

        @pytest.mark.cache_contract(live=True)
        def test_open():
            url = urlsplit(os.environ["ANTHROPIC_BASE_URL"])
            connection = http.client.HTTPConnection(url.hostname, url.port)
            message = {"role": "user", "content": "Hello"}
            body = {"model": "claude-sonnet-4-6", "max_tokens": 64, "messages": [message]}
            body |= {"stream": True}
            headers = {"x-api-key": "any", "anthropic-version": "2023-06-01"}
            headers[HEADER] = "slow-drip; seconds=0.5"
            connection.request("POST", url.path + "/v1/messages", json.dumps(body), headers)
            response = connection.getresponse()
            opened.extend([response, connection])
            assert response.status == 200

        def test_next(cache_contract):
            for left in opened:
                left.close()
            run_agent()
            assert [call.number for call in cache_contract.calls] == [1, 2, 3]
        """,
    )
    result = project.runpytest_inprocess()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["A call was still open when the test ended, and is not judged: *"])


@pytest.mark.long
def test_anaphora_redirect_with_processes_of_xdist(
    project: pytest.Pytester, emu: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process has a proxy of its own, in front of the address that the user has set; conftest
    files see it as well."""
    monkeypatch.setenv("ANTHROPIC_BASE_URL", f"{emu.url}/anthropic")
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    project.makeini("[pytest]\nanaphora_redirect = true\n")
    project.makeconftest("import os\nBASE_URL = os.environ['ANTHROPIC_BASE_URL']\n")
    project.makepyfile(
        """
        import os

        import pytest
        from agent import run_agent
        from conftest import BASE_URL

        @pytest.mark.parametrize("turns", [1, 2])
        def test_agent(anaphora_replay, cache_contract, turns):
            assert os.environ["ANTHROPIC_BASE_URL"] == BASE_URL
            assert BASE_URL.endswith("/anthropic")
            run_agent(turns=turns)
            assert len(cache_contract.calls) == turns
        """
    )
    options = ("--numprocesses=1", "--anaphora-record=once", "--anaphora-report=cache.md")
    faster = ("-p", "no:hypothesispytest", "-p", "no:anyio")
    project.runpytest_subprocess(*options, *faster).assert_outcomes(passed=2)
    assert "✅ 2 cache contracts held." in Path("cache.md").read_text()
    files = [path for path in Path("recordings").rglob("*") if path.is_file()]
    assert len(files) == 5
    assert not [path for path in files if KEY.encode() in path.read_bytes()]


def test_the_environment_is_as_before_when_the_run_has_ended(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SET_BY_THE_TESTS", "no")
    before = dict(os.environ)
    project.makeini("[pytest]\nanaphora_redirect = true\n")
    project.makepyfile(
        "import os\ndef test_agent(cache_contract): os.environ['SET_BY_THE_TESTS'] = 'yes'"
    )
    project.runpytest_inprocess("-p", "no:cacheprovider")
    assert os.environ.pop("SET_BY_THE_TESTS") == "yes"
    before.pop("SET_BY_THE_TESTS")
    monkeypatch.delenv("SET_BY_THE_TESTS", raising=False)
    assert {**os.environ, "PYTEST_CURRENT_TEST": ""} == {**before, "PYTEST_CURRENT_TEST": ""}


@pytest.mark.parametrize("redirect", ["true", "false"])
def test_a_missing_package_is_named_in_one_sentence(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, redirect: str
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: None)
    project.makeini(f"[pytest]\nanaphora_redirect = {redirect}\n")
    project.makepyfile("def test_agent(cache_contract): pass")
    result = project.runpytest_inprocess("-rN")
    text = result.stdout.str() + result.stderr.str()
    assert result.ret != 0
    assert (
        text.count('granian is not installed; install it with: pip install "anaphora[pytest]"') == 1
    )
    assert "Traceback" not in text
    assert "another exception" not in text
    assert "redirect.py" not in text


def test_a_report_that_cannot_be_written_is_named(project: pytest.Pytester) -> None:
    Path("file").write_text("")
    project.makepyfile("def test_nothing(): pass")
    result = project.runpytest_inprocess("--anaphora-report=file/cache.md")
    assert result.ret != 0
    text = result.stdout.str() + result.stderr.str()
    assert "--anaphora-report=file/cache.md: cannot be written: " in text
    assert "INTERNALERROR" not in text
