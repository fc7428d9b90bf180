"""The journal of all calls: markers, cache reads and writes, verdict and cost.

Details are computed when the journal is read, so a call costs one entry. Prompts are kept up to a
number of bytes; the details of a call are computed before its prompt is dropped.
"""

from __future__ import annotations

import datetime
from collections import deque
from typing import Any

import msgspec

from anaphora import catalog
from anaphora.cache import verdict
from anaphora.cache.prefix import common_bytes
from anaphora.cache.simulator import OpenCall, Outcome
from anaphora.cache.verdict import SentCall
from anaphora.catalog import Price
from anaphora.errors import AnaphoraError

from .billing import ModelFacts

#: Bytes of prompts that are kept, over all calls.
_MAX_BYTES = 64 * 1024 * 1024
#: How many earlier calls a call is compared with.
_COMPARED = 32
#: The fields of an entry that are not shown by their names.
_HIDDEN = ("output", "billed", "details")


class CallRecord(msgspec.Struct, eq=False, kw_only=True):
    """A call that was billed, as long as its prompt is kept."""

    sent: SentCall
    outcome: Outcome
    facts: ModelFacts
    size: int
    """The bytes of its prompt."""
    open: OpenCall | None
    """What it wrote, until its response has ended."""

    @property
    def writes(self) -> bool:
        """Whether it wrote something that cannot be read yet."""
        return self.open is not None and self.open.writes

    @property
    def overlaps(self) -> bool:
        """Whether it would have read what a call wrote whose response had not begun."""
        return any(span.reason == "not_readable_yet" for span in self.outcome.spans)

    def begin(self, now: float) -> None:
        """The response begins."""
        if self.open is not None:
            self.open.respond(began=now)
            self.sent = msgspec.structs.replace(self.sent, began=now)

    def end(self, now: float) -> None:
        """The response has ended, or never will begin: an aborted call writes too."""
        if self.open is not None:
            if self.sent.began is None:
                self.begin(now)
            self.open.respond(ended=now)
            self.open = None


class JournalEntry(msgspec.Struct, eq=False, kw_only=True):
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
    billed: CallRecord | None = None
    details: dict[str, Any] | None = None
    """What the journal shows, once that was computed."""


class Journal:
    def __init__(self, max_entries: int, max_bytes: int = _MAX_BYTES) -> None:
        self._entries: deque[JournalEntry] = deque()
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._bytes = 0
        self._by_reply: dict[tuple[str, str], JournalEntry] = {}
        self._count = 0

    def open(self, now: float, method: str, path: str) -> JournalEntry:
        self._count += 1
        return JournalEntry(number=self._count, at=now, method=method, path=path)

    def add(self, entry: JournalEntry) -> None:
        self._entries.append(entry)
        if entry.billed is not None:
            self._bytes += entry.billed.size
            self._by_reply[entry.workspace, entry.reply_id] = entry
        while len(self._entries) > self._max_entries:
            self._drop_prompt(self._entries.popleft())
        if self._bytes > self._max_bytes:
            self._shrink()

    def sent(self, workspace: str, reply_id: str) -> SentCall | None:
        """The request of a reply, while its prompt is kept."""
        entry = self._by_reply.get((workspace, reply_id))
        return None if entry is None or entry.billed is None else entry.billed.sent

    def entries(self, last: int | None = None) -> list[dict[str, Any]]:
        """The calls, the newest first."""
        entries = list(self._entries)
        indexes = range(len(entries) - 1, -1, -1)[: last if last is not None else len(entries)]
        return [self._details(entries, index) for index in indexes]

    def _details(self, entries: list[JournalEntry], index: int) -> dict[str, Any]:
        entry = entries[index]
        if entry.details is None:
            fields = msgspec.structs.asdict(entry)
            entry.details = {name: fields[name] for name in fields if name not in _HIDDEN}
            if entry.billed is not None:
                entry.details |= _billed_details(entry, entry.billed, _earlier(entries, index))
        return entry.details

    def _shrink(self) -> None:
        entries = list(self._entries)
        for index, entry in enumerate(entries):
            if self._bytes <= self._max_bytes // 2:
                break
            if entry.billed is not None:
                self._details(entries, index)
                self._drop_prompt(entry)

    def _drop_prompt(self, entry: JournalEntry) -> None:
        if entry.billed is not None:
            self._bytes -= entry.billed.size
            self._by_reply.pop((entry.workspace, entry.reply_id), None)
            entry.billed = None


def _earlier(entries: list[JournalEntry], index: int) -> CallRecord | None:
    """The call that this one continues: of those shortly before it, the one with the longest
    common prefix, or with the same first message."""
    entry = entries[index]
    assert entry.billed is not None
    data = entry.billed.sent.rendered.data()
    opening = _first_message(entry.billed.sent)
    account = entry.workspace, entry.provider, entry.wire
    best: tuple[int, CallRecord] | None = None
    for other in reversed(entries[max(0, index - _COMPARED) : index]):
        billed = other.billed
        if billed is None or (other.workspace, other.provider, other.wire) != account:
            continue
        rendered = billed.sent.rendered
        shared = common_bytes(rendered.data(), data)
        # All bodies begin alike: a prefix has at least one whole chunk.
        alike = len(rendered) > 0 and shared >= rendered.offset(1)
        if not alike and (opening is None or opening != _first_message(billed.sent)):
            continue
        if best is None or shared > best[0]:
            best = shared, billed
    return None if best is None else best[1]


def _first_message(sent: SentCall) -> bytes | None:
    runs = (run for run in sent.rendered.runs if run.section == "messages")
    return next((run.log.slice(0, run.log.ends[0]) for run in runs), None)


def _billed_details(
    entry: JournalEntry, billed: CallRecord, earlier: CallRecord | None
) -> dict[str, Any]:
    sent, outcome, facts = billed.sent, billed.outcome, billed.facts
    price = _price(entry)
    before = None if earlier is None else earlier.sent
    result: dict[str, Any] = {"result": None, "cause": None}
    try:
        judged = verdict.judge(
            before, sent, facts.rules, outcome=outcome, price=price, profile=facts.profile
        )
        result |= {"result": judged.result, "cause": judged.cause, "sentence": str(judged)}
    except AnaphoraError as problem:
        result["sentence"] = str(problem)
    cost_usd = None if price is None else price.of(outcome.usage(entry.output))
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
        "spans": msgspec.to_builtins(outcome.spans),
        "verdict": result,
        "output": entry.output,
        "cost_usd": None if cost_usd is None else str(cost_usd),
    }


def _price(entry: JournalEntry) -> Price | None:
    """The price of the model at the time of the call; None where it is unknown."""
    when = datetime.datetime.fromtimestamp(entry.at, datetime.UTC)
    try:
        return catalog.price(entry.provider, entry.model, when)
    except AnaphoraError:
        return None
