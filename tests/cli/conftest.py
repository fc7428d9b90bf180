"""Runs the command in a subprocess, as a shell would."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import TypeAlias

import pytest

Run: TypeAlias = Callable[..., "subprocess.CompletedProcess[str]"]

#: What decides about colours and widths: a test that wants one of them says so.
_LOOKS = ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS", "PYTHONIOENCODING")


def _environment(**extra: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in _LOOKS}
    return kept | {"PYTHONUTF8": "1", "TERM": "xterm-256color"} | extra


@pytest.fixture
def environment() -> Callable[..., dict[str, str]]:
    return _environment


@pytest.fixture
def run() -> Run:
    """`run("demo", "--json", NO_COLOR="1")`: arguments, and the environment on top of a quiet one."""

    def run(*arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "anaphora", *arguments],
            env=_environment(**extra),
            capture_output=True,
            encoding="utf-8",
            timeout=60,
            check=False,
        )

    return run
