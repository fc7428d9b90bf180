"""A vendor's SDK as a test client: what it has to accept from us, and how it reads what we write."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from anaphora import catalog, wire
from anaphora.cache.plan import plan_once
from anaphora.errors import Upstream
from anaphora.prompt import Call, Params, PromptBlock, PromptIR, Segment
from anaphora.values import Bytes, Conversation, Message, Reply, SegmentRole
from anaphora.wire.replies import reply_events

Json = dict[str, Any]

PNG = Bytes(b"\x89PNG\r\n\x1a\n", "image/png")
PDF = Bytes(b"%PDF", "application/pdf")
SCHEMA = '{"type":"object","properties":{"q":{"type":"string"}},"required":["q"]}'
SYSTEM = (
    PromptBlock.cached_long("identity", "You are terse.", "base"),
    PromptBlock.plain("empty", ""),
    PromptBlock.cached_short("knowledge", "Facts."),
)
ALL_SEGMENTS = tuple(
    Segment.of(role, Message.user(role.value), Message.assistant("fine")) for role in SegmentRole
)
#: The call in `SdkCase.calls` that holds every part and every tool.
EVERYTHING = "every part, every tool"


@dataclass(frozen=True, kw_only=True)
class SdkCase:
    #: A wire or a dialect.
    name: str
    provider: str

    # ── Requests ──
    calls: Mapping[str, Call]
    #: Why a body does not fit the SDK's types; empty where it does.
    problems: Callable[[Json], list[str]]
    #: Changes to a body that its types must not accept: a field too many or a value out of range,
    #: at any depth.
    spoils: Sequence[Callable[[Any], object]]
    #: The call whose body is changed.
    spoiled: str = EVERYTHING

    # ── Replies ──
    replies: Mapping[str, Reply]
    #: Asks a server at an address for a reply, and for a stream.
    ask: Callable[[str], Any]
    ask_for_stream: Callable[[str], list[Any]]
    #: Compares what the SDK read with the reply.
    check_reply: Callable[[Any, Reply], None]
    check_stream: Callable[[list[Any], Reply], None]
    content_type: str = "text/event-stream"

    # ── Errors ──
    #: The code of an overload in a stream.
    overload_code: str | None = None
    #: The exception that such a stream raises; None where the SDK yields an event instead.
    stream_error: type[Exception] | None
    errors: Sequence[Upstream]
    #: Compares the SDK's exception with the error that was written.
    check_error: Callable[[Any, Upstream, int], None]
    #: The fields of an error that are read back from its bytes.
    error_fields: tuple[str, ...] = field(default=("param", "retry_after"))

    @property
    def codec(self) -> Any:
        return wire.get(self.name)

    def body(self, name: str) -> Json:
        call = self.calls[name]
        rendered = self.codec.render(call, catalog.profile(self.provider, call.model))
        rules = catalog.rules(self.provider, call.model)
        plan = plan_once(rendered, rules, reuse_expected=True)
        body: Json = json.loads(self.codec.assemble(rendered, plan).body.join())
        return body

    def stream(self, reply: Reply) -> bytes:
        writer = self.codec.writer()
        return b"".join(writer.write(event) for event in reply_events(reply))


def call_of(
    model: str, messages: Sequence[Message], *, system: Any = SYSTEM, tail: Any = (), **fields: Any
) -> Call:
    cache = fields.pop("cache", None)
    ir = PromptIR.chat(Conversation(messages), system=system, tail=tail, cache=cache)
    return Call(ir=ir, model=model, **fields)


def call_with(model: str, **params: Any) -> Call:
    """A short call with these parameters."""
    return call_of(model, [Message.user("u")], params=Params(**params))


def problems_of(validator: Any, body: Any) -> list[str]:
    return [
        f"{'.'.join(map(str, error.instance_path))}: {error.message[:300]}"
        for error in validator.iter_errors(body)
    ]
