"""A conversation's last calls for another node: figures, places of markers and digests; no text.

    saved_call(sent, turn, end)           what a verdict on the next call needs to know of a call
    restored_call(saved, rendered, …)     the earlier call, as far as it is in a later prompt
    saved_planner(planner)                the state of the planner, packed

The blocks of its prompt are in saved_blocks.py, the names that it is found by in prompt_names.py.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import msgspec
from blake3 import blake3
from msgspec import convert, to_builtins
from msgspec.structs import replace

from anaphora.cache import CallHints
from anaphora.cache.plan.saved import SavedGaps, SavedPlanner, SavedUses
from anaphora.cache.sent_call import SentCall
from anaphora.rendered import ChunkRun, Mark, Plan, Rendered
from anaphora.tokens import Bills, learned, tokens_in
from anaphora.values import Section, Ttl, Usage

from .saved_blocks import ENTRY_BYTES, LAST_BLOCKS, first_runs

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


# ── Calls ─────────────────────────────────────────────────────────────────────────────────────────


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


# ── The planner ───────────────────────────────────────────────────────────────────────────────────


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
