"""Reads and writes a complete reply of Chat without loss, and writes its event stream.

The first choice is the reply. Further ones (`n`), and fields beside a choice's message, are kept in
the reply's extras as `choice`.
"""

from __future__ import annotations

import msgspec

from anaphora.canonical import dumps, string
from anaphora.values import (
    Message,
    Opaque,
    PartDelta,
    PartEnd,
    PartStart,
    Refusal,
    Reply,
    ReplyFail,
    ReplyStart,
    StopReason,
    Text,
    Thinking,
    ToolCall,
    Usage,
)
from anaphora.wire.errors import from_json, write_failure
from anaphora.wire.lenient import LenientDecoder
from anaphora.wire.openai import counted_usage
from anaphora.wire.parts import bare_members, following, own_members, own_stop, own_usage
from anaphora.wire.reading import (
    DECODE_ERRORS,
    Members,
    converts_errors,
    decode_members,
    decode_optional_text,
    decode_value,
    encode_members,
    extras_of,
    object_members,
    replaces_lone_surrogates,
    reply_error,
)
from anaphora.wire.replies import (
    EventWriter,
    left_out_choices,
    positive_counts,
    read_counts,
    valid_count,
)
from anaphora.wire.sse import encode_event

from .message_reader import MessageReader
from .messages import reasoning_field, sort_parts, thinking_part
from .types import (
    BESIDE,
    IN_CONTENT,
    MESSAGE_FIELDS,
    NULL,
    OTHER_CALL,
    WIRE,
    ChatUsage,
    Choice,
    InputDetails,
    ReplyMessage,
)

_STOPS: dict[str, StopReason] = {
    "stop": "end",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "refusal",
    "model_length": "context_overflow",
    "eos": "end",  # Together
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


@replaces_lone_surrogates
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
        raise reply_error("contains no answer", "$.choices")
    choice, unknown = _CHOICE.decode(choices[0], "$.choices[0]", reply_error)
    message = choice.message
    if message is None:
        if choice.finish_reason != "content_filter":
            raise reply_error("is missing", "$.choices[0].message")
        message = ReplyMessage()  # Azure leaves it out of a choice that was filtered
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
        notices = (*notices, left_out_choices("$.choices"))
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
    of a reply that has none."""
    extras = own_members(reply.extras, WIRE)
    date = bytes(extras.pop("created", b"%d" % (created or 0)))
    choice, beside = extras.pop("choice", None), extras.pop(BESIDE, None)
    choices = [write_choice(reply, 0, choice, beside), *more_choices(extras)]
    return b'{"id":%b,"object":"chat.completion","created":%b,"model":%b,"choices":[%b]%b%b}' % (
        string(reply.id),
        date,
        string(reply.model),
        b",".join(choices),
        b"" if reply.usage == Usage() else b',"usage":' + write_usage(reply.usage),
        following(extras),
    )


def write_choice(
    reply: Reply,
    index: int,
    fields: bytes | msgspec.Raw | None = None,
    beside: msgspec.Raw | None = None,
) -> bytes:
    """One choice. `fields` is an object with the fields beside its message, `beside` one with
    fields of its message that are not part of it."""
    # Some hosts give no reason.
    unknown = reply.stop_reason == "other" and reply.stop_reason_raw is None
    return b'{"index":%d,"message":%b,"finish_reason":%b%b}' % (
        index,
        _write_message(reply.message, beside),
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
    own = own_stop(reply, read_stop)
    return _FINISH_REASONS.get(reply.stop_reason, "stop") if own is None else own


def _write_message(message: Message, beside: msgspec.Raw | None) -> bytes:
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
    if beside is not None:
        written.append(encode_members(decode_members(beside))[1:-1])
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
    return counted_usage(
        raw,
        _with_audio(usage),
        read,
        written,
        usage.completion_tokens,
        usage.completion_tokens_details,
        usage.total_tokens,
    )


def _with_audio(usage: ChatUsage) -> int | None:
    """The tokens of the prompt, with those of its audio."""
    prompt, output = valid_count(usage.prompt_tokens), valid_count(usage.completion_tokens)
    total = valid_count(usage.total_tokens)
    if not usage.prompt_audio_seconds or prompt is None or output is None or total is None:
        return usage.prompt_tokens
    return max(prompt, total - output)


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


# ── Streams ───────────────────────────────────────────────────────────────────────────────────────

_FIELDS = {"text": "content", "refusal": "refusal"}

#: In place of a field: reasoning that is written as content parts.
_AS_PARTS = ""


class StreamWriter(EventWriter):
    """Turns events into the bytes that OpenAI would send.

    Content that is only known at the end of a part (reasoning of an unknown field, extras) is
    written then. Content that Chat has no field for is left out.
    """

    def __init__(self) -> None:
        super().__init__()
        self._head, self._date, self._model = b"", b"0", b""
        """The beginning of every chunk, up to its choices."""
        self._fields: dict[int, str] = {}
        """The field of the delta that each open part is written to, by the part's index."""
        self._calls: dict[int, int] = {}
        """The number of each part among the tool calls."""
        self._written: set[int] = set()
        """Parts whose text has been written."""

    def _start(self, event: ReplyStart) -> bytes:
        self._head = b'{"id":%b,"object":"chat.completion.chunk","created":' % string(event.id)
        self._date = b"%d" % (event.created or 0)
        self._model = b',"model":%b,"choices":[' % string(event.model)
        return self._chunk_of(b'"role":"assistant","content":""')

    def _begin(self, event: PartStart) -> bytes:
        if event.kind in _FIELDS:
            self._fields[event.index] = _FIELDS[event.kind]
        elif event.kind == "thinking" and event.name is not None:
            self._fields[event.index] = _AS_PARTS if event.name == IN_CONTENT else event.name
        elif event.kind == "tool_call":
            return self._begin_call(event.index, event.id or "", event.name or "")
        return b""

    def _begin_call(
        self, index: int, call_id: str, name: str, arguments: str = "", extras: bytes = b""
    ) -> bytes:
        number = self._calls[index] = len(self._calls)
        function = b'{"name":%b,"arguments":%b}' % (string(name), string(arguments))
        return self._chunk_of(
            b'"tool_calls":[{"index":%d,"id":%b,"type":"function","function":%b%b}]'
            % (number, string(call_id), function, b"," + extras if extras else b"")
        )

    def _delta(self, event: PartDelta) -> bytes:
        index, text = event.index, event.delta
        if index in self._calls:
            return self._call(index, b'"function":{"arguments":' + string(text) + b"}")
        field = self._fields.get(index)
        if field is None:
            return b""
        self._written.add(index)
        if field == _AS_PARTS:
            texts = b'[{"type":"text","text":' + string(text) + b"}]"
            return self._chunk_of(b'"content":[{"type":"thinking","thinking":' + texts + b"}]")
        return self._chunk_of(string(field) + b":" + string(text))

    def _end_part(self, event: PartEnd) -> bytes:
        """The rest of a part that is complete now."""
        index, part = event.index, event.part
        if isinstance(part, ToolCall):
            extras = _without_index(own_members(part.extras, WIRE))
            if index not in self._calls:
                return self._begin_call(index, part.id, part.name, part.arguments, extras)
            return self._call(index, extras) if extras else b""
        if isinstance(part, Opaque):
            return self._opaque(part)
        if index in self._written:
            if isinstance(part, Thinking) and self._fields[index] == _AS_PARTS:
                return self._thinking_fields(part)
            return b""
        if isinstance(part, Thinking):
            field = reasoning_field(part)
            if field == IN_CONTENT:
                return self._chunk_of(b'"content":[' + thinking_part(part) + b"]")
            return self._chunk_of(string(field) + b":" + string(part.text)) if field else b""
        if isinstance(part, Text | Refusal) and part.text:
            name = b'"content":' if isinstance(part, Text) else b'"refusal":'
            return self._chunk_of(name + string(part.text))
        return b""

    def _thinking_fields(self, part: Thinking) -> bytes:
        """The fields of a reasoning part whose text is written."""
        extras = own_members(part.extras, WIRE)
        for name in ("field", "host", "thinking"):
            extras.pop(name, None)
        if not extras:
            return b""
        rest = encode_members(extras)[1:-1]
        return self._chunk_of(b'"content":[{"type":"thinking","thinking":[],' + rest + b"}]")

    def _opaque(self, part: Opaque) -> bytes:
        if part.provider != WIRE:
            return b""
        if part.kind == MESSAGE_FIELDS:
            members = bare_members(part.json, "json")
            return self._chunk_of(members) if members else b""
        if part.kind == OTHER_CALL:
            key = -1 - len(self._calls)
            self._calls[key] = len(self._calls)
            return self._call(key, _without_index(decode_members(part.json)))
        return self._chunk_of(b'"content":[' + part.json.encode() + b"]")

    def _call(self, index: int, members: bytes) -> bytes:
        return self._chunk_of(b'"tool_calls":[{"index":%d,%b}]' % (self._calls[index], members))

    def _end(self, reply: Reply) -> bytes:
        extras = own_members(reply.extras, WIRE)
        members, delta = (
            encode_members(decode_members(extras.pop(name, b"{}")))[1:-1]
            for name in ("choice", BESIDE)
        )
        written = b"".join(self._further_choice(raw) for raw in more_choices(extras))
        created = bytes(extras.pop("created", b"")) or self._date
        last = _choice(0, delta, string(write_stop(reply)), members)
        written += self._chunk(last, encode_members(extras)[1:-1], created)
        usage = reply.usage if reply.usage != Usage() else self._usage
        if usage != Usage():
            written += self._chunk(b"", b'"usage":' + write_usage(usage), created)
        return written + encode_event("", b"[DONE]")

    def _fail(self, event: ReplyFail) -> bytes:
        return encode_event("", write_failure(event))

    def _further_choice(self, raw: bytes) -> bytes:
        """A further choice in one chunk."""
        choice = decode_members(raw)
        index = msgspec.json.decode(choice.pop("index", b"0"), type=int)
        stop = bytes(choice.pop("finish_reason", NULL))
        message = decode_members(choice.pop("message", b"{}"))
        calls = msgspec.json.decode(message.pop("tool_calls", b"[]"), type=list[Members])
        delta = {name: raw for name, raw in message.items() if bytes(raw) != b"null"}
        if calls:
            numbered = [
                b'{"index":%d,%b}' % (number, _without_index(call))
                for number, call in enumerate(calls)
            ]
            delta["tool_calls"] = msgspec.Raw(b"[" + b",".join(numbered) + b"]")
        rest = encode_members(choice)[1:-1]
        return self._chunk(_choice(index, encode_members(delta)[1:-1], stop, rest))

    def _chunk_of(self, members: bytes) -> bytes:
        return self._chunk(_choice(0, members, b"null"))

    def _chunk(self, choices: bytes, members: bytes = b"", created: bytes = b"") -> bytes:
        head = self._head + (created or self._date) + self._model
        return encode_event("", head + choices + (b"]," + members if members else b"]") + b"}")


def _choice(index: int, delta: bytes, stop: bytes, members: bytes = b"") -> bytes:
    rest = b"," + members if members else b""
    return b'{"index":%d,"delta":{%b},"finish_reason":%b%b}' % (index, delta, stop, rest)


def _without_index(call: Members) -> bytes:
    """The members of a tool call without its index: a stream numbers calls itself."""
    return encode_members({name: raw for name, raw in call.items() if name != "index"})[1:-1]
