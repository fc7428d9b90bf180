"""A whole reply of Anthropic's, both ways, and its token counts."""

from __future__ import annotations

import msgspec

from anaphora.canonical import dumps, string
from anaphora.errors import Parse
from anaphora.values import Message, Notice, Part, Reply, StopReason, Usage, WriteTtl
from anaphora.wire.reading import LenientDecoder, converts_errors, reply_error
from anaphora.wire.replies import positive_counts, valid_count

from .parse import BlockReader
from .parts import closing, encoder_for
from .types import NULL, WIRE, MessageReply, UsageCounts

STOPS: dict[str, StopReason] = {
    "end_turn": "end",
    "max_tokens": "length",
    "stop_sequence": "stop_sequence",
    "tool_use": "tool_calls",
    "pause_turn": "pause",
    "refusal": "refusal",
    "model_context_window_exceeded": "context_overflow",
}
_STOP_REASONS = {stop: reason for reason, stop in STOPS.items()}

_REPLY = LenientDecoder[MessageReply](MessageReply)
_decode_usage = msgspec.json.Decoder(UsageCounts).decode


@converts_errors(reply_error)
def read_reply(body: bytes) -> Reply:
    """The reply in `body`. `Parse` names the field that is missing or wrong."""
    reply, unknown = _REPLY.decode(body, "$", reply_error)
    inner = unknown.take_elements("content") if unknown is not None else {}
    parts = BlockReader("$", reply_error).content(reply.content, inner)
    return Reply(
        id=reply.id,
        model=reply.model,
        message=Message(id=reply.id, role="assistant", parts=parts),
        stop_reason=read_stop(reply.stop_reason, reply.stop_sequence),
        stop_reason_raw=reply.stop_reason,
        stop_sequence=reply.stop_sequence,
        usage=Usage() if reply.usage == NULL else read_usage(bytes(reply.usage), "$.usage"),
        extras=unknown.extras(WIRE, nulls=True) if unknown is not None else None,
    )


def write_reply(reply: Reply) -> bytes:
    """The reply as Anthropic would send it. Parts without a block are left out: `unsupported`
    names them."""
    content = b",".join(_blocks(reply.message.parts, []))
    return (
        b'{"id":'
        + string(reply.id)
        + b',"type":"message","role":"assistant","model":'
        + string(reply.model)
        + b',"content":['
        + content
        + b'],"stop_reason":'
        + string(write_stop(reply))
        + b',"stop_sequence":'
        + (b"null" if reply.stop_sequence is None else string(reply.stop_sequence))
        + b',"usage":'
        + write_usage(reply.usage)
        + closing(reply.extras)
    )


def unsupported(reply: Reply) -> list[Notice]:
    """What of a reply this wire cannot send."""
    notices: list[Notice] = []
    _blocks(reply.message.parts, notices)
    return notices


def _blocks(parts: tuple[Part, ...], notices: list[Notice]) -> list[bytes]:
    blocks = [encoder_for(part, assistant=True)[2](part, notices) for part in parts]
    return [block for block in blocks if block is not None]


def read_stop(reason: str | None, sequence: str | None) -> StopReason:
    """Why the model stopped. Some servers name the stop sequence and report the turn's end."""
    if reason == "end_turn" and sequence is not None:
        return "stop_sequence"
    return STOPS.get(reason or "", "other")


def write_stop(reply: Reply) -> str:
    if (
        reply.stop_reason_raw is not None
        and read_stop(reply.stop_reason_raw, reply.stop_sequence) == reply.stop_reason
    ):
        return reply.stop_reason_raw
    return _STOP_REASONS.get(reply.stop_reason, "end_turn")


def read_usage(raw: bytes, path: str) -> Usage:
    """Anthropic's counts are a partition already; counts that are missing stay unknown."""
    try:
        usage = _decode_usage(raw)
    except msgspec.DecodeError as problem:
        raise Parse(str(problem), path=path) from None
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
        "1h": by_ttl.ephemeral_1h_input_tokens,
        "5m": by_ttl.ephemeral_5m_input_tokens,
    }
    if total is not None and (rest := total - sum(written.values())) > 0:
        written["unsplit"] = rest
    return positive_counts(written)


def write_usage(usage: Usage) -> bytes:
    """The usage object of a reply: the provider's own where it reads the same."""
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
