"""A single answer of Gemini's, both ways: bytes to `Reply` and back, losing nothing.

The first candidate is the answer. Further ones, and what a candidate says beside its content, are
carried along in the reply's extras as `candidates` and `candidate`.
"""

from __future__ import annotations

import msgspec

from anaphora.canonical import string
from anaphora.values import Message, Notice, Part, Reply, StopReason, ToolCall, Usage
from anaphora.wire.fields import Fields
from anaphora.wire.reading import converts_errors, reply_error

from .failure import ErrorObject, from_object
from .ids import made
from .incoming import content_fields, read_parts
from .messages import open_content, said_parts
from .naming import WIRE, elements
from .parts import extra_members
from .usage import read_usage, write_usage

STOPS: dict[str, StopReason] = {
    "STOP": "end",
    "MAX_TOKENS": "length",
    "SAFETY": "refusal",
    "RECITATION": "refusal",
    "BLOCKLIST": "refusal",
    "PROHIBITED_CONTENT": "refusal",
    "SPII": "refusal",
    "IMAGE_SAFETY": "refusal",
    "IMAGE_PROHIBITED_CONTENT": "refusal",
    "IMAGE_RECITATION": "refusal",
    "CONTINUATION": "pause",
}
_SAID: dict[StopReason, str] = {
    "end": "STOP",
    "stop_sequence": "STOP",
    "tool_calls": "STOP",
    "length": "MAX_TOKENS",
    "context_overflow": "MAX_TOKENS",
    "refusal": "SAFETY",
}


@converts_errors(reply_error)
def read_reply(body: bytes) -> Reply:
    """The answer in `body`. `Parse` names the field that is missing or not what it should be; an
    error that came with a good status is raised as what it is."""
    fields = Fields(body, "$")
    if "candidates" not in fields and (error := fields.known("error", ErrorObject)) is not None:
        raise from_object(error, 200)
    fields.drop_nulls()
    reply_id, model = fields.maybe("responseId", str) or "", fields.maybe("modelVersion", str) or ""
    usage = fields.raw("usageMetadata")
    candidates = elements(fields, "candidates")
    if candidates:
        candidate = Fields(candidates[0], "$.candidates[0]")
        stop_raw = candidate.maybe("finishReason", str)
        parts = numbered(read_candidate(candidate), reply_id)
        stop = read_stop(stop_raw, parts)
        extras = carried(fields, candidate.rest(), candidates[1:])
    else:
        stop_raw = blocked(fields)
        if stop_raw is None and usage is None:
            raise fields.fail("holds no answer", "candidates")
        parts, stop = (), "refusal"
        if stop_raw is None:
            # Without a word of why, what was counted is all that it tells.
            stop = "other"
            fields.put("candidates", b"[]")
        extras = fields.rest_for(WIRE)
    return Reply(
        id=reply_id,
        model=model,
        message=Message(id=reply_id, role="assistant", parts=parts),
        stop=stop,
        stop_raw=stop_raw,
        usage=Usage() if usage is None else read_usage(usage, "$.usageMetadata"),
        extras=extras,
    )


def read_candidate(candidate: Fields) -> list[Part]:
    """The parts of a candidate; what it says beside them is left in it."""
    candidate.drop_nulls()
    index = candidate.raw("index")
    if index not in (None, b"0"):
        candidate.put("index", index)
    content = candidate.nested("content")
    if content is None:
        return []
    content.raw("role")
    parts = read_parts(elements(content, "parts"), f"{content.path}.parts", reply_error)
    return [*parts, *content_fields(content)]


def numbered(parts: list[Part], reply_id: str, first: int = 0) -> tuple[Part, ...]:
    """The parts with an id for every call that has none. The answer's own id is in it, so that no
    two calls of a conversation get the same."""
    place = f"{reply_id}_" if reply_id else ""
    return tuple(
        made(part, f"{place}{index}") if isinstance(part, ToolCall) and not part.id else part
        for index, part in enumerate(parts, first)
    )


def blocked(fields: Fields) -> str | None:
    """Why the prompt was blocked, when it was; the feedback itself is left where it is."""
    raw = fields.raw("promptFeedback")
    if raw is None:
        return None
    fields.put("promptFeedback", raw)
    return Fields(raw, f"{fields.path}.promptFeedback", fields.failure).maybe("blockReason", str)


def carried(fields: Fields, beside: bytes, more: list[msgspec.Raw]) -> dict[str, str] | None:
    """What the answer holds that has no name here."""
    members = [fields.rest()]
    if beside:
        members.append(b'"candidate":{' + beside + b"}")
    if more:
        members.append(b'"candidates":[' + b",".join(map(bytes, more)) + b"]")
    inner = b",".join(member for member in members if member)
    return {WIRE: (b"{" + inner + b"}").decode()} if inner else None


def read_stop(said: str | None, parts: tuple[Part, ...]) -> StopReason:
    """Why the answer ended. Gemini has no word for calls: they end with STOP."""
    stop = STOPS.get(said or "", "other")
    calls = stop == "end" and any(isinstance(part, ToolCall) for part in parts)
    return "tool_calls" if calls else stop


# ── Writing ──────────────────────────────────────────────────────────────────────────────────────


def write_reply(reply: Reply) -> bytes:
    """The answer as Gemini would send it. What it has no field for is left out: ask `unsayable`
    first."""
    came = Fields(b"{" + extra_members(reply.extras) + b"}", f"extras.{WIRE}")
    members = write_candidates(reply, came)
    if reply.usage != Usage():
        members.append(b'"usageMetadata":' + write_usage(reply.usage))
    return b"{" + b",".join([*members, *identity(reply.id, reply.model), *_rest(came)]) + b"}"


def write_candidates(reply: Reply, came: Fields, content: bytes | None = None) -> list[bytes]:
    """All candidates, as a member; none when the prompt was blocked. `content` stands in for the
    answer's own where that was said already."""
    if not reply.message.parts and "candidate" not in came and blocked(came) is not None:
        return []
    if came.peek("candidates") == []:
        came.raw("candidates")
        return []
    beside = came.nested("candidate")
    more = came.maybe("candidates", list[msgspec.Raw]) or []
    said = write_content(reply.message) if content is None else content
    first = write_candidate(reply, beside.rest() if beside is not None else b"", said)
    return [b'"candidates":[' + b",".join([first, *map(bytes, more)]) + b"]"]


def write_candidate(reply: Reply, beside: bytes, content: bytes, index: int = 0) -> bytes:
    stop = write_stop(reply)
    members = [
        *([b'"content":' + content] if content else []),
        *([b'"finishReason":' + string(stop)] if stop is not None else []),
        b'"index":%d' % index,
        *([beside] if beside else []),
    ]
    return b"{" + b",".join(members) + b"}"


def write_content(message: Message) -> bytes:
    parts = [data for _, data in said_parts(message, [])]
    return open_content(message) + b",".join(parts) + b"]}"


def identity(reply_id: str, model: str) -> list[bytes]:
    """Who answered, as members."""
    named = (("modelVersion", model), ("responseId", reply_id))
    return [b'"%b":%b' % (name.encode(), string(said)) for name, said in named if said]


def write_stop(reply: Reply) -> str | None:
    if reply.stop_raw is not None and read_stop(reply.stop_raw, reply.message.parts) == reply.stop:
        return reply.stop_raw
    if reply.stop == "other" and reply.stop_raw is None:
        return None
    return _SAID.get(reply.stop, "OTHER")


def unsayable(reply: Reply) -> list[Notice]:
    """What of an answer this wire cannot say."""
    notices: list[Notice] = []
    said_parts(reply.message, notices)
    return notices


def _rest(came: Fields) -> list[bytes]:
    rest = came.rest()
    return [rest] if rest else []
