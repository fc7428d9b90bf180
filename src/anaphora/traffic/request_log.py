"""Request logs: one JSON object a line, with the bodies of a request and of its response.

    logged = read_fields(fields)          one line, whatever the logger calls its fields
    for entry in read(lines): ...         a whole log as traces, see `trace`

A request is split into blocks by its wire, markers included. A request that continues an earlier
one belongs to the same conversation.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from blake3 import blake3
from msgspec.structs import replace

from anaphora import catalog, wire
from anaphora.analysis.trace import read_session
from anaphora.analysis.trace.format import Breakpoint, Trace, TraceCall, TraceMessage, TraceUsage
from anaphora.analysis.trace.log_lines import FoundTrace, LogLine, Problem, TraceEntry, seconds
from anaphora.errors import InvalidRequest
from anaphora.rendered import Kind, Rendered
from anaphora.rendered.media import Size
from anaphora.tokens import Counts
from anaphora.values import Reply, ReplyEnd, ReplyFail, Usage
from anaphora.wire import Wire, detect

#: Names that loggers use for the fields of a line.
REQUEST = ("request", "request_body", "requestBody", "req")
RESPONSE = ("response", "response_body", "responseBody", "resp", "reply")
_BODY = ("body", "json", "content", "data", "text", "postData")
_STARTED = ("time", "timestamp", "t", "ts", "start_time", "startTime", "started_at", "created_at")
_ENDED = ("t_end", "end_time", "endTime", "ended_at", "finished_at", "completed_at")
_SECONDS = ("dur", "duration", "elapsed")
_MILLISECONDS = ("duration_ms", "latency_ms", "elapsed_ms")
_HEADERS = ("headers", "request_headers", "requestHeaders")
#: Fields that a request's body has on one of the wires.
PROMPT_FIELDS = ("messages", "input", "contents")
#: Parts of the paths of calls that count tokens.
_COUNTING = ("/count_tokens", ":counttokens", "/responses/input_tokens")
_REPLY_FIELDS = ("choices", "usage", "usageMetadata", "output", "error")

#: A part of the request's path that tells the wire,
_PATHS = (
    ("/chat/completions", "openai_chat"),
    ("/responses", "openai_responses"),
    ("/messages", "anthropic"),
    ("generatecontent", "gemini"),
    ("/api/chat", "ollama"),
)
#: the end of the path where a prompt is posted,
_ENDS = (
    *_PATHS[:3],
    (":generatecontent", "gemini"),
    (":streamgeneratecontent", "gemini"),
    *_PATHS[4:],
)
#: and a field of the response that only that wire has.
_REPLY_SIGNS = (
    (b'"choices"', "openai_chat"),
    (b'"usageMetadata"', "gemini"),
    (b'"prompt_eval_count"', "ollama"),
    (b'"stop_reason"', "anthropic"),
    (b'"incomplete_details"', "openai_responses"),
)


def wire_at(path: str) -> str | None:
    """The wire of requests that are posted to a path; None where no prompt is posted."""
    low = path.lower()
    return next((name for end, name in _ENDS if low.endswith(end)), None)


def counts_tokens(path: str) -> bool:
    """Whether a path counts the tokens of a prompt, which is not billed."""
    return any(part in path.lower() for part in _COUNTING)


class LoggedCall(msgspec.Struct, frozen=True, kw_only=True):
    request: bytes
    response: bytes
    wire: str
    headers: dict[str, str] = {}
    """Of the request, by their names in lower case. Never shown."""
    id: str = ""
    provider: str = ""
    model: str = ""
    host: str = ""
    path: str = ""
    stream: bool = False
    started: float | None = None
    began: float | None = None
    """When the response began."""
    ended: float | None = None

    def codec(self) -> tuple[Wire, str]:
        """The wire in the provider's dialect, and the provider whose models it serves: as it is
        logged where it is not known."""
        return _codec(self.provider, self.wire, self.host, self.path if self.host else "")

    def reply(self, codec: Wire) -> Reply:
        """The response; raises when it cannot be read."""
        if not self.stream:
            return codec.read_reply(self.response)
        reader = codec.reader()
        last = [*reader.feed(self.response), *reader.close()][-1]
        if isinstance(last, ReplyEnd):
            return last.reply
        message = f": {last.message}" if isinstance(last, ReplyFail) else ""
        raise InvalidRequest(f"the stream ends in an error{message}", path="response")


@functools.lru_cache(maxsize=256)
def _codec(named: str, wire_name: str, host: str, path: str) -> tuple[Wire, str]:
    row = None
    provider = catalog.provider_named(named) if named else None
    if host:
        row = catalog.dialects().at_host(host, wire_name, path)
    elif provider is not None:
        try:
            row = catalog.dialects().find(provider, wire_name)
        except InvalidRequest:
            row = None  # not known to use this wire; read it as the wire's own provider
    codec = wire.get(wire_name) if row is None else wire.codec_for(row)
    if provider is None:
        provider = row.provider if row is not None else named
    return codec, provider or wire.PROVIDERS[wire_name]


def recognises(fields: dict[str, Any]) -> bool:
    return _first(fields, REQUEST) is not None and _first(fields, RESPONSE) is not None


def why_unbilled(fields: dict[str, Any]) -> str:
    """Why a logged call was not billed: an error, or a call that counts tokens; else empty."""
    response = _first(fields, RESPONSE)
    for place in (fields, response if isinstance(response, dict) else {}):
        status = _first(place, ("status", "status_code", "statusCode"))
        if type(status) is int:
            if status >= 400:
                return f"answered with {status}: not billed"
            break
    request = _first(fields, REQUEST)
    path = _address(fields, request if isinstance(request, dict) else {})[1].lower()
    answer = _unwrapped(response, _REPLY_FIELDS)
    counted = isinstance(answer, dict) and (
        "totalTokens" in answer or ("input_tokens" in answer and not answer.get("usage"))
    )
    if counted or counts_tokens(path):
        return "counts tokens: not billed"
    return ""


def read_fields(fields: dict[str, Any], *, response_needed: bool = True) -> LoggedCall:
    request, response = _first(fields, REQUEST), _first(fields, RESPONSE)
    if response is None and not response_needed:
        response = {}
    if request is None or response is None:
        missing = "request" if request is None else "response"
        raise InvalidRequest(f"no {missing} in it", path=missing)
    provider = fields.get("provider")
    if provider is not None and not isinstance(provider, str):
        raise InvalidRequest(f"is not a name: {provider!r}", path="provider")
    wrapper = request if isinstance(request, dict) else {}
    host, path = _address(fields, wrapper)
    body = _bytes(_unwrapped(request, PROMPT_FIELDS))
    answer = _bytes(_unwrapped(response, _REPLY_FIELDS))
    started = seconds(_first(fields, _STARTED))
    return LoggedCall(
        request=body,
        response=answer,
        wire=_wire(str(fields.get("wire") or ""), path, body, answer),
        headers=_headers(_first(fields, _HEADERS) or _first(wrapper, _HEADERS)),
        id=str(fields.get("id") or ""),
        provider=provider or "",
        model=str(fields.get("model") or ""),
        host=str(fields.get("host") or host),
        path=path,
        stream=answer.lstrip()[:1] not in (b"{", b"["),
        started=started,
        ended=_ended(fields, started),
    )


def _address(fields: dict[str, Any], request: dict[str, Any]) -> tuple[str, str]:
    """Host and path, which may stand beside the request or in it."""
    names = ("url", "uri")
    url = str(_first(fields, names) or _first(request, names) or "")
    _, separator, rest = url.partition("://")
    address = (rest if separator else url).partition("?")[0].partition("#")[0]
    authority, slash, path = address.partition("/") if separator else ("", "", address)
    host = authority.rpartition("@")[2].partition(":")[0].lower()
    return host, str(fields.get("path") or slash + path)


def _headers(logged: Any) -> dict[str, str]:
    """Headers as an object, or as a list of pairs or of names and values."""
    pairs = list(logged.items()) if isinstance(logged, dict) else []
    for one in logged if isinstance(logged, list) else ():
        if isinstance(one, dict):
            pairs.append((one.get("name"), one.get("value")))
        elif isinstance(one, list) and len(one) == 2:
            pairs.append((one[0], one[1]))
    pairs = [
        (name, value[0] if isinstance(value, list) and value else value) for name, value in pairs
    ]
    return {
        name.lower(): value
        for name, value in pairs
        if isinstance(name, str) and isinstance(value, str)
    }


def _ended(fields: dict[str, Any], started: float | None) -> float | None:
    ended = seconds(_first(fields, _ENDED))
    if ended is not None or started is None:
        return ended
    for names, unit in ((_SECONDS, 1.0), (_MILLISECONDS, 1000.0)):
        duration = _first(fields, names)
        if isinstance(duration, int | float) and duration >= 0:
            return started + duration / unit
    return None


def _wire(named: str, path: str, body: bytes, answer: bytes) -> str:
    if named in wire.WIRES:
        return named
    if named:
        raise InvalidRequest(f"no wire {named!r}; there are {', '.join(wire.WIRES)}", path="wire")
    for part, name in _PATHS:
        if part in path.lower():
            return name
    # Requests of different wires may look alike; responses do not.
    for sign, name in _REPLY_SIGNS:
        if sign in answer:
            return name
    try:
        return detect(body)
    except InvalidRequest:
        hint = "log its path, or the wire's name as `wire`"
        raise InvalidRequest(f"the wire of the request is unknown: {hint}") from None


def _first(fields: dict[str, Any], names: Iterable[str]) -> Any:
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def _unwrapped(logged: Any, known: tuple[str, ...]) -> Any:
    """The body inside an object that also holds headers and address."""

    def is_body(value: dict[str, Any]) -> bool:
        return any(name in value for name in known)

    if not isinstance(logged, dict) or is_body(logged):
        return logged
    inner = _first(logged, _BODY)
    if isinstance(inner, dict) and "text" in inner and not is_body(inner):
        inner = inner["text"]  # as in HTTP archives
    return logged if inner is None else inner


def _bytes(body: Any) -> bytes:
    return body.encode() if isinstance(body, str) else msgspec.json.encode(body)


def read(lines: Iterator[LogLine]) -> Iterator[TraceEntry]:
    """The conversations of a request log, and problems with its lines."""
    return read_session(lines, _RequestLog())


class _Options(msgspec.Struct):
    prompt_cache_options: Any = None


def _is_explicit(request: bytes) -> bool:
    """Whether a request to OpenAI is cached at its own breakpoints only."""
    options = msgspec.json.decode(request, type=_Options).prompt_cache_options
    return isinstance(options, dict) and options.get("mode") == "explicit"


class _LoggedConversation(msgspec.Struct):
    place: str
    head: Trace
    """Everything but its calls and messages."""
    calls: list[TraceCall] = []
    messages: list[TraceMessage] = []


class _RequestLog:
    """Appends each request to the conversation that it continues."""

    missing = ""

    def __init__(self) -> None:
        self._conversations: list[_LoggedConversation] = []
        self._ends: dict[bytes, _LoggedConversation] = {}
        """By the digest of its last request."""

    def read(self, place: str, fields: dict[str, Any]) -> Problem | None:
        if reason := why_unbilled(fields):
            return Problem(place, reason, "not_compared")
        logged = read_fields(fields)
        codec, provider = logged.codec()
        rendered = codec.split(logged.request, path=logged.path)
        model = logged.model or rendered.model
        tools, tools_sizes, messages, breakpoints = _blocks(rendered)
        call = TraceCall(
            messages=len(messages),
            t=logged.started,
            t_end=logged.ended,
            usage=_trace_usage(logged.reply(codec).usage),
            breakpoints=breakpoints,
            explicit=_is_explicit(logged.request),
            place=place,
        )
        digest = blake3(msgspec.json.encode([(provider, model, logged.wire), tools])).digest(16)
        digests = [digest]
        for message in messages:
            digest = blake3(digest + msgspec.json.encode(message)).digest(16)
            digests.append(digest)
        known = [one for one in digests[1:] or digests if one in self._ends]
        if known:
            conversation = self._ends.pop(known[-1])
        else:
            head = Trace(
                id=logged.id or place.rpartition(":")[2],
                provider=provider,
                model=model,
                calls=(),
                messages=(),
                tools=tools,
                tools_sizes=tools_sizes,
                source="requests",
                wire=logged.wire,
            )
            conversation = _LoggedConversation(place, head)
            self._conversations.append(conversation)
        conversation.messages = messages
        conversation.calls.append(call)
        self._ends[digest] = conversation
        return None

    def traces(self, file: str) -> list[FoundTrace]:
        found = []
        for one in self._conversations:
            calls, messages = tuple(one.calls), tuple(one.messages)
            trace = replace(one.head, group=file, calls=calls, messages=messages)
            found.append(FoundTrace(one.place, trace))
        return found


def _trace_usage(usage: Usage) -> TraceUsage:
    if usage.uncached is None:
        raise InvalidRequest("the response reports no usage", path="response")
    fields = {
        "input": usage.uncached,
        "cache_read": usage.read or 0,
        "output": usage.output,
        "reasoning": usage.reasoning,
    }
    for ttl, tokens in (usage.written or {}).items():
        name = f"cache_write_{'5m' if ttl == 'unsplit' else ttl}"
        fields[name] = tokens + (fields.get(name) or 0)
    return msgspec.convert(fields, TraceUsage)


def _blocks(
    rendered: Rendered,
) -> tuple[list[str] | None, tuple[Size, ...] | None, list[TraceMessage], tuple[Breakpoint, ...]]:
    """A request as a trace: its tools and their sizes, one message for each block, so that markers
    and look-back count what the provider counts, and the markers."""
    tools: list[str] = []
    sizes: list[Size] = []
    messages: list[TraceMessage] = []
    places: dict[int, tuple[str | int, ...]] = {}
    for chunk, size in zip(rendered, Counts(rendered).sizes(), strict=True):
        text = chunk.data.decode(errors="replace")
        if chunk.section == "tools":
            places[chunk.index] = "tools", len(tools)
            tools.append(text)
            sizes.append(size)
        else:
            places[chunk.index] = (len(messages),)
            messages.append(replace(_message(rendered, chunk.index, chunk.kind, text), size=size))
    breakpoints: list[Breakpoint] = [(*places[mark.chunk], mark.ttl) for mark in rendered.marks]
    if rendered.automatic is not None:
        breakpoints.append(("automatic", rendered.automatic))
    return tools or None, tuple(sizes) if tools else None, messages, tuple(breakpoints)


def _message(rendered: Rendered, index: int, kind: Kind, text: str) -> TraceMessage:
    run, offset = rendered.locate(index)
    if run.section == "system":
        return TraceMessage(role="system", content=text)
    if kind is Kind.TOOL_RESULT:
        return TraceMessage(role="tool", content=text)
    if kind is Kind.TOOL_CALL:
        return TraceMessage(role="assistant", tool_calls=[text])
    if kind is Kind.THINKING:
        return TraceMessage(role="assistant", content=[{"type": "thinking", "thinking": text}])
    role = run.log.role_of(offset)
    roles = {"developer": "system", "model": "assistant"}
    known = role if role in ("system", "assistant") else "user"
    return TraceMessage(role=roles.get(role, known), content=text)
