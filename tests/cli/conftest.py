"""Runs the command in a subprocess, as a shell would, or in this process, which is faster."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from typing import TypeAlias

import pytest
from support.waiting import PATIENCE

from anaphora.cli.main import main

Run: TypeAlias = Callable[..., "subprocess.CompletedProcess[str]"]

#: What decides about colours and widths: a test that wants one of them says so.
_LOOKS = ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS", "PYTHONIOENCODING")


def _environment(**extra: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in _LOOKS}
    return kept | {"PYTHONUTF8": "1", "TERM": "xterm-256color"} | extra


@pytest.fixture(autouse=True)
def _no_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """pytest-xdist sets COLUMNS."""
    for name in _LOOKS:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def environment() -> Callable[..., dict[str, str]]:
    return _environment


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Like `run_process`, in this process: for what depends on arguments and environment only."""

    def run(*arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
        encoding = extra.get("PYTHONIOENCODING", "utf-8")
        streams = [io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in range(2)]
        with monkeypatch.context() as patch:
            for name in (*_LOOKS, "PYTHONUTF8", "TERM"):
                patch.delenv(name, raising=False)
            for name, value in _environment(**extra).items():
                patch.setenv(name, value)
            patch.setattr(sys, "stdout", streams[0])
            patch.setattr(sys, "stderr", streams[1])
            try:
                code = main(arguments)
            except SystemExit as ended:
                code = int(ended.code or 0)
        texts = []
        for stream in streams:
            stream.flush()
            texts.append(stream.buffer.getvalue().decode())
        return subprocess.CompletedProcess(list(arguments), code, *texts)

    return run


@pytest.fixture
def run_process() -> Run:
    """`run_process("demo", "--json", NO_COLOR="1")`: arguments, and the environment on top of a quiet one."""

    def run_process(*arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "anaphora", *arguments],
            env=_environment(**extra),
            capture_output=True,
            encoding="utf-8",
            timeout=PATIENCE,
            check=False,
        )

    return run_process
