"""Requests as verdicts compare them: the bytes sent, and bills if known."""

from __future__ import annotations

import base64
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import replace

from anaphora import catalog, wire
from anaphora.analysis.trace.format import unsupported
from anaphora.bounded import BoundedMap
from anaphora.cache import hints_of
from anaphora.cache.compared_prompt import CallHints
from anaphora.cache.sent_call import reply_lines
from anaphora.cache.verdict import (
    Diagnosis,
    SentCall,
    diagnosis_of,
)
from anaphora.cache.verdict.judgement import ComparedCall
from anaphora.catalog import CacheRules, Dialect, Profile
from anaphora.catalog.names import is_opaque
from anaphora.client.transport.decoding import decoded
from anaphora.errors import AnaphoraError, InvalidRequest
from anaphora.rendered.request_log import droppable
from anaphora.tokens import for_model
from anaphora.values import Reply, Usage
from anaphora.wire import Wire
from anaphora.wire.cloud_paths import unread_model
from anaphora.wire.cutting import cut
from anaphora.wire.dialect.routers import answering_host
from anaphora.wire.eventstream import CONTENT_TYPE, FrameDecoder
from anaphora.wire.known_requests import KnownRequests, RequestReading
from anaphora.wire.openai_responses.parse import input_items
from anaphora.wire.reading import Members, encode_members, known_text, object_members, request_error

from .calls import (
    KEPT_BYTES,
    Headers,
    LoggedCall,
    UpstreamRequest,
    counts_tokens,
    decoded_path,
    header_of,
    wire_at,
)
from .planning import PlannedCall, own_plan

_raw_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_NULL, _FALSE = msgspec.Raw(b"null"), msgspec.Raw(b"false")
_COUNT = "x-amzn-bedrock-{}-token-count"
#: In the last event of a stream.
_METRICS = "amazon-bedrock-invocationMetrics"
#: The fields that continue an earlier reply.
_CONTINUES = ("previous_response_id", "thread")


#: A response, or why it cannot be read.
ReadReply: TypeAlias = tuple[Reply | None, str]


class RequestDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about the requests that the caller knows."""

    origin: str | None = None
    """The wire or dialect."""
    provider: str | None = None
    model: str | None = None
    path: str = ""


_NO_DEFAULTS = RequestDefaults()


class NumberedConversation(msgspec.Struct, eq=False):
    """What all requests of a conversation share."""

    number: int = 0
    """In the order they began; 0 until one of its requests was judged."""
    calls: int = 0


class SentRequest(ComparedCall, kw_only=True, eq=False):
    """A request of a program, and its bill. `rules` are the catalog's until it is matched."""

    place: str
    wire: str
    provider: str
    model: str
    rules: CacheRules
    conversation: NumberedConversation = msgspec.field(default_factory=NumberedConversation)
    named: str = ""
    """The conversation, if the log names it."""
    hints: CallHints = CallHints()
    """The conversation's name in the log, else from the client. Never shown."""
    reply_id: str = ""
    failure: str = ""
    """Why the response cannot be read, if there is a response."""
    service_tier: str = ""
    """The service tier named in the request; prices depend on it."""
    diagnosis: Diagnosis | None = None
    guess: str = ""
    """Why this wire was chosen when the request fits several."""
    dialect: Dialect | None
    """The provider's variant of the wire; None if it has none."""
    catalog_rules: CacheRules
    profile: Profile
    planned: PlannedCall | None = None
    """Where the planner would have placed its markers, once compared."""

    @property
    def tool_bytes(self) -> int:
        """The size of the tool definitions."""
        return sum(run.size for run in self.sent.rendered.runs if run.section == "tools")


class _ChainLink(msgspec.Struct, eq=False):
    """A reply: what its request added to the chain, and its output."""

    before: _ChainLink | None
    head: Members
    """System and tools of a thread, which only its first request has."""
    input: bytes
    output: bytes | Callable[[], bytes]
    """The list, or a function that writes the reply: few replies are continued by their id."""
    size: int

    def items(self) -> tuple[bytes, ...]:
        if not isinstance(self.output, bytes):
            self.output = _output(self.output())
        return (*input_items(self.input), *input_items(self.output))


def _output(reply: bytes) -> bytes:
    """The items of a reply: of Responses, or Anthropic's message."""
    fields = _raw_fields(reply)
    content = fields.get("content")
    if content is not None:
        return b'[{"role":"assistant","content":%b}]' % content
    return bytes(fields.get("output", _NULL))


class ResponseChains:
    """The input and output of earlier replies, which a request continues without sending them
    again: in the Responses API by `previous_response_id`, at Anthropic by `thread`. The oldest are
    dropped first."""

    def __init__(self, most: int = 4096, most_bytes: int = 64 * 1024 * 1024) -> None:
        self._links = BoundedMap[str, _ChainLink](
            most, most_size=most_bytes, size_of=lambda link: link.size
        )

    def complete(self, members: Members, hints: CallHints) -> Members | None:
        """The request with the whole chain as its input; None if the chain is unknown."""
        link = self._links.get(hints.previous_reply)
        if link is None:
            return None
        field, head = _field(members), link.head
        parts = [input_items(members.get(field, _NULL))]
        while link is not None:
            parts.append(link.items())
            link = link.before
        items = b",".join(item for part in reversed(parts) for item in part)
        completed = head | {name: members[name] for name in members if name not in _CONTINUES}
        completed[field] = msgspec.Raw(b"[" + items + b"]")
        return completed

    def keep(
        self, members: Members, hints: CallHints, reply: Reply, written: bytes | Callable[[], bytes]
    ) -> None:
        """Keeps the input of a reply and its output, from the reply's bytes or as it would be
        written. Replies that are not stored have no id to continue them by."""
        before = self._links.get(hints.previous_reply)
        if members.get("store") == _FALSE or (hints.previous_reply and before is None):
            return
        head: Members = {} if before is None else before.head
        if before is None and "thread" in members:
            head = {name: members[name] for name in ("system", "tools") if name in members}
        output = _output(written) if isinstance(written, bytes) else written
        known = output if isinstance(output, bytes) else msgspec.json.encode(reply.message)
        given = bytes(members.get(_field(members), _NULL))
        self._links[reply.id] = _ChainLink(before, head, given, output, len(given) + len(known))


def _field(members: Members) -> str:
    return "messages" if "thread" in members else "input"


def _answering_model(answer: Reply | None) -> str:
    """The model of a request without one: a stored prompt decides it."""
    if answer is None or not answer.model:
        raise InvalidRequest("the request names no model; pass --model", path="model")
    return answer.model


def _known_model(named: str, dialect: Dialect | None, answer: Reply | None) -> str:
    """The model whose rules hold. The name of a deployment and an opaque ARN name none: the answer
    may."""
    if is_opaque(named):
        if answer is None or not answer.model or dialect is None or not dialect.envelope:
            raise InvalidRequest("the ARN names no model, and neither does the answer")
        return f"{wire.PROVIDERS[dialect.wire]}.{answer.model}"
    if dialect is None or not dialect.deployments or answer is None:
        return named
    return answer.model or named


def _origin(logged: LoggedCall, defaults: RequestDefaults) -> tuple[Wire, str, bool]:
    """The codec and the provider of a call, and whether its wire stores responses."""
    if defaults.origin is not None:
        codec, provider = wire.get(defaults.origin), wire.provider_of(defaults.origin)
        stores = wire.features(wire.base_of(defaults.origin)).stores_responses
    else:
        (codec, provider), stores = logged.codec(), logged.stores_responses
    provider = defaults.provider or provider
    if provider not in catalog.shipped().entries:
        reason = unsupported(provider, logged.model)
        if reason is not None:
            raise InvalidRequest(reason, path="provider")
    return codec, provider, stores


def _members(logged: LoggedCall) -> Members:
    return object_members(logged.request, "$", request_error)


def request_of(
    logged: LoggedCall,
    place: str,
    defaults: RequestDefaults = _NO_DEFAULTS,
    chains: ResponseChains | None = None,
    reading: RequestReading | None = None,
    reply: ReadReply | None = None,
) -> SentRequest:
    """A request and its bill, from the bytes sent. `reading` and `reply` are passed if they were
    read before."""
    codec, provider, stores = _origin(logged, defaults)
    members = _members(logged) if reading is None else reading.members()
    hints, chained = hints_of(logged.headers, members), None
    if hints.previous_reply and chains is not None:
        chained = chains.complete(members, hints)
    if reading is not None and chained is None:
        rendered = reading.cut()
    else:
        body = logged.request if chained is None else encode_members(chained)
        rendered = cut(codec, body, defaults.path or logged.path)
    rendered = droppable(rendered)
    answer, failure = read_reply(logged, codec) if reply is None else reply
    dialect = getattr(codec, "dialect", None)
    named = defaults.model or logged.model or rendered.model
    model = _known_model(named, dialect, answer) or _answering_model(answer)
    profile = catalog.profile(provider, model)
    rules = catalog.rules(provider, model, rendered.wire)
    rendered = for_model(rendered if model == named else replace(rendered, model=model), profile)
    if (stores or "thread" in members) and chains is not None and answer is not None:
        written = partial(codec.write_reply, answer) if logged.stream else logged.response
        chains.keep(members, hints, answer, written)
    sent = SentCall(
        rendered=rendered,
        plan=own_plan(rendered, rules, members),
        at=logged.started if logged.started is not None else logged.ended,
        began=logged.began,
        ended=logged.ended if logged.started is not None else None,
        usage=None if answer is None or answer.usage.uncached is None else answer.usage,
        reply_lines=() if answer is None else reply_lines(answer.message),
        route=logged.host,
        host="" if answer is None else answering_host(answer, {}, dialect),
        complete=bool(named) and (not hints.previous_reply or chained is not None),
    )
    return SentRequest(
        place=place,
        sent=sent,
        wire=rendered.wire,
        provider=provider,
        model=model,
        hints=hints,
        reply_id="" if answer is None else answer.id,
        failure=failure,
        service_tier=known_text(members, "service_tier"),
        diagnosis=None if answer is None else diagnosis_of(answer),
        dialect=dialect,
        rules=rules,
        catalog_rules=rules,
        profile=profile,
    )


def known_request(requests: KnownRequests, logged: LoggedCall) -> RequestReading:
    """The request of a call, of which only the new messages are parsed."""
    codec, provider, _ = _origin(logged, _NO_DEFAULTS)
    dialect: Dialect | None = getattr(codec, "dialect", None)
    name = logged.wire if dialect is None else dialect.name
    return requests.read(logged.request, name, logged.path, provider, codec=codec)


def unsent_request(
    request: UpstreamRequest, requests: KnownRequests
) -> tuple[SentRequest, Members] | None:
    """A call of a model before it is sent, with the members of its body; None if it is none, or of
    an unknown provider. Raises if it cannot be read."""
    path, provider = decoded_path(request.path), request.route.provider
    wire = wire_at(path)
    if request.method != "POST" or wire is None or not provider or counts_tokens(path):
        return None
    data, encoding = request.body, header_of(request.headers, "content-encoding")
    if unread_model(path) or not isinstance(data, bytes):
        return None
    logged = LoggedCall(
        request=decoded(data, encoding, KEPT_BYTES) if encoding else data,
        response=b"",
        wire=wire,
        headers=dict(request.headers),
        provider=provider,
        path=path,
        started=request.started,
    )
    reading = known_request(requests, logged)
    return request_of(logged, "", reading=reading, reply=(None, "")), reading.members()


def read_reply(logged: LoggedCall, codec: Wire | None = None) -> ReadReply:
    """The response, or why there is none. `codec` is that of the call, unless given."""
    if logged.response in (b"", b"{}", b"null"):
        return None, ""
    try:
        return logged.reply(logged.codec()[0] if codec is None else codec), ""
    except AnaphoraError as problem:
        return None, str(problem)


# ── Bodies that are not read ─────────────────────────────────────────────────────────────────────


def billed_usage(headers: Headers, answer: bytes) -> Usage | None:
    """The usage that Bedrock itself reports of an InvokeModel call."""
    found = dict(headers)
    names = ("input", "output", "cache-read-input", "cache-write-input")
    counts: list[Any] = [found.get(_COUNT.format(name)) for name in names]
    if counts[0] is None and found.get("content-type", "").startswith(CONTENT_TYPE):
        metrics = _metrics(answer)
        counts = [metrics.get(f"{name}TokenCount") for name in ("input", "output")]
        counts += [metrics.get(f"cache{name}InputTokenCount") for name in ("Read", "Write")]
    uncached, output, read, written = map(_token_count, counts)
    if uncached is None and output is None:
        return None
    return Usage(
        uncached=uncached,
        output=output or 0,  # an embedding has none
        read=read,
        written=None if written is None else {"unsplit": written} if written else {},
    )


def _metrics(stream: bytes) -> dict[str, Any]:
    for frame in reversed(FrameDecoder().feed(stream)):
        try:
            event = base64.b64decode(msgspec.json.decode(frame.payload)["bytes"])
            metrics = msgspec.json.decode(event)[_METRICS]
        except (msgspec.DecodeError, ValueError, LookupError, TypeError):
            continue
        if isinstance(metrics, dict):
            return metrics
    return {}


def _token_count(value: Any) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdecimal():
        value = int(value)
    return value if type(value) is int and value >= 0 else None
