"""Every call that came: what it marked, read and wrote, what became of its prefix, and the bill.

What is shown is worked out when somebody looks: a call costs an entry, and no more. Prompts are
kept within a bound of bytes; of those that are let go, what there was to tell is told before.
"""

from __future__ import annotations

import datetime
from collections import deque
from typing import Any

import msgspec

from anaphora import catalog
from anaphora.cache import verdict
from anaphora.cache.simulator import Outcome
from anaphora.cache.verdict import SentCall
from anaphora.catalog import Price
from anaphora.errors import AnaphoraError

from .billing import Facts

#: Bytes of prompts that are kept, over all calls.
_BYTES = 64 * 1024 * 1024
#: How many calls before it a call is compared with.
_BEFORE = 32


class Called(msgspec.Struct, eq=False, kw_only=True):
    """A call that was billed, as long as its prompt is kept."""

    sent: SentCall
    outcome: Outcome
    facts: Facts
    size: int
    """The bytes of its prompt."""


class Entry(msgspec.Struct, eq=False, kw_only=True):
    number: int
    at: float
    method: str
    path: str
    provider: str = ""
    wire: str = ""
    operation: str = ""
    model: str = ""
    workspace: str = ""
    request_id: str = ""
    reply_id: str = ""
    stream: bool = False
    status: int = 0
    error: str = ""
    fault: str = ""
    scripted: bool = False
    output: int = 0
    called: Called | None = None
    told: dict[str, Any] | None = None
    """What was worked out, once somebody looked."""


class Journal:
    def __init__(self, most: int, size: int = _BYTES) -> None:
        self._entries: deque[Entry] = deque()
        self._most = most
        self._size = size
        self._kept = 0
        self._by_reply: dict[tuple[str, str], Entry] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._entries)

    def open(self, at: float, method: str, path: str) -> Entry:
        self._count += 1
        return Entry(number=self._count, at=at, method=method, path=path)

    def add(self, entry: Entry) -> None:
        self._entries.append(entry)
        if entry.called is not None:
            self._kept += entry.called.size
            self._by_reply[entry.workspace, entry.reply_id] = entry
        while len(self._entries) > self._most:
            self._forget(self._entries.popleft())
        if self._kept > self._size:
            self._shrink()

    def sent(self, workspace: str, reply_id: str) -> SentCall | None:
        """The request that an answer was given to, while it is kept."""
        entry = self._by_reply.get((workspace, reply_id))
        return None if entry is None or entry.called is None else entry.called.sent

    def clear(self) -> None:
        self._entries.clear()
        self._by_reply.clear()
        self._kept = 0

    def told(self, last: int | None = None) -> list[dict[str, Any]]:
        """The calls, the newest first."""
        entries = list(self._entries)
        wanted = range(len(entries) - 1, -1, -1)[: last if last is not None else len(entries)]
        return [self._told(entries, at) for at in wanted]

    def _told(self, entries: list[Entry], at: int) -> dict[str, Any]:
        entry = entries[at]
        if entry.told is None:
            entry.told = _common(entry)
            if entry.called is not None:
                earlier = _before(entries, at)
                price = _price(entry)
                entry.told |= _cached(entry.called, earlier, price) | _billed(entry, price)
        return entry.told

    def _shrink(self) -> None:
        """Lets the oldest prompts go, and tells what they were first."""
        entries = list(self._entries)
        for at, entry in enumerate(entries):
            if self._kept <= self._size // 2:
                break
            if entry.called is not None:
                self._told(entries, at)
                self._forget(entry)

    def _forget(self, entry: Entry) -> None:
        if entry.called is not None:
            self._kept -= entry.called.size
            self._by_reply.pop((entry.workspace, entry.reply_id), None)
            entry.called = None


def _common(entry: Entry) -> dict[str, Any]:
    names = (
        "number at method path provider wire operation model workspace request_id reply_id "
        "stream status error fault scripted"
    )
    return {name: getattr(entry, name) for name in names.split()}


def _before(entries: list[Entry], at: int) -> Called | None:
    """The call whose prefix this one goes on from: of those shortly before it, the one that agrees
    for longest, or that began the same conversation."""
    entry = entries[at]
    assert entry.called is not None
    data = entry.called.sent.rendered.data()
    best: tuple[int, Called] | None = None
    for other in reversed(entries[max(0, at - _BEFORE) : at]):
        called = other.called
        place = (entry.workspace, entry.provider, entry.wire)
        if called is None or (other.workspace, other.provider, other.wire) != place:
            continue
        shared = _shared(called.sent.rendered.data(), data)
        # What begins every body alike is no prefix yet.
        alike = shared >= called.sent.rendered.offset(1)
        if not alike and not _same_opening(called.sent, entry.called.sent):
            continue
        if best is None or shared > best[0]:
            best = shared, called
    return None if best is None else best[1]


def _shared(first: bytes, second: bytes) -> int:
    """How many leading bytes agree."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _same_opening(first: SentCall, second: SentCall) -> bool:
    return _opening(first) is not None and _opening(first) == _opening(second)


def _opening(sent: SentCall) -> bytes | None:
    """The first message."""
    runs = (run for run in sent.rendered.runs if run.section == "messages")
    return next((run.log.slice(0, run.log.ends[0]) for run in runs), None)


def _cached(called: Called, earlier: Called | None, price: Price | None) -> dict[str, Any]:
    sent, outcome = called.sent, called.outcome
    rules, profile = called.facts.rules, called.facts.profile
    before = earlier.sent if earlier is not None else None
    try:
        found = verdict.judge(before, sent, rules, outcome=outcome, price=price, profile=profile)
        judged = {"result": found.result, "cause": found.cause, "sentence": str(found)}
    except AnaphoraError as problem:
        judged = {"result": None, "cause": None, "sentence": str(problem)}
    return {
        "markers": [
            {"path": sent.rendered.chunk(mark.chunk).path, "ttl": mark.ttl}
            for mark in sent.marks.marks
        ],
        "automatic": sent.marks.automatic,
        "held": sent.marks.held.handle if sent.marks.held is not None else None,
        "read": outcome.read,
        "written": outcome.written,
        "uncached": outcome.uncached,
        "spans": [msgspec.to_builtins(span) for span in outcome.spans],
        "verdict": judged,
    }


def _price(entry: Entry) -> Price | None:
    """The price of its model at the time; None where it is unknown."""
    when = datetime.datetime.fromtimestamp(entry.at, datetime.UTC)
    try:
        return catalog.price(entry.provider, entry.model, when)
    except AnaphoraError:
        return None


def _billed(entry: Entry, price: Price | None) -> dict[str, Any]:
    assert entry.called is not None
    usage = entry.called.outcome.usage(entry.output)
    cost_usd = None if price is None else price.of(usage)
    return {"output": entry.output, "cost_usd": None if cost_usd is None else str(cost_usd)}
