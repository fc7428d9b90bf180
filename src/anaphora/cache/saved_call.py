"""A call saved for a later session or another node, which plans and judges the next call of the
conversation by it.

    saved = save_call(sent, runs)                   figures, places of markers, and digests
    restore_call(saved, rendered, runs)             the call, whose prompt has these runs

The runs of its prompt are saved as bytes (`rendered/stored.py`) or, if no text may be saved, as
digests of blocks (`saved_blocks.py`). Values from a store are not trusted: they are decoded
strictly.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Generic, TypeVar

import msgspec
from blake3 import blake3
from msgspec.structs import replace

from anaphora.errors import Parse
from anaphora.rendered import CacheHandle, ChunkRun, Mark, Plan, Rendered
from anaphora.rendered.stored import StoredRun
from anaphora.tokens import Bills
from anaphora.values import Ttl, Usage

from .sent_call import SentCall
from .simulator import Span
from .simulator.view import Position, Time

#: Parameters whose values verdicts show, and values that are words.
_SHOWN = frozenset(("model", "tool_choice", "effort", "verbosity", "service_tier", "speed"))
_WORD = re.compile(rb'"?[A-Za-z0-9_.:/-]{1,60}"?')
_OUR_KEY = re.compile(r"[0-9a-f]{16,128}(-[0-9]{1,20})?")
#: Prefix of the digest of a value that is not saved: a byte that does not occur in JSON.
_HIDDEN = b"\0"
_DIGEST_BYTES, _SIZE_BYTES = 8, 3

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
    without_text: bool = False,
) -> SavedCall:
    """The call in its stored form. `without_text`: the app's own values become digests."""
    plan, usage, rendered = sent.marks, sent.usage, sent.rendered
    key, params = plan.key, rendered.envelope.cache_params
    if without_text:
        key, params = _hidden_key(key), tuple((name, _hidden(name, each)) for name, each in params)
    return SavedCall(
        at=sent.at,
        began=sent.began,
        usage=None if usage is None else replace(usage, raw=None),
        marks=plan.marks,
        automatic=plan.automatic,
        only_marks=plan.only_marks,
        key=key,
        held=plan.held,
        spans=spans,
        cacheable=rendered.cacheable,
        cache_params=params,
        bills=rendered.bills,
        runs=runs,
        since=since,
        host=sent.host,
        changing=plan.changing,
    )


def restore_call(
    saved: SavedCall, rendered: Rendered, runs: tuple[ChunkRun, ...], own: Plan | None = None
) -> SentCall:
    """The call; `runs` are those of its prompt, `rendered` is a later one. Parameters and a cache
    key that were saved as digests are those of `rendered` and `own`, if they are the same."""
    now = dict(rendered.envelope.cache_params)
    params = tuple((name, _found(value, now.get(name))) for name, value in saved.cache_params)
    key = saved.key
    if own is not None and own.key is not None and key == _hidden_key(own.key):
        key = own.key
    earlier = replace(
        rendered,
        runs=runs,
        cacheable=saved.cacheable,
        envelope=replace(rendered.envelope, source=None, cache_params=params),
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
        key=key,
        held=saved.held,
        changing=saved.changing,
    )
    sent = SentCall(rendered=earlier, plan=plan, at=saved.at, began=saved.began, usage=saved.usage)
    return replace(sent, host=saved.host) if saved.host else sent


def _hidden_key(key: str | None) -> str | None:
    """A cache key that an app chose may hold anything."""
    if key is None or _OUR_KEY.fullmatch(key):
        return key
    return "~" + blake3(key.encode(errors="replace")).hexdigest(8)


def _hidden(name: str, value: bytes) -> bytes:
    """A parameter's value; its digest and size unless it is a word that verdicts show."""
    if name in _SHOWN and _WORD.fullmatch(value):
        return value
    size = min(len(value), (1 << 8 * _SIZE_BYTES) - 1)
    return _HIDDEN + blake3(value).digest(_DIGEST_BYTES) + size.to_bytes(_SIZE_BYTES, "little")


def _found(saved: bytes, now: bytes | None) -> bytes:
    """A parameter's value; a placeholder of the same size if it is not known."""
    if not saved.startswith(_HIDDEN):
        return saved
    digest, size_at = saved[1 : 1 + _DIGEST_BYTES], 1 + _DIGEST_BYTES
    size = int.from_bytes(saved[size_at : size_at + _SIZE_BYTES], "little")
    if now is not None and blake3(now).digest(_DIGEST_BYTES) == digest:
        return now
    return digest.ljust(size, b"\0")[: max(size, _DIGEST_BYTES)]
