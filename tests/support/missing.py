"""Tests of programs and servers that are not installed."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def skip_without(missing: Exception) -> NoReturn:
    """Skip a test whose server or program is not installed; in CI that is a failure."""
    if os.environ.get("CI"):
        pytest.fail(str(missing))
    pytest.skip(str(missing))
