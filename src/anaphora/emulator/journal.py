"""The state of every account: prompt caches, rate-limit counters, and the journal of all calls with
markers, cache reads and writes, verdict and cost.

Details of a call, and the earlier call that it is compared with, are found when the journal is
read, so a call costs one entry. Prompts are kept up to a number of bytes; the details of a call are
computed before its prompt is dropped. The journal may be read from any thread.
"""

from __future__ import annotations

import datetime
import itertools
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from anaphora import catalog
from anaphora.bounded import BoundedMap
from anaphora.cache import PrefixIndex, verdict
from anaphora.cache.compared_prompt import CallHints
from anaphora.cache.prefix_index import EarlierCall
from anaphora.cache.simulator import OpenCall, Outcome, Simulator
from anaphora.cache.verdict import SentCall, Verdict
from anaphora.catalog import CacheRules, Price, Profile
from anaphora.errors import AnaphoraError

if TYPE_CHECKING:
    from anaphora.dashboard.values import ShownCall

#: Models whose caches are kept at a time; the least recently used goes first.
_MODELS = 256
#: Prefixes (messages, tools, system blocks) that a model's cache remembers, whatever their
#: lifetime: some 6 MB. The least recently used go first.
PREFIXES = 25_000
_MINUTE = 60.0
_ACCOUNTS = 1000
#: Limits per minute. They are generous: only faults reject requests because of a limit.
REQUEST_LIMIT, INPUT_LIMIT, OUTPUT_LIMIT = 4_000, 4_000_000, 800_000


class ModelFacts(msgspec.Struct, frozen=True):
    """The catalog's rows for one model on one wire."""

    provider: str
    wire: str
    profile: Profile
    rules: CacheRules


class Billing:
    """The prompt cache of every model that was called."""

    def __init__(self, rows: str = "") -> None:
        """`rows` are rows of the catalog on top of the shipped ones."""
        shipped = catalog.shipped()
        self._catalog = shipped.with_rows(rows) if rows else shipped
        self._simulators = BoundedMap[tuple[str, str, str], Simulator](_MODELS)
        self._facts = BoundedMap[tuple[str, str, str], ModelFacts](4 * _MODELS)

    def facts(self, provider: str, wire: str, model: str) -> ModelFacts:
        key = provider, wire, model
        facts = self._facts.get(key)
        if facts is None:
            profile, rules = (
                self._catalog.profile(provider, model),
                self._catalog.rules(provider, model, wire),
            )
            facts = ModelFacts(provider, wire, profile, rules)
            self._facts[key] = facts
        return facts

    def simulator(self, facts: ModelFacts) -> Simulator:
        key = facts.provider, facts.wire, facts.profile.id
        simulator = self._simulators.use(key)
        if simulator is None:
            simulator = self._simulators[key] = Simulator(facts.rules, most=PREFIXES)
        return simulator


class UsageWindow(msgspec.Struct):
    """An account's usage in the minute that began at `since`."""

    since: float
    requests: int = 0
    input: int = 0
    output: int = 0

    @property
    def reset(self) -> float:
        return self.since + _MINUTE


class UsageWindows:
    """The current minute of each account at each provider."""

    def __init__(self) -> None:
        self._windows = BoundedMap[tuple[str, str], UsageWindow](_ACCOUNTS)

    def add(
        self, account: tuple[str, str], now: float, input_tokens: int = 0, output_tokens: int = 0
    ) -> UsageWindow:
        window = self._windows.use(account)
        if window is None or not 0 <= now - window.since < _MINUTE:
            window = self._windows[account] = UsageWindow(now)
        window.requests += 1
        window.input += input_tokens
        window.output += output_tokens
        return window


# ── The journal ──────────────────────────────────────────────────────────────────────────────────

#: Bytes of prompts that are kept, over all calls.
_MAX_BYTES = 64 * 1024 * 1024
#: Calls that are indexed at a time while the journal is read.
_INDEXED_TOGETHER = 32
#: The fields of an entry that are not shown by their names.
_HIDDEN = ("output", "billed", "earlier", "judged", "price", "details", "shown")


class CallRecord(msgspec.Struct, eq=False, kw_only=True):
    """A call that was billed, as long as its prompt is kept."""

    number: int
    """Its number in the journal."""
    sent: SentCall
    hints: CallHints
    """The client's ids of the conversation. Never shown."""
    outcome: Outcome
    facts: ModelFacts
    size: int
    """The bytes of its prompt."""
    open: OpenCall | None
    """Its cache writes, until its response has ended."""

    @property
    def writes(self) -> bool:
        """Whether it wrote something that cannot be read yet."""
        return self.open is not None and self.open.writes

    @property
    def overlaps(self) -> bool:
        """Whether it would have read the write of a call whose response had not begun."""
        return any(span.reason == "not_readable_yet" for span in self.outcome.spans)

    def begin(self, now: float) -> None:
        """The response begins."""
        if self.open is not None:
            self.open.respond(began=now)
            self.sent = msgspec.structs.replace(self.sent, began=now)

    def end(self, now: float) -> None:
        """The response has ended or was aborted, even before it began: aborted calls also write."""
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
    host: str = ""
    """The host behind a router that answered."""
    request_id: str = ""
    reply_id: str = ""
    stream: bool = False
    status: int = 0
    error: str = ""
    fault: str = ""
    scripted: bool = False
    batch: bool = False
    """It ran in a batch, at the price of batches."""
    output: int = 0
    billed: CallRecord | None = None
    earlier: EarlierCall[CallRecord] | None = None
    """The call that it is compared with."""
    judged: Verdict | None = None
    price: Price | None = None
    details: dict[str, Any] | None = None
    """The shown fields, once computed."""
    shown: ShownCall | None = None
    """The same for pages."""


class Journal:
    def __init__(
        self,
        max_entries: int,
        showing: Callable[[], Callable[[JournalEntry], ShownCall | None]],
        *,
        max_bytes: int = _MAX_BYTES,
    ) -> None:
        """`showing` returns the function that converts entries for pages. It is called before the
        first entry is shown or its prompt is dropped."""
        self._entries: deque[JournalEntry] = deque()
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._bytes = 0
        self._by_reply: dict[tuple[str, str], JournalEntry] = {}
        self._index: PrefixIndex[CallRecord] = PrefixIndex(max_entries, max_bytes)
        self._unindexed: deque[tuple[JournalEntry, CallRecord]] = deque()
        """The calls since the journal was read: twice its entries at most, so that each entry can
        be compared with the calls before it."""
        self._unindexed_bytes = 0
        self._count = self._added = 0
        self._lock = threading.RLock()
        self._showing = showing
        self._show: Callable[[JournalEntry], ShownCall | None] | None = None

    def open(self, now: float, method: str, path: str) -> JournalEntry:
        self._count += 1
        return JournalEntry(number=self._count, at=now, method=method, path=path)

    def add(self, entry: JournalEntry) -> None:
        with self._lock:
            self._add(entry)

    def _add(self, entry: JournalEntry) -> None:
        self._added += 1
        self._entries.append(entry)
        billed = entry.billed
        if billed is not None:
            self._bytes += billed.size
            self._unindexed.append((entry, billed))
            self._unindexed_bytes += billed.size
            if len(self._unindexed) > 2 * self._max_entries:
                self._unindexed_bytes -= self._unindexed.popleft()[1].size
            if self._unindexed_bytes > self._max_bytes:
                self._index_calls(len(self._unindexed))
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
        self._index_all()
        return [self._locked_details(entry) for entry in self._newest(last)]

    def shown(self, after: int) -> tuple[int, list[ShownCall]]:
        """The number of entries so far, and the rows for pages of those after the first `after`:
        billed or failed calls, the oldest first."""
        self._index_all()
        with self._lock:
            added, entries = self._added, self._newest(self._added - after)
        found: list[ShownCall] = []
        for entry in reversed(entries):
            with self._lock:  # for each entry, so that requests do not wait long
                if entry.number >= self._entries[0].number:
                    found += filter(None, (self._shown_call(entry),))
        return added, found

    def _newest(self, count: int | None) -> list[JournalEntry]:
        with self._lock:
            self._index_calls(len(self._unindexed))
            return list(itertools.islice(reversed(self._entries), count))

    def _index_all(self) -> None:
        """A few calls at a time, so that requests do not wait long."""
        while self._unindexed:
            with self._lock:
                self._index_calls(_INDEXED_TOGETHER)

    def _index_calls(self, count: int) -> None:
        """Finds the calls that the next ones are compared with."""
        for _ in range(min(count, len(self._unindexed))):
            entry, billed = self._unindexed.popleft()
            self._unindexed_bytes -= billed.size
            entry.earlier = self._index.add(
                billed.sent.rendered,
                billed,
                scope=(entry.workspace, entry.provider, entry.wire, billed.facts.profile.id),
                hints=billed.hints,
                reply_id=entry.reply_id,
            )

    def _locked_details(self, entry: JournalEntry) -> dict[str, Any]:
        with self._lock:
            return _details(entry)

    def _shown_call(self, entry: JournalEntry) -> ShownCall | None:
        if self._show is None:
            self._show = self._showing()
        if entry.shown is None:
            _details(entry)
            entry.shown = self._show(entry)
        return entry.shown

    def _shrink(self) -> None:
        self._index_calls(len(self._unindexed))
        for entry in self._entries:
            if self._bytes <= self._max_bytes // 2:
                break
            if entry.billed is not None:
                self._shown_call(entry)
                self._drop_prompt(entry)

    def _drop_prompt(self, entry: JournalEntry) -> None:
        if entry.billed is not None:
            self._bytes -= entry.billed.size
            self._by_reply.pop((entry.workspace, entry.reply_id), None)
            entry.billed = entry.earlier = None


def _details(entry: JournalEntry) -> dict[str, Any]:
    if entry.details is None:
        fields = msgspec.structs.asdict(entry)
        entry.details = {name: fields[name] for name in fields if name not in _HIDDEN}
        if entry.billed is not None:
            entry.details |= _billed_details(entry, entry.billed)
    return entry.details


def _billed_details(entry: JournalEntry, billed: CallRecord) -> dict[str, Any]:
    sent, outcome, facts = billed.sent, billed.outcome, billed.facts
    price = entry.price = _price(entry)
    before = verdict.comparable(entry.earlier, sent.rendered, facts.rules)
    compared = entry.earlier if before is not None else None
    result: dict[str, Any] = {"result": None, "cause": None}
    try:
        judged = entry.judged = verdict.judge(
            before, sent, facts.rules, outcome=outcome, price=price, profile=facts.profile
        )
        result |= {"result": judged.result, "cause": judged.cause, "sentence": str(judged)}
        result["change"] = msgspec.to_builtins(judged.change)
    except AnaphoraError as problem:
        result["sentence"] = str(problem)
    usage, marked = outcome.usage(entry.output), bool(sent.marks.marks)
    cost_usd = None if price is None else price.of(usage, marked=marked)
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
        "compared_with": None if compared is None else compared.call.number,
        "same_conversation": None if compared is None else compared.continues,
        "output": entry.output,
        "cost_usd": None if cost_usd is None else str(cost_usd),
    }


def _price(entry: JournalEntry) -> Price | None:
    """The price of the model at the time of the call; None if it is unknown."""
    when = datetime.datetime.fromtimestamp(entry.at, datetime.UTC)
    try:
        return catalog.price(
            entry.provider, entry.model, when, wire=entry.wire or None, batch=entry.batch
        )
    except AnaphoraError:
        return None
