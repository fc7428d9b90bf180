"""One provider's variant of a wire: the wire's codec with a few differences in requests, and the
provider's own counts, stop reasons, errors and streams in replies.

The differences are a row of `catalog/dialects.toml`. The codec does not know them: parameters are
changed before it renders and after it parses, counts and errors after it reads.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import msgspec

from anaphora import catalog
from anaphora.catalog import Dialect, Profile
from anaphora.errors import Upstream
from anaphora.prompt import Call
from anaphora.rendered import Envelope, Plan, Prelude, Rendered, Request
from anaphora.values import Message, Reply, Usage
from anaphora.wire.errors import with_retry_hints
from anaphora.wire.markers import marker_bytes
from anaphora.wire.reading import converts_errors, request_error

from .addresses import (
    body_from_path,
    changed_head,
    changed_tail,
    path_for,
)
from .replies import (
    DialectReader,
    DialectWriter,
    find_error,
    read_counts,
    read_stops,
    write_counts,
    write_error,
)
from .requests import (
    EncodedParams,
    decode_marks,
    decode_params,
    encode_params,
    own_call,
    own_message,
    separate_unsupported,
    with_unsupported,
)
from .routers import with_host, without_reply_fields

#: Wires that render the system prompt before the tools.
_SYSTEM_FIRST = ("openai_chat", "openai_responses")


def _hashes_tools_first(provider: str, model: str, wire: str) -> bool:
    """Whether a model without markers hashes tools before the system prompt."""
    if provider not in catalog.shipped().entries:
        return False
    rules = catalog.rules(provider, model, wire)
    order = rules.hash_order.value
    return not rules.slots.value and order.index("tools") < order.index("system")


def _swapped(rendered: Rendered, *sections: str) -> Rendered:
    """The prompt with its first two runs swapped, if they are of these sections."""
    runs, count = rendered.runs, rendered.cacheable
    if tuple(run.section for run in runs[:2]) != sections:
        return rendered
    one, two, *rest = runs
    if count < one.count:  # the first one changes from turn to turn
        count += two.count
    elif count < one.count + two.count:
        count -= one.count
    before = rendered.body_order or range(len(runs))
    order = [{0: 1, 1: 0}.get(index, index) for index in before]
    return msgspec.structs.replace(
        rendered,
        runs=(two, one, *rest),
        cacheable=count,
        body_order=None if order == list(range(len(runs))) else tuple(order),
    )


class DialectCodec:
    """One provider's variant of a wire; a `Wire` like any other."""

    def __init__(self, codec: Any, dialect: Dialect) -> None:
        self._codec = codec
        self.dialect = dialect
        self._hashes_tools_first = functools.lru_cache(maxsize=1024)(_hashes_tools_first)
        markers = dialect.markers
        self._marking = {} if markers is None else {"markers": marker_bytes(markers)}

    @property
    def provider(self) -> str:
        return self.dialect.provider

    def __repr__(self) -> str:
        return f"<{self.dialect.wire} of {self.dialect.provider}>"

    def render(self, call: Call, profile: Profile, previous: Rendered | None = None) -> Rendered:
        encoded = encode_params(call, self.dialect)
        last = previous.envelope if previous is not None else None
        own = last if last is not None and last.speaker is self.dialect else None
        changes = self.dialect.omitted or self.dialect.constants
        if previous is not None and (
            changes or self.dialect.envelope or not _is_reusable(previous.envelope, own)
        ):
            plain = previous.envelope.plain or previous.envelope
            previous = msgspec.structs.replace(previous, envelope=plain)
        marking, breakpoints = self._marking, profile.explicit_breakpoints
        if self.dialect.markers and breakpoints is not None and breakpoints.value:
            marking = {}  # a model of OpenAI's takes OpenAI's markers
        rendered: Rendered = self._codec.render(
            encoded.call, profile, self._in_wire_order(previous), **marking
        )
        rendered = self._in_hash_order(rendered)
        envelope = self._envelope(rendered.envelope, encoded, own)
        place = self._key_place(call, rendered)
        if envelope is rendered.envelope and place == rendered.key_place and not encoded.notices:
            return rendered
        return msgspec.structs.replace(
            rendered,
            key_place=place,
            envelope=envelope,
            notices=(*encoded.notices, *rendered.notices),
        )

    def assemble(self, rendered: Rendered, plan: Plan) -> Request:
        if plan.host and self.dialect.router is not None:
            rendered = with_host(rendered, plan.host, self.dialect.router) or rendered
        request: Request = self._codec.assemble(rendered, plan)
        return request

    def prelude(self, rendered: Rendered, wanted: Prelude) -> Request:
        """A request for a cache handle; its path is below the account's own collection."""
        request: Request = self._codec.prelude(rendered, wanted)
        path = "/" + request.path.removeprefix("/v1beta/") if self.dialect.path else request.path
        return msgspec.structs.replace(request, path=path)

    def read_held(self, body: bytes) -> Any:
        return self._codec.read_held(body)

    @converts_errors(request_error)
    def parse(self, body: bytes, path: str = "", first: int = 0) -> Call:
        body = body_from_path(body, self.dialect, path)
        body, unsupported = separate_unsupported(body, self.dialect)
        call = self._codec.parse(body, path, first)
        return self.adopt(with_unsupported(call, self.dialect, unsupported))

    def adopt(self, call: Call) -> Call:
        """A call of this provider, which the wire's own codec read."""
        call = own_call(decode_params(call, self.dialect), self.dialect)
        markers = self.dialect.markers
        return decode_marks(call, self.dialect.wire, markers) if markers else call

    def _in_hash_order(self, rendered: Rendered) -> Rendered:
        """The prompt with tools before the system prompt, if the provider hashes them first.
        Requests with markers are not changed."""
        if rendered.marks or not self._tools_first(rendered.model):
            return rendered
        return _swapped(rendered, "system", "tools")

    def _in_wire_order(self, rendered: Rendered | None) -> Rendered | None:
        """An earlier turn in the order in which the wire itself renders."""
        if rendered is None or not self._tools_first(rendered.model):
            return rendered
        return _swapped(rendered, "tools", "system")

    def _tools_first(self, model: str) -> bool:
        wire = self.dialect.wire
        return wire in _SYSTEM_FIRST and self._hashes_tools_first(
            self.dialect.provider, model, wire
        )

    def _envelope(
        self, envelope: Envelope, encoded: EncodedParams, last: Envelope | None
    ) -> Envelope:
        """The provider's variant of the envelope; `last` if it is equal."""
        dialect = self.dialect
        plain = envelope if envelope.plain is None else envelope.plain
        headers = (*plain.headers, *dialect.headers.items(), *encoded.headers)
        cache_params = plain.cache_params
        if encoded.cache_params:
            cache_params = (*cache_params, *encoded.cache_params)
        made_from = (plain, headers, cache_params)
        if last is not None and (last.plain, last.headers, last.cache_params) == made_from:
            return last
        call = encoded.call
        return msgspec.structs.replace(
            plain,
            path=path_for(dialect, plain.path, call.model, stream=call.params.stream),
            headers=headers,
            head=changed_head(plain, dialect),
            tail=changed_tail(plain, dialect),
            cache_params=cache_params,
            plain=plain,
            speaker=dialect,
        )

    def _key_place(self, call: Call, rendered: Rendered) -> bytes | str | None:
        """The place of the planner's cache key in this provider's requests."""
        if "cache.key" not in self.dialect.fields:
            return rendered.key_place
        place = self.dialect.place("cache.key")
        if place is None or call.ir.cache.key is not None or not place.header:
            return None
        return place.header

    def read_reply(self, body: bytes) -> Reply:
        return self.decode_reply(self._read_body(body))

    def _read_body(self, body: bytes) -> Reply:
        """The reply as read by the codec. Raises an error in the provider's own form."""
        shape = self.dialect.errors
        if shape is not None and (error := find_error(body, shape)) is not None:
            raise error
        reply: Reply = self._codec.read_reply(body)
        return reply

    def write_reply(self, reply: Reply, created: float | None = None) -> bytes:
        counted = msgspec.structs.replace(reply, usage=self.encode_usage(reply.usage))
        written: bytes = self._codec.write_reply(counted, created)
        return written

    def reader(self, path: str = "") -> DialectReader:
        inner = self._codec.reader(path, self._read_body)
        if self.dialect.reply_fields:
            inner.reply_fields = self.dialect.reply_fields
        return DialectReader(inner, self.dialect, self.decode_reply)

    def writer(self) -> Any:
        """The wire's stream writer, with what differs at the provider."""
        inner = self._codec.writer()
        if self.dialect.usage is None and not self.dialect.whole_calls:
            return inner
        return DialectWriter(inner, self.dialect, self.encode_usage)

    def decode_reply(self, reply: Reply) -> Reply:
        """A reply of the codec with the provider's own counts, reasoning and stop reasons."""
        if self.dialect.reply_fields:
            reply = without_reply_fields(reply, self.dialect)
        usage = read_counts(reply.usage, self.dialect.usage)
        message = own_message(reply.message, self.dialect)
        if usage is not reply.usage or message is not reply.message:
            reply = msgspec.structs.replace(reply, usage=usage, message=message)
        return read_stops(reply, self.dialect)

    def encode_usage(self, usage: Usage) -> Usage:
        """Counts with the provider's usage object."""
        shape = self.dialect.usage
        if shape is None or usage.input is None:
            return usage
        # The codec writes a raw object unchanged if it reads the same counts from it. So the counts
        # are also tried with the codec's own TTL, which the row may replace.
        total = usage.written_total
        ways = [usage.written, *({ttl: total} for ttl in ("30m", "unsplit") if total)]
        for written in ways:
            encoded = self._as_read(msgspec.structs.replace(usage, written=written))
            if usage.raw is not None and encoded.raw == usage.raw:
                return encoded
        encoded = self._as_read(usage)
        return msgspec.structs.replace(encoded, raw=write_counts(encoded.raw or "{}", usage, shape))

    def _as_read(self, usage: Usage) -> Usage:
        """The counts as the codec reads them from the reply it writes."""
        blank = Reply(
            id="", model="", message=Message(role="assistant", parts=()), stop_reason="end"
        )
        body = self._codec.write_reply(msgspec.structs.replace(blank, usage=usage))
        read: Usage = self._codec.read_reply(body).usage
        return read

    def read_error(
        self, status: int, headers: Mapping[str, str], body: bytes, now: Any = None
    ) -> Upstream:
        error: Upstream = self._codec.read_error(status, headers, body, now)
        shape = self.dialect.errors
        own = find_error(body, shape, status) if shape is not None else None
        if own is None:
            return error
        own.request_id, own.retry_after, own.param, own.details = (
            error.request_id,
            error.retry_after,
            error.param,
            error.details,
        )
        return with_retry_hints(own, headers, now)

    def write_error(self, error: Upstream) -> tuple[int, dict[str, str], bytes]:
        status, headers, body = self._codec.write_error(error)
        shape = self.dialect.errors
        own = write_error(error, shape) if shape is not None else None
        if shape is None or own is None:
            return status, headers, body
        return shape.status or status, headers, own


def _is_reusable(envelope: Envelope, own: Envelope | None) -> bool:
    """Whether the codec may continue from an envelope: its own, or this dialect's variant of it
    with the same cache parameters."""
    plain = envelope.plain
    return plain is None or (envelope is own and envelope.cache_params is plain.cache_params)
