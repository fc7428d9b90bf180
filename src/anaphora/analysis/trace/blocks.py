"""One recorded conversation as blocks, in the order in which the provider hashes them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from copy import copy
from itertools import takewhile
from typing import TypeAlias

import msgspec
from blake3 import blake3

from anaphora.canonical import dumps
from anaphora.catalog import CacheRules, Profile, tool_overhead
from anaphora.rendered import Kind
from anaphora.tokens import Size, measured
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
    """What is recorded of it."""
    stripped: TraceBlock | None = None
    """The same without thinking, where it contains any."""


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
        """The provider drops thinking before the last user turn, where a client resends it."""
        self.strips = self.may_strip and trace.wire is not None
        """And this client does: its requests are recorded, or a bill has shown it."""
        tools = _tool_blocks(trace)
        self.unrecorded: tuple[TraceBlock, TraceBlock] | None = None
        """The beginning that is not recorded: what is shared with other conversations, the rest."""
        if trace.system_tokens_unknown:
            group = trace.group or trace.id
            self.unrecorded = (
                TraceBlock(("shared", group), Kind.SYSTEM, "system", Size()),
                TraceBlock(("rest", group), Kind.SYSTEM, "system", Size()),
            )
        leading = list(takewhile(_is_system, trace.messages))
        self._leading = len(leading)
        self.messages = [
            self._message(message, "system" if index < self._leading else "messages")
            for index, message in enumerate(trace.messages)
        ]
        system = [*(self.unrecorded or ()), *self.messages[: self._leading]]
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

    def sent(self, call: TraceCall) -> list[TraceBlock]:
        """The blocks of a call as the provider hashes them: without thinking before the last user
        turn, where the provider drops it."""
        messages = self.messages[: call.messages]
        if self.strips:
            last = self._last_turn(call)
            messages[:last] = [block.stripped or block for block in messages[:last]]
        head = self._head
        if call.messages < self._leading:
            unsent = self.messages[call.messages : self._leading]
            head = [block for block in head if block not in unsent]
        return head + messages[self._leading :]

    def drops_thinking(self, before: TraceCall, call: TraceCall) -> bool:
        """Whether a user turn came after thinking that the call before had sent."""
        last = min(before.messages, self._last_turn(call))
        dropped = self.messages[self._last_turn(before) : last]
        return any(block.stripped is not None for block in dropped)

    def _last_turn(self, call: TraceCall) -> int:
        return next((turn for turn in reversed(self._user_turns) if turn < call.messages), 0)

    def position(self, message: int) -> int:
        """The position of a message among the blocks of a call that sends it."""
        if message < self._leading:
            return self._head.index(self.messages[message])
        return len(self._head) + message - self._leading

    @property
    def lead(self) -> int:
        """The position of the last block before the messages that other conversations may share."""
        if self.unrecorded is not None:
            return self._head.index(self.unrecorded[0])
        return len(self._head) - 1

    def reply(self, call: TraceCall) -> list[TraceBlock]:
        """The reply to a call, where the conversation goes on."""
        return list(takewhile(lambda block: block.from_model, self.messages[call.messages :]))

    def _message(self, message: TraceMessage, section: Section) -> TraceBlock:
        """A block of this conversation's own: what its bills show is not true of others."""
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
        block = _block(message, message.content, kind, section)
        if self.may_strip and message.has_thinking:
            thinking = ("thinking", "redacted_thinking")
            pairs = zip(message.content, types, strict=True)
            kept = [content for content, kind_name in pairs if kind_name not in thinking]
            block.stripped = _block(message, kept, kind, section)
        return block


def _is_system(message: TraceMessage) -> bool:
    return message.role in ("system", "developer")


def _block(message: TraceMessage, content: object, kind: Kind, section: Section) -> TraceBlock:
    data = dumps([message.role, content, message.tool_calls, message.tool_call_id])
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
    media = [(dumps(block), kind) for block, kind in _media(content)]
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
