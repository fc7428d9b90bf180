"""Reads and writes complete answers of Ollama without loss, and its errors.

Answers have no id. Their date and durations are kept in the extras.
"""

from __future__ import annotations

import datetime
from functools import partial
from typing import Any

import msgspec

from anaphora import errors
from anaphora.canonical import dumps, string
from anaphora.errors import Upstream
from anaphora.values import Extras, Message, Notice, Reply, StopReason, ToolCall, Usage
from anaphora.wire.errors import error_class, error_headers, overflow_class, read_response
from anaphora.wire.lenient import LenientDecoder
from anaphora.wire.parts import extra_members, own_stop
from anaphora.wire.reading import (
    Members,
    converts_errors,
    decode_members,
    encode_members,
    extras_of,
    known_text,
    replaces_lone_surrogates,
    reply_error,
)
from anaphora.wire.replies import unreadable_usage, valid_count

from .messages import write_assistant
from .parse import read_answer
from .types import NULL, WIRE, ChatResponse

RESPONSE: LenientDecoder[ChatResponse] = LenientDecoder(ChatResponse)

#: The date of an answer without one.
EPOCH = b'"1970-01-01T00:00:00Z"'

_STOPS: dict[str, StopReason] = {"stop": "end", "length": "length"}
_DONE_REASONS: dict[StopReason, str] = {"length": "length", "context_overflow": "length"}
_COUNTS = ("prompt_eval_count", "eval_count")


@replaces_lone_surrogates
@converts_errors(reply_error)
def read_reply(body: bytes) -> Reply:
    """The reply in `body`. `Parse` names a field that is missing or has the wrong type; an error
    that came with status 200 is raised as its own class."""
    response, unknown = RESPONSE.decode(body, "$", reply_error)
    rest = unknown.remaining() if unknown is not None else {}
    if response.message is NULL:
        if "error" in rest:
            raise from_success(msgspec.json.decode(rest["error"]))
        raise reply_error("is missing", "$.message")
    parts = read_answer(response.message, known_text(rest, "created_at") or None)
    called = any(isinstance(part, ToolCall) for part in parts)
    stop, usage, extras, notices = read_end(response, rest, called=called)
    return Reply(
        id="",
        model=response.model or "",
        message=Message(role="assistant", parts=parts),
        stop_reason=stop,
        stop_reason_raw=response.done_reason,
        usage=usage,
        notices=notices,
        extras=extras,
    )


def read_end(
    response: ChatResponse, rest: Members, *, called: bool
) -> tuple[StopReason, Usage, Extras | None, tuple[Notice, ...]]:
    """Stop reason, usage, extras and notices, of a complete answer or a stream's last line. One
    count covers all input tokens; cached tokens are not reported."""
    known: dict[str, int] = {}
    notices: tuple[Notice, ...] = ()
    for name in _COUNTS:
        count = getattr(response, name)
        if type(count) is int:
            known[name] = count
        elif count is not None:
            reason = f"expected a whole number, got {type(count).__name__}"
            notices += (unreadable_usage(reason, f"$.{name}"),)
    prompt, output = (valid_count(known.get(name)) for name in _COUNTS)
    usage = Usage(uncached=prompt, output=output, raw=dumps(known).decode() if known else None)
    if response.done is False:
        extras = extras_of(WIRE, {"done": msgspec.Raw(b"false"), **rest})
        return "other", usage, extras, notices
    return _read_stop(response.done_reason, called=called), usage, extras_of(WIRE, rest), notices


def _read_stop(reason: str | None, *, called: bool) -> StopReason:
    """Older servers give no reason for a normal end, and none has a reason for tool calls."""
    stop = _STOPS.get(reason or "stop", "other")
    return "tool_calls" if stop == "end" and called else stop


def _done_reason(reply: Reply) -> str:
    own = own_stop(reply, lambda raw: _read_stop(raw, called=bool(reply.tool_calls)))
    return _DONE_REASONS.get(reply.stop_reason, "stop") if own is None else own


def write_reply(reply: Reply, created: float | None = None) -> bytes:
    """The answer as Ollama would send it. Parts without a field are left out. `created` is the date
    of a reply that has none."""
    date = EPOCH if created is None else string(timestamp(created))
    return write_end(reply, write_assistant(reply.message, [], answer=True) or b"", date=date)


def timestamp(seconds: float) -> str:
    """A time as Ollama writes it."""
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def write_end(
    reply: Reply, message: bytes, counted: Usage | None = None, *, date: bytes = EPOCH
) -> bytes:
    """The object that ends an answer, with `message` in it. `counted` is the usage of earlier
    events, for a reply that has none, `date` that of a reply without one."""
    usage = reply.usage if reply.usage != Usage() or counted is None else counted
    extras = decode_members(b"{" + extra_members(reply.extras, WIRE) + b"}")
    created = bytes(extras.pop("created_at", date))
    done = bytes(extras.pop("done", b"true"))
    members = [
        b'"model":' + string(reply.model),
        b'"created_at":' + created,
        b'"message":' + message,
        b'"done":' + done,
    ]
    if done == b"true":
        members.append(b'"done_reason":' + string(_done_reason(reply)))
    counts = zip(_COUNTS, (usage.input, usage.output), strict=True)
    members += [b'"%b":%d' % (name.encode(), count) for name, count in counts if count is not None]
    if extras:
        members.append(encode_members(extras)[1:-1])
    return b"{" + b",".join(members) + b"}"


# ── Errors: a status and a text ──────────────────────────────────────────────────────────────────

#: The status that each class is written with; an error body has no code.
_STATUS_OF: dict[type[Upstream], int] = {
    errors.RequestRejected: 400,
    errors.ContentRefused: 400,
    errors.ContextOverflow: 400,
    errors.Unauthenticated: 401,
    errors.QuotaExhausted: 402,
    errors.Forbidden: 403,
    errors.NotFound: 404,
    errors.TooLarge: 413,
    errors.RateLimited: 429,
    errors.Overloaded: 503,
}


class _ErrorBody(msgspec.Struct, frozen=True):
    error: Any


_decode_error = msgspec.json.Decoder(_ErrorBody).decode


def _read_error(body: bytes, status: int) -> Upstream:
    message = _message(_decode_error(body).error)
    return overflow_class(error_class(status, None, {}), message)(message, status=status)


read_error = partial(read_response, _read_error, {})


def from_success(error: Any) -> Upstream:
    """The error in a body that came with status 200: generation failed after it had begun."""
    message = _message(error)
    return overflow_class(errors.Overloaded, message)(message, status=200)


def _message(error: Any) -> str:
    """The text of an error; hosts in front of Ollama may put it in an object."""
    if isinstance(error, dict):
        error = error.get("message")
    return error if isinstance(error, str) and error else "an error without a message"


def write_error(error: Upstream) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body as Ollama would send them."""
    status = _STATUS_OF.get(type(error), 500)
    # Another provider's status is kept only if it means the same class here.
    original = error.status
    if original is not None and original >= 400 and error_class(original, None, {}) is type(error):
        status = original
    return status, error_headers(error), write_failure(str(error))


def write_failure(message: str) -> bytes:
    """The error object, which also ends a stream."""
    return dumps({"error": message})
