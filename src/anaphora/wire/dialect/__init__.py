"""A wire as one provider implements it: the wire's codec with a few differences.

The differences are a row of `catalog/dialects.toml`. The codec knows nothing of them: parameters
are changed before it renders and after it parses, counts and errors after it reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from anaphora.catalog import Dialect, Profile
from anaphora.errors import Upstream
from anaphora.prompt import Call
from anaphora.rendered import Envelope, Plan, Rendered, Request
from anaphora.values import Message, Reply, Usage
from anaphora.wire.body_memory import SplitInput
from anaphora.wire.errors import with_retry_hints
from anaphora.wire.markers import marker_bytes
from anaphora.wire.reading import converts_errors, encode_members, object_members, request_error

from .replies import (
    DialectReader,
    DialectWriter,
    find_error,
    own_call,
    own_message,
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
    separate_unsupported,
    with_unsupported,
)


class DialectCodec:
    """One provider's variant of a wire; a `Wire` like any other."""

    def __init__(self, codec: Any, dialect: Dialect) -> None:
        self._codec = codec
        self.dialect = dialect
        markers = dialect.markers
        self._marking = {} if markers is None else {"markers": marker_bytes(markers)}

    def __repr__(self) -> str:
        return f"<{self.dialect.wire} of {self.dialect.provider}>"

    def render(self, call: Call, profile: Profile, previous: Rendered | None = None) -> Rendered:
        encoded = encode_params(call, self.dialect)
        last = previous.envelope if previous is not None else None
        own = last if last is not None and last.speaker is self.dialect else None
        if previous is not None and not _is_reusable(previous.envelope, own):
            previous = msgspec.structs.replace(previous, envelope=previous.envelope.plain)
        rendered: Rendered = self._codec.render(encoded.call, profile, previous, **self._marking)
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
        request: Request = self._codec.assemble(rendered, plan)
        return request

    @converts_errors(request_error)
    def parse(self, body: bytes, path: str = "") -> Call:
        body, unsupported = separate_unsupported(body, self.dialect)
        call = with_unsupported(self._codec.parse(body, path), self.dialect, unsupported)
        call = own_call(decode_params(call, self.dialect), self.dialect)
        markers = self.dialect.markers
        return decode_marks(call, self.dialect.wire, markers) if markers else call

    def split(
        self, body: SplitInput, headers: tuple[tuple[str, str], ...] = (), path: str = ""
    ) -> Rendered:
        more = {"markers": self.dialect.markers} if self.dialect.wire == "openai_chat" else {}
        rendered: Rendered = self._codec.split(body, headers, path, **more)
        if not self._marking:
            return rendered
        return msgspec.structs.replace(rendered, **self._marking, request_markers={})

    def _envelope(
        self, envelope: Envelope, encoded: EncodedParams, last: Envelope | None
    ) -> Envelope:
        """The provider's variant of the envelope; `last` where it is equal."""
        dialect = self.dialect
        plain = envelope if envelope.plain is None else envelope.plain
        headers = (*plain.headers, *dialect.headers.items(), *encoded.headers)
        cache_params = plain.cache_params
        if encoded.cache_params:
            cache_params = (*cache_params, *encoded.cache_params)
        made_from = (plain, headers, cache_params)
        if last is not None and (last.plain, last.headers, last.cache_params) == made_from:
            return last
        path = dialect.path.replace("{model}:{method}", plain.path.rpartition("/")[2])
        return msgspec.structs.replace(
            plain,
            path=path or plain.path,
            headers=headers,
            tail=_without(plain.tail, dialect.omitted) if dialect.omitted else plain.tail,
            cache_params=cache_params,
            plain=plain,
            speaker=dialect,
        )

    def _key_place(self, call: Call, rendered: Rendered) -> bytes | str | None:
        """Where this provider takes a cache key of the planner's."""
        if "cache.key" not in self.dialect.fields:
            return rendered.key_place
        place = self.dialect.place("cache.key")
        if place is None or call.ir.cache.key is not None or not place.header:
            return None
        return place.header

    def read_reply(self, body: bytes) -> Reply:
        return self.decode_reply(self._read_body(body))

    def _read_body(self, body: bytes) -> Reply:
        """The reply as the codec reads it; the provider's own form of an error is raised."""
        shape = self.dialect.errors
        if shape is not None and (error := find_error(body, shape)) is not None:
            raise error
        reply: Reply = self._codec.read_reply(body)
        return reply

    def write_reply(self, reply: Reply, created: float | None = None) -> bytes:
        counted = msgspec.structs.replace(reply, usage=self.encode_usage(reply.usage))
        written: bytes = self._codec.write_reply(counted, created)
        return written

    def reader(self) -> DialectReader:
        return DialectReader(self._codec.reader(self._read_body), self)

    def writer(self) -> DialectWriter:
        return DialectWriter(self._codec.writer(), self)

    def decode_reply(self, reply: Reply) -> Reply:
        """A reply of the codec with the provider's own counts, reasoning and stop reasons."""
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
        # The codec writes a raw object unchanged when it reads the same from it. What it would
        # have read where the row has another TTL is tried.
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
        own.request_id, own.retry_after, own.param = (
            error.request_id,
            error.retry_after,
            error.param,
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


def _without(tail: bytes, names: tuple[str, ...]) -> bytes:
    """The end of a body without some of its fields."""
    if not tail.startswith(b","):
        return tail
    members = object_members(b"{" + tail[1:], "$", request_error)
    rest = encode_members({n: raw for n, raw in members.items() if n not in names})
    return b"," + rest[1:] if len(rest) > 2 else b"}"
