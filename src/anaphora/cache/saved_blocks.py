"""The blocks of a prompt for another process: digests, sizes and kinds, never text; and the names
under which a later prompt finds them.

    block_entries(prompt, first)          the stored description of a prompt's blocks
    rebuilt_runs(prompt, saved, …)        the runs of an earlier prompt
    pointers(prompt, salts, …)            the names that a prompt is saved under
    candidates(prompt, salts)             the names that a prompt looks for

A later prompt mostly begins with all of an earlier one, which is then a view of it. Otherwise,
blocks of the earlier prompt that occur in the later one are taken from there, and the others are
placeholders of the same size: it is known which block changed, but not its earlier text. Names are
digests of blocks; salts separate those of apps, models and conversations that clients name.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from struct import Struct

import msgspec
from blake3 import blake3
from msgspec.structs import replace

from anaphora.rendered import ChunkLog, ChunkRun, Kind, LogAppend, Rendered
from anaphora.rendered.chunks import UNKNOWN_LABEL, placeholder
from anaphora.values import Section

from .compared_prompt import CallHints, block_texts
from .saved_call import SavedCall
from .simulator import RenderedPrompt

#: Digest of the block, bytes of the chunk, tokens in units of 16 if it is not text, kind, flags.
_ENTRY = Struct("<8sIHBB")
ENTRY_BYTES = _ENTRY.size
#: Blocks at the end of a prompt that are described in the record itself: they may change from call
#: to call.
LAST_BLOCKS = 4
_KINDS = tuple(Kind)
_KIND_NUMBERS = {kind: number for number, kind in enumerate(_KINDS)}
#: Kinds whose tokens follow from their bytes, or do not depend on their content.
_BY_SIZE = frozenset((Kind.SYSTEM, Kind.TEXT, Kind.TOOL_CALL, Kind.OTHER, Kind.IMAGE, Kind.AUDIO))
_ROLES = ("user", "assistant", "system", "tool", "model", "developer", "")
_ROLE_NUMBERS = {role: number for number, role in enumerate(_ROLES)}
_OPENS, _MARKABLE = 1, 2
#: Earlier calls of a conversation that a prompt looks for.
_MOST_TURNS = 4
MOST_CHUNKS = 512
"""Chunks of a prompt that are searched for replies: a request may have a hundred thousand."""
#: Roles of messages that are no reply.
_ASKING = ("user", "system", "developer", "tool")


def block_entries(prompt: RenderedPrompt, first: int) -> bytes:
    """The description of a prompt's blocks from `first` on, for other nodes."""
    entries, pack, start, end = [], _ENTRY.pack, 0, len(prompt)
    per_token = prompt.rendered.bytes_per_token
    for run in prompt.rendered.runs:
        low, log = max(0, first - start), run.log
        if low >= run.count:
            start += run.count
            continue
        in_messages = run.section == "messages"
        blocks = block_texts(prompt, start + low, min(end, start + run.count))
        kinds, ends, splices, opens = log.kinds, log.ends, log.splices, log.opens
        begin, message = log.start(low), log.wire_message_of(low) if in_messages else 0
        for position, block in enumerate(blocks, low):
            kind, units, flags = kinds[position], 0, 0
            size, begin = ends[position] - begin, ends[position]
            if kind not in _BY_SIZE:
                counts, index = prompt.counts, start + position
                tokens = counts.estimated(index + 1) - counts.estimated(index)
                if tokens < 0.9 * size / per_token:
                    units = max(1, min(0xFFFF, tokens // 16))
            role = len(_ROLES) - 1
            if in_messages:
                while message + 1 < len(opens) and opens[message + 1] <= position:
                    message += 1
                flags = _OPENS if opens[message] == position else 0
                role = _ROLE_NUMBERS.get(log.roles[message], role)
            if splices[position] >= 0:
                flags |= _MARKABLE
            digest = blake3(block).digest(8)
            entries.append(pack(digest, size, units, _KIND_NUMBERS[kind], flags | role << 4))
        start += run.count
    return b"".join(entries)


def _blocks(prompt: RenderedPrompt, first: int) -> Iterator[tuple[ChunkRun, ChunkLog, int, bytes]]:
    start = 0
    for run in prompt.rendered.runs:
        low = max(0, first - start)
        if low < run.count:
            blocks = block_texts(prompt, start + low, start + run.count)
            for position, block in enumerate(blocks, low):
                yield run, run.log, position, block
        start += run.count


def common_blocks(prompt: RenderedPrompt, entries: bytes) -> int:
    """How many leading blocks of the prompt are those of the entries."""
    common = 0
    count = len(entries) // _ENTRY.size
    for _, log, position, block in _blocks(prompt, 0):
        if common == count:
            break
        digest, size, _, _, _ = _ENTRY.unpack_from(entries, common * _ENTRY.size)
        if log.ends[position] - log.start(position) != size or blake3(block).digest(8) != digest:
            break
        common += 1
    return common


def repeats(prompt: RenderedPrompt, saved: SavedCall, entries: bytes) -> bool:
    """Whether the prompt has most of the messages of an earlier one, and tools and system prompt of
    about its size: the same conversation, although something before has changed."""
    leading = sum(run.count for run in saved.runs if run.section != "messages")
    was = [_ENTRY.unpack_from(entries, index * _ENTRY.size) for index in range(saved.chunks)]
    known = {blake3(block).digest(8) for *_, block in _blocks(prompt, prompt.leading + 1)}
    messages = {entry[0] for entry in was[leading:]}
    least = min(len(known), max(1, len(messages)))
    if not messages or 2 * len(messages & known) < least:
        return False
    before: int = sum(entry[1] for entry in was[:leading])
    now = sum(run.size for run in prompt.rendered.runs if run.section != "messages")
    return min(before, now) >= 0.75 * max(before, now)


def rebuilt_runs(
    prompt: RenderedPrompt, saved: SavedCall, entries: bytes, first: int, common: int
) -> tuple[ChunkRun, ...]:
    """The runs of an earlier prompt: its first `common` chunks are those of this one, the others
    are described by `entries` from the chunk `first` on."""
    rendered, runs, start = prompt.rendered, [], 0
    texts = {blake3(block).digest(8): block for *_, block in _blocks(prompt, 0)}
    for stored in saved.runs:
        section, count = stored.section, stored.count
        like = next((run for run in rendered.runs if run.section == section), None)
        if like is not None and start + count <= common:
            run, _ = rendered.locate(start)
            runs.append(run if run.count == count else replace(run, count=count))
        else:
            log = _rebuilt_log(prompt, section, start, count, entries, first, common, texts)
            if like is None:
                runs.append(ChunkRun(section, log, count, role=stored.role))
            else:
                runs.append(replace(like, log=log, count=count, paths=(), deferred=()))
        start += count
    return tuple(runs)


def _rebuilt_log(
    prompt: RenderedPrompt,
    section: Section,
    start: int,
    count: int,
    entries: bytes,
    first: int,
    common: int,
    texts: dict[bytes, bytes],
) -> ChunkLog:
    rendered, addition, labels = prompt.rendered, LogAppend(), []
    per_token = rendered.bytes_per_token
    for index in range(start, start + count):
        if index < common:
            run, position = rendered.locate(index)
            log = run.log
            begin, end = log.start(position), log.ends[position]
            data, kind = log.slice(begin, end), log.kinds[position]
            splice = None if log.splices[position] < 0 else log.splices[position] - end
            opens = None
            if section == "messages":
                message = log.wire_message_of(position)
                opens = log.roles[message] if log.opens[message] == position else None
            label = run.label(position)
        else:
            offset = (index - first) * _ENTRY.size
            digest, size, units, number, flags = _ENTRY.unpack_from(entries, offset)
            kind, known = _KINDS[number], texts.get(digest)
            if units and known is None:
                kind, size = Kind.OTHER, int(units * 16 * per_token)
            elif kind is Kind.TOOL and known is None:
                kind = Kind.SYSTEM
            data = placeholder(digest, size) if known is None else known
            splice = 0 if flags & _MARKABLE else None
            opens = _ROLES[min(flags >> 4, len(_ROLES) - 1)] if flags & _OPENS else None
            label = _label(prompt, section, known)
        if section == "messages" and opens is None and not addition.opens:
            opens = "user"
        addition.chunk(kind, data, splice, opens)
        if section == "messages":
            addition.end_message(str(index))
        labels.append(label)
    log = ChunkLog(addition)
    if section != "messages":
        log.labels = tuple(labels)
    return log


def _label(prompt: RenderedPrompt, section: Section, known: bytes | None) -> str:
    if known is not None:
        for run, _, position, block in _blocks(prompt, 0):
            if run.section == section and block == known:
                return run.label(position)
    return UNKNOWN_LABEL


def first_runs(rendered: Rendered, chunks: int) -> tuple[ChunkRun, ...]:
    """The first chunks of a prompt, as a view of it."""
    runs = []
    for run in rendered.runs:
        if chunks > 0:
            runs.append(run if run.count <= chunks else replace(run, count=chunks))
        chunks -= run.count
    return tuple(runs)


# ── Names ────────────────────────────────────────────────────────────────────────────────────────


class Salts(msgspec.Struct, frozen=True):
    """Salts that separate apps, models, and conversations that clients name."""

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
    prompt: RenderedPrompt, salts: Salts, changing: int, last: bytes, opening: bytes
) -> list[bytes]:
    """The names that a later prompt looks for: of the end of this one, also without the blocks that
    may change, of the last and the first block of its messages, and of its shared beginning. `last`
    and `opening` are the digests of those blocks."""
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


def candidates(prompt: RenderedPrompt, salts: Salts) -> tuple[list[bytes], list[int]]:
    """The names to look for, the most specific first, each with its chunk."""
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


def earlier_ends(prompt: RenderedPrompt) -> Iterator[int]:
    """The end of the prompt, and the ends of earlier prompts of the conversation: before replies of
    the model."""
    position, found = len(prompt) - 1, 0
    yield position
    last = max(prompt.leading + 1, position - MOST_CHUNKS)
    reply = position > last and is_reply(prompt, position)
    while position > last and found < _MOST_TURNS:
        later, reply = reply, is_reply(prompt, position - 1)
        if later and not reply:
            found += 1
            yield position - 1
        position -= 1


def replies_after(prompt: RenderedPrompt, chunks: int) -> int:
    """How many replies of the model are after the first chunks, counted up to 2."""
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


def is_reply(prompt: RenderedPrompt, position: int) -> bool:
    """Whether a chunk is from the model. Some wires have items without a role for that."""
    run, index = prompt.rendered.locate(position)
    if run.section != "messages" or run.log.kinds[index] is Kind.TOOL_RESULT:
        return False
    role = run.log.roles[run.log.wire_message_of(index)]
    return role not in _ASKING or run.log.kinds[index] in (Kind.TOOL_CALL, Kind.THINKING)


def block_digest(prompt: RenderedPrompt, position: int) -> bytes:
    [block] = block_texts(prompt, position, position + 1)
    return blake3(block).digest(8)
