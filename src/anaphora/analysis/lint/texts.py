"""A prompt in a text file: all of it is meant to stay the same."""

from __future__ import annotations

from collections.abc import Iterator

from anaphora.cache.verdict.json_blocks import redacted
from anaphora.tokens import tokens_in

from .costs import Costs
from .patterns import hits
from .values import Finding, found

#: Bytes that make a token, where no model is named.
PER_TOKEN = 4.0

_CONTEXT = 24


def lint_text(
    text: str, file: str, costs: Costs | None = None, ratio: float = PER_TOKEN
) -> Iterator[Finding]:
    """What is volatile in a prompt, which may be a template; `ratio` is bytes for a token."""
    costs = costs or Costs()
    total = text_tokens(text, ratio)
    short = 0 < total < costs.minimum
    for hit in hits(text, template=True):
        behind = text_tokens(text[hit.start :], ratio)
        line, column = place(text, hit.start)
        yield found(
            hit.rule,
            severity=hit.severity,
            file=file,
            line=line,
            column=column,
            excerpt=around(text, hit.start, hit.end),
            tokens=behind,
            cost_usd=costs.per_thousand(behind, total),
        )
    if short:
        why = f"about {total:,} tokens, and fewer than {costs.minimum:,} are not cached"
        yield found("too-short", file=file, line=1, column=1, why=why)


def place(text: str, offset: int) -> tuple[int, int]:
    """Line and column, counted from 1."""
    line = text.count("\n", 0, offset)
    return line + 1, offset - (text.rfind("\n", 0, offset) + 1) + 1


def around(text: str, start: int, end: int) -> str:
    """What was found with a little of what stands around it, on one line."""
    begin = max(text.rfind("\n", 0, start) + 1, start - _CONTEXT)
    stop = text.find("\n", end)
    stop = min(len(text) if stop < 0 else stop, end + _CONTEXT)
    data = text.encode(errors="replace")
    first = len(text[:begin].encode(errors="replace"))
    last = first + len(text[begin:stop].encode(errors="replace"))
    return redacted(data, first, last)


def text_tokens(text: str, ratio: float) -> int:
    return tokens_in(len(text.encode(errors="replace")), ratio)
