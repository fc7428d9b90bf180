"""One llama.cpp server for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.llama import Llama, running, why_not


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Llama]:
    if reason := why_not():
        pytest.skip(reason)
    with running(tmp_path_factory.mktemp("llama")) as server:
        yield server
