"""The server itself: it begins, it ends, and it says why when it does not begin."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.llama import Llama, missing_package, running
from support.llama_calls import ask, call

TESTS = Path(__file__).parents[1]

pytestmark = pytest.mark.skipif(missing_package() is not None, reason=str(missing_package()))


def ask_on(llama: Llama) -> None:
    """Until it has noticed that it should end; a server that never does answers them all."""
    for _ in range(2000):
        llama.post("/v1/messages", b"{")


def test_it_ends_with_the_block(tmp_path: Path) -> None:
    with running(tmp_path) as llama:
        assert ask(llama, "openai_chat", call("hi")).text
    with pytest.raises(RuntimeError, match="did not answer"):
        llama.post("/v1/messages", b"{}")


def test_it_ends_when_a_test_fails(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), running(tmp_path) as llama:
        raise ZeroDivisionError
    with pytest.raises(RuntimeError, match="did not answer"):
        llama.post("/v1/messages", b"{}")


def test_it_ends_with_its_parent_process(tmp_path: Path) -> None:
    """Even one that was killed: a process that starts it and dies without a word."""
    script = (
        "import os, sys; from pathlib import Path; from support.llama import running\n"
        "with running(Path(sys.argv[1])) as llama:\n"
        "    print(llama.address, flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    started = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        cwd=TESTS,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent / "examples")]),
        },
        capture_output=True,
        check=False,
    )
    address = started.stdout.decode().strip()
    assert address.startswith("http://127.0.0.1:"), started.stderr.decode()
    llama = Llama(address, tmp_path / "llama.log")
    with pytest.raises(RuntimeError, match="did not answer"):
        ask_on(llama)


def test_a_start_that_fails_shows_the_log(tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").mkdir()
    with pytest.raises(RuntimeError, match=r"(?s)did not start.*Traceback"), running(tmp_path):
        raise AssertionError("it cannot run")
