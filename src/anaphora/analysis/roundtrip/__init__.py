"""The round-trip check: is every recorded request parsed and rendered with the same meaning, and
every reply read without loss?"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import msgspec

from anaphora import catalog, errors, wire
from anaphora.catalog import Dialect
from anaphora.errors import AnaphoraError, InvalidRequest, Parse, Upstream
from anaphora.rendered import Plan
from anaphora.values import Notice, ReplyEnd, ReplyFail
from anaphora.wire.reading import DECODE_ERRORS

from .normalise import difference, normalise


class RecordedExchange(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded request and its reply, both bodies as text."""

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


class RoundTripResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one exchange. An empty string means that nothing is wrong."""

    id: str
    wire: str
    unparsed: str = ""
    """Why the request could not be parsed or rendered."""
    changed: str = ""
    """The first place where the rendered request means something else."""
    unreadable: str = ""
    """Why the reply could not be read."""
    lost: str = ""
    """The first place where the reply lost something."""
    overlooked: dict[str, int] = {}
    """How often each normalisation was needed."""
    notices: tuple[Notice, ...] = ()

    @property
    def good(self) -> bool:
        return not (self.unparsed or self.changed or self.unreadable or self.lost)


def check(exchange: RecordedExchange) -> RoundTripResult:
    """Reads both halves of an exchange, writes them again, and compares."""
    unparsed = changed = ""
    overlooked: dict[str, int] = {}
    notices: tuple[Notice, ...] = ()
    try:
        changed, overlooked, notices = _request(exchange)
    except (AnaphoraError, *DECODE_ERRORS) as problem:
        unparsed = str(problem)
    unreadable = lost = ""
    try:
        lost = _reply(exchange)
    except (AnaphoraError, *DECODE_ERRORS) as problem:
        unreadable = str(problem)
    return RoundTripResult(
        id=exchange.id,
        wire=exchange.wire,
        unparsed=unparsed,
        changed=changed,
        unreadable=unreadable,
        lost=lost,
        overlooked=overlooked,
        notices=notices,
    )


def _codec(exchange: RecordedExchange) -> tuple[wire.Wire, str, Dialect | None]:
    """The wire in the host's dialect, the provider of its models, and the dialect."""
    row = catalog.dialects().at_host(exchange.host, exchange.wire, exchange.path)
    if row is None:
        return wire.get(exchange.wire), wire.PROVIDERS[exchange.wire], None
    return wire.codec_for(row), row.provider, row


def _request(exchange: RecordedExchange) -> tuple[str, dict[str, int], tuple[Notice, ...]]:
    codec, provider, row = _codec(exchange)
    call = codec.parse(exchange.request.encode(), exchange.path)
    profile = catalog.profile(provider, call.model)
    try:
        rendered = codec.render(call, profile)
    except InvalidRequest:
        if 400 <= exchange.status < 500:
            return "", {"requests that the provider refused are refused here too": 1}, ()
        raise
    plan = Plan(marks=rendered.marks, automatic=rendered.automatic)
    written = msgspec.json.decode(codec.assemble(rendered, plan).body.join())
    recorded = msgspec.json.decode(exchange.request)
    rules = _rules(exchange.wire).REQUEST
    if row is not None and hasattr(_rules(exchange.wire), "dialect_rule"):
        rules = (_rules(exchange.wire).dialect_rule(row), *rules)
    overlooked = normalise(recorded, rules, rendered.notices)
    normalise(written, rules, rendered.notices)
    return difference(recorded, written) or "", overlooked, rendered.notices


def _reply(exchange: RecordedExchange) -> str:
    codec, _, _ = _codec(exchange)
    body = exchange.response.encode()
    if exchange.status >= 400:
        error = codec.read_error(exchange.status, {}, body)
        return "" if error.code or "without an error object" not in str(error) else "$.error"
    if exchange.stream:
        return _stream(codec, body)
    rules = _rules(exchange.wire).REPLY
    try:
        reply = codec.read_reply(body)
    except Upstream:
        return ""  # an error with a success status was read
    recorded = msgspec.json.decode(body)
    written = msgspec.json.decode(codec.write_reply(reply))
    normalise(recorded, rules)
    normalise(written, rules)
    return difference(recorded, written) or ""


def _stream(codec: wire.Wire, body: bytes) -> str:
    """A stream is read, written and read again: both readings must agree."""
    reader = codec.reader()
    events = reader.feed(body) + reader.close()
    end = events[-1]
    if isinstance(end, ReplyFail):
        # An error that the provider itself sent in the stream was read.
        from_provider = issubclass(getattr(errors, end.error, Parse), Upstream)
        return "" if from_provider else f"{end.error}: {end.message}"
    assert isinstance(end, ReplyEnd)
    writer, second = codec.writer(), codec.reader()
    again = second.feed(b"".join(writer.write(event) for event in events)) + second.close()
    last = again[-1]
    if not isinstance(last, ReplyEnd):
        return "the written stream cannot be read"
    one, two = end.reply, last.reply
    if one.message.parts != two.message.parts:
        return "content"
    if one.stop_reason != two.stop_reason and one.stop_reason_raw is not None:
        return "stop reason"
    same = (one.usage.input, one.usage.output) == (two.usage.input, two.usage.output)
    return "" if same else "usage"


def _rules(name: str) -> Any:
    """The module with the wire's normalisations."""
    return import_module(f"anaphora.analysis.roundtrip.{name}")
