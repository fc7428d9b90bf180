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
from typing import NamedTuple

from anaphora import emulator
from anaphora.emulator import EmulatorOptions, Script

from .environment import SOAK, programs
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
        SOAK / "sdks" / "sources" / "anthropic-*",
        (
            f"{_RESOURCES}/test_messages.py",
            f"{_RESOURCES}/messages",
            f"{_RESOURCES}/test_models.py",
        ),
        "TEST_API_BASE_URL",
        options=("-p", "tests._alias_httpx"),
    ),
    "openai SDK": Suite(
        "sdks",
        SOAK / "sdks" / "sources" / "openai-*",
        tuple(
            f"{_RESOURCES}/{name}"
            for name in ("chat", "responses", "test_responses.py", "test_models.py")
        ),
        "TEST_API_BASE_URL",
        "/v1",
    ),
}

#: Errors that the provider answers with too: the SDKs' tests are made for a server that takes every
#: request of the right types, and name objects that do not exist.
_REFUSALS: tuple[tuple[str, str], ...] = (
    (r"404 .*(model_id|message_batch_id|completion_id|response_id|resp_677efb|abc123)",
     "the test names an object that does not exist"),
    (r"400 .*(previous_response_id|resp_123)", "the test continues a response that does not exist"),
    (r"400 .*must provide a model parameter", "the test names no model"),
    (r"400 .*'max_tokens' is not supported with this model", "the test sends both token limits"),
    (r"400 .*both defer_loading=true and cache_control", "the test marks a deferred tool"),
)  # fmt: skip


def play(name: str) -> list[CaseResult]:
    """The results of a suite; raises `Unavailable` where it cannot be installed."""
    suite = SUITES[name]
    python = programs(suite.family) / "python"
    folder = next(suite.folder.parent.glob(suite.folder.name))
    options = EmulatorOptions(script=Script.decode(suite.script or "replies: []", f"{name}.yaml"))
    with emulator.running(options) as emu, tempfile.TemporaryDirectory() as home:
        report = Path(home) / "report.xml"
        address = {suite.variable: emu.url + suite.root}
        run = subprocess.run(
            [str(python), "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider",
             "-W", "ignore", "-o", "addopts=", f"--junitxml={report}", *suite.options,
             *suite.tests],
            cwd=folder,
            env={"PATH": os.environ.get("PATH", ""), "HOME": home, "LANG": "C.UTF-8",
                 "PYTHONDONTWRITEBYTECODE": "1", **address},
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            check=False,
        )  # fmt: skip
        if not report.exists():
            return [CaseResult(name, "collection", "failed", (run.stdout + run.stderr)[-600:])]
        return [_read(name, case) for case in ElementTree.parse(report).iter("testcase")]


def _read(name: str, case: ElementTree.Element) -> CaseResult:
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
