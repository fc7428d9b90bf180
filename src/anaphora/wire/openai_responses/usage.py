"""OpenAI's token counts, both ways. Its input includes what was read and written; ours is a
partition."""

from __future__ import annotations

import msgspec

from anaphora.canonical import dumps
from anaphora.errors import Parse
from anaphora.values import Usage, WriteTtl
from anaphora.wire.reading import DECODE_ERRORS
from anaphora.wire.replies import partition, positive_counts, valid_count


class _Writes(msgspec.Struct, frozen=True):
    ttl_30m_tokens: int = 0
    ttl_12h_tokens: int = 0


class _Input(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    cache_write_tokens_details: _Writes | None = None


class _Output(msgspec.Struct, frozen=True):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct, frozen=True):
    input_tokens: int | None = None
    input_tokens_details: _Input | None = None
    output_tokens: int | None = None
    output_tokens_details: _Output | None = None
    total_tokens: int | None = None


_decode = msgspec.json.Decoder(_Usage).decode


def read_usage(raw: bytes, path: str) -> Usage:
    """The counts as a partition; what OpenAI does not mention stays unknown."""
    try:
        told = _decode(raw)
    except DECODE_ERRORS as problem:
        raise Parse(str(problem), path=path) from None
    of_input, of_output = told.input_tokens_details or _Input(), told.output_tokens_details
    uncached, read, written, overlap = partition(
        valid_count(told.input_tokens), valid_count(of_input.cached_tokens), _written(of_input)
    )
    return Usage(
        uncached=uncached,
        read=read,
        written=written,
        output=valid_count(told.output_tokens),
        reasoning=valid_count(of_output.reasoning_tokens) if of_output is not None else None,
        overlap=overlap,
        raw=raw.decode(),
    )


def _written(told: _Input) -> dict[WriteTtl, int] | None:
    split, total = told.cache_write_tokens_details, valid_count(told.cache_write_tokens)
    if split is None:
        return None if total is None else {"unsplit": total} if total else {}
    by_ttl: dict[WriteTtl, int] = {"12h": split.ttl_12h_tokens, "30m": split.ttl_30m_tokens}
    if total is not None and (rest := total - sum(by_ttl.values())) > 0:
        by_ttl["unsplit"] = rest
    return positive_counts(by_ttl)


def write_usage(usage: Usage) -> bytes:
    """The usage object of an answer: OpenAI's own where it is one."""
    if usage.raw is not None and _is_ours(usage):
        return usage.raw.encode()
    written = usage.written
    of_input: dict[str, object] = {
        "cached_tokens": usage.read or 0,
        "cache_write_tokens": usage.written_total or 0,
    }
    if written and not written.keys() - {"30m", "12h"}:
        of_input["cache_write_tokens_details"] = {
            "ttl_30m_tokens": written.get("30m", 0),
            "ttl_12h_tokens": written.get("12h", 0),
        }
    said = {
        "input_tokens": usage.input or 0,
        "input_tokens_details": of_input,
        "output_tokens": usage.output or 0,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning or 0},
        "total_tokens": (usage.input or 0) + (usage.output or 0),
    }
    return dumps(said, path="usage")


def _is_ours(usage: Usage) -> bool:
    """Whether the raw counts say here what they say: another provider's would not."""
    assert usage.raw is not None
    try:
        told = _decode(usage.raw)
        return told.total_tokens is not None and read_usage(usage.raw.encode(), "usage") == usage
    except (msgspec.DecodeError, UnicodeError, Parse):
        return False
