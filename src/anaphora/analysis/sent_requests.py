"""Requests from files as the verdict compares them: bytes as they were sent, bills where known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from anaphora import catalog, wire
from anaphora.cache import CallHints, EarlierCall, PrefixIndex, hints_of
from anaphora.cache.verdict import Diagnosis, SentCall, diagnosis_of
from anaphora.catalog import CacheRules
from anaphora.errors import AnaphoraError, InvalidRequest
from anaphora.rendered import Plan, Rendered
from anaphora.tokens import for_model
from anaphora.values import Reply
from anaphora.wire import Wire
from anaphora.wire.detect import detect
from anaphora.wire.openai_responses.parse import input_items

from . import trace
from .request_log import PROMPT_FIELDS, REQUEST, LoggedCall, read_fields
from .trace.format import LogLine, unsupported

#: Names that loggers use for the conversation of a request.
_CONVERSATION = ("conversation", "conversation_id", "session", "session_id", "thread_id", "group")

_fields = msgspec.json.Decoder(dict[str, Any]).decode
_NULL = msgspec.Raw(b"null")
_raw_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class RequestDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """What the caller knows of the requests."""

    origin: str | None = None
    """The wire or dialect."""
    provider: str | None = None
    model: str | None = None
    path: str = ""


class SentRequest(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    place: str
    sent: SentCall
    wire: str
    provider: str
    model: str
    conversation: str = ""
    """Where the log names it."""
    hints: CallHints = CallHints()
    """The conversation as the log names it, else as the client does. Never shown."""
    reply_id: str = ""
    diagnosis: Diagnosis | None = None

    @property
    def rules(self) -> CacheRules:
        return catalog.rules(self.provider, self.model, self.wire)


def is_request(fields: dict[str, Any]) -> bool:
    """A request's body, or a line of a request log."""
    is_body = any(name in fields for name in PROMPT_FIELDS) and "calls" not in fields
    return is_body or _is_logged(fields)


def _is_logged(fields: dict[str, Any]) -> bool:
    return any(isinstance(fields.get(name), dict | str) for name in REQUEST)


def holds_request(data: bytes, place: str, *, is_json: bool) -> bool:
    """Whether a file holds one request. Raises for a JSON file that holds something else, unless
    that is a trace."""
    try:
        fields = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        if is_json:
            raise InvalidRequest(f"not JSON: {problem}", path=place) from None
        return False
    if isinstance(fields, dict) and trace.detect(fields) is not None:
        return False
    if isinstance(fields, dict) and (is_request(fields) or "calls" in fields):
        return is_request(fields)
    if is_json:
        raise InvalidRequest("not a request of a known wire", path=place)
    return False


class ResponseChains:
    """The input and output of earlier replies, which a request of the Responses API continues by
    `previous_response_id` without sending them again. The oldest are dropped first."""

    def __init__(self, most: int = 4096) -> None:
        self._most = most
        self._items: dict[str, tuple[bytes, ...]] = {}

    def complete(self, body: bytes, hints: CallHints) -> bytes | None:
        """The request with the whole chain as its input; None where that is not known."""
        before = self._items.get(hints.previous_reply)
        if before is None:
            return None
        fields = _raw_fields(body)
        del fields["previous_response_id"]
        items = (*before, *input_items(fields.get("input", _NULL)))
        fields["input"] = msgspec.Raw(b"[" + b",".join(items) + b"]")
        return msgspec.json.encode(fields)

    def keep(self, body: bytes, reply: Reply, written: bytes) -> None:
        """Keeps the whole input of a reply and its output, from the reply as it was written. On
        other wires replies have no output to continue."""
        output = _raw_fields(written).get("output")
        if output is None:
            return
        items = input_items(_raw_fields(body).get("input", _NULL))
        self._items[reply.id] = (*items, *input_items(output))
        if len(self._items) > self._most:
            del self._items[next(iter(self._items))]


def read_request(
    line: LogLine, defaults: RequestDefaults, chains: ResponseChains | None = None
) -> SentRequest:
    """The request in a line, or in a file that holds one. `chains` are the replies before it."""
    try:
        fields = _fields(line.data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        raise InvalidRequest(f"not a JSON object: {problem}", path=line.place) from None
    try:
        return _read(line, fields, defaults, chains)
    except InvalidRequest as problem:
        raise problem.within(line.place) from None
    except (AnaphoraError, ValueError) as problem:
        raise InvalidRequest(str(problem), path=line.place) from None


def _read(
    line: LogLine,
    fields: dict[str, Any],
    defaults: RequestDefaults,
    chains: ResponseChains | None,
) -> SentRequest:
    if _is_logged(fields):
        logged = read_fields(fields, response_needed=False)
        body = _sent_bytes(line.data, logged.request)
    else:
        body, name = line.data, defaults.origin or detect(line.data)
        logged = LoggedCall(request=body, response=b"", wire=name)
    if defaults.origin is not None:
        codec, provider = wire.get(defaults.origin), wire.provider_of(defaults.origin)
    else:
        codec, provider = logged.codec()
    provider = defaults.provider or provider
    if (reason := unsupported(provider, logged.model)) is not None:
        raise InvalidRequest(reason, path="provider")
    hints, complete = hints_of(logged.headers, _raw_fields(body)), True
    if hints.previous_reply:
        chained = chains.complete(body, hints) if chains is not None else None
        complete, body = chained is not None, chained or body
    rendered = codec.split(body, path=defaults.path or logged.path)
    model = defaults.model or logged.model or rendered.model
    if not model:
        raise InvalidRequest("the request names no model; pass --model", path="model")
    rendered = for_model(rendered, catalog.profile(provider, model))
    reply = _reply(codec, logged)
    if chains is not None and reply is not None:
        chains.keep(body, reply, codec.write_reply(reply) if logged.stream else logged.response)
    sent = SentCall(
        rendered=rendered,
        plan=_plan(rendered, catalog.rules(provider, model, rendered.wire), body),
        at=logged.started if logged.started is not None else logged.ended,
        usage=None if reply is None or reply.usage.uncached is None else reply.usage,
        route=logged.host,
        complete=complete,
    )
    named = (str(fields[name]) for name in _CONVERSATION if fields.get(name) is not None)
    conversation = next(named, "") if _is_logged(fields) else ""
    if conversation:
        hints = msgspec.structs.replace(hints, conversation=conversation)
    return SentRequest(
        place=line.place,
        sent=sent,
        wire=rendered.wire,
        provider=provider,
        model=model,
        conversation=conversation,
        hints=hints,
        reply_id="" if reply is None else reply.id,
        diagnosis=None if reply is None else diagnosis_of(reply),
    )


def _sent_bytes(line: bytes, decoded: bytes) -> bytes:
    """The request as it stands in the line: decoding it would normalise white space and numbers."""
    for name, raw in _raw_fields(line).items():
        if name in REQUEST and bytes(raw)[:1] == b"{":
            body = bytes(raw)
            if any(field in _raw_fields(body) for field in PROMPT_FIELDS):
                return body
    return decoded


def _reply(codec: Wire, logged: LoggedCall) -> Reply | None:
    if logged.response in (b"", b"{}", b"null"):
        return None
    try:
        return logged.reply(codec)
    except AnaphoraError:
        return None


def _plan(rendered: Rendered, rules: CacheRules, body: bytes) -> Plan:
    """The request's markers, and the one that the provider adds unless the request forbids it."""
    automatic = rendered.automatic
    if automatic is None and rules.automatic_breakpoint.value == "last_message":
        options = _fields(body).get("prompt_cache_options")
        explicit = isinstance(options, dict) and options.get("mode") == "explicit"
        if not explicit and rules.default_ttl is not None:
            automatic = rules.default_ttl.value
    return Plan(marks=rendered.marks, automatic=automatic)


def paired(
    requests: Iterable[SentRequest],
) -> Iterator[tuple[EarlierCall[SentRequest] | None, SentRequest]]:
    """Each request with the one before it: of its model at its host, else of the model or host that
    its conversation changed from."""
    near: PrefixIndex[SentRequest] = PrefixIndex()
    anywhere: PrefixIndex[SentRequest] = PrefixIndex()
    for request in requests:
        sent, hints, reply = request.sent, request.hints, request.reply_id
        scope = request.provider, request.wire
        own = *scope, request.model, sent.route
        earlier = near.add(sent.rendered, request, scope=own, hints=hints, reply_id=reply)
        other = anywhere.add(sent.rendered, request, scope=scope, hints=hints, reply_id=reply)
        if other is not None and other.continues and not (earlier and earlier.continues):
            # The same prompt for another model is a conversation of its own.
            grown = len(sent.rendered) > len(other.call.sent.rendered)
            earlier = other if grown else earlier
        yield earlier, request
