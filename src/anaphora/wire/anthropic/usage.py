"""Anthropic's token counts, both ways. They are a partition already."""

from __future__ import annotations

import msgspec

from anaphora.canonical import dumps
from anaphora.errors import Parse
from anaphora.values import Usage, WriteTtl
from anaphora.wire.replies import positive_counts, valid_count


class _Creation(msgspec.Struct, frozen=True):
    ephemeral_5m_input_tokens: int = 0
    ephemeral_1h_input_tokens: int = 0


class _Details(msgspec.Struct, frozen=True):
    thinking_tokens: int | None = None


class _Usage(msgspec.Struct, frozen=True):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_creation: _Creation | None = None
    output_tokens_details: _Details | None = None


_decode = msgspec.json.Decoder(_Usage).decode


def read_usage(raw: bytes, path: str) -> Usage:
    """Anthropic's counts are a partition already; what it does not mention stays unknown."""
    try:
        told = _decode(raw)
    except msgspec.DecodeError as problem:
        raise Parse(str(problem), path=path) from None
    details = told.output_tokens_details
    return Usage(
        uncached=valid_count(told.input_tokens),
        read=valid_count(told.cache_read_input_tokens),
        written=_written(told),
        output=valid_count(told.output_tokens),
        reasoning=valid_count(details.thinking_tokens) if details is not None else None,
        raw=raw.decode(),
    )


def _written(told: _Usage) -> dict[WriteTtl, int] | None:
    split = told.cache_creation
    total = valid_count(told.cache_creation_input_tokens)
    if split is None:
        return None if total is None else {"unsplit": total} if total else {}
    by_ttl: dict[WriteTtl, int] = {
        "1h": split.ephemeral_1h_input_tokens,
        "5m": split.ephemeral_5m_input_tokens,
    }
    if total is not None and (rest := total - sum(by_ttl.values())) > 0:
        by_ttl["unsplit"] = rest
    return positive_counts(by_ttl)


def write_usage(usage: Usage) -> bytes:
    """The usage object of an answer: the provider's own where it says the same in these words."""
    if usage.raw is not None:
        try:
            if read_usage(usage.raw.encode(), "usage") == usage:
                return usage.raw.encode()
        except Parse:
            pass
    fields: dict[str, object] = {
        "input_tokens": usage.uncached or 0,
        "output_tokens": usage.output or 0,
    }
    if usage.read is not None:
        fields["cache_read_input_tokens"] = usage.read
    if usage.written is not None:
        fields["cache_creation_input_tokens"] = usage.written_total
        if "unsplit" not in usage.written:
            fields["cache_creation"] = {
                "ephemeral_5m_input_tokens": usage.written.get("5m", 0),
                "ephemeral_1h_input_tokens": usage.written.get("1h", 0),
            }
    if usage.reasoning is not None:
        fields["output_tokens_details"] = {"thinking_tokens": usage.reasoning}
    return dumps(fields, path="usage")
