"""Reads complete replies of Anthropic: parts, stop reason and counts. Reads and writes errors."""

from __future__ import annotations

from functools import partial

import msgspec

from anaphora import errors
from anaphora.canonical import dumps
from anaphora.errors import Upstream
from anaphora.values import Message, Reply, StopReason, Usage, WriteTtl
from anaphora.wire.error_details import shown_fields
from anaphora.wire.errors import error_class, error_headers, overflow_class, read_response
from anaphora.wire.lenient import LenientDecoder
from anaphora.wire.reading import converts_errors, replaces_lone_surrogates, reply_error
from anaphora.wire.replies import read_counts, valid_counts

from .parse import BlockReader
from .types import WIRE, ErrorBody, ErrorReply, MessageReply, UsageCounts

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
    details, by_ttl = usage.output_tokens_details, usage.cache_creation
    uncached, read, total, output, reasoning, hour, minutes = valid_counts(
        usage.input_tokens,
        usage.cache_read_input_tokens,
        usage.cache_creation_input_tokens,
        usage.output_tokens,
        None if details is None else details.thinking_tokens,
        None if by_ttl is None else by_ttl.ephemeral_1h_input_tokens,
        None if by_ttl is None else by_ttl.ephemeral_5m_input_tokens,
    )
    written: dict[WriteTtl, int] | None = None
    if by_ttl is not None or total is not None:
        written = {}
        if hour:
            written["1h"] = hour
        if minutes:
            written["5m"] = minutes
        if total is not None and (rest := total - (hour or 0) - (minutes or 0)) > 0:
            written["unsplit"] = rest
    return Usage(
        uncached=uncached,
        read=read,
        written=written,
        output=output,
        reasoning=reasoning,
        raw=raw.decode(),
    )


# ── Errors ───────────────────────────────────────────────────────────────────────────────────────

_STATUS_AND_TYPE: dict[type[Upstream], tuple[int, str]] = {
    errors.RequestRejected: (400, "invalid_request_error"),
    errors.ContentRefused: (400, "invalid_request_error"),
    errors.ContextOverflow: (400, "invalid_request_error"),
    errors.Unauthenticated: (401, "authentication_error"),
    errors.QuotaExhausted: (402, "billing_error"),
    errors.Forbidden: (403, "permission_error"),
    errors.NotFound: (404, "not_found_error"),
    errors.TooLarge: (413, "request_too_large"),
    errors.RateLimited: (429, "rate_limit_error"),
    errors.Overloaded: (529, "overloaded_error"),
}
#: Sent with the type of a rate limit; only the code differs.
_SPEND_LIMIT = "enforced_spend_limit_reached"
#: By the error's type, and by the more specific code in its details. If several classes have one
#: type, the first is used.
_BY_CODE: dict[str, type[Upstream]] = {
    **{kind: cls for cls, (_, kind) in reversed(_STATUS_AND_TYPE.items())},
    "conflict_error": errors.Overloaded,
    "api_error": errors.Overloaded,
    "timeout_error": errors.Overloaded,
    _SPEND_LIMIT: errors.QuotaExhausted,
    "exceed_context_size_error": errors.ContextOverflow,  # llama.cpp
}


def _read(body: bytes, status: int) -> Upstream:
    reply = msgspec.json.decode(body, type=ErrorReply)
    error = error_of(reply.error, status, reply.request_id)
    error.details = shown_fields("anthropic", msgspec.json.decode(body)["error"])
    return error


read_error = partial(read_response, _read, _BY_CODE)


def error_of(body: ErrorBody, status: int, request_id: str | None = None) -> Upstream:
    """The error of an error object; streams carry the same object."""
    code = body.details.error_code if body.details is not None else None
    kind = error_class(status, code if code in _BY_CODE else body.type, _BY_CODE)
    return overflow_class(kind, body.message)(
        body.message or body.type,
        status=status,
        code=code or body.type or None,
        request_id=request_id,
    )


def write_error(error: Upstream) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body as Anthropic would send them."""
    status, kind = _STATUS_AND_TYPE.get(type(error), (500, "api_error"))
    if error.code == _SPEND_LIMIT:
        status, kind = _STATUS_AND_TYPE[errors.RateLimited]
    content: dict[str, object] = {"type": kind, "message": str(error)}
    # The type of another class would be read as that class; a spend limit comes as a rate limit.
    named = (type(error), None) if error.code != _SPEND_LIMIT else (errors.QuotaExhausted,)
    content |= error.details or {}
    own = error.details is not None or _BY_CODE.get(error.code or "") in named
    if own and error.code not in (None, content["type"]):
        content["details"] = {"error_code": error.code}
    body = {"type": "error", "error": content, "request_id": error.request_id}
    return error.status or status, error_headers(error, "request-id"), dumps(body)
