"""The round-trip check: is every recorded request parsed and rendered with the same meaning, and
every reply read without loss?"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from anaphora import catalog, errors, wire
from anaphora.catalog import Dialect
from anaphora.errors import AnaphoraError, InvalidRequest, Parse, Upstream
from anaphora.rendered import Plan
from anaphora.values import Notice, ReplyEnd, ReplyFail
from anaphora.wire.reading import DECODE_ERRORS

from .normalise import difference, normalise
from .rules import RULES


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
    result = RoundTripResult(id=exchange.id, wire=exchange.wire)
    row = catalog.dialects().at_host(exchange.host, exchange.wire, exchange.path)
    codec = wire.get(exchange.wire) if row is None else wire.codec_for(row)
    try:
        result = _check_request(exchange, result, codec, row)
    except (AnaphoraError, *DECODE_ERRORS) as problem:
        result = replace(result, unparsed=str(problem))
    try:
        return replace(result, lost=_lost(exchange, codec))
    except (AnaphoraError, *DECODE_ERRORS) as problem:
        return replace(result, unreadable=str(problem))


def _check_request(
    exchange: RecordedExchange, result: RoundTripResult, codec: wire.Wire, row: Dialect | None
) -> RoundTripResult:
    call = codec.parse(exchange.request.encode(), exchange.path)
    provider = wire.PROVIDERS[exchange.wire] if row is None else row.provider
    try:
        rendered = codec.render(call, catalog.profile(provider, call.model))
    except InvalidRequest:
        if 400 <= exchange.status < 500:
            refused = "requests that the provider refused are refused here too"
            return replace(result, overlooked={refused: 1})
        raise
    plan = Plan(marks=rendered.marks, automatic=rendered.automatic)
    written = msgspec.json.decode(codec.assemble(rendered, plan).body.join())
    recorded = msgspec.json.decode(exchange.request)
    rules = RULES[exchange.wire].request
    if row is not None:
        rules = RULES[exchange.wire].for_dialect(row) | rules
    overlooked = normalise(recorded, rules, rendered.notices)
    normalise(written, rules, rendered.notices)
    changed = difference(recorded, written)
    return replace(result, changed=changed, overlooked=overlooked, notices=rendered.notices)


def _lost(exchange: RecordedExchange, codec: wire.Wire) -> str:
    """The first place where the reply lost something."""
    body = exchange.response.encode()
    if exchange.status >= 400:
        error = codec.read_error(exchange.status, {}, body)
        return "" if error.code or "without an error object" not in str(error) else "$.error"
    if exchange.stream:
        return _lost_in_stream(codec, body)
    try:
        reply = codec.read_reply(body)
    except Upstream:
        return ""  # an error with a success status was read
    recorded = msgspec.json.decode(body)
    written = msgspec.json.decode(codec.write_reply(reply))
    for decoded in (recorded, written):
        normalise(decoded, RULES[exchange.wire].reply)
    return difference(recorded, written)


def _lost_in_stream(codec: wire.Wire, body: bytes) -> str:
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
