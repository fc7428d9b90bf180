"""Connections that are slow, or end before the answer does. No byte of the answer changes."""

from __future__ import annotations

import msgspec

from anaphora.emulator.core.asked import Answer, Chunk

#: How many pieces a whole answer drips in.
_DROPS = 16


def hang(answer: Answer) -> Answer:
    return msgspec.structs.replace(answer, hang=True)


def reset(answer: Answer, after: int | None) -> Answer:
    """Dropped, without a word unless pieces of it may come first."""
    if after is None:
        return msgspec.structs.replace(answer, reset=True)
    return msgspec.structs.replace(cut(answer, after), reset=True)


def late(answer: Answer, seconds: float) -> Answer:
    if not answer.chunks:
        return answer
    first, *rest = answer.chunks
    return _of(answer, [Chunk(first.delay + seconds, first.data), *rest])


def drip(answer: Answer, seconds: float) -> Answer:
    chunks = answer.chunks if answer.stream else _pieces(answer, _DROPS)
    return _of(answer, [Chunk(chunk.delay + seconds, chunk.data) for chunk in chunks])


def cut(answer: Answer, after: int | None) -> Answer:
    """Ends behind so many pieces; a whole answer, which is one, in the middle of it."""
    if not answer.stream:
        answer = _of(answer, _pieces(answer, 2))
    return msgspec.structs.replace(answer, cut_after=place(answer, after))


def place(answer: Answer, after: int | None) -> int:
    """Behind how many chunks: as told, or half; never behind all of them."""
    wanted = len(answer.chunks) // 2 if after is None else after
    return max(0, min(wanted, len(answer.chunks) - 1))


def _pieces(answer: Answer, count: int) -> list[Chunk]:
    body = answer.body
    size = max(1, -(-len(body) // count))
    delay = answer.chunks[0].delay if answer.chunks else 0.0
    return [
        Chunk(0.0 if start else delay, body[start : start + size])
        for start in range(0, len(body), size)
    ]


def _of(answer: Answer, chunks: list[Chunk]) -> Answer:
    return msgspec.structs.replace(answer, chunks=tuple(chunks))
