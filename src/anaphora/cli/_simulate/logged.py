"""One line of a request log, whatever its fields are called."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

import msgspec

from anaphora import wire
from anaphora.analysis.trace.sources.lines import seconds
from anaphora.errors import InvalidRequest
from anaphora.wire.detect import detect

_REQUEST = ("request", "request_body", "requestBody", "req")
_RESPONSE = ("response", "response_body", "responseBody", "resp", "reply")
_BODY = ("body", "json", "content", "data", "text", "postData")
_BEGAN = ("time", "timestamp", "t", "ts", "start_time", "startTime", "started_at", "created_at")
_ENDED = ("t_end", "end_time", "endTime", "ended_at", "finished_at", "completed_at")
_SECONDS = ("dur", "duration", "elapsed")
_MILLISECONDS = ("duration_ms", "latency_ms", "elapsed_ms")

#: What the path of a request says of its wire.
_PATHS = (
    ("/chat/completions", "openai_chat"),
    ("/responses", "openai_responses"),
    ("/messages", "anthropic"),
    ("generatecontent", "gemini"),
    ("/api/chat", "ollama"),
)

#: What an answer of each says, and no other does.
_SIGNS = (
    (b'"choices"', "openai_chat"),
    (b'"usageMetadata"', "gemini"),
    (b'"prompt_eval_count"', "ollama"),
    (b'"stop_reason"', "anthropic"),
    (b'"incomplete_details"', "openai_responses"),
)


class Logged(msgspec.Struct, frozen=True, kw_only=True):
    request: bytes
    response: bytes
    wire: str
    id: str = ""
    provider: str = ""
    model: str = ""
    host: str = ""
    path: str = ""
    stream: bool = False
    began: float | None = None
    ended: float | None = None


def recognises(one: dict[str, Any]) -> bool:
    return _first(one, _REQUEST) is not None and _first(one, _RESPONSE) is not None


def status_of(one: dict[str, Any]) -> int:
    """How the call ended; where nobody says, well."""
    told = _first(one, _RESPONSE)
    places = [one, told if isinstance(told, dict) else {}]
    found = (_first(place, ("status", "status_code", "statusCode")) for place in places)
    return next((status for status in found if type(status) is int), 200)


def understood(one: dict[str, Any]) -> Logged:
    request, response = _first(one, _REQUEST), _first(one, _RESPONSE)
    if request is None or response is None:
        missing = "request" if request is None else "response"
        raise InvalidRequest(f"no {missing} in it", path=missing)
    asked = request if isinstance(request, dict) else {}
    url = urlsplit(str(_first(one, ("url", "uri")) or _first(asked, ("url", "uri")) or ""))
    body, answer = _bytes(_inner(request, _is_request)), _bytes(_inner(response, _is_answer))
    path = str(one.get("path") or url.path)
    began = seconds(_first(one, _BEGAN))
    stream = answer.lstrip()[:1] != b"{" and answer.lstrip()[:1] != b"["
    return Logged(
        request=body,
        response=answer,
        wire=_wire(str(one.get("wire") or ""), path, body, answer),
        id=str(one.get("id") or ""),
        provider=str(one.get("provider") or ""),
        model=str(one.get("model") or ""),
        host=str(one.get("host") or url.hostname or ""),
        path=path,
        stream=stream,
        began=began,
        ended=_ended(one, began),
    )


def _ended(one: dict[str, Any], began: float | None) -> float | None:
    ended = seconds(_first(one, _ENDED))
    if ended is not None or began is None:
        return ended
    for names, unit in ((_SECONDS, 1.0), (_MILLISECONDS, 1000.0)):
        lasted = _first(one, names)
        if isinstance(lasted, int | float) and lasted >= 0:
            return began + lasted / unit
    return None


def _wire(named: str, path: str, body: bytes, answer: bytes) -> str:
    if named in wire.WIRES:
        return named
    if named:
        raise InvalidRequest(f"no wire {named!r}; there are {', '.join(wire.WIRES)}", path="wire")
    for part, name in _PATHS:
        if part in path.lower():
            return name
    # Requests look alike, and dialects borrow words; answers do not.
    for sign, name in _SIGNS:
        if sign in answer:
            return name
    try:
        return detect(body)
    except InvalidRequest:
        hint = "log its path, or the wire's name as `wire`"
        raise InvalidRequest(f"which wire the request is for cannot be told: {hint}") from None


def _first(one: dict[str, Any], names: Iterable[str]) -> Any:
    return next((one[name] for name in names if one.get(name) is not None), None)


def _inner(logged: Any, is_body: Any) -> Any:
    """The body, when a logger wrapped it with its headers and address."""
    if isinstance(logged, dict) and not is_body(logged):
        inner = _first(logged, _BODY)
        if isinstance(inner, dict) and "text" in inner and not is_body(inner):
            inner = inner["text"]  # as in HTTP archives
        return logged if inner is None else inner
    return logged


def _is_request(body: dict[str, Any]) -> bool:
    return any(name in body for name in ("messages", "input", "contents"))


def _is_answer(body: dict[str, Any]) -> bool:
    return any(name in body for name in ("choices", "usage", "usageMetadata", "output", "error"))


def _bytes(body: Any) -> bytes:
    return body.encode() if isinstance(body, str) else msgspec.json.encode(body)
