"""What the laws need to know about a wire, and the calls and renderings that they compare."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from support import strategies as some

from anaphora import catalog, wire
from anaphora.cache.plan import plan_once
from anaphora.catalog import Profile
from anaphora.prompt import Call, Params
from anaphora.rendered import Plan, Rendered
from anaphora.values import Conversation, Message, Part, Reply, Ttl, Usage
from anaphora.wire.cutting import cut
from anaphora.wire.replies import reply_events

Json = dict[str, Any]
#: A role and its parts, as a wire can express them.
Projected = tuple[str, list[Any]]


def no_check(body: Json) -> None:
    """Nothing to check beyond what holds for every wire."""


def every_form(stream: bytes) -> st.SearchStrategy[bytes]:
    """A server-sent stream with any line ending, with and without a byte order mark."""
    return st.builds(
        lambda mark, ending: mark + stream.replace(b"\n", ending),
        st.sampled_from([b"", b"\xef\xbb\xbf"]),
        st.sampled_from([b"\n", b"\r\n", b"\r"]),
    )


@dataclass(frozen=True, kw_only=True)
class WireCase:
    name: str
    provider: str
    models: tuple[str, ...]
    #: Conversations, with the parts that only this wire has.
    turns: st.SearchStrategy[list[list[Message]]]

    # ── Markers ──
    #: The bytes of each marker by TTL, longest first; empty where the wire has none.
    markers: Mapping[Ttl, bytes] = field(default_factory=dict)
    #: The models that take markers.
    marked_models: tuple[str, ...] = ()
    #: Every marker of a body with the block that carries it, in hash order.
    find_markers: Callable[[Json], list[tuple[Json, Json]]] = lambda body: []
    #: What must hold for a block with a marker.
    check_marked: Callable[[Json], None] = no_check
    #: What must hold for every body, marked or not.
    check_body: Callable[[Json], None] = no_check

    # ── Requests read back ──
    path: str | None = None
    #: Parameters that the wire can express.
    params: st.SearchStrategy[Params]
    #: The messages of a call as the wire can express them, and the messages of a parsed call in the
    #: same form.
    project: Callable[[Call], list[Projected]]
    read_back: Callable[[Sequence[Message]], list[Projected]]
    #: Whether tools keep `strict`.
    strict_tools: bool = True
    #: Whether a chunk's path is that of one JSON object; where not, the path names a part that is
    #: encoded together with others.
    exact_paths: bool = False
    #: Whether a split request assembles to the same bytes; where not, fields around the messages
    #: move behind them.
    split_keeps_bytes: bool = True
    #: Whether a model's system blocks stay apart; where not, they are one text.
    separate_blocks: Callable[[str], bool] = lambda model: True
    #: Whether such a text loses the white space around it.
    strips_system: bool = False

    # ── Replies ──
    replies: st.SearchStrategy[Reply]
    #: What of a reply is the same in a stream and in a single reply.
    alike: Callable[[Reply], Any] = lambda reply: reply
    #: What of a written reply has to be read back.
    check_reply: Callable[[Reply, Reply], None]
    #: A reply's usage object with the counts that have to be read from it.
    usages: st.SearchStrategy[tuple[Json, Usage]]
    #: A reply with this usage object.
    reply_with_usage: Callable[[Json], Json]
    #: The forms in which a stream may arrive.
    stream_forms: Callable[[bytes], st.SearchStrategy[bytes]] = every_form

    # ── Arbitrary input ──
    #: JSON values with this wire's field names.
    values: st.SearchStrategy[Any]
    #: Where such a value may stand: as a whole, or inside a request, reply or stream.
    request_templates: tuple[bytes, ...] = (b"%b",)
    reply_templates: tuple[bytes, ...] = (b"%b",)
    stream_templates: tuple[bytes, ...] = (b"data: %b\n\n",)
    #: A filled template as a piece of a stream.
    framed: Callable[[bytes], bytes] = lambda data: data
    #: The profile that the laws render by: without refusals, which have tests of their own.
    relaxed: Callable[[Profile], Profile] = lambda profile: profile

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(self.label)  # all that a failed example should show

    @property
    def label(self) -> str:
        return self.name if self.path is None else f"{self.name} {self.models[0]}"

    @property
    def codec(self) -> Any:
        return wire.get(self.name)

    def frames(self) -> st.SearchStrategy[some.Frame]:
        return some.frames(self.models)

    def render(self, call: Call, previous: Rendered | None = None) -> Rendered:
        """A rendering; a warm one equals a cold one."""
        profile = self.relaxed(catalog.profile(self.provider, call.model))
        rendered: Rendered = self.codec.render(call, profile, previous)
        if previous is None:
            return rendered
        cold: Rendered = self.codec.render(call, profile)
        assert rendered.data() == cold.data()
        assert [chunk.path for chunk in rendered] == [chunk.path for chunk in cold]
        assert [chunk.splice for chunk in rendered] == [chunk.splice for chunk in cold]
        assert rendered.notices == cold.notices
        assert rendered.marks == cold.marks
        assert rendered.frozen_with == cold.frozen_with
        one, two = rendered.envelope, cold.envelope
        assert (one.head, one.tail) == (two.head, two.tail)
        return rendered

    def assemble(self, rendered: Rendered, plan: Plan | None = None) -> bytes:
        body: bytes = self.codec.assemble(rendered, plan or Plan()).body.join()
        return body

    def own_plan(self, rendered: Rendered) -> Plan:
        """The caller's own marks, as many as the provider takes, and no others."""
        return Plan(marks=rendered.marks[:4], automatic=rendered.automatic)

    def encode(self, call: Call) -> bytes:
        rendered = self.render(call)
        return self.assemble(rendered, self.own_plan(rendered))

    def plan(self, rendered: Rendered) -> Plan:
        rules = catalog.rules(self.provider, rendered.model, self.name)
        return plan_once(rendered, rules, reuse_expected=True)

    def encode_planned(self, call: Call) -> bytes:
        rendered = self.render(call)
        return self.assemble(rendered, self.plan(rendered))

    def parse(self, body: bytes) -> Call:
        call: Call = (
            self.codec.parse(body) if self.path is None else self.codec.parse(body, self.path)
        )
        return call

    def split(self, body: bytes) -> Rendered:
        return cut(self.codec, body, self.path or "")

    def write_stream(self, reply: Reply) -> bytes:
        writer = self.codec.writer()
        return b"".join(writer.write(event) for event in reply_events(reply))

    def read_stream(self, *pieces: bytes) -> list[Any]:
        reader = self.codec.reader()
        return [*(event for piece in pieces for event in reader.feed(piece)), *reader.close()]


def grown(turns: list[list[Message]]) -> list[Conversation]:
    """The conversation after each turn."""
    conversation = Conversation([Message.user("hello")])
    conversations = [conversation]
    for added in turns:
        conversation = conversation.append(*added)
        conversations.append(conversation)
    return conversations


def turns_with(own_parts: st.SearchStrategy[Part]) -> st.SearchStrategy[list[list[Message]]]:
    """Turns of the usual messages, and of messages that mix a wire's own parts with all others."""
    parts = own_parts | some.user_parts | some.assistant_parts | some.results
    own_messages = st.builds(
        Message,
        role=st.sampled_from(["user", "assistant", "system", "tool"]),
        parts=st.lists(parts, max_size=4).map(tuple),
    )
    return st.lists(st.lists(some.messages | own_messages, max_size=4), min_size=1, max_size=5)


def values_of(
    keys: str, words: str = "", max_size: int = 4, max_leaves: int = 20
) -> st.SearchStrategy[Any]:
    """JSON values whose objects have these keys, some with these words as values."""
    return st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(keys.split()),
                inner | st.sampled_from(words.split()) if words else inner,
                max_size=max_size,
            )
        ),
        max_leaves=max_leaves,
    )


def counts_of(usage: Usage) -> tuple[Any, ...]:
    return usage.uncached, usage.read, usage.written, usage.output, usage.reasoning


def to_bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value).encode()
