"""A wire as one provider speaks it: the wire's own codec with a few words changed.

What differs is a row of `catalog/dialects.toml`. The codec knows nothing of it: parameters are said
in other words before it renders and after it parses, counts and errors after it reads.
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
from anaphora.wire.errors import with_retry_hints
from anaphora.wire.fields import Fields
from anaphora.wire.reading import Members, converts_errors, request_error

from .answers import find_error, read_counts, read_stops, write_counts, write_error
from .aside import set_aside, take_along
from .marks import hear_marks, marker_bytes
from .reasoning import own_call, own_message
from .streams import SpokenReader, SpokenWriter
from .words import Said, hear, say


class Spoken:
    """One provider's way to speak a wire; a `Wire` like any other."""

    def __init__(self, codec: Any, dialect: Dialect) -> None:
        self._codec = codec
        self.dialect = dialect
        markers = dialect.markers
        self._marking = {} if markers is None else {"markers": marker_bytes(markers)}

    def __repr__(self) -> str:
        return f"<{self.dialect.wire} as {self.dialect.provider} speaks it>"

    # ── Requests ─────────────────────────────────────────────────────────────────────────────────

    def render(self, call: Call, profile: Profile, previous: Rendered | None = None) -> Rendered:
        said = say(call, self.dialect)
        last = previous.envelope if previous is not None else None
        own = last if last is not None and last.speaker is self.dialect else None
        if previous is not None and not _heard_alike(previous.envelope, own):
            previous = msgspec.structs.replace(previous, envelope=previous.envelope.plain)
        rendered: Rendered = self._codec.render(said.call, profile, previous, **self._marking)
        envelope = self._envelope(rendered.envelope, said, own)
        place = self._key_place(call, rendered)
        if envelope is rendered.envelope and place == rendered.key_place and not said.notices:
            return rendered
        return msgspec.structs.replace(
            rendered,
            key_place=place,
            envelope=envelope,
            notices=(*said.notices, *rendered.notices),
        )

    def assemble(self, rendered: Rendered, plan: Plan) -> Request:
        request: Request = self._codec.assemble(rendered, plan)
        return request

    @converts_errors(request_error)
    def parse(self, body: bytes, path: str = "") -> Call:
        body, aside = set_aside(body, self.dialect)
        call = take_along(self._codec.parse(body, path), self.dialect, aside)
        call = own_call(hear(call, self.dialect), self.dialect)
        markers = self.dialect.markers
        return hear_marks(call, self.dialect.wire, markers) if markers else call

    def split(
        self, body: bytes | Members, headers: tuple[tuple[str, str], ...] = (), path: str = ""
    ) -> Rendered:
        marking = self._marking if self.dialect.wire == "openai_chat" else {}
        rendered: Rendered = self._codec.split(body, headers, path, **marking)
        return rendered

    def _envelope(self, envelope: Envelope, said: Said, last: Envelope | None) -> Envelope:
        """The envelope in the provider's words; `last` while it says the same."""
        dialect = self.dialect
        plain = envelope if envelope.plain is None else envelope.plain
        headers = (*plain.headers, *dialect.headers.items(), *said.headers)
        cache_params = (
            (*plain.cache_params, *said.cache_params) if said.cache_params else plain.cache_params
        )
        if last is not None and (last.plain, last.headers, last.cache_params) == (
            plain,
            headers,
            cache_params,
        ):
            return last
        return msgspec.structs.replace(
            plain,
            path=dialect.path.replace("{model}:{method}", plain.path.rpartition("/")[2])
            or plain.path,
            headers=headers,
            tail=_without(plain.tail, dialect.unsaid) if dialect.unsaid else plain.tail,
            cache_params=cache_params,
            plain=plain,
            speaker=dialect,
        )

    def _key_place(self, call: Call, rendered: Rendered) -> bytes | str | None:
        """Where this provider takes a key of the planner's."""
        if "cache.key" not in self.dialect.fields:
            return rendered.key_place
        place = self.dialect.place("cache.key")
        if place is None or call.ir.cache.key is not None or not place.header:
            return None
        return place.header

    # ── Answers ──────────────────────────────────────────────────────────────────────────────────

    def read_reply(self, body: bytes) -> Reply:
        return self.heard(self._read_body(body))

    def _read_body(self, body: bytes) -> Reply:
        """The answer as the codec reads it; the provider's own form of an error is raised."""
        shape = self.dialect.errors
        if shape is not None and (error := find_error(body, shape)) is not None:
            raise error
        reply: Reply = self._codec.read_reply(body)
        return reply

    def write_reply(self, reply: Reply) -> bytes:
        counted = msgspec.structs.replace(reply, usage=self.counted(reply.usage))
        written: bytes = self._codec.write_reply(counted)
        return written

    def reader(self) -> SpokenReader:
        return SpokenReader(self._codec.reader(self._read_body), self)

    def writer(self) -> SpokenWriter:
        return SpokenWriter(self._codec.writer(), self)

    def heard(self, reply: Reply) -> Reply:
        """A reply as the provider meant it."""
        usage = read_counts(reply.usage, self.dialect.usage)
        message = own_message(reply.message, self.dialect)
        if usage is not reply.usage or message is not reply.message:
            reply = msgspec.structs.replace(reply, usage=usage, message=message)
        return read_stops(reply, self.dialect)

    def counted(self, usage: Usage) -> Usage:
        """Counts as the provider tells them."""
        shape = self.dialect.usage
        if shape is None or usage.input is None:
            return usage
        # The codec writes raw counts as they are when it reads the same in them; what it would
        # have read where the row says another lifetime is tried out.
        total = usage.written_total
        ways = [usage.written, *({ttl: total} for ttl in ("30m", "unsplit") if total)]
        for written in ways:
            said = self._as_read(msgspec.structs.replace(usage, written=written))
            if usage.raw is not None and said.raw == usage.raw:
                return said
        said = self._as_read(usage)
        return msgspec.structs.replace(said, raw=write_counts(said.raw or "{}", usage, shape))

    def _as_read(self, usage: Usage) -> Usage:
        """The counts as the codec reads them in what it writes of them."""
        blank = Reply(id="", model="", message=Message(role="assistant", parts=()), stop="end")
        body = self._codec.write_reply(msgspec.structs.replace(blank, usage=usage))
        read: Usage = self._codec.read_reply(body).usage
        return read

    # ── Errors ───────────────────────────────────────────────────────────────────────────────────

    def read_error(
        self, status: int, headers: Mapping[str, str], body: bytes, now: Any = None
    ) -> Upstream:
        error: Upstream = self._codec.read_error(status, headers, body, now)
        shape = self.dialect.errors
        told = find_error(body, shape, status) if shape is not None else None
        if told is None:
            return error
        told.request_id, told.retry_after, told.param = (
            error.request_id,
            error.retry_after,
            error.param,
        )
        return with_retry_hints(told, headers, now)

    def write_error(self, error: Upstream) -> tuple[int, dict[str, str], bytes]:
        status, headers, body = self._codec.write_error(error)
        shape = self.dialect.errors
        own = write_error(error, shape) if shape is not None else None
        if shape is None or own is None:
            return status, headers, body
        return shape.status or status, headers, own


def _heard_alike(envelope: Envelope, own: Envelope | None) -> bool:
    """Whether the codec may go on from an envelope. That is one of its own, or our words for it
    while they say nothing of the cache: nothing else of them is looked at."""
    plain = envelope.plain
    return plain is None or (envelope is own and envelope.cache_params is plain.cache_params)


def _without(tail: bytes, unsaid: tuple[str, ...]) -> bytes:
    """The end of a body without some of its fields."""
    if not tail.startswith(b","):
        return tail
    fields = Fields(b"{" + tail[1:], "$", request_error)
    for name in unsaid:
        fields.raw(name)
    rest = fields.rest()
    return (b"," + rest if rest else b"") + b"}"
