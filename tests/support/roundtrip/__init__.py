"""The round-trip check: whether every recorded request keeps its meaning when parsed and rendered,
and every reply is read without loss.

Bodies are normalised, so that those with the same meaning are equal: an `Edit` changes the objects
at a path. A path is field names joined by dots, `[]` for every item of a list and `[0]` for its
first; `|` separates alternatives: `system[]|messages[].content[]`. The equivalent forms of each
wire, and the check that uses them, are in `rules`.
"""

from __future__ import annotations

import base64
import copy
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

import msgspec
from msgspec import structs

from anaphora import catalog, errors, wire
from anaphora.catalog import Dialect
from anaphora.errors import AnaphoraError, InvalidRequest, Parse, Upstream
from anaphora.rendered import Plan
from anaphora.values import Notice, ReplyEnd, ReplyFail
from anaphora.wire.dialect.addresses import names_model
from anaphora.wire.errors import NO_ERROR_OBJECT
from anaphora.wire.reading import DECODE_ERRORS

Body: TypeAlias = dict[str, Any]


class Edit(NamedTuple):
    """A change, made in place to every object at a path."""

    where: str
    change: Callable[[Body], object]
    notice: str = ""
    """Applied only if rendering gave a notice with this code."""

    def when(self, wanted: Callable[[Body], bool]) -> Edit:
        """The same edit, for some of the objects only."""
        return self._replace(change=lambda holder: wanted(holder) and self.change(holder))


Rules: TypeAlias = dict[str, list[Edit]]
"""Equivalences, and the edits that convert one form into the other."""


def normalise(body: Body, rules: Rules, notices: Iterable[Notice] = ()) -> dict[str, int]:
    """Changes the body in place; returns how many objects each rule has changed."""
    codes = {"", *(notice.code for notice in notices)}
    changed: Counter[str] = Counter()
    for name, edits in rules.items():
        for edit in edits:
            for holder in objects_at(body, edit.where) if edit.notice in codes else ():
                before = msgspec.json.encode(holder, order="sorted")
                edit.change(holder)
                changed[name] += before != msgspec.json.encode(holder, order="sorted")
    return {name: count for name, count in changed.items() if count}


def objects_at(body: Body, where: str) -> list[Body]:
    """The objects at a path; the body itself for an empty one."""
    return [found for path in where.split("|") for found in _objects(body, path)]


def _objects(body: Body, path: str) -> list[Body]:
    found = [body]
    for step in path.split(".") if path else ():
        name, bracket, index = step.partition("[")
        values = [holder.get(name) for holder in found]
        if bracket:
            end = 1 if index == "0]" else None
            values = [item for value in values if isinstance(value, list) for item in value[:end]]
        found = [value for value in values if isinstance(value, dict)]
    return found


def drop(where: str, **defaults: Any) -> Edit:
    """Drops fields that have their default value."""

    def change(holder: Body) -> None:
        for name, default in defaults.items():
            value = holder.get(name, change)
            if value == default and type(value) is type(default):
                del holder[name]

    return Edit(where, change)


def fill(where: str, **values: Any) -> Edit:

    def change(holder: Body) -> None:
        for name in values.keys() - holder.keys():
            holder[name] = copy.deepcopy(values[name])

    return Edit(where, change)


def remove(where: str, name: str) -> Edit:
    return Edit(where, lambda holder: holder.pop(name, None))


def replace(where: str, name: str, function: Callable[[Any], Any]) -> Edit:
    """Replaces the value of a field that is present."""

    def change(holder: Body) -> None:
        if name in holder:
            holder[name] = function(holder[name])

    return Edit(where, change)


def keep(where: str, name: str, wanted: Callable[[Any], bool]) -> Edit:
    """Drops the items of a list for which `wanted` is false."""
    return replace(
        where, name, lambda items: list(filter(wanted, items)) if isinstance(items, list) else items
    )


def drop_nulls(*opaque: str) -> Edit:
    """Drops fields that are null, except inside of `opaque` ones."""

    def change(value: Any) -> None:
        if isinstance(value, dict):
            for name in [name for name, item in value.items() if item is None]:
                del value[name]
            value = [item for name, item in value.items() if name not in opaque]
        if isinstance(value, list):
            for item in value:
                change(item)

    return Edit("", change)


# ── Shared by the rules of several wires ─────────────────────────────────────────────────────────

NULLS = "null means the same as a missing field"
DEFAULTS = "a field with its default value is left out"
UNFINISHED = "reasoning that nothing follows is refused, so it is left out with a notice"
NO_PARAMETERS = "a function without parameters has an empty object of them"
EMPTY_SCHEMA: Body = {"properties": {}, "type": "object"}


def has_text(block: Body) -> bool:
    """False for a text block that is blank."""
    return block.get("type") != "text" or bool(block["text"].strip())


def text_as_list(where: str, name: str) -> Edit:
    """Makes a text a list with one text block."""
    return replace(
        where,
        name,
        lambda text: [{"type": "text", "text": text}] if isinstance(text, str) else text,
    )


def has_field(name: str) -> Callable[[Body], bool]:
    return lambda holder: name in holder


def difference(one: Any, two: Any, path: str = "$") -> str:
    """The path to the first place where two decoded bodies differ; empty if they agree."""
    if isinstance(one, dict) and isinstance(two, dict):
        for name in sorted({*one, *two}):
            here = f"{path}.{name}"
            if name not in one or name not in two:
                return here
            if found := difference(one[name], two[name], here):
                return found
        return ""
    if isinstance(one, list) and isinstance(two, list):
        for index, (mine, other) in enumerate(zip(one, two, strict=False)):
            if found := difference(mine, other, f"{path}[{index}]"):
                return found
        return "" if len(one) == len(two) else f"{path}[{min(len(one), len(two))}]"
    return "" if one == two else path


class WireRules(NamedTuple):
    wire: str
    request: Rules
    reply: Rules
    for_dialect: Callable[[Dialect], Rules] = lambda _: {}


# ── The check ────────────────────────────────────────────────────────────────────────────────────


class RecordedExchange(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded request and its reply, both bodies as text."""

    id: str
    wire: str
    request: str
    response: str | None = None
    response_base64: str = ""
    """The response, if it is not a text: a binary event stream."""
    response_headers: dict[str, str] | None = None
    status: int = 200
    stream: bool = False
    host: str = ""
    path: str = ""
    source: str = ""
    content_type: str | None = None

    @property
    def wire_name(self) -> str:
        """The wire, as it is called here."""
        return _NAMES.get(self.wire, self.wire)

    @property
    def body(self) -> bytes:
        """The response's."""
        if self.response_base64:
            return base64.b64decode(self.response_base64)
        return (self.response or "").encode()


#: Names of wires in recordings.
_NAMES = {"bedrock_converse": "bedrock"}


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


def check_exchange(exchange: RecordedExchange, rules: WireRules) -> RoundTripResult:
    """Reads both halves of an exchange, writes them again, and compares."""
    result = RoundTripResult(id=exchange.id, wire=exchange.wire)
    name = exchange.wire_name
    row = catalog.dialects().at_host(exchange.host, name, exchange.path)
    codec, provider, edits = wire.get(name), wire.PROVIDERS[name], rules.request
    if row is not None:
        codec, provider = wire.codec_for(row), row.provider
        edits = rules.for_dialect(row) | edits
        if names_model(row):
            edits = {"the path names the model": [remove("", "model")]} | edits
    try:
        result = _check_request(exchange, result, edits, codec, provider)
    except (AnaphoraError, *DECODE_ERRORS) as problem:
        result = structs.replace(result, unparsed=str(problem))
    try:
        return structs.replace(result, lost=_lost(exchange, rules, codec))
    except (AnaphoraError, *DECODE_ERRORS) as problem:
        return structs.replace(result, unreadable=str(problem))


def _check_request(
    exchange: RecordedExchange,
    result: RoundTripResult,
    edits: Rules,
    codec: wire.Wire,
    provider: str,
) -> RoundTripResult:
    try:
        call = codec.parse(exchange.request.encode(), exchange.path)
        rendered = codec.render(call, catalog.profile(provider, call.model))
    except InvalidRequest:
        if 400 <= exchange.status < 500:
            refused = "requests that the provider refused are refused here too"
            return structs.replace(result, overlooked={refused: 1})
        raise
    plan = Plan(marks=rendered.marks, automatic=rendered.automatic)
    written = msgspec.json.decode(codec.assemble(rendered, plan).body.join())
    recorded = msgspec.json.decode(exchange.request)
    overlooked = normalise(recorded, edits, rendered.notices)
    normalise(written, edits, rendered.notices)
    changed = difference(recorded, written)
    return structs.replace(result, changed=changed, overlooked=overlooked, notices=rendered.notices)


def _lost(exchange: RecordedExchange, rules: WireRules, codec: wire.Wire) -> str:
    """The first place where the reply lost something."""
    body = exchange.body
    if exchange.status >= 400:
        error = codec.read_error(exchange.status, exchange.response_headers or {}, body)
        return "" if error.code or NO_ERROR_OBJECT not in str(error) else "$.error"
    if exchange.stream:
        return _lost_in_stream(codec, body)
    try:
        reply = codec.read_reply(body)
    except Upstream:
        return ""  # an error with a success status was read
    recorded = msgspec.json.decode(body)
    written = msgspec.json.decode(codec.write_reply(reply))
    for decoded in (recorded, written):
        normalise(decoded, rules.reply)
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
