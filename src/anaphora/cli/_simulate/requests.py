"""Request logs: a line for each call, with the bodies of the request and of its answer.

The names of the fields are whatever the logger chose: the usual ones are known. The request is cut
into blocks by the wire it is written for, markers and all; a request that goes on where an earlier
one ended belongs to its conversation.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import msgspec
from blake3 import blake3

from anaphora import catalog, wire
from anaphora.analysis.trace import Trace, TraceCall, TraceMessage, TraceUsage, provider_named
from anaphora.analysis.trace.sources import Entry, Line, Problem, Source, objects, orderly
from anaphora.errors import AnaphoraError, InvalidRequest
from anaphora.values import ReplyEnd, Usage

from .logged import Logged, recognises, status_of, understood
from .spoken import Spoken, blocks_of

__all__ = ["read", "recognises"]


class _Conversation:
    def __init__(
        self, place: str, id: str, spoken: Spoken, provider: str, model: str, wire: str
    ) -> None:
        self.place = place
        self.id = id
        self.provider = provider
        self.model = model
        self.wire = wire
        self.tools = spoken.tools
        self.tools_size = spoken.tools_size
        self.messages: list[TraceMessage] = []
        self.calls: list[TraceCall] = []

    def trace(self, group: str) -> Trace:
        return Trace(
            id=self.id,
            provider=self.provider,
            model=self.model,
            calls=tuple(self.calls),
            messages=tuple(self.messages),
            tools=self.tools,
            tools_size=self.tools_size,
            group=group,
            source="requests",
            wire=self.wire,
        )


class _Reader:
    """Puts each request behind the one that it goes on from."""

    def __init__(self) -> None:
        self.conversations: list[_Conversation] = []
        self._ends: dict[Hashable, _Conversation] = {}

    def add(self, place: str, logged: Logged) -> None:
        codec, provider = _codec(logged)
        rendered = codec.split(logged.request, path=logged.path)
        model = logged.model or rendered.model
        spoken = blocks_of(rendered)
        usage = _billed(_usage(codec, logged))
        keys = _keys(spoken, (provider, model, logged.wire))
        found = next((self._ends[key] for key in reversed(keys) if key in self._ends), None)
        if found is None:
            id = logged.id or place.rpartition(":")[2]
            found = _Conversation(place, id, spoken, provider, model, logged.wire)
            self.conversations.append(found)
        found.messages += spoken.messages[len(found.messages) :]
        call = TraceCall(
            messages=len(spoken.messages),
            t=logged.began,
            t_end=logged.ended,
            usage=usage,
            breakpoints=spoken.breakpoints,
        )
        for key in [key for key, one in self._ends.items() if one is found]:
            del self._ends[key]
        self._ends[keys[-1]] = found
        found.calls.append(call)


def read(lines: Iterator[Line]) -> Iterator[Entry]:
    reader = _Reader()
    file = ""
    for one in objects(lines):
        if isinstance(one, Problem):
            yield one
            continue
        place, fields = one
        file = file or place.rpartition(":")[0]
        try:
            if (status := status_of(fields)) >= 400:
                yield Problem(place, f"answered with {status}: not billed", harmless=True)
            else:
                reader.add(place, understood(fields))
        except (AnaphoraError, ValueError) as problem:
            yield Problem(place, str(problem))
    for conversation in reader.conversations:
        yield from orderly(Source(conversation.place, conversation.trace(file)))


def _codec(logged: Logged) -> tuple[wire.Wire, str]:
    """The wire as the provider speaks it, and whose models it has."""
    row = None
    provider = provider_named(logged.provider) if logged.provider else None
    if logged.host:
        row = catalog.dialects().at_host(logged.host, logged.wire, logged.path)
    elif provider is not None:
        try:
            row = catalog.dialects().find(provider, logged.wire)
        except InvalidRequest:
            row = None  # it is not known to speak this wire; its words may be the usual ones
    codec = wire.get(logged.wire) if row is None else wire.codec_for(row)
    usual = wire.PROVIDERS[logged.wire]
    return codec, provider or (row.provider if row is not None else usual)


def _usage(codec: wire.Wire, logged: Logged) -> Usage:
    if not logged.stream:
        return codec.read_reply(logged.response).usage
    reader = codec.reader()
    last = [*reader.feed(logged.response), *reader.close()][-1]
    if not isinstance(last, ReplyEnd):
        raise InvalidRequest("the stream ends in an error", path="response")
    return last.reply.usage


def _billed(usage: Usage) -> TraceUsage:
    if usage.uncached is None:
        raise InvalidRequest("the answer tells no usage", path="response")
    written = dict(usage.written or {})
    told = TraceUsage(
        input=usage.uncached,
        cache_read=usage.read or 0,
        cache_write_5m=written.pop("5m", 0) + written.pop("unsplit", 0),
        cache_write_30m=written.pop("30m", 0),
        cache_write_1h=written.pop("1h", 0),
        cache_write_12h=written.pop("12h", 0),
        output=usage.output,
    )
    # The struct checks what it reads, not what it is made of.
    return msgspec.convert(msgspec.to_builtins(told), TraceUsage)


def _keys(spoken: Spoken, place: tuple[str, str, str]) -> list[Hashable]:
    """The identities of the request's beginnings, the whole of it last."""
    last = blake3(msgspec.json.encode([place, spoken.tools])).digest(16)
    keys: list[Hashable] = []
    for message in spoken.messages:
        last = blake3(last + msgspec.json.encode(message)).digest(16)
        keys.append(last)
    return keys or [last]
