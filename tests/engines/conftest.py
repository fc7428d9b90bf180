"""One llama.cpp server for all tests of this folder, and others for those that need another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from support.llama import Llama, missing_package, running

Start: TypeAlias = Callable[..., Llama]


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Llama]:
    if reason := missing_package():
        pytest.skip(reason)
    with running(tmp_path_factory.mktemp("llama")) as server:
        yield server


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a server of the test's own, with `slots`, `aside`, `template`."""
    if reason := missing_package():
        pytest.skip(reason)
    with ExitStack() as stack:

        def one(**how: Any) -> Llama:
            return stack.enter_context(running(tmp_path, **how))

        yield one
