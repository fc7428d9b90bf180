"""What tells conversations apart: what clients send with their calls, and how alike two prompts are
that do not begin alike."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from math import ceil
from typing import Any

import msgspec

from .prefix_difference import equal_around
from .simulator import RenderedPrompt

#: Bytes of a block in which an edit is told from a new text.
_LONG_BLOCK = 1024
#: What may stand before a block: the closing of the message before, and a comma.
_GLUE = b'"]}, \t\r\n'


#: Headers and fields of the body that name a conversation, in this order: Claude Code, Codex (two
#: spellings), OpenRouter, xAI; Responses, OpenRouter, OpenAI and the hosts that follow it.
_CONVERSATION_HEADERS = (
    "x-claude-code-session-id",
    "session-id",
    "session_id",
    "x-session-id",
    "x-grok-conv-id",
)
_CONVERSATION_FIELDS = ("conversation", "session_id", "prompt_cache_key")
_USER_FIELDS = ("user", "safety_identifier")
_HEADERS = frozenset(_CONVERSATION_HEADERS)
_FIELDS = frozenset((*_CONVERSATION_FIELDS, *_USER_FIELDS, "metadata", "previous_response_id"))


class CallHints(msgspec.Struct, frozen=True, kw_only=True):
    """What a client says about the conversation of a call."""

    conversation: str = ""
    """An id of the conversation, the session or the cache key. Subagents and side calls may have
    the same: it separates conversations, and joins none."""
    user: str = ""
    """An id of the end user, which separates conversations too."""
    previous_reply: str = ""
    """The reply that the call continues by its id (`previous_response_id`)."""

    def agrees(self, other: CallHints) -> bool:
        """Whether nothing that both clients send differs."""
        mine, theirs = self.conversation, other.conversation
        if mine and theirs and mine != theirs:
            return False
        mine, theirs = self.user, other.user
        return not mine or not theirs or mine == theirs


_NO_HINTS = CallHints()


def hints_of(headers: Mapping[str, str], body: Mapping[str, Any]) -> CallHints:
    """The hints in a request. Header names are in lower case; the fields of the body are values or
    raw JSON."""
    if _HEADERS.isdisjoint(headers) and _FIELDS.isdisjoint(body):
        return _NO_HINTS
    named = [headers[name] for name in _CONVERSATION_HEADERS if name in headers]
    named += [_text(body[name]) for name in _CONVERSATION_FIELDS if name in body]
    metadata = _value(body.get("metadata"))
    users = [_text(metadata.get("user_id"))] if isinstance(metadata, dict) else []
    users += [_text(body[name]) for name in _USER_FIELDS if name in body]
    return CallHints(
        conversation=next(filter(None, named), ""),
        user=next(filter(None, users), ""),
        previous_reply=_text(body.get("previous_response_id")),
    )


def _value(value: Any) -> Any:
    if not isinstance(value, msgspec.Raw):
        return value
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def _text(value: Any) -> str:
    """A text, or the id of an object (`conversation`)."""
    value = _value(value)
    if isinstance(value, dict):
        value = value.get("id")
    return value if isinstance(value, str) else ""


class ComparedPrompt(RenderedPrompt):
    """A prompt whose blocks are compared with those of other calls."""

    hashed: tuple[int, set[int]] | None = None

    @property
    def messages(self) -> int:
        """The chunks of its messages."""
        return len(self) - self.leading - 1

    def keys(self, begin: int) -> list[bytes]:
        """The keys from there on."""
        keys: list[bytes] = []
        for index, (run, first) in enumerate(self._runs):
            if first + run.count > begin:
                keys += self._chain_of(index)[max(0, begin - first) : run.count]
        return keys

    def common_chunks(self, other: ComparedPrompt) -> int:
        both = range(min(len(self), len(other)))
        if both and self.key(both[-1]) == other.key(both[-1]):
            return len(both)  # mostly one continues the other
        return bisect_left(both, True, key=lambda index: self.key(index) != other.key(index))

    def blocks(self, begin: int) -> set[int]:
        """Hashes of the blocks from there on, without what glues each to the one before."""
        if self.hashed is None or self.hashed[0] != begin:
            self.hashed = begin, set(map(hash, self.slices(begin, len(self))))
        return self.hashed[1]

    def begins_like(self, other: ComparedPrompt) -> bool:
        """Whether tools and system prompt are mostly the same: half of the shorter ones are equal
        blocks, or equal text before and after a difference; or all of the system prompt is equal.
        Side calls have other instructions."""
        system = self._system()
        if system and system == other._system():
            return True
        blocks = [prompt.slices(0, prompt.leading + 1) for prompt in (self, other)]
        first, second = map(b"".join, blocks)
        half = min(len(first), len(second)) / 2
        if not half:
            return len(first) == len(second)
        equal = sum(map(len, set(blocks[0]) & set(blocks[1])))
        return equal >= half or equal_around(first, second) >= half

    def is_edit_of(self, other: ComparedPrompt, position: int) -> bool:
        """Whether the prompts first differ in a long block of which most text is the same. A short
        question that is like another is a new one."""
        if not self.leading < position < min(len(self), len(other)):
            return False
        if position and self.key(position - 1) != other.key(position - 1):
            return False
        if min(self._size(position), other._size(position)) < _LONG_BLOCK:
            return False
        mine, theirs = self.block(position), other.block(position)
        least = max(_LONG_BLOCK, len(mine) / 2, len(theirs) / 2)
        if min(len(mine), len(theirs)) < least:
            return False
        # One of the two equal parts has half of what is needed.
        part = ceil(least / 2)
        likely = mine[:part] == theirs[:part] or mine[-part:] == theirs[-part:]
        return likely and equal_around(mine, theirs) >= least

    def _size(self, position: int) -> int:
        """The bytes of a block, with what glues it to the one before."""
        run, first = self._run_of(position)
        return run.log.ends[position - first] - run.log.start(position - first)

    def block(self, position: int) -> bytes:
        return self.slices(position, position + 1)[0]

    def _system(self) -> list[bytes]:
        return [
            block
            for run, first in self._runs
            if run.section == "system"
            for block in self.slices(first, first + run.count)
        ]

    def slices(self, begin: int, end: int) -> list[bytes]:
        """The blocks, without what glues each to the one before."""
        slices: list[bytes] = []
        for run, first in self._runs:
            if first < end and first + run.count > begin:
                log, low = run.log, max(0, begin - first)
                ends = log.ends[low : min(run.count, end - first)]
                start, cut = log.start(low), 0
                data = log.slice(start, ends[-1])
                for stop in ends:
                    stop -= start
                    slices.append(data[cut:stop].lstrip(_GLUE))
                    cut = stop
        return slices
