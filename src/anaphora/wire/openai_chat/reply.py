"""A single answer of Chat's, both ways: bytes to `Reply` and back, losing nothing.

The first choice is the answer. Further ones (`n`), and what a choice says beside its message, are
carried along in the reply's extras as `choices` and `choice`.
"""

from __future__ import annotations

import msgspec

from anaphora.canonical import string
from anaphora.values import Message, Notice, Refusal, Reply, StopReason, Text, Usage
from anaphora.wire.fields import Fields, rest_for
from anaphora.wire.openai_failure import ErrorObject, from_object
from anaphora.wire.reading import DECODE_ERRORS, converts_errors, reply_error

from .assistant import sort_parts
from .incoming import read_assistant
from .parts import WIRE, extra_members
from .usage import read_usage, write_usage
from .usual_choice import read_usual

_NULL = msgspec.Raw(b"null")

STOPS: dict[str, StopReason] = {
    "stop": "end",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "refusal",
    "model_length": "context_overflow",
}
_SAID: dict[StopReason, str] = {
    "end": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "refusal": "content_filter",
    "context_overflow": "length",
}


_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_text = msgspec.json.Decoder(str).decode


@converts_errors(reply_error)
def read_reply(body: bytes) -> Reply:
    """The answer in `body`. `Parse` names the field that is missing or not what it should be; an
    error that came with a good status is raised as what it is."""
    try:
        usual = _read_usual(body)
    except (*DECODE_ERRORS, KeyError):
        usual = None
    return _read_any(body) if usual is None else usual


def _read_usual(body: bytes) -> Reply | None:
    """An answer with nothing unusual in its choice, in one go; what stands beside it is carried
    along in the order it came."""
    members = _members(body)
    choice = read_usual(members.pop("choices"))
    if choice is None:
        return None
    parts, stop = choice
    reply_id, model = _text(members.pop("id")), _text(members.pop("model"))
    usage = members.pop("usage", _NULL)
    members.pop("object", None)
    for name in [name for name, raw in members.items() if raw == _NULL]:
        del members[name]
    return Reply(
        id=reply_id,
        model=model,
        message=Message(id=reply_id, role="assistant", parts=parts),
        stop=read_stop(stop),
        stop_raw=stop,
        usage=Usage() if usage == _NULL else read_usage(bytes(usage), "$.usage"),
        extras=rest_for(WIRE, members),
    )


def _read_any(body: bytes) -> Reply:
    """Field by field, so that what has no name is carried along, and what is wrong is named."""
    fields = Fields(body, "$")
    if "choices" not in fields and (error := fields.known("error", ErrorObject)) is not None:
        raise from_object(error, 200)
    choices = fields.take("choices", list[msgspec.Raw])
    if not choices:
        raise fields.fail("holds no answer", "choices")
    choice = Fields(choices[0], "$.choices[0]")
    message = choice.nested("message")
    if message is None:
        raise choice.fail("is missing", "message")
    reply_id, model = fields.maybe("id", str) or "", fields.maybe("model", str) or ""
    if (role := message.maybe("role", str)) not in (None, "assistant"):
        raise message.fail(f"expected the assistant's message, not {role!r}", "role")
    parts = read_assistant(message, [], answer=True)
    stop = choice.maybe("finish_reason", str)
    usage = fields.raw("usage")
    fields.raw("object")
    return Reply(
        id=reply_id,
        model=model,
        message=Message(id=reply_id, role="assistant", parts=parts),
        stop=read_stop(stop),
        stop_raw=stop,
        usage=Usage() if usage in (None, b"null") else read_usage(usage, "$.usage"),
        extras=_extras(fields, choice, choices[1:]),
    )


def write_reply(reply: Reply) -> bytes:
    """The answer as OpenAI would send it. What it has no field for is left out: ask `unsayable`
    first."""
    came = Fields(b"{" + extra_members(reply.extras) + b"}", f"extras.{WIRE}")
    created = came.raw("created") or b"0"
    choices = [write_choice(reply, 0, came.raw("choice")), *more_choices(came)]
    rest = came.rest()
    return (
        b'{"id":'
        + string(reply.id)
        + b',"object":"chat.completion","created":'
        + created
        + b',"model":'
        + string(reply.model)
        + b',"choices":['
        + b",".join(choices)
        + b"]"
        + (b"" if reply.usage == Usage() else b',"usage":' + write_usage(reply.usage))
        + (b"," + rest if rest else b"")
        + b"}"
    )


def write_choice(reply: Reply, index: int, beside: bytes | None = None) -> bytes:
    """One choice. `beside` is an object of fields that stand beside its message."""
    rest = Fields(beside, f"extras.{WIRE}.choice").rest() if beside is not None else b""
    return (
        b'{"index":%d,"message":' % index
        + _message(reply.message)
        + b',"finish_reason":'
        + (b"null" if _unstopped(reply) else string(write_stop(reply)))
        + (b"," + rest if rest else b"")
        + b"}"
    )


def more_choices(came: Fields) -> list[bytes]:
    """The choices after the first, as they came."""
    return [bytes(raw) for raw in came.maybe("choices", list[msgspec.Raw]) or ()]


def unsayable(reply: Reply) -> list[Notice]:
    """What of an answer this wire cannot say."""
    notices: list[Notice] = []
    sort_parts(reply.message, notices)
    return notices


def read_stop(said: str | None) -> StopReason:
    return STOPS.get(said or "", "other")


def write_stop(reply: Reply) -> str:
    if reply.stop_raw is not None and read_stop(reply.stop_raw) == reply.stop:
        return reply.stop_raw
    return _SAID.get(reply.stop, "stop")


def _unstopped(reply: Reply) -> bool:
    """Some hosts give no reason to stop."""
    return reply.stop == "other" and reply.stop_raw is None


def _extras(fields: Fields, choice: Fields, more: list[msgspec.Raw]) -> dict[str, str] | None:
    choice.raw("index")
    fields.drop_nulls()
    choice.drop_nulls()
    members = [fields.rest()]
    if beside := choice.rest():
        members.append(b'"choice":{' + beside + b"}")
    if more:
        members.append(b'"choices":[' + b",".join(map(bytes, more)) + b"]")
    inner = b",".join(member for member in members if member)
    return {WIRE: (b"{" + inner + b"}").decode()} if inner else None


def _message(message: Message) -> bytes:
    """The message of an answer: unlike a request's, its content is a text where it can be."""
    refused = [part.text for part in message.parts if isinstance(part, Refusal)]
    texts = [part for part in message.parts if isinstance(part, Text)]
    others = tuple(part for part in message.parts if not isinstance(part, Refusal))
    said = sort_parts(Message(role="assistant", parts=others), [])
    if not said.content:
        content = b"null"
    elif len(texts) == len(said.content) and not any(extra_members(t.extras) for t in texts):
        content = string("".join(text.text for text in texts))
    else:
        content = b"[" + b",".join(said.content) + b"]"
    members = [
        b'"content":' + content,
        b'"refusal":' + (string("".join(refused)) if refused else b"null"),
        *(string(name) + b":" + string(text) for name, text in said.fields.items()),
        *([b'"tool_calls":[' + b",".join(said.calls) + b"]"] if said.calls else []),
        *([said.rest] if said.rest else []),
    ]
    return b'{"role":"assistant",' + b",".join(members) + b"}"
