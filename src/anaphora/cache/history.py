"""Compares a conversation's earlier messages with a later prompt: which blocks are not sent again,
and whether a summary replaces them. Uses bytes only."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from anaphora.rendered import Plan, Rendered
from anaphora.tokens import Counts

from .compared_prompt import block_hashes, block_texts
from .kept_texts import with_text_of
from .prefix_difference import common_length
from .sent_call import SentCall, cached_chunks
from .simulator import RenderedPrompt

HistoryChange: TypeAlias = Literal["compaction", "edited"]

#: The share of a reply's long lines that a summary repeats. Programs leave out text before it.
_REPEATED = 0.25
#: Blocks at the end of a history of which a compaction may keep some.
_NEWEST = 64
#: Bytes that are searched for it.
_MOST_SEARCHED = 256 * 1024
#: A message of the model's that is one block, with its text as a string (Responses).
_MODELS_OWN = re.compile(rb'"role"\s*:\s*"assistant"')
#: The shortest common beginning by which a block is recognised after text was appended to it.
_SAME_BEGINNING = 128
#: Blocks in which providers and their clients keep a compacted history.
_COMPACTED = (b'"type":"compaction', b'"type": "compaction')


class BlockChanges(NamedTuple):
    """The blocks after a change: those of the earlier prompt that are not sent again, those of the
    later one that are new, and how many of each precede the first common block."""

    removed: tuple[int, ...]
    new: tuple[int, ...]
    removed_first: int
    new_first: int
    kept: bool
    """Whether any block is in both."""


def compare_blocks(earlier: SentCall, later: Rendered, first: int) -> BlockChanges:
    """Compare the blocks that the earlier call may have cached with the later prompt's."""
    before, after = _blocks(earlier.rendered), _blocks(later)
    was = block_texts(before, first, cached_chunks(earlier))
    now = block_texts(after, first, len(after))
    removed, stays = _not_in(was, now)
    new, kept = _not_in(now, was)
    return BlockChanges(
        tuple(first + at for at in removed),
        tuple(first + at for at in new),
        min(stays, default=len(was)),
        min(kept, default=len(now)),
        bool(kept),
    )


def _blocks(rendered: Rendered) -> RenderedPrompt:
    return RenderedPrompt(rendered, Plan())


def _not_in(blocks: list[bytes], others: list[bytes]) -> tuple[list[int], list[int]]:
    """The positions of blocks that others lack, and of those that they have."""
    left = Counter(others)
    missing: list[int] = []
    found: list[int] = []
    for at, block in enumerate(blocks):
        if left[block] > 0:
            left[block] -= 1
            found.append(at)
        else:
            missing.append(at)
    return missing, found


def removed_tokens(earlier: SentCall, later: Rendered, first: int) -> int:
    """The tokens that the earlier call may have cached from a chunk on and the later one does not
    send. Of a block that is replaced, only the difference in size counts."""
    blocks = compare_blocks(earlier, later, first)
    if not blocks.removed:
        return 0
    # By its own bill alone, so that the result depends on these two calls only.
    counts, tokens = Counts(earlier.rendered, ()), 0
    total = None if earlier.usage is None else earlier.usage.input
    billed = total / counts.total if total and counts.total else 1.0
    for at in blocks.removed:
        size = counts.tokens(at + 1) - counts.tokens(at)
        if at == first and blocks.removed_first == 1 and first in blocks.new[:1]:
            was, now = _size(earlier.rendered, at), _size(later, at)
            size = int(size * max(0, was - now) / was)
        tokens += size
    return int(tokens * billed)


def _size(rendered: Rendered, chunk: int) -> int:
    return rendered.offset(chunk + 1) - rendered.offset(chunk)


def history_change(earlier: SentCall, later: Rendered, first: int) -> HistoryChange:
    """The kind of change that begins at a chunk of the messages. It is a compaction if

    - a compacted history as a provider writes it is new in the prompt, or
    - a message of the user's repeats the previous reply, which is not sent as one: that was the
      summary, unless the message only grew, or
    - several blocks before all that is kept are replaced by fewer, or are left out from the
      beginning of the history on.
    """
    blocks = compare_blocks(earlier, later, first)
    if any(_is_compacted(later, at) for at in blocks.new):
        return "compaction"
    if blocks.removed and _repeats_reply(earlier, later, blocks.new):
        return "edited" if _has_grown(earlier.rendered, later, blocks, first) else "compaction"
    prompt = _blocks(later)
    from_start = first == prompt.leading + 1
    shorter = blocks.removed_first >= 2 and blocks.new_first < blocks.removed_first
    if blocks.kept and shorter and (blocks.new_first or from_start):
        return "compaction"
    return "edited"


def is_compacted(earlier: SentCall, later: Rendered, shared: int) -> bool:
    """Whether a prompt that does not continue an earlier call's messages has a summary of them.
    Tools and system prompt, up to `shared`, are the same. Reads a bounded part of both."""
    before, after = _blocks(earlier.rendered), _blocks(later)
    if shared <= after.leading or after.leading + 1 >= min(len(after), len(before)):
        return False
    new = tuple(range(shared, min(len(after), shared + _NEWEST)))
    if not new:
        return False
    if _has_summary(earlier, later, new):
        return True
    if len(after) >= len(before):
        return False
    newest = block_hashes(before, max(shared, len(before) - _NEWEST))
    if newest.isdisjoint(block_hashes(after, shared, new[-1] + 1)):
        return False
    return history_change(with_text_of(earlier, later), later, shared) == "compaction"


def _has_summary(earlier: SentCall, later: Rendered, new: tuple[int, ...]) -> bool:
    """Whether new blocks are a compacted history or repeat the earlier reply. Mostly they contain
    nothing of either: that is found without looking at each block."""
    data = later.data_from(new[0], new[-1] + 1)
    if any(sign in data for sign in _COMPACTED):
        return True
    return _repeats(data, earlier.reply_lines) and _repeats_reply(earlier, later, new)


def _is_compacted(rendered: Rendered, chunk: int) -> bool:
    data = rendered.chunk_data(chunk)
    return any(sign in data for sign in _COMPACTED)


def _repeats_reply(earlier: SentCall, later: Rendered, new: tuple[int, ...]) -> bool:
    """Whether messages that are not the model's contain long lines of the earlier reply, and the
    model's do not: otherwise the reply itself is sent, and the others quote it."""
    if not (lines := earlier.lines):
        return False
    prompt, texts, replies = _blocks(later), bytearray(), bytearray()
    for at in new:
        block = later.chunk_data(at)[:_MOST_SEARCHED]
        is_reply = prompt.from_model(at) or _MODELS_OWN.search(block)
        found = replies if is_reply else texts
        if len(found) < _MOST_SEARCHED:
            found += block
    return _repeats(texts, lines) and not _repeats(replies, lines)


def _repeats(data: bytes | bytearray, lines: tuple[str, ...]) -> bool:
    found = sum(len(line) for line in lines if _contains(data, line))
    return found >= _REPEATED * sum(map(len, lines))


def _has_grown(before: Rendered, after: Rendered, blocks: BlockChanges, first: int) -> bool:
    """Whether a block has the same beginning and is no shorter: some programs send the whole
    conversation as one message."""
    if first not in blocks.removed or first not in blocks.new:
        return False
    was, now = before.chunk_data(first), after.chunk_data(first)
    if common_length(was, now) < max(_SAME_BEGINNING, len(was) // 2):
        return False
    removed = sum(_size(before, at) for at in blocks.removed)
    return sum(_size(after, at) for at in blocks.new) >= removed


def _contains(data: bytes | bytearray, line: str) -> bool:
    """Whether JSON contains a text, with or without escapes."""
    if msgspec.json.encode(line)[1:-1] in data:
        return True
    return not line.isascii() and json.dumps(line)[1:-1].encode() in data
