"""A conversation's last calls for another node: figures, places of markers, and digests of blocks;
never text.

    saved_call(sent, turn)                what a verdict on the next call needs to know of a call
    pointers(prompt, salt)                names under which a later prompt finds its conversation
    candidates(prompt, salt)              the names that a prompt looks for
    restored_call(saved, rendered, …)     the earlier call, as far as it is in a later prompt

A later prompt mostly begins with all of an earlier one: that one is a view of it. Where it does
not, blocks of the earlier prompt that occur in the later one are taken from there, and the others
are placeholders of their size: the block that changed is known, its earlier text is not.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator
from itertools import pairwise
from struct import Struct
from typing import Any

import msgspec
from blake3 import blake3
from msgspec import convert, to_builtins
from msgspec.structs import replace

from anaphora.cache import CallHints
from anaphora.cache.compared_prompt import ComparedPrompt
from anaphora.cache.plan.memory import SavedGaps, SavedPlanner, SavedUses
from anaphora.cache.prefix import SentCall
from anaphora.rendered import ChunkLog, ChunkRun, Kind, LogAppend, Mark, Plan, Rendered
from anaphora.rendered.chunks import UNKNOWN_LABEL, placeholder
from anaphora.tokens import Bills, learned, tokens_in
from anaphora.values import Section, SegmentRole, Ttl, Usage

#: Digest of the block, bytes of the chunk, tokens in units of 16 where it is not text, kind, flags.
_ENTRY = Struct("<8sIHBB")
ENTRY_BYTES = _ENTRY.size
#: Blocks at the end of a prompt that are described in the record itself: they may change from call
#: to call.
LAST_BLOCKS = 4
#: Earlier calls of a conversation that a prompt looks for.
_MOST_TURNS = 4
_KINDS = tuple(Kind)
_KIND_NUMBERS = {kind: number for number, kind in enumerate(_KINDS)}
#: Kinds whose tokens follow from their bytes, or are the same whatever they hold.
_BY_SIZE = frozenset((Kind.SYSTEM, Kind.TEXT, Kind.TOOL_CALL, Kind.OTHER, Kind.IMAGE, Kind.AUDIO))
_ROLES = ("user", "assistant", "system", "tool", "model", "developer", "")
_ROLE_NUMBERS = {role: number for number, role in enumerate(_ROLES)}
_OPENS, _MARKABLE = 1, 2
#: Roles of messages that are no reply.
_ASKING = ("user", "system", "developer", "tool")
#: Parameters whose values verdicts show, and values that are words.
_SHOWN = frozenset(("model", "tool_choice", "effort", "verbosity", "service_tier", "speed"))
_WORD = re.compile(rb'"?[A-Za-z0-9_.:/-]{1,60}"?')
_OUR_KEY = re.compile(r"[0-9a-f]{16,128}(-[0-9]{1,20})?")


class SavedTurn(msgspec.Struct, frozen=True, array_like=True):
    """One call that was answered."""

    turn: int
    chunks: int
    cacheable: int
    at: float | None
    began: float | None
    usage: tuple[Any, ...] | None
    marks: tuple[tuple[int, Ttl, int | None], ...]
    automatic: Ttl | None
    only_marks: bool
    key: str | None
    params: tuple[tuple[str, bytes, int], ...]
    """Names, values or their digests, and sizes."""
    bills: Bills
    estimated: int
    """Tokens by the catalog's ratio."""
    runs: tuple[tuple[Section, str | None, int], ...]
    end: bytes
    """The key of the whole prompt."""


class SavedLine(msgspec.Struct, frozen=True, array_like=True):
    """A conversation as it is saved."""

    conversation: str
    hints: tuple[bytes, bytes]
    turns: tuple[SavedTurn, ...]
    """The last one or two, the latest at the end."""
    last: bytes
    """What is known of the last blocks of the latest prompt."""
    planner: tuple[Any, ...] | None
    changing: int
    seen: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(SavedLine).decode


def encode_line(line: SavedLine) -> bytes:
    return _encode(line)


def decode_line(data: bytes) -> SavedLine | None:
    """None for what is none of ours, or contradicts itself."""
    try:
        line = _decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    if not line.turns or not all(map(_is_consistent, line.turns)):
        return None
    last = min(LAST_BLOCKS, line.turns[-1].chunks) * ENTRY_BYTES
    return line if len(line.last) == last else None


def _is_consistent(turn: SavedTurn) -> bool:
    counts = [count for _, _, count in turn.runs]
    return (
        0 <= turn.cacheable <= turn.chunks == sum(counts)
        and min(counts, default=0) > 0
        and all(0 <= chunk < turn.chunks for chunk, _, _ in turn.marks)
        and all(0 <= size < 1 << 24 for _, _, size in turn.params)
        and all(one > 0 and two > 0 for one, two in turn.bills)
        and all(a[0] < b[0] and a[1] <= b[1] for a, b in pairwise(turn.bills))
    )


# ── Names ────────────────────────────────────────────────────────────────────────────────────────


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
    ends = list(_earlier_ends(prompt))
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


def _earlier_ends(prompt: ComparedPrompt) -> Iterator[int]:
    """The end of the prompt, and where earlier prompts of the conversation ended: before replies of
    the model."""
    position, found = len(prompt) - 1, 0
    yield position
    while position > prompt.leading + 1 and found < _MOST_TURNS:
        if _is_reply(prompt, position) and not _is_reply(prompt, position - 1):
            found += 1
            yield position - 1
        position -= 1


def replies_after(prompt: ComparedPrompt, chunks: int) -> int:
    """How many replies of the model are behind the first chunks; 2 stands for more."""
    replies, before = 0, False
    for position in range(max(chunks, prompt.leading + 1), len(prompt)):
        reply = _is_reply(prompt, position)
        replies += reply and not before
        if replies == 2:
            break
        before = reply
    return replies


def _is_reply(prompt: ComparedPrompt, position: int) -> bool:
    """Whether a chunk is from the model. Some wires have items of no role for that."""
    run, index = prompt.rendered.locate(position)
    if run.section != "messages" or run.log.kinds[index] is Kind.TOOL_RESULT:
        return False
    role = run.log.roles[run.log.wire_message_of(index)]
    return role not in _ASKING or run.log.kinds[index] in (Kind.TOOL_CALL, Kind.THINKING)


def block_digest(prompt: ComparedPrompt, position: int) -> bytes:
    return blake3(prompt.block(position)).digest(8)


# ── Calls ────────────────────────────────────────────────────────────────────────────────────────


def saved_call(sent: SentCall, turn: int, end: bytes) -> SavedTurn:
    rendered, plan, usage = sent.rendered, sent.marks, sent.usage
    return SavedTurn(
        turn=turn,
        chunks=len(rendered),
        cacheable=rendered.cacheable,
        at=sent.at,
        began=sent.began,
        usage=None
        if usage is None
        else (
            usage.uncached,
            usage.read,
            None if usage.written is None else dict(usage.written),
            usage.output,
            usage.reasoning,
            usage.overlap,
        ),
        marks=tuple((mark.chunk, mark.ttl, mark.splice) for mark in plan.marks),
        automatic=plan.automatic,
        only_marks=plan.only_marks,
        key=_saved_key(plan.key),
        params=tuple(map(_saved_param, rendered.envelope.cache_params)),
        bills=rendered.bills,
        estimated=tokens_in(rendered.size, rendered.bytes_per_token),
        runs=tuple(
            (run.section, None if run.role is None else run.role.value, run.count)
            for run in rendered.runs
        ),
        end=end,
    )


def _saved_key(key: str | None) -> str | None:
    """A cache key that an app chose may hold anything: only its digest is saved."""
    if key is None or _OUR_KEY.fullmatch(key):
        return key
    return "~" + blake3(key.encode(errors="replace")).hexdigest(8)


def _saved_param(param: tuple[str, bytes]) -> tuple[str, bytes, int]:
    name, value = param
    if name in _SHOWN and _WORD.fullmatch(value):
        return name, value, 0
    return name, blake3(value).digest(8), len(value)


def restored_call(
    saved: SavedTurn, rendered: Rendered, runs: tuple[ChunkRun, ...], own: Plan
) -> SentCall:
    """The earlier call; `runs` are those of its prompt. Its parameters and its cache key are those
    of this call, where they are the same."""
    now = dict(rendered.envelope.cache_params)
    params = []
    for name, value, size in saved.params:
        if size and name in now and blake3(now[name]).digest(8) == value:
            value = now[name]
        elif size:
            value = value.ljust(size, b"\0")[: max(size, 8)]
        params.append((name, value))
    key = own.key if own.key is not None and saved.key == _saved_key(own.key) else saved.key
    plan = Plan(
        marks=tuple(Mark(chunk, ttl, splice) for chunk, ttl, splice in saved.marks),
        automatic=saved.automatic,
        only_marks=saved.only_marks,
        key=key,
    )
    usage = None
    if saved.usage is not None:
        uncached, read, written, output, reasoning, overlap = saved.usage
        usage = Usage(
            uncached=uncached,
            read=read,
            written=written,
            output=output,
            reasoning=reasoning,
            overlap=overlap,
        )
    same = tuple(params) == rendered.envelope.cache_params
    envelope = rendered.envelope
    if not same:
        envelope = replace(envelope, cache_params=tuple(params))
    earlier = replace(
        rendered,
        runs=runs,
        cacheable=saved.cacheable,
        envelope=envelope,
        body_order=None,
        frozen=None,
        marks=(),
        automatic=None,
        bills=saved.bills,
        notices=(),
    )
    return SentCall(rendered=earlier, plan=plan, at=saved.at, began=saved.began, usage=usage)


def first_runs(rendered: Rendered, chunks: int) -> tuple[ChunkRun, ...]:
    """The first chunks of a prompt, as a view of it."""
    runs = []
    for run in rendered.runs:
        if chunks > 0:
            runs.append(run if run.count <= chunks else replace(run, count=chunks))
        chunks -= run.count
    return tuple(runs)


def shared_beginning(sent: SentCall, saved: SavedTurn, chunks: int) -> SentCall:
    """A call as if it had ended after the chunks that it shares with another conversation: what was
    billed for them is unknown, but its bill shows how many bytes a token has."""
    rendered = sent.rendered
    total = None if sent.usage is None else sent.usage.input
    marks = tuple(mark for mark in sent.marks.marks if mark.chunk < chunks)
    bills = saved.bills
    if total:
        bills = learned(bills, saved.estimated, total)
    rendered = replace(
        rendered,
        runs=first_runs(rendered, chunks),
        cacheable=min(rendered.cacheable, chunks),
        bills=bills,
    )
    return replace(sent, rendered=rendered, plan=Plan(marks=marks), usage=None)


# ── Blocks ───────────────────────────────────────────────────────────────────────────────────────


def block_entries(prompt: ComparedPrompt, first: int) -> bytes:
    """What other nodes know of the blocks of a prompt from one on."""
    entries, pack, start, end = [], _ENTRY.pack, 0, len(prompt)
    per_token = prompt.rendered.bytes_per_token
    for run in prompt.rendered.runs:
        low, log = max(0, first - start), run.log
        if low >= run.count:
            start += run.count
            continue
        in_messages = run.section == "messages"
        blocks = prompt.slices(start + low, min(end, start + run.count))
        for position, block in enumerate(blocks, low):
            kind, units, flags = log.kinds[position], 0, 0
            size = log.ends[position] - log.start(position)
            if kind not in _BY_SIZE:
                counts, index = prompt.counts, start + position
                tokens = counts.estimated(index + 1) - counts.estimated(index)
                if tokens < 0.9 * size / per_token:
                    units = max(1, min(0xFFFF, tokens // 16))
            role = len(_ROLES) - 1
            if in_messages:
                message = log.wire_message_of(position)
                flags = _OPENS if log.opens[message] == position else 0
                role = _ROLE_NUMBERS.get(log.roles[message], role)
            if log.splices[position] >= 0:
                flags |= _MARKABLE
            digest = blake3(block).digest(8)
            entries.append(pack(digest, size, units, _KIND_NUMBERS[kind], flags | role << 4))
        start += run.count
    return b"".join(entries)


def _blocks(prompt: ComparedPrompt, first: int) -> Iterator[tuple[ChunkRun, ChunkLog, int, bytes]]:
    start = 0
    for run in prompt.rendered.runs:
        low = max(0, first - start)
        if low < run.count:
            blocks = prompt.slices(start + low, start + run.count)
            for position, block in enumerate(blocks, low):
                yield run, run.log, position, block
        start += run.count


def common_blocks(prompt: ComparedPrompt, entries: bytes) -> int:
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


def repeats(prompt: ComparedPrompt, saved: SavedTurn, entries: bytes) -> bool:
    """Whether the prompt has most of the messages of an earlier one, and tools and system prompt of
    about its size: the same conversation, although something before has changed."""
    leading = sum(count for section, _, count in saved.runs if section != "messages")
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
    prompt: ComparedPrompt, saved: SavedTurn, entries: bytes, first: int, common: int
) -> tuple[ChunkRun, ...]:
    """The runs of an earlier prompt: its first `common` chunks are those of this one, the others
    are described by `entries` from the chunk `first` on."""
    rendered, runs, start = prompt.rendered, [], 0
    texts = {blake3(block).digest(8): block for *_, block in _blocks(prompt, 0)}
    for section, role, count in saved.runs:
        like = next((run for run in rendered.runs if run.section == section), None)
        if like is not None and start + count <= common:
            run, _ = rendered.locate(start)
            runs.append(run if run.count == count else replace(run, count=count))
        else:
            log = _rebuilt_log(prompt, section, start, count, entries, first, common, texts)
            if like is None:
                segment = None if role is None else SegmentRole(role)
                runs.append(ChunkRun(section, log, count, role=segment))
            else:
                runs.append(replace(like, log=log, count=count, paths=(), deferred=()))
        start += count
    return tuple(runs)


def _rebuilt_log(
    prompt: ComparedPrompt,
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


def _label(prompt: ComparedPrompt, section: Section, known: bytes | None) -> str:
    if known is not None:
        for run, _, position, block in _blocks(prompt, 0):
            if run.section == section and block == known:
                return run.label(position)
    return UNKNOWN_LABEL


# ── The planner ──────────────────────────────────────────────────────────────────────────────────


def saved_planner(planner: SavedPlanner) -> tuple[Any, ...]:
    """The planner's state, packed: pauses in milliseconds."""
    same = planner.same
    return (
        planner.number,
        _saved_gaps(planner.gaps),
        planner.written,
        planner.cache_key,
        planner.counted,
        planner.beginning,
        None if same is None else (same.continued, same.ended, _saved_gaps(same.gaps)),
        (planner.all.continued, planner.all.ended),
    )


def restored_planner(saved: tuple[Any, ...]) -> SavedPlanner:
    """Raises `ValueError` or `TypeError` for what is none of ours."""
    number, gaps, written, cache_key, counted, beginning, same, (continued, ended) = saved
    planner = SavedPlanner(
        number=number,
        gaps=_restored_gaps(gaps),
        written=None if written is None else tuple(written),
        cache_key=cache_key,
        counted=counted,
        beginning=beginning,
        same=None if same is None else SavedUses(same[0], same[1], _restored_gaps(same[2])),
        all=SavedUses(continued, ended, SavedGaps((), None, 0)),
    )
    return convert(to_builtins(planner, builtin_types=(bytes,)), SavedPlanner)


def _saved_gaps(gaps: SavedGaps) -> tuple[list[int], float | None, int]:
    return [round(gap * 1000) for gap in gaps.gaps], gaps.last, gaps.count


def _restored_gaps(saved: Any) -> SavedGaps:
    gaps, last, count = saved
    return SavedGaps(tuple(gap / 1000 for gap in gaps), last, count)


def hint_digests(hints: CallHints) -> tuple[bytes, bytes]:
    return _hint(hints.conversation), _hint(hints.user)


def restored_hints(saved: tuple[bytes, bytes], hints: CallHints) -> CallHints:
    """Those of this call, where they are the same; others are told apart by their digests."""
    given = (hints.conversation, hints.user)
    conversation, user = (
        now if _hint(now) == digest else digest.hex()
        for now, digest in zip(given, saved, strict=True)
    )
    return CallHints(conversation=conversation, user=user)


def _hint(text: str) -> bytes:
    return blake3(text.encode(errors="replace")).digest(8) if text else b""
