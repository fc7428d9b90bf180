"""Reads and writes complete replies of Converse without loss: parts, stop reason and counts.

A reply names neither itself nor its model: its id is in the headers, the model in the path.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw

from anaphora.canonical import dumps, string
from anaphora.values import Message, Reply, StopReason, Usage, WriteTtl
from anaphora.wire.lenient import LenientDecoder, Unknown
from anaphora.wire.parts import following, own_members, own_stop, own_usage
from anaphora.wire.reading import (
    Members,
    converts_errors,
    decode_elements,
    decode_members,
    replaces_lone_surrogates,
    reply_error,
)
from anaphora.wire.replies import positive_counts, read_counts, valid_count

from .parse import BlockReader
from .parts import reply_block
from .types import WIRE, ConverseReply, UsageCounts

STOPS: dict[str, StopReason] = {
    "end_turn": "end",
    "max_tokens": "length",
    "stop_sequence": "stop_sequence",
    "tool_use": "tool_calls",
    "guardrail_intervened": "refusal",
    "content_filtered": "refusal",
    "model_context_window_exceeded": "context_overflow",
}
_STOP_REASONS: dict[StopReason, str] = {
    **{stop: reason for reason, stop in reversed(STOPS.items())},
    "refusal": "content_filtered",
}
#: Required by AWS's clients.
_METRICS = Raw(b'{"latencyMs":0}')

_REPLY = LenientDecoder[ConverseReply](ConverseReply)
_decode_usage = msgspec.json.Decoder(UsageCounts).decode


@replaces_lone_surrogates
@converts_errors(reply_error)
def read_reply(body: bytes) -> Reply:
    """The reply in `body`. `Parse` names the field that is missing or wrong."""
    reply, unknown = _REPLY.decode(body, "$", reply_error)
    output = unknown.members.get("output") if unknown is not None else None
    message = output.members.get("message") if isinstance(output, Unknown) else None
    inner = message.take_elements("content") if isinstance(message, Unknown) else {}

    def raw_block(_: int, index: int) -> Raw:
        output = decode_members(decode_members(body)["output"])
        return decode_elements(decode_members(output["message"])["content"])[index]

    reader = BlockReader(raw_block, "$.output.message.content", reply_error)
    parts = reader.content(reply.output.message.content, inner)
    usage, notices = read_counts(read_usage, bytes(reply.usage), "$.usage")
    return Reply(
        id="",
        model="",
        message=Message(id="", role="assistant", parts=tuple(parts)),
        stop_reason=STOPS.get(reply.stopReason or "", "other"),
        stop_reason_raw=reply.stopReason,
        usage=usage,
        notices=notices,
        extras=unknown.extras(WIRE, nulls=True) if unknown is not None else None,
    )


def read_usage(raw: bytes) -> Usage:
    """The counts are a partition: `inputTokens` are the uncached ones. A split of the written
    tokens by TTL counts only if it is complete."""
    usage = _decode_usage(raw)
    return Usage(
        uncached=valid_count(usage.inputTokens),
        read=valid_count(usage.cacheReadInputTokens),
        written=_written(usage),
        output=valid_count(usage.outputTokens),
        raw=raw.decode(),
    )


def read_inclusive_usage(raw: bytes) -> Usage:
    """The counts if `inputTokens` includes the cached tokens. Fewer than those do not."""
    usage = read_usage(raw)
    cached = (usage.read or 0) + (usage.written_total or 0)
    if not cached or (usage.uncached or 0) < cached:
        return usage
    return msgspec.structs.replace(usage, uncached=(usage.uncached or 0) - cached)


def _written(usage: UsageCounts) -> dict[WriteTtl, int] | None:
    total = valid_count(usage.cacheWriteInputTokens)
    if total is None:
        return None
    split: dict[WriteTtl, int] = {}
    for detail in usage.cacheDetails or ():
        tokens = valid_count(detail.inputTokens) or 0
        if detail.ttl == "1h":
            split["1h"] = split.get("1h", 0) + tokens
        elif detail.ttl == "5m":
            split["5m"] = split.get("5m", 0) + tokens
    return positive_counts(split if sum(split.values()) == total else {"unsplit": total})


# ── Writing ──────────────────────────────────────────────────────────────────────────────────────


def write_reply(reply: Reply, created: float | None = None) -> bytes:  # noqa: ARG001
    """The whole reply, without a date. Parts without a block are left out."""
    blocks = map(reply_block, reply.message.parts)
    content = b",".join(block for block in blocks if block is not None)
    fields = own_members(reply.extras, WIRE)
    output = decode_members(fields.pop("output", b"{}"))
    message = decode_members(output.pop("message", b"{}"))
    begin = b'{"output":{"message":{"role":"assistant","content":[%b]%b}%b}' % (
        content,
        following(message),
        following(output),
    )
    stop = b',"stopReason":' + string(write_stop(reply))
    usage = b',"usage":' + write_usage(reply.usage)
    return begin + stop + usage + following(_with_metrics(fields)) + b"}"


def _with_metrics(fields: Members) -> Members:
    return fields if "metrics" in fields else {"metrics": _METRICS, **fields}


def write_metadata(usage: Usage, fields: Members) -> bytes:
    """The last event of a stream: the counts, and the fields beside them."""
    return b'{"usage":' + write_usage(usage) + following(_with_metrics(fields)) + b"}"


def write_stop(reply: Reply) -> str:
    own = own_stop(reply, lambda raw: STOPS.get(raw, "other"))
    return _STOP_REASONS.get(reply.stop_reason, "end_turn") if own is None else own


def write_usage(usage: Usage) -> bytes:
    """The usage object: the provider's own if it has the same counts."""
    if (own := own_usage(usage, read_usage)) is not None:
        return own
    uncached, output = usage.uncached or 0, usage.output or 0
    written = usage.written_total or 0
    fields: dict[str, object] = {
        "inputTokens": uncached,
        "outputTokens": output,
        "totalTokens": uncached + output + (usage.read or 0) + written,
    }
    if usage.read is not None:
        fields["cacheReadInputTokens"] = usage.read
    if usage.written is not None:
        fields["cacheWriteInputTokens"] = written
        if usage.written and "unsplit" not in usage.written:
            fields["cacheDetails"] = [
                {"ttl": ttl, "inputTokens": tokens} for ttl, tokens in usage.written.items()
            ]
    return dumps(fields, path="usage")
