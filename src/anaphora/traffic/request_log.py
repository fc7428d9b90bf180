"""Request logs: one JSON object per line, with the bodies of a request and of its response.

logged = read_fields(fields)          one line, with any logger's field names
request = read_request(line, defaults)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec.structs import replace

from anaphora import wire
from anaphora.analysis import trace
from anaphora.analysis.trace.log_lines import LogLine, seconds
from anaphora.errors import AnaphoraError, InvalidRequest
from anaphora.wire import DetectedWire, detect, detect_wire
from anaphora.wire.reading import decode_reason

from .calls import PATHS, LoggedCall, counts_tokens
from .sent_requests import RequestDefaults, ResponseChains, SentRequest, request_of

#: Names that loggers use for the conversation of a request.
CONVERSATION = ("conversation", "conversation_id", "session", "session_id", "thread_id", "group")
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
_REPLY_FIELDS = ("choices", "usage", "usageMetadata", "output", "error")

#: A field of the response that only one wire has.
_REPLY_SIGNS = (
    (b'"choices"', "openai_chat"),
    (b'"usageMetadata"', "gemini"),
    (b'"stop_reason"', "anthropic"),
    (b'"incomplete_details"', "openai_responses"),
)


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
    """Host and path, which may be beside the request or in it."""
    names = ("url", "uri")
    url = str(_first(fields, names) or _first(request, names) or "")
    _, separator, rest = url.partition("://")
    address = (rest if separator else url).partition("?")[0].partition("#")[0]
    authority, slash, path = address.partition("/") if separator else ("", "", address)
    host = authority.rpartition("@")[2].partition(":")[0].lower()
    return host, str(fields.get("path") or slash + path)


def _headers(logged: Any) -> dict[str, str]:
    """Headers given as an object, or as a list of pairs or of names and values."""
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
    for part, name in PATHS:
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
    """The body inside an object that also has headers and a URL."""

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


_fields = msgspec.json.Decoder(dict[str, Any]).decode
_raw_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def is_request(fields: dict[str, Any]) -> bool:
    """A request's body, or a line of a request log."""
    is_body = any(name in fields for name in PROMPT_FIELDS) and "calls" not in fields
    return is_body or _is_logged(fields)


def _is_logged(fields: dict[str, Any]) -> bool:
    return any(isinstance(fields.get(name), dict | str) for name in REQUEST)


#: Fields of a foreign object that are named.
_MOST_NAMED = 5


def why_no_request(data: bytes) -> str:
    """Why a JSON value is neither a request nor a line of a log; empty if it is not JSON."""
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return ""
    expected = "expected `messages`, `input` or `contents`, or a log's `request` and `response`"
    if not isinstance(value, dict):
        kind = "list" if isinstance(value, list) else type(value).__name__
        return f"not a request of a known wire: a JSON {kind}; {expected}"
    names = ", ".join(f"`{name}`" for name in list(value)[:_MOST_NAMED])
    more = f" and {len(value) - _MOST_NAMED:,} more" if len(value) > _MOST_NAMED else ""
    found = f"with the fields {names}{more}" if value else "without fields"
    return f"not a request of a known wire: a JSON object {found}; {expected}"


def holds_request(data: bytes, place: str, *, is_json: bool) -> bool:
    """Whether a file contains one request. Raises for a JSON file with other content, unless it is
    a trace."""
    try:
        fields = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        if is_json:
            reason = decode_reason(problem, data)
            raise InvalidRequest(f"not JSON: {reason}", path=place) from None
        return False
    if isinstance(fields, dict) and trace.detect(fields) is not None:
        return False
    if isinstance(fields, dict) and (is_request(fields) or "calls" in fields):
        return is_request(fields)
    if is_json:
        raise InvalidRequest(why_no_request(data), path=place)
    return False


def read_request(
    line: LogLine, defaults: RequestDefaults, chains: ResponseChains | None = None
) -> SentRequest:
    """The request in a line, or in a file that contains one. `chains` are the replies before it."""
    try:
        fields = _fields(line.data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        reason = decode_reason(problem, line.data)
        raise InvalidRequest(f"not a JSON object: {reason}", path=line.place) from None
    try:
        return _read(line, fields, defaults, chains)
    except InvalidRequest as problem:
        raise problem.within(line.place) from None
    except (AnaphoraError, ValueError) as problem:
        raise InvalidRequest(str(problem), path=line.place) from None


def _read(
    line: LogLine, fields: dict[str, Any], defaults: RequestDefaults, chains: ResponseChains | None
) -> SentRequest:
    if not _is_logged(fields):
        if defaults.origin is None:
            detected = detect_wire(line.data, defaults.model)
        else:
            detected = DetectedWire(defaults.origin)
        logged = LoggedCall(request=line.data, response=b"", wire=detected.name)
        request = request_of(logged, line.place, defaults, chains)
        return replace(request, guess=detected.guess) if detected.guess else request
    if isinstance(dialect := fields.get("dialect"), str) and defaults.origin is None:
        provider = defaults.provider or fields.get("provider")
        defaults = replace(defaults, origin=dialect, provider=provider)
    logged = read_fields(fields, response_needed=False)
    logged = replace(logged, request=_sent_bytes(line.data, logged.request))
    request = request_of(logged, line.place, defaults, chains)
    named = (str(fields[name]) for name in CONVERSATION if fields.get(name) is not None)
    conversation = next(named, "")
    if not conversation:
        return request
    hints = replace(request.hints, conversation=conversation)
    return replace(request, named=conversation, hints=hints)


def _sent_bytes(line: bytes, decoded: bytes) -> bytes:
    """The request's bytes in the line: decoding would normalise white space and numbers."""
    for name, raw in _raw_fields(line).items():
        if name in REQUEST and bytes(raw)[:1] == b"{":
            body = bytes(raw)
            if any(field in _raw_fields(body) for field in PROMPT_FIELDS):
                return body
    return decoded
