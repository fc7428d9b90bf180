"""Names under which a later prompt finds its conversation: digests of its blocks, no text.

    pointers(prompt, salts, …)      the names that a prompt is saved under
    candidates(prompt, salts)       the names that a prompt looks for

Salts separate those of apps, models and conversations that clients name.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import msgspec
from blake3 import blake3

from anaphora.cache import CallHints
from anaphora.cache.compared_prompt import ComparedPrompt
from anaphora.rendered import Kind

#: Earlier calls of a conversation that a prompt looks for.
_MOST_TURNS = 4
MOST_CHUNKS = 2_048
"""Chunks of a prompt that replies are looked for in: a request may have a hundred thousand."""
#: Roles of messages that are no reply.
_ASKING = ("user", "system", "developer", "tool")


class Salts(msgspec.Struct, frozen=True):
    """What separates apps, models, and conversations that clients name."""

    scope: bytes
    hinted: bytes

    @classmethod
    def of(cls, scope: Hashable, hints: CallHints) -> Salts:
        whole = blake3(repr(scope).encode(errors="replace")).digest(8)
        if not hints.conversation and not hints.user:
            return cls(whole, whole)
        named = repr((scope, hints.conversation, hints.user)).encode(errors="replace")
        return cls(whole, blake3(named).digest(8))


def pointers(
    prompt: ComparedPrompt, salts: Salts, changing: int, last: bytes, opening: bytes
) -> list[bytes]:
    """Where a later prompt looks: the end of this one, also without the blocks that may change, the
    last and the first block of its messages, and what it shares with others. `last` and `opening`
    are the digests of those blocks."""
    end, leading, hinted = len(prompt) - 1, prompt.leading, salts.hinted
    names = [b"e" + hinted + prompt.key(end)]
    shorter = (1, changing) if changing > 1 else (1,)
    names += [b"e" + hinted + prompt.key(end - n) for n in shorter if end - n > leading]
    if end > leading:
        names.append(b"b" + hinted + last)
        if opening != last:
            names.append(b"b" + hinted + opening)
    if leading >= 0:
        names.append(b"l" + salts.scope + prompt.key(leading))
    return names


def candidates(prompt: ComparedPrompt, salts: Salts) -> tuple[list[bytes], list[int]]:
    """The names to look for, the most telling first, and the chunk that each is at."""
    leading, hinted = prompt.leading, salts.hinted
    ends = list(earlier_ends(prompt))
    names = [b"e" + hinted + prompt.key(end) for end in ends]
    positions = list(ends)
    if len(prompt) - 1 > leading:
        for block in (*ends[1:3], leading + 1):
            names.append(b"b" + hinted + block_digest(prompt, block))
            positions.append(block)
    if leading >= 0:
        names.append(b"l" + salts.scope + prompt.key(leading))
        positions.append(leading)
    return names, positions


def earlier_ends(prompt: ComparedPrompt) -> Iterator[int]:
    """The end of the prompt, and where earlier prompts of the conversation ended: before replies of
    the model."""
    position, found = len(prompt) - 1, 0
    yield position
    last = max(prompt.leading + 1, position - MOST_CHUNKS)
    while position > last and found < _MOST_TURNS:
        if is_reply(prompt, position) and not is_reply(prompt, position - 1):
            found += 1
            yield position - 1
        position -= 1


def replies_after(prompt: ComparedPrompt, chunks: int) -> int:
    """How many replies of the model are behind the first chunks; 2 stands for more."""
    replies, before = 0, False
    first = max(chunks, prompt.leading + 1)
    if len(prompt) - first > MOST_CHUNKS:
        return 2
    for position in range(first, len(prompt)):
        reply = is_reply(prompt, position)
        replies += reply and not before
        if replies == 2:
            break
        before = reply
    return replies


def is_reply(prompt: ComparedPrompt, position: int) -> bool:
    """Whether a chunk is from the model. Some wires have items of no role for that."""
    run, index = prompt.rendered.locate(position)
    if run.section != "messages" or run.log.kinds[index] is Kind.TOOL_RESULT:
        return False
    role = run.log.roles[run.log.wire_message_of(index)]
    return role not in _ASKING or run.log.kinds[index] in (Kind.TOOL_CALL, Kind.THINKING)


def block_digest(prompt: ComparedPrompt, position: int) -> bytes:
    return blake3(prompt.block(position)).digest(8)
