"""The tokenizers that work offline: text in, the model's own count out.

A vocabulary takes some 100 MB and a third of a second to load, so it is loaded when somebody asks
for it by family and by nobody else. It comes with the extra `anaphora[tokens]`.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable, Iterator

from .count import Count

#: What the catalog calls a family, and what `bpe-openai` does.
ENCODINGS = {"o200k": "o200k_base", "cl100k": "cl100k_base"}

#: Characters at once: the encoder refuses texts of over 200,000 tokens, and a character is at most
#: four bytes, so at most four tokens.
LIMIT = 50_000

#: Between a letter or digit and one of these, both families always begin a new word (their
#: patterns join letters to nothing that follows but an apostrophe or an accent). So a text may be
#: cut there, and the pieces count as the whole does.
_SEAM = re.compile(r"[A-Za-z0-9\u3040-\u30ff\u4e00-\u9fff](?=[\s.,;:!?(){}\[\]\"/\\=<>。、，])")

#: A cut elsewhere parts one word in two: what it may add or hide.
_PARTED = 8


class Tokenizer:
    """Counts text exactly as the models of one family do."""

    __slots__ = ("_encode", "family")

    def __init__(self, family: str, encode: Callable[[str], list[int]]) -> None:
        self.family = family
        self._encode = encode

    def count(self, text: str) -> Count:
        """The tokens of a text. Special tokens written out are text, as they are to the API."""
        tokens = parted = 0
        for piece, clean in pieces(text, LIMIT):
            tokens += len(self._encode(piece))
            parted += not clean
        if not parted:
            return Count.exactly(tokens)
        return Count(tokens, max(0, tokens - parted * _PARTED), tokens + parted * _PARTED)

    def __repr__(self) -> str:
        return f"<Tokenizer {self.family}>"


def tokenizer(family: str) -> Tokenizer | None:
    """The tokenizer of a family (`profile.tokenizer.value`). None when none is known offline, or
    when `anaphora[tokens]` is not installed."""
    return _loaded(family) if family in ENCODINGS else None


@functools.cache
def _loaded(family: str) -> Tokenizer | None:
    with warnings.catch_warnings():
        # It finds its vocabularies in a way that some Pythons call deprecated.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            import bpe_openai  # type: ignore[import-untyped]
        except ImportError:
            return None
        encoding = bpe_openai.get_encoding(ENCODINGS[family])
    return Tokenizer(family, encoding.encode_ordinary)


def pieces(text: str, limit: int) -> Iterator[tuple[str, bool]]:
    """The text in pieces of at most `limit` characters, and whether each ends at a seam."""
    start = 0
    while len(text) - start > limit:
        # Seams are everywhere in text: near the end of the piece there is one, as a rule.
        near = _last_seam(text, max(start, start + limit - 500), start + limit)
        seam = near or _last_seam(text, start, start + limit)
        end = seam or start + limit
        yield text[start:end], seam is not None
        start = end
    yield text[start:], True


def _last_seam(text: str, start: int, end: int) -> int | None:
    seam = None
    for found in _SEAM.finditer(text, start, end + 1):
        seam = found.end()
    return seam
