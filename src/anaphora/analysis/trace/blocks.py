"""One recorded conversation as blocks, in the order in which the provider hashes them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterator
from copy import copy
from itertools import accumulate, takewhile
from typing import TypeAlias

import msgspec
from blake3 import blake3

from anaphora.canonical import dumps, encode_decoded
from anaphora.catalog import CacheRules, Profile
from anaphora.catalog.prices import tool_overhead
from anaphora.rendered import Kind
from anaphora.rendered.media import Size, measured
from anaphora.values import Section

from .format import BLOCK_KINDS, Trace, TraceCall, TraceMessage

_MEDIA = (Kind.IMAGE, Kind.DOCUMENT, Kind.AUDIO)
#: Names of the type of encoded content.
_MIME_TYPES = ("mimeType", "mime_type", "media_type")
#: Parts of a block that are the model's own JSON.
_ARGUMENTS = ("input", "args", "arguments")


class TraceBlock(msgspec.Struct, eq=False):
    """One message, the tools, or the system prompt."""

    identity: Hashable
    kind: Kind
    section: Section
    size: Size
    from_model: bool = False
    data: bytes = b""
    """Its recorded content."""
    stripped: TraceBlock | None = None
    """The same without thinking, if it contains any."""


#: The blocks of messages that several conversations may contain, by the message object, its
#: section, and whether it may be sent without thinking.
KnownBlocks: TypeAlias = dict[tuple[int, Section, bool], TraceBlock]


class TraceBlocks:
    """One conversation as blocks, in the order in which the provider hashes them."""

    def __init__(
        self, trace: Trace, profile: Profile, rules: CacheRules, known: KnownBlocks | None = None
    ) -> None:
        """`known` are blocks of other conversations, which may have messages in common."""
        self._known: KnownBlocks = {} if known is None else known
        self.may_strip = profile.strips_thinking.value and profile.strips_thinking.verified
        """The provider drops thinking before the last user turn that a client resends."""
        self.strips = self.may_strip and trace.wire is not None
        """`may_strip`, and this client resends thinking: its requests are recorded, or a bill shows
        it."""
        tools = _tool_blocks(trace)
        self.unrecorded: tuple[TraceBlock, TraceBlock] | None = None
        """The unrecorded beginning: the part shared with other conversations, and the rest."""
        if trace.system_tokens_unknown:
            group = trace.group or trace.id
            self.unrecorded = (
                TraceBlock(("shared", group), Kind.SYSTEM, "system", Size()),
                TraceBlock(("rest", group), Kind.SYSTEM, "system", Size()),
            )
        roles = (message.role for message in trace.messages)
        self.leading = sum(1 for _ in takewhile(("system", "developer").__contains__, roles))
        """The system messages before all others."""
        self.messages = [
            self._message(message, "system" if index < self.leading else "messages")
            for index, message in enumerate(trace.messages)
        ]
        system = [*(self.unrecorded or ()), *self.messages[: self.leading]]
        order = dict.fromkeys((*rules.hash_order.value, "tools", "system"))
        self._head = [
            block
            for section in order
            for block in {"tools": tools, "system": system}.get(section, ())
        ]
        self._user_turns = [
            index
            for index, block in enumerate(self.messages)
            if trace.messages[index].role == "user" and block.kind is not Kind.TOOL_RESULT
        ]
        """User messages that are not tool results."""
        inputs = (
            not (block.from_model or block.kind is Kind.TOOL_RESULT) for block in self.messages
        )
        self._inputs = list(accumulate(inputs, initial=0))
        """For each message, how many earlier ones are neither replies nor tool results."""
        first = None if self.unrecorded is None else self.unrecorded[0]
        positions = {id(block): at for at, block in enumerate(self._head)}
        self._leading_positions = [positions[id(block)] for block in self.messages[: self.leading]]
        self.lead = len(self._head) - 1 if first is None else positions[id(first)]
        """The position of the last block before the messages that other conversations may share."""

    def begins(self, call: TraceCall) -> tuple[Hashable, ...]:
        """Key of the blocks before the messages."""
        unrecorded = self.unrecorded or ()
        return (min(call.messages, self.leading), *(block.identity for block in unrecorded))

    def head(self, call: TraceCall) -> list[TraceBlock]:
        """The blocks before the messages."""
        unsent = self.messages[call.messages : self.leading]
        return [block for block in self._head if block not in unsent] if unsent else self._head

    def is_unrecorded(self, block: TraceBlock) -> bool:
        return self.unrecorded is not None and block in self.unrecorded

    def unrecorded_tokens(self, position: int) -> int:
        """The tokens of the unrecorded beginning that are before the end of a block."""
        if self.unrecorded is None or position < self.lead:
            return 0
        shared, rest = self.unrecorded
        return shared.size.other + (rest.size.other if position > self.lead else 0)

    def only_tools(self, before: TraceCall, call: TraceCall) -> bool:
        """Whether only replies and tool results came between two calls."""
        first, last = before.messages, call.messages
        return first < last and self._inputs[first] == self._inputs[last]

    def drops_thinking(self, before: TraceCall, call: TraceCall) -> bool:
        """Whether a user turn came after thinking that the call before had sent."""
        last = min(before.messages, self.last_turn(call))
        dropped = range(self.last_turn(before), last)
        return any(self.messages[index].stripped is not None for index in dropped)

    def last_turn(self, call: TraceCall) -> int:
        """The last user message that is not a tool result; 0 without one."""
        index = bisect_left(self._user_turns, call.messages)
        return self._user_turns[index - 1] if index else 0

    def position(self, message: int) -> int:
        """The position of a message among the blocks of a call that sends it."""
        if message < self.leading:
            return self._leading_positions[message]
        return len(self._head) + message - self.leading

    def reply(self, call: TraceCall) -> list[TraceBlock]:
        """The reply to a call; empty for the last one."""
        behind = map(self.messages.__getitem__, range(call.messages, len(self.messages)))
        return list(takewhile(lambda block: block.from_model, behind))

    def calls_tools(self, call: TraceCall) -> bool:
        """Whether the reply to a call calls tools."""
        return any(block.kind is Kind.TOOL_CALL for block in self.reply(call))

    def _message(self, message: TraceMessage, section: Section) -> TraceBlock:
        """A copy for this conversation: facts from its bills do not apply to others."""
        key = id(message), section, self.may_strip
        block = self._known.get(key)
        if block is None:
            block = self._known[key] = self._new_block(message, section)
        return copy(block)

    def _new_block(self, message: TraceMessage, section: Section) -> TraceBlock:
        types = message.block_types
        kind = Kind.TEXT
        if message.role == "tool" or "tool_result" in types:
            kind = Kind.TOOL_RESULT
        elif message.tool_calls or "tool_use" in types:
            kind = Kind.TOOL_CALL
        elif types and all(BLOCK_KINDS.get(str(name)) is Kind.THINKING for name in types):
            kind = Kind.THINKING
        block = _block(message, message.content, kind, section)
        if self.may_strip and message.has_thinking:
            thinking = ("thinking", "redacted_thinking")
            pairs = zip(message.content, types, strict=True)
            kept = [content for content, kind_name in pairs if kind_name not in thinking]
            block.stripped = _block(message, kept, kind, section)
        return block


def _block(message: TraceMessage, content: object, kind: Kind, section: Section) -> TraceBlock:
    data = encode_decoded([message.role, content, message.tool_calls, message.tool_call_id])
    size = message.size
    if size is None or content is not message.content:
        size = _measured(content, data)
    from_model = message.role in ("assistant", "model")
    return TraceBlock(_identity(data), kind, section, size, from_model, data)


def _identity(data: bytes) -> bytes:
    return blake3(data).digest(16)


def _tool_blocks(trace: Trace) -> list[TraceBlock]:
    """A block for each tool, so that a marker may be on any of them."""
    tools = [dumps(tool) for tool in trace.tools or ()]
    sizes = trace.tools_sizes
    if sizes is None:
        overhead = tool_overhead(trace.wire or trace.provider)
        sizes = tuple(Size(len(data), 0 if n else overhead) for n, data in enumerate(tools))
    return [
        TraceBlock(_identity(data), Kind.TOOL, "tools", size, data=data)
        for data, size in zip(tools, sizes, strict=True)
    ]


def _measured(content: object, data: bytes) -> Size:
    """The size of a message; its images and documents are not text."""
    text = other = 0
    media = [(encode_decoded(block), kind) for block, kind in _media(content)]
    if not media:
        return measured(data)
    for block, kind in media:
        size = measured(block, kind)
        text, other = text + size.text - len(block), other + size.other
    return Size(len(data) + text, other)


def _media(content: object) -> Iterator[tuple[dict[str, object], Kind]]:
    """The images, documents and sounds in a message, and in its tool results."""
    unread = [content]
    while unread:
        value = unread.pop()
        if isinstance(value, list):
            unread += value
        elif isinstance(value, dict):
            kind = BLOCK_KINDS.get(str(value.get("type")))
            types = [str(value[name]) for name in _MIME_TYPES if name in value]
            if kind not in _MEDIA and types and isinstance(value.get("data"), str):
                kind = Kind.IMAGE if types[0].startswith("image/") else Kind.DOCUMENT
            if kind in _MEDIA:
                yield value, kind
            else:
                unread += [part for name, part in value.items() if name not in _ARGUMENTS]
