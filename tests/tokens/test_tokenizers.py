"""Offline tokenizers: exact, for any length of text, and loaded by nobody who did not ask."""

from __future__ import annotations

import builtins
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anaphora.tokens import Count, Tokenizer, tokenizer, tokenizers

FAMILIES = ["o200k", "cl100k"]


def loaded(family: str) -> Tokenizer:
    found = tokenizer(family)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "family, text, tokens",
    [
        ("o200k", "", 0),
        ("o200k", "hello world", 2),
        ("o200k", "日本語", 2),
        ("cl100k", "hello world", 2),
        ("cl100k", "日本語", 4),
        # Written out, a special token is text like any other, and costs what its letters cost.
        ("o200k", "<|endoftext|>", 7),
    ],
)
def test_known_texts(family: str, text: str, tokens: int) -> None:
    assert loaded(family).count(text) == Count.exactly(tokens)


@pytest.mark.parametrize("family", ["claude", "gemma3", "unpublished", ""])
def test_no_tokenizer_where_none_works_offline(family: str) -> None:
    assert tokenizer(family) is None


def test_without_the_extra_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name == "bpe_openai":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    tokenizers._loaded.cache_clear()
    try:
        assert tokenizer("o200k") is None
    finally:
        tokenizers._loaded.cache_clear()


def test_no_vocabulary_is_loaded_by_importing_or_by_counting_bytes() -> None:
    program = (
        "import sys; from anaphora import catalog, tokens;"
        "tokens.estimate(1000, catalog.profile('openai', 'gpt-4o'));"
        "print('bpe_openai' in sys.modules)"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "False"


words = st.text(st.sampled_from("aZé9_ \n\t.,;'\"/\\({[日本。-’̈²"), min_size=1, max_size=300)


@pytest.mark.parametrize("family", FAMILIES)
@given(text=words | st.text(min_size=1, max_size=300), limit=st.integers(5, 60))
def test_a_text_cut_at_its_seams_counts_as_the_whole(family: str, text: str, limit: int) -> None:
    pieces = list(tokenizers.pieces(text, limit))
    assert "".join(piece for piece, _ in pieces) == text
    assert all(len(piece) <= limit for piece, _ in pieces)
    if all(clean for _, clean in pieces):
        whole = loaded(family).count(text).tokens
        assert sum(loaded(family).count(piece).tokens for piece, _ in pieces) == whole


@pytest.mark.parametrize("family", FAMILIES)
def test_more_than_the_encoder_takes_at_once(family: str) -> None:
    sentence = "The prefix stays where it is; nothing is hashed twice. "
    one = loaded(family).count(sentence * 100).tokens
    two = loaded(family).count(sentence * 200).tokens
    # 1.1 million characters: each further hundred sentences cost the same.
    assert loaded(family).count(sentence * 20_000) == Count.exactly(one + 199 * (two - one))


def test_a_word_of_a_million_letters_is_not_called_exact() -> None:
    count = loaded("o200k").count("a" * 1_000_050)
    assert not count.exact
    assert count.low < count.tokens < count.high
