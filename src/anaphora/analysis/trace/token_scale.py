"""Tokens of text by its bytes, as the bills of one account on one model show them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from anaphora.rendered import Kind

#: The catalog's ratio counts like so many billed tokens.
_PRIOR = 2000
#: A growth by more or less than this factor is not explained by the text: something was dropped, or
#: sent without being recorded.
_FACTOR = 3.0
#: The most that one call adds to what is known about the ratio.
_HEAVIEST = 2000


class TextBytes(NamedTuple):
    """Bytes of text, by what they are: each has a ratio of its own."""

    prose: int = 0
    json: int = 0
    """Tools and the arguments of their calls."""
    results: int = 0
    """Results of tools."""
    thinking: int = 0
    """Thinking, of which a signature or an encrypted form is recorded."""

    def plus(self, kind: Kind, size: int) -> TextBytes:
        prose, json, results, thinking = self
        if kind is Kind.TOOL_RESULT:
            return TextBytes(prose, json, results + size, thinking)
        if kind is Kind.TOOL_CALL or kind is Kind.TOOL:
            return TextBytes(prose, json + size, results, thinking)
        if kind is Kind.THINKING:
            return TextBytes(prose, json, results, thinking + size)
        return TextBytes(prose + size, json, results, thinking)


class TokenScale:
    """Bytes per token, learned from how much the bills grew from one call to the next. A first bill
    shows nothing: it contains what is not recorded."""

    def __init__(self, per_token: float) -> None:
        self._stated = per_token
        self._estimated = [float(_PRIOR)] * 4
        self._billed = [float(_PRIOR)] * 4
        """By the kind of text: tokens by the catalog, and by the bills."""

    @property
    def per_token(self) -> tuple[float, ...]:
        """Bytes per token of each kind of text."""
        pairs = zip(self._estimated, self._billed, strict=True)
        return tuple(self._stated * estimated / billed for estimated, billed in pairs)

    def tokens(self, text: Sequence[int]) -> float:
        return sum(size / ratio for size, ratio in zip(text, self.per_token, strict=True))

    def learn(self, text: Sequence[int], tokens: int) -> None:
        """A growth by so many bytes of text was billed as so many tokens. They are divided as they
        were estimated."""
        stated, estimated = sum(text) / self._stated, self.tokens(text)
        if tokens <= 0 or not 1 / _FACTOR < tokens / max(1.0, stated) < _FACTOR:
            return
        weight = min(1.0, _HEAVIEST / stated) if stated else 0.0
        ratios = self.per_token
        for kind, size in enumerate(text):
            self._estimated[kind] += weight * size / self._stated
            self._billed[kind] += weight * size / ratios[kind] * tokens / max(1.0, estimated)
