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


@pytest.fixture(scope="session")
def _started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Servers with empty slots: of each kind one is started, and emptied when it is used again."""
    if reason := missing_package():
        pytest.skip(reason)
    kept: dict[tuple[Any, ...], Llama] = {}
    with ExitStack() as stack:

        def one(slots: int = 1, template: str | None = None) -> Llama:
            if (server := kept.get((slots, template))) is None:
                folder = tmp_path_factory.mktemp("llama")
                server = stack.enter_context(running(folder, slots=slots, template=template))
                kept[slots, template] = server
            else:
                for number in range(slots):
                    erased = server.post(f"/slots/{number}?action=erase", b"{}")
                    assert erased.status == 200, erased.body
            return server

        yield one


@pytest.fixture
def start(_started: Start, tmp_path: Path) -> Iterator[Start]:
    """A server with empty slots, with `slots`, `aside`, `template`."""
    with ExitStack() as stack:

        def one(aside: int = 0, **how: Any) -> Llama:
            if not aside:
                return _started(**how)
            # What is kept without a slot cannot be erased.
            return stack.enter_context(running(tmp_path, aside=aside, **how))

        yield one
