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

from . import trace
from .request_log import PROMPT_FIELDS, REQUEST, LoggedCall, read_fields
from .trace.format import LogLine, unsupported

#: Names that loggers use for the conversation of a request.
_CONVERSATION = ("conversation", "conversation_id", "session", "session_id", "thread_id", "group")

_fields = msgspec.json.Decoder(dict[str, Any]).decode
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


def read_request(line: LogLine, defaults: RequestDefaults) -> SentRequest:
    """The request in a line, or in a file that holds one."""
    try:
        fields = _fields(line.data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        raise InvalidRequest(f"not a JSON object: {problem}", path=line.place) from None
    try:
        return _read(line, fields, defaults)
    except InvalidRequest as problem:
        raise problem.within(line.place) from None
    except (AnaphoraError, ValueError) as problem:
        raise InvalidRequest(str(problem), path=line.place) from None


def _read(line: LogLine, fields: dict[str, Any], defaults: RequestDefaults) -> SentRequest:
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
    rendered = codec.split(body, path=defaults.path or logged.path)
    model = defaults.model or logged.model or rendered.model
    if not model:
        raise InvalidRequest("the request names no model; pass --model", path="model")
    rendered = for_model(rendered, catalog.profile(provider, model))
    reply = _reply(codec, logged)
    sent = SentCall(
        rendered=rendered,
        plan=_plan(rendered, catalog.rules(provider, model, rendered.wire), body),
        at=logged.started if logged.started is not None else logged.ended,
        usage=None if reply is None or reply.usage.uncached is None else reply.usage,
        route=logged.host,
    )
    hints = hints_of(logged.headers, _raw_fields(body))
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
    """Each request with the one before it: of its model, else of the model that its conversation
    changed from."""
    same_model: PrefixIndex[SentRequest] = PrefixIndex()
    any_model: PrefixIndex[SentRequest] = PrefixIndex()
    for request in requests:
        rendered, hints, reply = request.sent.rendered, request.hints, request.reply_id
        scope = request.provider, request.wire
        own = *scope, request.model
        earlier = same_model.add(rendered, request, scope=own, hints=hints, reply_id=reply)
        other = any_model.add(rendered, request, scope=scope, hints=hints, reply_id=reply)
        if other is not None and other.continues and not (earlier and earlier.continues):
            # The same prompt for another model is not a change of the model.
            grown = len(rendered) > len(other.call.sent.rendered)
            earlier = other if grown else earlier
        yield earlier, request
