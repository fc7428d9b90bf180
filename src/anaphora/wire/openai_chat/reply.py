"""Reads and writes a single reply of Chat, losing nothing.

The first choice is the reply. Further ones (`n`), and fields beside a choice's message, are carried
in the reply's extras as `choices` and `choice`.
"""

from __future__ import annotations

import msgspec

from anaphora.canonical import dumps, string
from anaphora.values import Message, Refusal, Reply, StopReason, Text, Usage
from anaphora.wire.openai import counted_usage
from anaphora.wire.openai_errors import from_json
from anaphora.wire.parts import following, own_members, own_usage
from anaphora.wire.reading import (
    DECODE_ERRORS,
    LenientDecoder,
    Members,
    converts_errors,
    decode_members,
    decode_optional_text,
    decode_value,
    encode_members,
    extras_of,
    object_members,
    reply_error,
)
from anaphora.wire.replies import positive_counts, read_counts, valid_count

from .parse import MessageReader
from .render import sort_parts
from .types import NULL, WIRE, ChatUsage, Choice, InputDetails

_STOPS: dict[str, StopReason] = {
    "stop": "end",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "refusal",
    "model_length": "context_overflow",
}
_FINISH_REASONS: dict[StopReason, str] = {
    "end": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "refusal": "content_filter",
    "context_overflow": "length",
}

_CHOICE: LenientDecoder[Choice] = LenientDecoder(Choice)

_decode_usage = msgspec.json.Decoder(ChatUsage).decode


@converts_errors(reply_error)
def read_reply(body: bytes) -> Reply:
    """The reply in `body`. `Parse` names the field that is missing or wrong; an error object that
    came with status 200 is raised."""
    fields = object_members(body, "$", reply_error)
    if "choices" not in fields:
        if bytes(fields.get("error", NULL))[:1] == b"{":
            raise from_json(fields["error"])
        raise reply_error("is missing", "$.choices")
    choices = decode_value(fields.pop("choices"), list[msgspec.Raw], "$.choices", reply_error)
    if not choices:
        raise reply_error("holds no answer", "$.choices")
    choice, unknown = _CHOICE.decode(choices[0], "$.choices[0]", reply_error)
    message = choice.message
    if message is None:
        raise reply_error("is missing", "$.choices[0].message")
    if message.role not in (None, "assistant"):
        why = f"expected the assistant's message, not {message.role!r}"
        raise reply_error(why, "$.choices[0].message.role")
    inner = unknown.take("message") if unknown is not None else None
    parts = MessageReader("$.choices[0].message", reply_error).assistant(message, inner)
    reply_id = take_text(fields, "id", "$")
    model = take_text(fields, "model", "$")
    usage, notices = read_counts(read_usage, bytes(fields.pop("usage", NULL)), "$.usage")
    fields.pop("object", None)
    fields = {name: raw for name, raw in fields.items() if bytes(raw) != b"null"}
    if unknown is not None and (beside := unknown.remaining()):
        fields["choice"] = msgspec.Raw(encode_members(beside))
    if len(choices) > 1:
        fields["choices"] = msgspec.Raw(b"[" + b",".join(map(bytes, choices[1:])) + b"]")
    return Reply(
        id=reply_id,
        model=model,
        message=Message(id=reply_id, role="assistant", parts=parts),
        stop_reason=read_stop(choice.finish_reason),
        stop_reason_raw=choice.finish_reason,
        usage=usage,
        notices=notices,
        extras=extras_of(WIRE, fields),
    )


def take_text(fields: Members, name: str, path: str) -> str:
    raw = fields.pop(name, NULL)
    try:
        return decode_optional_text(raw) or ""
    except DECODE_ERRORS:
        return decode_value(raw, str | None, f"{path}.{name}", reply_error) or ""


def write_reply(reply: Reply, created: float | None = None) -> bytes:
    """The reply as OpenAI would send it. Parts without a field are left out. `created` is the date
    of a reply that has none of its own."""
    extras = own_members(reply.extras, WIRE)
    date = bytes(extras.pop("created", b"%d" % (created or 0)))
    choice = extras.pop("choice", None)
    choices = [write_choice(reply, 0, choice), *more_choices(extras)]
    return b'{"id":%b,"object":"chat.completion","created":%b,"model":%b,"choices":[%b]%b%b}' % (
        string(reply.id),
        date,
        string(reply.model),
        b",".join(choices),
        b"" if reply.usage == Usage() else b',"usage":' + write_usage(reply.usage),
        following(extras),
    )


def write_choice(reply: Reply, index: int, fields: bytes | msgspec.Raw | None = None) -> bytes:
    """One choice. `fields` is an object with the fields beside its message."""
    # Some hosts give no reason.
    unknown = reply.stop_reason == "other" and reply.stop_reason_raw is None
    return b'{"index":%d,"message":%b,"finish_reason":%b%b}' % (
        index,
        _write_message(reply.message),
        b"null" if unknown else string(write_stop(reply)),
        following(decode_members(fields)) if fields is not None else b"",
    )


def more_choices(extras: Members) -> list[bytes]:
    """The choices after the first, which are taken out of the extras."""
    raw = extras.pop("choices", NULL)
    path = f"extras.{WIRE}.choices"
    choices = decode_value(raw, list[msgspec.Raw] | None, path, reply_error) or []
    return [bytes(choice) for choice in choices]


def read_stop(finish_reason: str | None) -> StopReason:
    return _STOPS.get(finish_reason or "", "other")


def write_stop(reply: Reply) -> str:
    if reply.stop_reason_raw is not None and read_stop(reply.stop_reason_raw) == reply.stop_reason:
        return reply.stop_reason_raw
    return _FINISH_REASONS.get(reply.stop_reason, "stop")


def _write_message(message: Message) -> bytes:
    """The message of a reply: unlike a request's, its content is a text if it can be."""
    refusals = [part.text for part in message.parts if isinstance(part, Refusal)]
    texts = [part for part in message.parts if isinstance(part, Text)]
    others = tuple(part for part in message.parts if not isinstance(part, Refusal))
    fields = sort_parts(Message(role="assistant", parts=others), [])
    if not fields.content:
        content = b"null"
    elif len(texts) == len(fields.content) and not any(own_members(t.extras, WIRE) for t in texts):
        content = string("".join(text.text for text in texts))
    else:
        content = b"[" + b",".join(fields.content) + b"]"
    written = [
        b'"content":' + content,
        b'"refusal":' + (string("".join(refusals)) if refusals else b"null"),
        *(string(name) + b":" + string(text) for name, text in fields.reasoning.items()),
    ]
    if fields.calls:
        written.append(b'"tool_calls":[' + b",".join(fields.calls) + b"]")
    if fields.extras:
        written.append(fields.extras)
    return b'{"role":"assistant",' + b",".join(written) + b"}"


def read_usage(raw: bytes) -> Usage:
    usage = _decode_usage(raw)
    details = usage.prompt_tokens_details or InputDetails()
    reported = (
        details.cached_tokens,
        usage.cached_tokens,
        usage.num_cached_tokens,
        usage.prompt_cache_hit_tokens,
    )
    read = None
    for tokens in reported:
        if (read := valid_count(tokens)) is not None:
            break
    wrote = valid_count(details.cache_write_tokens)
    written = None if wrote is None else positive_counts({"30m": wrote})
    output = usage.completion_tokens
    return counted_usage(
        raw, usage.prompt_tokens, read, written, output, usage.completion_tokens_details
    )


def write_usage(usage: Usage) -> bytes:
    if (own := own_usage(usage, read_usage)) is not None:
        return own
    prompt, output = usage.input or 0, usage.output or 0
    fields: dict[str, object] = {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
    }
    details: dict[str, object] = {}
    if usage.read is not None:
        details["cached_tokens"] = usage.read
    if usage.written is not None:
        details["cache_write_tokens"] = usage.written_total
    if details:
        fields["prompt_tokens_details"] = details
    if usage.reasoning is not None:
        fields["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning}
    return dumps(fields, path="usage")
