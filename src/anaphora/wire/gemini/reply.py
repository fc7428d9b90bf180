"""Reads and writes complete responses of Gemini without loss, and writes replies as streams.

The first candidate is the answer. The fields of a candidate beside its content are kept in the
reply's extras as `candidate`.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import Raw

from anaphora.canonical import dumps, string
from anaphora.errors import InvalidRequest, Parse
from anaphora.values import (
    Extras,
    Message,
    Part,
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
from anaphora.wire.lenient import LenientDecoder, Unknown
from anaphora.wire.parts import extra_members, own_members, own_stop, own_usage, partition
from anaphora.wire.reading import (
    DECODE_ERRORS,
    Members,
    converts_errors,
    decode_members,
    decode_value,
    encode_members,
    extras_of,
    replaces_lone_surrogates,
    reply_error,
)
from anaphora.wire.replies import EventWriter, left_out_choices, read_counts, valid_count
from anaphora.wire.sse import encode_event

from .errors import error_of, write_failure
from .parse import PartReader
from .parts import is_content_fields, open_content, write_parts
from .types import NULL, OWN, WIRE, GenerateContentResponse, UsageMetadata, raw_list

RESPONSE = LenientDecoder[GenerateContentResponse](GenerateContentResponse, protobuf=True)
_FIRST = Raw(b"0")

_STOPS: dict[str, StopReason] = {
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
    # Enums as integers: both APIs of Google have the same first five numbers, and these two are
    # blocked content in both.
    "1": "end",
    "2": "length",
    "3": "refusal",
    "4": "refusal",
    "7": "refusal",
    "8": "refusal",
}
_FINISH_REASONS: dict[StopReason, str] = {
    "end": "STOP",
    "stop_sequence": "STOP",
    "tool_calls": "STOP",
    "length": "MAX_TOKENS",
    "context_overflow": "MAX_TOKENS",
    "refusal": "SAFETY",
}


def _decode(body: bytes) -> tuple[GenerateContentResponse, Unknown | None, bool]:
    """A response, its unknown fields, and whether there are candidates after the first. Those may
    be any JSON."""
    try:
        response, unknown = RESPONSE.decode(body, "$", reply_error)
        return response, unknown, len(response.candidates or ()) > 1
    except Parse as problem:
        try:
            first, *others = raw_list(body, "candidates")
        except (InvalidRequest, KeyError, ValueError, *DECODE_ERRORS):
            raise problem from None
        if not others:
            raise
        members = {**decode_members(body), "candidates": Raw(b"[" + bytes(first) + b"]")}
        return *RESPONSE.decode(encode_members(members), "$", reply_error), True


@replaces_lone_surrogates
@converts_errors(reply_error)
def read_reply(body: bytes) -> Reply:
    """The reply in `body`. `Parse` names a field that is missing or has the wrong type; an error
    object that came with status 200 is raised as its own class."""
    response, unknown, several = _decode(body)
    of_candidates = {} if unknown is None else unknown.take_elements("candidates")
    rest = {} if unknown is None else unknown.remaining()
    reply_id, usage = response.responseId or "", bytes(response.usageMetadata)
    parts: list[Part] = []
    stop: StopReason
    if response.candidates:
        candidate, beside = response.candidates[0], of_candidates.get(0) or Unknown({})
        if candidate.content is not None:
            path = ("candidates", 0, "content", "parts")
            reader = PartReader(lambda _, index: raw_list(body, *path)[index])
            inner = beside.take("content")
            parts = reader.content(candidate.content, inner, reply_id or None)
        raw_reason = enum_text(candidate.finishReason)
        stop = read_stop(raw_reason, parts)
        members = beside.remaining()
        if candidate.index not in (NULL, _FIRST):
            members["index"] = candidate.index
        if members:
            rest["candidate"] = Raw(encode_members(members))
    else:
        if "error" in rest and response.candidates is None:
            raise error_of(rest["error"])
        stop, raw_reason = "refusal", block_reason(rest)
        if raw_reason is None:
            if usage == b"null":
                raise reply_error("contains no answer", "$.candidates")
            # Blocked without a reason: only the usage is known.
            stop = "other"
            rest["candidates"] = Raw(b"[]")
    counts, notices = read_counts(read_usage, usage, "$.usageMetadata")
    if several:
        notices = (*notices, left_out_choices("$.candidates"))
    return Reply(
        id=reply_id,
        model=response.modelVersion or "",
        message=Message(id=reply_id, role="assistant", parts=tuple(parts)),
        stop_reason=stop,
        stop_reason_raw=raw_reason,
        usage=counts,
        notices=notices,
        extras=extras_of(WIRE, rest),
    )


class _Feedback(msgspec.Struct, frozen=True):
    blockReason: str | int | None = None


def enum_text(value: str | int | None) -> str | None:
    """The name of an enum's value, or its number; None if it is not set."""
    return str(value) if isinstance(value, int) else value


def block_reason(members: Members) -> str | None:
    """Why the prompt was blocked; None if it was not."""
    feedback = members.get("promptFeedback", NULL)
    if bytes(feedback) == b"null":
        return None
    blocked: _Feedback = decode_value(feedback, _Feedback, "$.promptFeedback", reply_error)
    return enum_text(blocked.blockReason or None)


def read_stop(reason: str | None, parts: Iterable[Part]) -> StopReason:
    """Why the reply ended. Gemini has no finish reason for calls: they end with STOP."""
    stop = _STOPS.get(reason or "", "other")
    calls = stop == "end" and any(isinstance(part, ToolCall) for part in parts)
    return "tool_calls" if calls else stop


# ── Writing ──────────────────────────────────────────────────────────────────────────────────────


def write_reply(reply: Reply, created: float | None = None) -> bytes:  # noqa: ARG001
    """The response as Gemini would send it, without a date. Parts without a form here are left
    out."""
    return write_response(reply, write_content(reply.message), reply.usage, reply.id, reply.model)


def write_response(reply: Reply, content: bytes, usage: Usage, reply_id: str, model: str) -> bytes:
    """The response around `content`."""
    extras = own_members(reply.extras, WIRE)
    members = _write_candidates(reply, extras, content)
    if usage != Usage():
        members.append(b'"usageMetadata":' + write_usage(usage))
    members += write_identity(reply_id, model)
    if extras:
        members.append(encode_members(extras)[1:-1])
    return b"{" + b",".join(members) + b"}"


def _write_candidates(reply: Reply, extras: Members, content: bytes) -> list[bytes]:
    """All candidates as a member of the body, taken from the extras; none if the prompt was
    blocked."""
    blocked = not reply.message.parts and block_reason(extras) is not None
    if blocked and "candidate" not in extras:
        return []
    others = msgspec.json.decode(extras.pop("candidates", NULL), type=list[Raw] | None)
    if others == []:
        return []
    beside = decode_members(extras.pop("candidate", Raw(b"{}")))
    candidates = [write_candidate(reply, beside, content), *map(bytes, others or ())]
    return [b'"candidates":[' + b",".join(candidates) + b"]"]


def write_candidate(reply: Reply, beside: Members, content: bytes, index: int = 0) -> bytes:
    stop = _finish_reason(reply)
    members = [b'"content":' + content] if content else []
    if stop is not None:
        members.append(b'"finishReason":' + (stop.encode() if stop.isdecimal() else string(stop)))
    members.append(b'"index":%d' % index)
    if beside:
        members.append(encode_members(beside)[1:-1])
    return b"{" + b",".join(members) + b"}"


def write_content(message: Message) -> bytes:
    parts = [data for _, data in write_parts(message.parts, [])]
    return open_content(message) + b",".join(parts) + b"]}"


def write_identity(reply_id: str, model: str) -> list[bytes]:
    """The model and the response id, as members of the body."""
    fields = (("modelVersion", model), ("responseId", reply_id))
    return [b'"%b":%b' % (name.encode(), string(value)) for name, value in fields if value]


def _finish_reason(reply: Reply) -> str | None:
    own = own_stop(reply, lambda raw: read_stop(raw, reply.message.parts))
    if own is not None:
        return own
    if reply.stop_reason == "other" and reply.stop_reason_raw is None:
        return None
    return _FINISH_REASONS.get(reply.stop_reason, "OTHER")


# ── Writing streams ──────────────────────────────────────────────────────────────────────────────

_OPEN = open_content(Message(role="assistant", parts=()))
_EMPTY = _OPEN + b'{"text":""}]}'


class StreamWriter(EventWriter):
    """Events in, bytes out. Text is written as it comes, everything else when it is complete."""

    def __init__(self) -> None:
        super().__init__()
        self._started = ReplyStart("", "")
        self._thought: dict[int, bool] = {}
        """The indexes of open texts, and which of them are thoughts."""
        self._written: set[int] = set()
        self._sealed: dict[int, Extras] = {}
        """The fields of open texts that were known at their start: each piece has them."""

    def _start(self, event: ReplyStart) -> bytes:
        self._started = event
        return b""

    def _begin(self, event: PartStart) -> bytes:
        if event.kind in ("text", "refusal", "thinking"):
            self._thought[event.index] = event.kind == "thinking"
            if event.kind == "text" and extra_members(event.extras, WIRE):
                self._sealed[event.index] = event.extras or {}
        return b""

    def _delta(self, event: PartDelta) -> bytes:
        thought = self._thought.get(event.index)
        if thought is None:
            return b""
        self._written.add(event.index)
        if (extras := self._sealed.get(event.index)) is not None:
            return self._chunk(*(data for _, data in write_parts((Text(event.delta, extras),), [])))
        flag = b',"thought":true' if thought else b""
        return self._chunk(b'{"text":' + string(event.delta) + flag + b"}")

    def _end_part(self, event: PartEnd) -> bytes:
        """A complete part. The signature and extras of a text that was written already follow in an
        empty text."""
        index, part = event.index, event.part
        if index in self._written and isinstance(part, Text | Refusal | Thinking):
            rest = _without_text(part)
            if rest is None or index in self._sealed:
                return b""
            part = rest
        message = Message(role="assistant", parts=(part,))
        if is_content_fields(part):
            return self._chunk(opening=open_content(message))
        data = [encoded for _, encoded in write_parts(message.parts, [])]
        return self._chunk(*data) if data else b""

    def _end(self, reply: Reply) -> bytes:
        usage = reply.usage if reply.usage != Usage() else self._usage
        # The last chunk has content too: clients read it there without a check.
        body = write_response(reply, _EMPTY, usage, self._started.id, self._started.model)
        return encode_event("", body)

    def _fail(self, event: ReplyFail) -> bytes:
        return encode_event("", write_failure(event))

    def _chunk(self, *parts: bytes, opening: bytes = _OPEN) -> bytes:
        candidate = b'{"content":' + opening + b",".join(parts) + b']},"index":0}'
        members = [b'"candidates":[' + candidate + b"]"]
        members += write_identity(self._started.id, self._started.model)
        return encode_event("", b"{" + b",".join(members) + b"}")


def _without_text(part: Text | Refusal | Thinking) -> Part | None:
    """The part with an empty text, for its signature and extras; None if it has neither."""
    if isinstance(part, Thinking):
        own = part.provider in (None, *OWN)
        signed = own and (part.signature is not None or extra_members(part.extras, WIRE))
        return Thinking("", part.signature, provider=WIRE, extras=part.extras) if signed else None
    return Text("", part.extras) if extra_members(part.extras, WIRE) else None


# ── Token counts ─────────────────────────────────────────────────────────────────────────────────

_usage = msgspec.json.Decoder(UsageMetadata).decode


def read_usage(raw: bytes) -> Usage:
    """`promptTokenCount` includes cached tokens; tool prompts are counted beside it, thoughts
    beside the candidates. Cache writes are not reported."""
    usage = _usage(raw)
    prompt = _sum(usage.promptTokenCount, usage.toolUsePromptTokenCount)
    cached = valid_count(usage.cachedContentTokenCount)
    uncached, read, _, overlap = partition(prompt, cached, None)
    output = _sum(usage.candidatesTokenCount, usage.thoughtsTokenCount)
    total = valid_count(usage.totalTokenCount)
    if output is None and prompt is not None and total is not None:
        output = max(0, total - prompt)  # an empty answer has no count of its own
    return Usage(
        uncached=uncached,
        read=read,
        output=output,
        reasoning=valid_count(usage.thoughtsTokenCount),
        overlap=overlap,
        raw=raw.decode(),
    )


def write_usage(usage: Usage) -> bytes:
    """The usage object: the provider's own if it has the same counts."""
    if (own := own_usage(usage, read_usage)) is not None:
        return own
    prompt, output = usage.input or 0, usage.output or 0
    fields: dict[str, object] = {
        "promptTokenCount": prompt,
        "candidatesTokenCount": output - (usage.reasoning or 0),
        "totalTokenCount": prompt + output,
    }
    if usage.read is not None:
        fields["cachedContentTokenCount"] = usage.read
    if usage.reasoning is not None:
        fields["thoughtsTokenCount"] = usage.reasoning
    return dumps(fields, path="usage")


def _sum(one: int | None, other: int | None) -> int | None:
    one, other = valid_count(one), valid_count(other)
    return one if other is None else other + (one or 0)
