"""Test suites that we did not write, run against the emulator: LangChain's standard tests of chat
models, and the official SDKs' own tests of messages, chat and responses, from their source
distributions."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any, NamedTuple

from anaphora import emulator
from anaphora.emulator import EmulatorOptions, Script

from .environment import SOAK, programs, version
from .results import CaseResult

HERE = Path(__file__).resolve().parent
#: Seconds that a whole suite may take.
_TIMEOUT = 900
_RESOURCES = "tests/api_resources"


class Suite(NamedTuple):
    family: str
    folder: Path
    """Where pytest runs: the folder with the suite's settings."""
    tests: tuple[str, ...]
    variable: str
    """The variable with the address of the emulator, and what stands behind that."""
    root: str = ""
    options: tuple[str, ...] = ()
    script: str = ""


def _sources(package: str) -> Path:
    return SOAK / "sdks" / "sources" / f"{package}-{version('sdks', package)}"


#: LangChain keeps one asynchronous client for all tests: they need one loop.
_LANGCHAIN = """-c /dev/null --rootdir . -o asyncio_mode=auto
    -o asyncio_default_test_loop_scope=session -o asyncio_default_fixture_loop_scope=session"""

SUITES = {
    "LangChain": Suite(
        "langchain",
        HERE,
        ("langchain_suite.py",),
        "EMULATOR_URL",
        options=tuple(_LANGCHAIN.split()),
        script=(HERE / "langchain.yaml").read_text(),
    ),
    "anthropic SDK": Suite(
        "sdks",
        _sources("anthropic"),
        (
            *(
                f"{_RESOURCES}/{name}"
                for name in ("test_messages.py", "messages", "test_models.py")
            ),
            *(f"{_RESOURCES}/beta/{name}" for name in ("test_messages.py", "messages")),
            f"{_RESOURCES}/test_files.py",
        ),
        "TEST_API_BASE_URL",
        options=("-p", "tests._alias_httpx"),
    ),
    "openai SDK": Suite(
        "sdks",
        _sources("openai"),
        tuple(
            f"{_RESOURCES}/{name}"
            for name in (
                *("chat", "responses", "test_responses.py", "test_models.py"),
                *("test_files.py", "test_batches.py"),
            )
        ),
        "TEST_API_BASE_URL",
        "/v1",
    ),
}

#: Errors that the provider answers with too, by the emulator's own words: the SDKs' tests are made for
#: a server that takes every request of the right types, and name objects that do not exist. A path
#: that the emulator does not have is none of them.
_REFUSALS: tuple[tuple[str, str], ...] = (
    (r"404 .*(no response resp\w+|Chat completion \w+ not found|No batch \w+|File not found: \w+"
     r"|model: model_id|The model `ft:gpt-4o-mini:acemeco:suffix:abc123` does not exist)",
     "the test names an object that does not exist"),
    (r"404 .*model: claude-[\w-]+ \(It retired on ", "the test names a model that has retired"),
    (r"400 .*no response \w+ to continue", "the test continues a response that does not exist"),
    (r"400 .*Invalid 'limit': integer below minimum value", "the test asks for a list of no items"),
    (r"400 .*must provide a model parameter", "the test names no model"),
    (r"400 .*'max_tokens' is not supported with this model", "the test sends both token limits"),
    (r"400 .*both defer_loading=true and cache_control", "the test marks a deferred tool"),
)  # fmt: skip
#: More calls than a suite makes, so that the journal has them all.
_CALLS = 20_000


def play(name: str) -> list[CaseResult]:
    """The results of a suite; raises `Unavailable` where it cannot be installed."""
    suite = SUITES[name]
    python = programs(suite.family) / "python"
    script = Script.decode(suite.script or "replies: []", f"{name}.yaml")
    options = EmulatorOptions(script=script, remembered=_CALLS)
    with emulator.running(options) as emu, tempfile.TemporaryDirectory() as home:
        report = Path(home) / "report.xml"
        address = {suite.variable: emu.url + suite.root}
        command = [
            *(str(python), "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider"),
            *("-W", "ignore", "-o", "addopts=", f"--junitxml={report}", *suite.options),
            *suite.tests,
        ]
        base = {"PATH": os.environ.get("PATH", ""), "HOME": home, "LANG": "C.UTF-8"}
        try:
            run = subprocess.run(
                command,
                cwd=suite.folder,
                env={**base, "PYTHONDONTWRITEBYTECODE": "1", **address},
                capture_output=True,
                text=True,
                timeout=_TIMEOUT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return [CaseResult(name, "all tests", "failed", f"took longer than {_TIMEOUT} s")]
        if not report.exists():
            return [CaseResult(name, "collection", "failed", (run.stdout + run.stderr)[-600:])]
        cases = [read_case(name, case) for case in ElementTree.parse(report).iter("testcase")]
        return [*cases, *missing_routes(name, emu.requests())]


def missing_routes(name: str, calls: list[dict[str, Any]]) -> list[CaseResult]:
    """A failure for each path that the emulator does not have, whatever the tests made of its 404."""
    found = {(one["method"], one["path"]) for one in calls if not one["operation"]}
    return [
        CaseResult(name, f"{method} {path}", "failed", "the emulator does not have this path")
        for method, path in sorted(found)
    ]


def read_case(name: str, case: ElementTree.Element) -> CaseResult:
    """The result of one test in a JUnit report."""
    test = f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name')}"
    for tag in ("failure", "error"):
        if (found := case.find(tag)) is not None:
            message = found.get("message", "") or (found.text or "")
            for pattern, reason in _REFUSALS:
                if re.search(pattern, message):
                    return CaseResult(name, test, "refused", reason)
            message = re.sub(r", 'request_id': '\w+'", "", message)
            return CaseResult(name, test, "failed", message[-600:])
    if (skip := case.find("skipped")) is not None:
        return CaseResult(name, test, "skipped", skip.get("message", ""))
    return CaseResult(name, test, "passed")
