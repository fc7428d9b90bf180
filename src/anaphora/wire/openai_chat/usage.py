"""Chat's token counts, both ways. `prompt_tokens` holds everything; here it is a partition."""

from __future__ import annotations

import msgspec

from anaphora.canonical import dumps
from anaphora.errors import Parse
from anaphora.values import Usage
from anaphora.wire.reading import DECODE_ERRORS
from anaphora.wire.replies import partition, positive_counts, valid_count


class _Input(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _Output(msgspec.Struct, frozen=True):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Input | None = None
    completion_tokens_details: _Output | None = None
    # Where other hosts tell what was cached.
    cached_tokens: int | None = None
    num_cached_tokens: int | None = None
    prompt_cache_hit_tokens: int | None = None


_decode = msgspec.json.Decoder(_Usage).decode


def read_usage(raw: bytes, path: str) -> Usage:
    """Input that was neither read nor written is what is left of the prompt; what is not told
    stays unknown."""
    try:
        told = _decode(raw)
    except DECODE_ERRORS as problem:
        raise Parse(str(problem), path=path) from None
    details = told.prompt_tokens_details or _Input()
    read = valid_count(details.cached_tokens)
    if read is None:
        read = _first(told.cached_tokens, told.num_cached_tokens, told.prompt_cache_hit_tokens)
    wrote = valid_count(details.cache_write_tokens)
    uncached, read, written, overlap = partition(
        valid_count(told.prompt_tokens),
        read,
        None if wrote is None else positive_counts({"30m": wrote}),
    )
    reasoning = told.completion_tokens_details
    return Usage(
        uncached=uncached,
        read=read,
        written=written,
        output=valid_count(told.completion_tokens),
        reasoning=valid_count(reasoning.reasoning_tokens) if reasoning is not None else None,
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
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
    }
    details: dict[str, object] = {}
    if usage.read is not None:
        details["cached_tokens"] = usage.read
    if usage.written is not None:
        details["cache_write_tokens"] = usage.written_total
    if details:
        fields["prompt_tokens_details"] = details
    if usage.reasoning is not None:
        fields["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning}
    return dumps(fields, path="usage")


def _first(*told: int | None) -> int | None:
    return next((tokens for tokens in map(valid_count, told) if tokens is not None), None)
