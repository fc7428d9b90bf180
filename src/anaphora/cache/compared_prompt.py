"""Tells conversations apart: by the hints that clients send with their calls, and by the similarity
of prompts with different beginnings."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping
from functools import lru_cache
from math import ceil
from typing import Any

import msgspec
from blake3 import blake3

from anaphora.rendered import ChunkRun
from anaphora.rendered.log import KEY

from .prefix_difference import equal_around
from .simulator import RenderedPrompt

#: Conversations of one client that are compared by blocks if the beginnings differ.
_MOST_COMPARED = 64
#: The last blocks of a prompt by which it is compared. Requests may have a hundred thousand.
_MOST_BLOCKS = 2048
#: Tools and system blocks of which the text is compared.
_MOST_LEADING = 512
#: Bytes of a block that are compared to tell an edit from a new text.
_LONG_BLOCK = 1024
#: Glue before a block: the closing of the message before, and a comma.
GLUE = b'"]}, \t\r\n'


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
_FIELDS = frozenset(
    (*_CONVERSATION_FIELDS, *_USER_FIELDS, "metadata", "previous_response_id", "thread")
)


class CallHints(msgspec.Struct, frozen=True, kw_only=True):
    """A client's hints about the conversation of a call."""

    conversation: str = ""
    """An id of the conversation, the session or the cache key. Subagents and side calls may have
    the same one, so it separates conversations but joins none."""
    user: str = ""
    """An id of the end user, which also separates conversations."""
    previous_reply: str = ""
    """The reply that the call continues by its id (`previous_response_id`, or that of a thread)."""

    def agrees(self, other: CallHints) -> bool:
        """Whether all hints that both calls have are equal."""
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
    thread = _value(body.get("thread"))
    continued = thread.get("previous_message_id") if isinstance(thread, dict) else None
    return CallHints(
        conversation=next(filter(None, named), ""),
        user=next(filter(None, users), ""),
        previous_reply=_text(body.get("previous_response_id")) or _text(continued),
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


def group_salt(group: Hashable) -> bytes:
    """The part of keys that tells groups of calls apart."""
    return blake3(repr(group).encode(errors="replace")).digest(16)


#: There are few scopes, and each is looked up again and again.
scope_salt = lru_cache(maxsize=256)(group_salt)


def keys_from(prompt: RenderedPrompt, begin: int) -> bytes:
    """The keys of the chunks from `begin` on, one after the other."""
    keys = b""
    for index, (run, first) in enumerate(prompt.placed_runs):
        if first + run.count > begin:
            keys += prompt.chain_of(index)[KEY * max(0, begin - first) : KEY * run.count]
    return keys


def message_chunks(prompt: RenderedPrompt) -> int:
    """The number of chunks of its messages."""
    return len(prompt) - prompt.leading - 1


def common_chunks(one: RenderedPrompt, other: RenderedPrompt) -> int:
    both = range(min(len(one), len(other)))
    if both and one.key(both[-1]) == other.key(both[-1]):
        return len(both)  # mostly one continues the other
    return bisect_left(both, True, key=lambda index: one.key(index) != other.key(index))


def block_texts(prompt: RenderedPrompt, begin: int, end: int) -> list[bytes]:
    """The blocks without the glue before each."""
    found: list[bytes] = []
    for run, first in prompt.placed_runs:
        if first < end and first + run.count > begin:
            found += run_texts(run, max(0, begin - first), min(run.count, end - first))
    return found


def block_hashes(prompt: RenderedPrompt, begin: int, end: int | None = None) -> set[int]:
    """Hashes of the blocks from `begin` on, at most the last `_MOST_BLOCKS`. All from there on are
    kept in `prompt.hashed`."""
    begin = max(begin, (len(prompt) if end is None else end) - _MOST_BLOCKS)
    if end is None and prompt.hashed is not None and prompt.hashed[0] == begin:
        return prompt.hashed[1]
    found: set[int] = set()
    for run, first in prompt.placed_runs:
        low, high = max(0, begin - first), run.count if end is None else end - first
        if low < min(high, run.count):
            found.update(run_hashes(run)[low : min(high, run.count)])
    if end is None:
        prompt.hashed = begin, found
    return found


def run_hashes(run: ChunkRun) -> array[int]:
    """Hashes of the blocks of a run, at least. Those of a log are computed once."""
    base = run.log.base
    if base.hashes is None:
        base.hashes = array("q")
    known, done = base.hashes, len(base.hashes)
    if done < run.count:
        new = array("q", map(hash, run_texts(run, done, run.count)))
        # In one step, since another thread may add the same ones.
        known[done : run.count] = new
    return known


def run_texts(run: ChunkRun, low: int, high: int) -> list[bytes]:
    """Some blocks of a run without the glue before each."""
    log, cut = run.log, 0
    ends, start = log.ends[low:high], log.ends[low - 1] if low else 0
    data = log.slice(start, ends[-1]) if ends else b""
    found: list[bytes] = []
    if ends and not low and run.section == "messages":
        # The first block as it is behind another: with the beginning of its message.
        lead = run.lead.partition(b"[")[2] if b'":[' in run.lead[:20] else run.lead
        cut = ends[0]
        found.append((lead + data[:cut]).lstrip(GLUE))
        ends = ends[1:]
    for stop in ends:
        stop -= start
        found.append(data[cut:stop].lstrip(GLUE))
        cut = stop
    return found


def begins_like(one: RenderedPrompt, other: RenderedPrompt) -> bool:
    """Whether tools and system prompt are mostly the same: half of the shorter ones are equal
    blocks, or equal text before and after a difference; or all of the system prompt is equal.
    Side calls have other instructions."""
    system = _system(one)
    if system and system == _system(other):
        return True
    many = max(one.leading, other.leading) >= _MOST_LEADING
    if many or not all(run.log.has_text for run in (*_leading(one), *_leading(other))):
        was, now = (dict(_leading_sizes(prompt)) for prompt in (one, other))
        equal = sum(now[block] for block in now.keys() & was.keys())
        return 2 * equal >= min(sum(was.values()), sum(now.values()))
    leading = [block_texts(prompt, 0, prompt.leading + 1) for prompt in (one, other)]
    first, second = map(b"".join, leading)
    half = min(len(first), len(second)) / 2
    if not half:
        return len(first) == len(second)
    equal = sum(map(len, set(leading[0]) & set(leading[1])))
    return equal >= half or equal_around(first, second) >= half


def is_edit(later: RenderedPrompt, earlier: RenderedPrompt, position: int) -> bool:
    """Whether the prompts first differ in a long block of which most text is the same. A short
    question that is similar to another is a new one."""
    if not later.leading < position < min(len(later), len(earlier)):
        return False
    if position and later.key(position - 1) != earlier.key(position - 1):
        return False
    if min(_size(later, position), _size(earlier, position)) < _LONG_BLOCK:
        return False
    if not earlier.run_of(position)[0].log.has_text:
        return False
    [now], [then] = (block_texts(each, position, position + 1) for each in (later, earlier))
    least = max(_LONG_BLOCK, len(now) / 2, len(then) / 2)
    if min(len(now), len(then)) < least:
        return False
    # The larger of the two equal parts has at least half of the required size.
    part = ceil(least / 2)
    likely = now[:part] == then[:part] or now[-part:] == then[-part:]
    return likely and equal_around(now, then) >= least


def _size(prompt: RenderedPrompt, position: int) -> int:
    """The bytes of a block with the glue before it."""
    run, first = prompt.run_of(position)
    return run.log.ends[position - first] - run.log.start(position - first)


def _leading(prompt: RenderedPrompt) -> list[ChunkRun]:
    return [run for run, _ in prompt.placed_runs if run.section != "messages"]


def _leading_sizes(prompt: RenderedPrompt) -> Iterator[tuple[int, int]]:
    """The blocks of tools and system prompt by their hashes, and their sizes."""
    for run in _leading(prompt):
        for index, block in enumerate(run_hashes(run)[: run.count]):
            yield block, run.log.ends[index] - run.log.start(index)


def _system(prompt: RenderedPrompt) -> list[int]:
    return [
        block
        for run in _leading(prompt)
        if run.section == "system"
        for block in run_hashes(run)[: run.count]
    ]


class KnownConversation:
    __slots__ = ("tip",)

    def __init__(self) -> None:
        self.tip = 0
        """The number of its latest call."""


class RecentConversations:
    """The latest conversations of one client, the least recent first."""

    __slots__ = ("_order", "_with_block")

    def __init__(self) -> None:
        self._order: OrderedDict[KnownConversation, list[int]] = OrderedDict()
        """Each with the blocks of which it may be the latest conversation."""
        self._with_block: dict[int, KnownConversation] = {}
        """The latest conversation with each block."""

    def __len__(self) -> int:
        return len(self._order)

    @property
    def latest(self) -> KnownConversation:
        return next(reversed(self._order))

    def with_any(self, blocks: set[int]) -> set[KnownConversation]:
        """The latest conversations that have each of these blocks."""
        known = self._with_block
        return {known[block] for block in blocks if block in known}

    def added(self, conversation: KnownConversation) -> set[int]:
        """The blocks that were new in a conversation while it was one of the latest."""
        return set(self._order[conversation])

    def use(self, conversation: KnownConversation, blocks: set[int]) -> None:
        """Makes a conversation the latest; these blocks are new in it."""
        self._order.setdefault(conversation, []).extend(blocks)
        self._order.move_to_end(conversation)
        self._with_block.update(dict.fromkeys(blocks, conversation))
        if len(self._order) > _MOST_COMPARED:
            self.drop(next(iter(self._order)))

    def drop(self, conversation: KnownConversation) -> None:
        for block in self._order.pop(conversation, ()):
            if self._with_block.get(block) is conversation:
                del self._with_block[block]
