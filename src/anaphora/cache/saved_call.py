"""A call saved for a later session, which plans and judges the next call of the conversation by it.

    saved = save_call(sent, runs)                   figures, places of markers, and digests
    restore_call(saved, rendered, runs)             the call, whose prompt has these runs

The runs of its prompt are saved as bytes (`rendered/stored.py`). Values from a store are not
trusted: they are decoded strictly.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Generic, TypeVar

import msgspec
from msgspec.structs import replace

from anaphora.errors import Parse
from anaphora.rendered import CacheHandle, ChunkRun, Mark, Plan, Rendered
from anaphora.rendered.stored import StoredRun
from anaphora.tokens import Bills
from anaphora.values import Ttl, Usage

from .sent_call import SentCall
from .simulator import Span
from .simulator.view import Position, Time

Saved = TypeVar("Saved")


class SavedFormat(Generic[Saved]):
    """Values of one type as bytes with a version in front: another version is not read."""

    def __init__(self, version: bytes, type_: type[Saved]) -> None:
        self._version = version
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(type_).decode

    def encode(self, value: Saved) -> bytes:
        return self._version + self._encode(value)

    def decode(self, data: object) -> Saved:
        """Raises `Parse`, or an error of msgspec, for an invalid value."""
        if not isinstance(data, bytes):
            raise Parse(f"the store returned {type(data).__name__} instead of bytes")
        if not data.startswith(self._version):
            raise Parse("it was written by another version")
        return self._decode(data[len(self._version) :])


class SavedCall(msgspec.Struct, frozen=True, kw_only=True):
    """The last call of a conversation at one provider."""

    at: Time | None
    began: Time | None
    usage: Usage | None
    marks: tuple[Mark, ...]
    automatic: Ttl | None
    only_marks: bool
    key: str | None
    held: CacheHandle | None
    spans: tuple[Span, ...]
    """The simulator's outcome; empty if it is not saved."""
    cacheable: Position
    cache_params: tuple[tuple[str, bytes], ...]
    bills: Bills
    runs: tuple[StoredRun, ...]
    since: Time
    """When the oldest of its pieces was stored."""
    host: str = ""
    """The host behind a router that answered."""
    changing: bool = False

    @property
    def chunks(self) -> int:
        return sum(run.count for run in self.runs)

    def check(self) -> None:
        """Raises `ValueError` if it contradicts itself."""
        chunks = self.chunks
        if self.cacheable > chunks or any(not 0 <= mark.chunk < chunks for mark in self.marks):
            raise ValueError("its marks are behind its end")
        check_bills(self.bills)


def check_bills(bills: Bills) -> None:
    if any(estimated <= 0 or billed <= 0 for estimated, billed in bills) or any(
        one[0] >= two[0] or one[1] > two[1] for one, two in pairwise(bills)
    ):
        raise ValueError("bills rise")


def save_call(
    sent: SentCall,
    runs: tuple[StoredRun, ...],
    *,
    spans: tuple[Span, ...] = (),
    since: float = 0.0,
) -> SavedCall:
    plan, usage, rendered = sent.marks, sent.usage, sent.rendered
    return SavedCall(
        at=sent.at,
        began=sent.began,
        usage=None if usage is None else replace(usage, raw=None),
        marks=plan.marks,
        automatic=plan.automatic,
        only_marks=plan.only_marks,
        key=plan.key,
        held=plan.held,
        spans=spans,
        cacheable=rendered.cacheable,
        cache_params=rendered.envelope.cache_params,
        bills=rendered.bills,
        runs=runs,
        since=since,
        host=sent.host,
        changing=plan.changing,
    )


def restore_call(saved: SavedCall, rendered: Rendered, runs: tuple[ChunkRun, ...]) -> SentCall:
    """The call; `runs` are those of its prompt, `rendered` is a later one."""
    earlier = replace(
        rendered,
        runs=runs,
        cacheable=saved.cacheable,
        envelope=replace(rendered.envelope, source=None, cache_params=saved.cache_params),
        body_order=None,
        frozen=None,
        marks=(),
        automatic=None,
        bills=saved.bills,
        notices=(),
    )
    plan = Plan(
        marks=saved.marks,
        automatic=saved.automatic,
        only_marks=saved.only_marks,
        key=saved.key,
        held=saved.held,
        changing=saved.changing,
    )
    sent = SentCall(rendered=earlier, plan=plan, at=saved.at, began=saved.began, usage=saved.usage)
    return replace(sent, host=saved.host) if saved.host else sent
