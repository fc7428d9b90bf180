"""A whole reply of Anthropic's as a `Reply`: its parts, stop reason and token counts."""

from __future__ import annotations

import msgspec

from anaphora.values import Message, Reply, StopReason, Usage, WriteTtl
from anaphora.wire.lenient import LenientDecoder
from anaphora.wire.reading import converts_errors, replaces_lone_surrogates, reply_error
from anaphora.wire.replies import (
    positive_counts,
    read_counts,
    valid_count,
)

from .parse import BlockReader
from .types import WIRE, MessageReply, UsageCounts

STOPS: dict[str, StopReason] = {
    "end_turn": "end",
    "max_tokens": "length",
    "stop_sequence": "stop_sequence",
    "tool_use": "tool_calls",
    "pause_turn": "pause",
    "refusal": "refusal",
    "model_context_window_exceeded": "context_overflow",
}

_REPLY = LenientDecoder[MessageReply](MessageReply)
_decode_usage = msgspec.json.Decoder(UsageCounts).decode


@replaces_lone_surrogates
@converts_errors(reply_error)
def read_reply(body: bytes) -> Reply:
    """The reply in `body`. `Parse` names the field that is missing or wrong."""
    reply, unknown = _REPLY.decode(body, "$", reply_error)
    inner = unknown.take_elements("content") if unknown is not None else {}
    parts = BlockReader("$", reply_error).content(reply.content, inner)
    usage, notices = read_counts(read_usage, bytes(reply.usage), "$.usage")
    return Reply(
        id=reply.id or "",
        model=reply.model or "",
        message=Message(id=reply.id or "", role="assistant", parts=parts),
        stop_reason=read_stop(reply.stop_reason, reply.stop_sequence),
        stop_reason_raw=reply.stop_reason,
        stop_sequence=reply.stop_sequence,
        usage=usage,
        notices=notices,
        extras=unknown.extras(WIRE, nulls=True) if unknown is not None else None,
    )


def read_stop(reason: str | None, sequence: str | None) -> StopReason:
    """Why the model stopped. Some servers name the stop sequence and report the turn's end."""
    if reason == "end_turn" and sequence is not None:
        return "stop_sequence"
    return STOPS.get(reason or "", "other")


def read_usage(raw: bytes) -> Usage:
    """Anthropic's counts are a partition already; counts that are missing stay unknown."""
    usage = _decode_usage(raw)
    details = usage.output_tokens_details
    return Usage(
        uncached=valid_count(usage.input_tokens),
        read=valid_count(usage.cache_read_input_tokens),
        written=_written(usage),
        output=valid_count(usage.output_tokens),
        reasoning=valid_count(details.thinking_tokens) if details is not None else None,
        raw=raw.decode(),
    )


def _written(usage: UsageCounts) -> dict[WriteTtl, int] | None:
    by_ttl = usage.cache_creation
    total = valid_count(usage.cache_creation_input_tokens)
    if by_ttl is None:
        return None if total is None else {"unsplit": total} if total else {}
    written: dict[WriteTtl, int] = {
        "1h": valid_count(by_ttl.ephemeral_1h_input_tokens) or 0,
        "5m": valid_count(by_ttl.ephemeral_5m_input_tokens) or 0,
    }
    if total is not None and (rest := total - sum(written.values())) > 0:
        written["unsplit"] = rest
    return positive_counts(written)
