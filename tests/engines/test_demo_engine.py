"""The same prefix twice at llama.cpp's own server."""

from __future__ import annotations

import asyncio
import importlib.util
from typing import Any

import pytest
from support import llama_server as llama


@pytest.mark.skipif(llama.missing_package() is not None, reason=str(llama.missing_package()))
def test_second_conversation_reads_the_shared_prefix() -> None:
    measured = asyncio.run(llama.cold_and_warm(3000))
    assert measured.tokens > measured.cached > 3000
    assert measured.tokens - measured.cached < 100
    # Before its first bill, a session estimates tokens by bytes; here each byte is one.
    assert 0 < measured.predicted < measured.cached
    assert measured.cold > 0
    assert measured.warm > 0


@pytest.mark.parametrize("missing", ["xllamacpp", "gguf"])
def test_missing_package_is_named(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec

    def find(name: str) -> Any:
        return None if name == missing else found("json")

    monkeypatch.setattr(llama, "find_spec", find)
    assert llama.missing_package() == f"{missing} is not installed"
