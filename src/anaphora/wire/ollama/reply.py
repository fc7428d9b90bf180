"""A single answer of Ollama's, both ways: bytes to `Reply` and back, losing nothing.

Answers have no id here. When and how long they were made is carried along in the extras.
"""

from __future__ import annotations

import msgspec

from anaphora.canonical import dumps, string
from anaphora.values import Extras, Message, Notice, Reply, StopReason, Usage
from anaphora.wire.fields import Fields
from anaphora.wire.reading import converts_errors, reply_error

from .assistant import assistant_message, sort_parts
from .carried import WIRE, Put, carried, extra_members
from .failure import failure
from .incoming import prefix, read_call, read_message, read_parts

#: When an answer was made that nobody dated.
EPOCH = b'"1970-01-01T00:00:00Z"'

_STOPS: dict[str, StopReason] = {"stop": "end", "length": "length"}
_SAID: dict[StopReason, str] = {"length": "length", "context_overflow": "length"}
_COUNTS = ("prompt_eval_count", "eval_count")


@converts_errors(reply_error)
def read_reply(body: bytes) -> Reply:
    """The answer in `body`. `Parse` names the field that is missing or not what it should be; an
    error that came with a good status is raised as what it is."""
    fields = Fields(body, "$")
    raw = fields.raw("message")
    if raw is None:
        if (error := fields.raw("error")) is not None:
            raise failure(msgspec.json.decode(error))
        raise fields.fail("is missing", "message")
    said, rest = read_message(raw, "$.message", reply_error)
    if said.role not in ("", "assistant"):
        raise reply_error(f"expected the assistant's message, not {said.role!r}", "$.message.role")
    moment = fields.known_text("created_at") or None
    calls = [
        read_call(
            call, f"$.message.tool_calls[{at}]", reply_error, f"{prefix(moment)}_{at}", moment
        )
        for at, call in enumerate(said.tool_calls or ())
    ]
    parts = read_parts(said, rest, calls, answer=True)
    model = fields.maybe("model", str) or ""
    stop, stop_raw, usage, extras = read_end(fields, called=bool(calls))
    return Reply(
        id="",
        model=model,
        message=Message(role="assistant", parts=parts),
        stop=stop,
        stop_raw=stop_raw,
        usage=usage,
        extras=extras,
    )


def read_end(
    fields: Fields, *, called: bool
) -> tuple[StopReason, str | None, Usage, Extras | None]:
    """Why an answer ended, what it took, and the rest; of a single answer or a stream's last
    line."""
    fields.drop_nulls()
    done, reason = fields.maybe("done", bool), fields.maybe("done_reason", str)
    usage = read_usage(fields)
    rest = [b'"done":false'] if done is False else []
    rest += [left] if (left := fields.rest()) else []
    stop: StopReason = "other" if done is False else read_stop(reason, called=called)
    return stop, reason, usage, carried(b",".join(rest), Put())


def read_stop(said: str | None, *, called: bool) -> StopReason:
    """Older servers give no reason when all is well, and none says that tools were called."""
    stop = _STOPS.get(said or "stop", "other")
    return "tool_calls" if stop == "end" and called else stop


def write_stop(reply: Reply) -> str:
    called = bool(reply.tool_calls)
    if reply.stop_raw is not None and read_stop(reply.stop_raw, called=called) == reply.stop:
        return reply.stop_raw
    return _SAID.get(reply.stop, "stop")


def read_usage(fields: Fields) -> Usage:
    """All input tokens are counted in one sum; what of them was cached, nobody says."""
    prompt, output = (fields.maybe(name, int) for name in _COUNTS)
    told = {
        name: count
        for name, count in zip(_COUNTS, (prompt, output), strict=True)
        if count is not None
    }
    return Usage(uncached=prompt, output=output, raw=dumps(told).decode() if told else None)


def write_reply(reply: Reply) -> bytes:
    """The answer as Ollama would send it. What it has no field for is left out: ask `unsayable`
    first."""
    message = assistant_message(reply.message, [], answer=True) or b""
    return write_end(reply, message)


def write_end(reply: Reply, message: bytes, counted: Usage | None = None) -> bytes:
    """The object that ends an answer, around what is left of its message. `counted` are the counts
    told before, for a reply that has none."""
    usage = reply.usage if reply.usage != Usage() or counted is None else counted
    came = Fields(b"{" + extra_members(reply.extras) + b"}", f"extras.{WIRE}")
    created = came.raw("created_at") or EPOCH
    done = came.raw("done") or b"true"
    found = [
        b'"model":' + string(reply.model),
        b'"created_at":' + created,
        b'"message":' + message,
        b'"done":' + done,
    ]
    if done == b"true":
        found.append(b'"done_reason":' + string(write_stop(reply)))
    counts = zip(_COUNTS, (usage.input, usage.output), strict=True)
    found += [b'"%b":%d' % (name.encode(), count) for name, count in counts if count is not None]
    if rest := came.rest():
        found.append(rest)
    return b"{" + b",".join(found) + b"}"


def unsayable(reply: Reply) -> list[Notice]:
    """What of an answer this wire cannot say."""
    notices: list[Notice] = []
    sort_parts(reply.message, notices, answer=True)
    return notices
