"""Requests out of files, as the verdict wants them: bytes as they were sent, bills where known."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from anaphora import catalog, wire
from anaphora.analysis.trace import provider_named
from anaphora.analysis.trace.sources import Line
from anaphora.cache.verdict import Diagnosis, Sent, diagnosis_of
from anaphora.catalog import CacheRules
from anaphora.cli._simulate import logged as log
from anaphora.errors import AnaphoraError, InvalidRequest
from anaphora.rendered import Plan, Rendered
from anaphora.tokens import for_model
from anaphora.values import Reply, ReplyEnd
from anaphora.wire.detect import detect

#: What loggers call the conversation that a request belongs to.
_TALK = ("conversation", "conversation_id", "session", "session_id", "thread_id", "group")
_REQUEST = ("request", "request_body", "requestBody", "req")
_BODIES = ("messages", "input", "contents")

_fields = msgspec.json.Decoder(dict[str, Any]).decode
_raws = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line says of the requests, where they do not say it themselves."""

    origin: str | None = None
    provider: str | None = None
    model: str | None = None
    path: str = ""


class Made(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One call that somebody made."""

    place: str
    sent: Sent
    wire: str
    provider: str
    model: str
    talk: str = ""
    """The conversation, where the log names it."""
    diagnosis: Diagnosis | None = None

    @property
    def rules(self) -> CacheRules:
        return catalog.rules(self.provider, self.model, self.wire)


def is_request(one: dict[str, Any]) -> bool:
    """A body, or a body with what is known of its call."""
    return (any(name in one for name in _BODIES) and "calls" not in one) or _wrapped(one)


def _wrapped(one: dict[str, Any]) -> bool:
    return any(isinstance(one.get(name), dict | str) for name in _REQUEST)


def read(line: Line, asked: Asked) -> Made:
    """The call in a line, or in a file that holds one."""
    try:
        one = _fields(line.data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        raise InvalidRequest(f"not a JSON object: {problem}", path=line.place) from None
    try:
        return _wrapper(line, one, asked) if _wrapped(one) else _body(line, asked)
    except (AnaphoraError, ValueError) as problem:
        if isinstance(problem, InvalidRequest):
            raise problem.within(line.place) from None
        raise InvalidRequest(str(problem), path=line.place) from None


def _body(line: Line, asked: Asked) -> Made:
    name = asked.origin or detect(line.data)
    provider = asked.provider or wire.provider_of(name)
    return _made(line.place, wire.get(name), line.data, provider, asked, asked.path)


def _wrapper(line: Line, one: dict[str, Any], asked: Asked) -> Made:
    told = log.understood({**one, "response": _answer(one)})
    provider = asked.provider or (provider_named(told.provider) if told.provider else None)
    codec: wire.Wire
    if asked.origin is not None:
        codec, usual = wire.get(asked.origin), wire.provider_of(asked.origin)
    else:
        row = catalog.dialects().at_host(told.host, told.wire, told.path) if told.host else None
        codec = wire.get(told.wire) if row is None else wire.codec_for(row)
        usual = wire.PROVIDERS[told.wire] if row is None else row.provider
    made = _made(
        line.place,
        codec,
        _sent_bytes(line.data, told.request),
        provider or usual,
        replace(asked, model=asked.model or told.model or None),
        asked.path or told.path,
    )
    reply = _reply(codec, told)
    sent = replace(
        made.sent,
        at=told.began if told.began is not None else told.ended,
        usage=None if reply is None or reply.usage.uncached is None else reply.usage,
        route=told.host,
    )
    talk = next((str(one[name]) for name in _TALK if one.get(name) is not None), "")
    said = None if reply is None else diagnosis_of(reply)
    return replace(made, sent=sent, talk=talk, diagnosis=said)


def _answer(one: dict[str, Any]) -> Any:
    """The answer; a log of requests alone has none."""
    names = ("response", "response_body", "responseBody", "resp", "reply")
    return next((one[name] for name in names if one.get(name) is not None), {})


def _sent_bytes(line: bytes, understood: bytes) -> bytes:
    """The request as it stands in the line: reading it would heal its white space and numbers."""
    for name, raw in _raws(line).items():
        if name in _REQUEST and bytes(raw)[:1] == b"{":
            body = bytes(raw)
            if any(field in _raws(body) for field in _BODIES):
                return body
    return understood


def _reply(codec: wire.Wire, told: log.Logged) -> Reply | None:
    """The answer, when there is one that can be read; what it was billed is all it is asked for."""
    if told.response in (b"", b"{}", b"null"):
        return None
    try:
        if not told.stream:
            return codec.read_reply(told.response)
        reader = codec.reader()
        last = [*reader.feed(told.response), *reader.close()][-1]
        return last.reply if isinstance(last, ReplyEnd) else None
    except AnaphoraError:
        return None


def _made(
    place: str, codec: wire.Wire, body: bytes, provider: str, asked: Asked, path: str
) -> Made:
    rendered = codec.split(body, path=path)
    model = asked.model or rendered.model
    if not model:
        raise InvalidRequest("the request names no model; say which with --model", path="model")
    profile = catalog.profile(provider, model)
    rendered = for_model(rendered, profile)
    rules = catalog.rules(provider, model, rendered.wire)
    plan = _plan(rendered, rules, body)
    return Made(
        place=place,
        sent=Sent(rendered=rendered, plan=plan),
        wire=rendered.wire,
        provider=provider,
        model=model,
    )


class _Options(msgspec.Struct, frozen=True):
    mode: str | None = None


class _Cached(msgspec.Struct, frozen=True):
    prompt_cache_options: _Options | None = None


def _plan(rendered: Rendered, rules: CacheRules, body: bytes) -> Plan:
    """The request's own markers, and the one that the provider adds unless it is told not to."""
    automatic = rendered.automatic
    if automatic is None and rules.automatic_breakpoint.value == "last_message":
        try:
            options = msgspec.json.decode(body, type=_Cached).prompt_cache_options
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            options = None
        explicit = options is not None and options.mode == "explicit"
        if not explicit and rules.default_ttl is not None:
            automatic = rules.default_ttl.value
    return Plan(marks=rendered.marks, automatic=automatic)
