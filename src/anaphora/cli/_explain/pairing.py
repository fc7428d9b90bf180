"""Which earlier request a request goes on from."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from blake3 import blake3

from anaphora.cache.verdict.json_blocks import block_of

from .calls import Made

#: Conversations that are open at a time.
_OPEN = 64

#: A request that repeats less of an earlier one is another conversation.
_SAME = 0.5


def paired(calls: Iterable[Made]) -> Iterator[tuple[Made | None, Made]]:
    """Each call with the one before it in its conversation: the one that the log says, or the
    latest of those whose messages it repeats most."""
    recent: deque[tuple[Made, frozenset[bytes]]] = deque(maxlen=_OPEN)
    for call in calls:
        said = _said(call)
        before = _before(call, said, recent)
        if before is not None:
            recent.remove(before)
        yield (None if before is None else before[0]), call
        recent.append((call, said))


def _before(
    call: Made, said: frozenset[bytes], recent: deque[tuple[Made, frozenset[bytes]]]
) -> tuple[Made, frozenset[bytes]] | None:
    best, most = None, _SAME
    for one in recent:
        earlier, blocks = one
        if earlier.provider != call.provider or earlier.wire != call.wire:
            continue
        if call.talk or earlier.talk:
            if call.talk == earlier.talk:
                best = one
            continue
        share = len(said & blocks) / min(len(said), len(blocks)) if said and blocks else 0.0
        if share >= most:
            best, most = one, share
    return best


def _said(call: Made) -> frozenset[bytes]:
    return frozenset(
        blake3(block_of(chunk).raw).digest(16)
        for chunk in call.sent.rendered
        if chunk.section == "messages"
    )
