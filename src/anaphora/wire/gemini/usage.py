"""Gemini's token counts, both ways.

`promptTokenCount` holds what was cached; what Gemini's own tools put into the prompt is counted
beside it, and thoughts are counted beside the answer.
"""

from __future__ import annotations

import msgspec

from anaphora.canonical import dumps
from anaphora.errors import Parse
from anaphora.values import Usage
from anaphora.wire.reading import DECODE_ERRORS
from anaphora.wire.replies import partition, valid_count


class _Usage(msgspec.Struct, frozen=True, rename="camel"):
    prompt_token_count: int | None = None
    cached_content_token_count: int | None = None
    tool_use_prompt_token_count: int | None = None
    candidates_token_count: int | None = None
    thoughts_token_count: int | None = None
    total_token_count: int | None = None


_decode = msgspec.json.Decoder(_Usage).decode


def read_usage(raw: bytes, path: str) -> Usage:
    """Input that was not read is what is left of the prompt; writes are never told."""
    try:
        told = _decode(raw)
    except DECODE_ERRORS as problem:
        raise Parse(str(problem), path=path) from None
    prompt = _sum(told.prompt_token_count, told.tool_use_prompt_token_count)
    uncached, read, _, overlap = partition(
        prompt, valid_count(told.cached_content_token_count), None
    )
    output = _sum(told.candidates_token_count, told.thoughts_token_count)
    total = valid_count(told.total_token_count)
    if output is None and None not in (prompt, total):
        output = max(0, (total or 0) - (prompt or 0))  # an answer of nothing is not counted apart
    return Usage(
        uncached=uncached,
        read=read,
        output=output,
        reasoning=valid_count(told.thoughts_token_count),
        overlap=overlap,
        raw=raw.decode(),
    )


def write_usage(usage: Usage) -> bytes:
    """The usage object of an answer: the provider's own where it says the same in these words."""
    if usage.raw is not None:
        try:
            if read_usage(usage.raw.encode(), "usage") == usage:
                return usage.raw.encode()
        except Parse:
            pass
    prompt, output = usage.input or 0, usage.output or 0
    fields: dict[str, object] = {
        "promptTokenCount": prompt,
        "candidatesTokenCount": output - (usage.reasoning or 0),
        "totalTokenCount": prompt + output,
    }
    if usage.read is not None:
        fields["cachedContentTokenCount"] = usage.read
    if usage.reasoning is not None:
        fields["thoughtsTokenCount"] = usage.reasoning
    return dumps(fields, path="usage")


def _sum(*told: int | None) -> int | None:
    known = [tokens for tokens in map(valid_count, told) if tokens is not None]
    return sum(known) if known else None
