"""Exchanges that are no calls of a wire: counts of tokens, cached contents, and bodies of
InvokeModel that pass through unread."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import structs

from anaphora import catalog, wire
from anaphora.errors import AnaphoraError
from anaphora.wire.counting import count_request
from anaphora.wire.cutting import cut
from anaphora.wire.eventstream import FrameDecoder
from anaphora.wire.gemini import read_held
from anaphora.wire.reading import (
    DECODE_ERRORS,
    Members,
    encode_members,
    object_members,
    request_error,
)

from . import RecordedExchange, RoundTripResult, WireRules, check_exchange, difference

_UNREAD = "bodies of other makers pass through unread"


def check_other(exchange: RecordedExchange, rules: dict[str, WireRules]) -> RoundTripResult | None:
    """The result of an exchange that is no call; None if it is one, or of an unknown kind."""
    check = _CHECKS.get(exchange.wire)
    if check is None and _is_completion(exchange):
        check = _unread
    if check is None:
        return None
    try:
        return check(exchange, rules)
    except (AnaphoraError, *DECODE_ERRORS) as problem:
        return RoundTripResult(id=exchange.id, wire=exchange.wire, unparsed=str(problem))


def _is_completion(exchange: RecordedExchange) -> bool:
    """Whether it is of Anthropic's Text Completions, which came before Messages."""
    try:
        members = msgspec.json.decode(exchange.request, type=Members)
    except DECODE_ERRORS:
        return False
    return "max_tokens_to_sample" in members


def _unread(exchange: RecordedExchange, _: object) -> RoundTripResult:
    unreadable = ""
    if exchange.status >= 400:
        headers = exchange.response_headers or {}
        wire.get("bedrock").read_error(exchange.status, headers, exchange.body)
    elif exchange.stream:
        frames = FrameDecoder()
        frames.feed(exchange.body)
        unreadable = "" if frames.complete and frames.problem is None else "the frames are broken"
    else:
        msgspec.json.decode(exchange.body)
    return RoundTripResult(
        id=exchange.id, wire=exchange.wire, unreadable=unreadable, overlooked={_UNREAD: 1}
    )


def _count_at_bedrock(exchange: RecordedExchange, rules: dict[str, WireRules]) -> RoundTripResult:
    asked = msgspec.json.decode(exchange.request)["input"]["converse"]
    path = exchange.path.replace("/count-tokens", "/converse")
    return _counted(exchange, rules["bedrock"], "bedrock_converse", path, asked)


def _count_at_google(exchange: RecordedExchange, rules: dict[str, WireRules]) -> RoundTripResult:
    asked = msgspec.json.decode(exchange.request)
    path = exchange.path.replace(":countTokens", ":generateContent")
    return _counted(exchange, rules["gemini"], "gemini", path, asked)


def _counted(
    exchange: RecordedExchange, rules: WireRules, name: str, path: str, asked: object
) -> RoundTripResult:
    """The call that is counted keeps its meaning, and is counted by the recorded request."""
    call = msgspec.json.encode(asked)
    found = check_exchange(
        structs.replace(exchange, wire=name, request=call.decode(), path=path), rules
    )
    row = catalog.dialects().at_host(exchange.host, rules.wire, path)
    model = cut(wire.get(rules.wire), call, path).model
    made = count_request(rules.wire, row, model, path, call)
    changed = found.changed
    if made is None or not exchange.path.endswith(made.path):
        changed = changed or "path"
    else:
        recorded = msgspec.json.decode(exchange.request)
        changed = changed or difference(recorded, msgspec.json.decode(made.body))
    answer = msgspec.json.decode(exchange.body)
    lost = "" if {"inputTokens", "totalTokens"} & answer.keys() else "$.inputTokens"
    return structs.replace(
        found,
        wire=exchange.wire,
        changed=changed,
        lost=lost,
        unreadable="",
        unparsed=found.unparsed,
    )


def _cached_content(exchange: RecordedExchange, rules: dict[str, WireRules]) -> RoundTripResult:
    """What is cached keeps its meaning as a call, and the answer names its handle."""
    own = ("model", "ttl", "expireTime", "displayName")
    members = object_members(exchange.request.encode(), "$", request_error)
    held = {name: raw for name, raw in members.items() if name not in own}
    path = "/v1beta/models/gemini-2.5-flash:generateContent"
    request = encode_members(held).decode()
    call = structs.replace(exchange, wire="gemini", request=request, path=path, host="")
    found = check_exchange(call, rules["gemini"])
    handle = read_held(exchange.body)
    lost = "" if handle.handle else "$.name"
    return structs.replace(found, wire=exchange.wire, lost=lost, unreadable="")


_CHECKS: dict[str, Callable[[RecordedExchange, dict[str, WireRules]], RoundTripResult]] = {
    "bedrock_invoke_other": _unread,
    "bedrock_count_tokens": _count_at_bedrock,
    "gemini_count_tokens": _count_at_google,
    "gemini_cached_contents": _cached_content,
}
#: The names of these exchanges in recordings.
OTHER = frozenset(_CHECKS)
