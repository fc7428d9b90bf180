"""Recorded exchanges held against the wires: is every request read and said again with the same
meaning, and every answer read without loss?"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import msgspec

from anaphora import catalog, errors, wire
from anaphora.errors import AnaphoraError, InvalidRequest, Parse, Upstream
from anaphora.rendered import Plan
from anaphora.values import Notice, ReplyEnd, ReplyFail
from anaphora.wire.reading import DECODE_ERRORS

from .meaning import Body, Normalisation, difference, normalise


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded request and its answer, both bodies as text."""

    id: str
    wire: str
    request: str
    response: str
    status: int = 200
    stream: bool = False
    host: str = ""
    path: str = ""
    source: str = ""
    content_type: str | None = None


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one exchange. An empty string means that nothing is wrong."""

    id: str
    wire: str
    unparsed: str = ""
    """Why the request could not be read, or said again."""
    changed: str = ""
    """The first place where the request said again means something else."""
    unreadable: str = ""
    """Why the answer could not be read."""
    lost: str = ""
    """The first place where the answer lost something."""
    overlooked: dict[str, int] = {}
    """How often each normalisation was needed."""
    notices: tuple[Notice, ...] = ()

    @property
    def good(self) -> bool:
        return not (self.unparsed or self.changed or self.unreadable or self.lost)


def check(exchange: Exchange) -> Outcome:
    """Reads both halves of an exchange, says them again, and compares."""
    unparsed = changed = ""
    overlooked: dict[str, int] = {}
    notices: tuple[Notice, ...] = ()
    try:
        changed, overlooked, notices = _request(exchange)
    except (AnaphoraError, *DECODE_ERRORS) as problem:
        unparsed = str(problem)
    unreadable = lost = ""
    try:
        lost = _answer(exchange)
    except (AnaphoraError, *DECODE_ERRORS) as problem:
        unreadable = str(problem)
    return Outcome(
        id=exchange.id,
        wire=exchange.wire,
        unparsed=unparsed,
        changed=changed,
        unreadable=unreadable,
        lost=lost,
        overlooked=overlooked,
        notices=notices,
    )


def _codec(exchange: Exchange) -> tuple[wire.Wire, str]:
    """The wire as the host speaks it, and whose models it has."""
    row = catalog.dialects().at_host(exchange.host, exchange.wire, exchange.path)
    if row is None:
        return wire.get(exchange.wire), wire.PROVIDERS[exchange.wire]
    return wire.speak(row), row.provider


def _request(exchange: Exchange) -> tuple[str, dict[str, int], tuple[Notice, ...]]:
    codec, provider = _codec(exchange)
    rules = _rules(exchange.wire, "REQUEST")
    call = codec.parse(exchange.request.encode(), exchange.path)
    profile = catalog.profile(provider, call.model)
    try:
        rendered = codec.render(call, profile)
    except InvalidRequest:
        if 400 <= exchange.status < 500:
            return "", {"what the provider refused is refused here, too": 1}, ()
        raise
    plan = Plan(marks=rendered.marks, automatic=rendered.automatic)
    again = msgspec.json.decode(codec.assemble(rendered, plan).body.join())
    before = msgspec.json.decode(exchange.request)
    rules = (_hosts_words(exchange), *rules)
    overlooked = normalise(before, rules, rendered.notices)
    normalise(again, rules, rendered.notices)
    return difference(before, again) or "", overlooked, rendered.notices


def _answer(exchange: Exchange) -> str:
    codec, _ = _codec(exchange)
    body = exchange.response.encode()
    if exchange.status >= 400:
        error = codec.read_error(exchange.status, {}, body)
        return "" if error.code or "without an error object" not in str(error) else "$.error"
    if exchange.stream:
        return _stream(codec, body)
    rules = _rules(exchange.wire, "REPLY")
    try:
        reply = codec.read_reply(body)
    except Upstream:
        return ""  # an error told with a good status is what there was to read
    before = msgspec.json.decode(body)
    again = msgspec.json.decode(codec.write_reply(reply))
    normalise(before, rules)
    normalise(again, rules)
    return difference(before, again) or ""


def _stream(codec: wire.Wire, body: bytes) -> str:
    """A stream is read, written and read again: both readings must agree."""
    reader = codec.reader()
    events = reader.feed(body) + reader.close()
    end = events[-1]
    if isinstance(end, ReplyFail):
        # An error the provider itself put into the stream is what there was to read.
        said_so = issubclass(getattr(errors, end.error, Parse), Upstream)
        return "" if said_so else f"{end.error}: {end.message}"
    assert isinstance(end, ReplyEnd)
    writer, second = codec.writer(), codec.reader()
    again = second.feed(b"".join(writer.write(event) for event in events)) + second.close()
    told = again[-1]
    if not isinstance(told, ReplyEnd):
        return "the stream written again cannot be read"
    one, two = end.reply, told.reply
    if one.message.parts != two.message.parts:
        return "content"
    if one.stop != two.stop and one.stop_raw is not None:
        return "stop reason"
    same = (one.usage.input, one.usage.output) == (two.usage.input, two.usage.output)
    return "" if same else "usage"


#: Parameters whose field on the Chat wire has another name than they have in a call.
_ON_CHAT = {"reasoning.effort": "reasoning_effort"}


def _hosts_words(exchange: Exchange) -> Normalisation:
    """What a client says to a Chat host in OpenAI's word is said again in the host's own."""
    row = catalog.dialects().at_host(exchange.host, exchange.wire, exchange.path)

    def move(body: Body) -> int:
        moved = 0
        if row is None or exchange.wire != "openai_chat":
            return moved
        for param in row.fields:
            place, name = row.place(param), _ON_CHAT.get(param, param)
            if place is None or not place.at or name == place.at or body.get(name) is None:
                continue
            *outer, last = place.at.split(".")
            inside = body
            for level in outer:
                inside = inside.setdefault(level, {})
            if last not in inside:
                value = body.pop(name)
                inside[last] = place.values.get(value, value) if isinstance(value, str) else value
                moved += 1
        return moved

    return Normalisation("a parameter in OpenAI's word is in the host's", move)


def _rules(name: str, which: str) -> tuple[Normalisation, ...]:
    rules: Any = getattr(import_module(f"anaphora.analysis.roundtrip.{name}"), which)
    return tuple(rules)
