"""Calls in memory as a source of pages: those of a watched program, or of the emulator.

    source = MemorySource()
    source.add(ShownCall(id="1", call=row))

Calls are summed by minute when they are added: the cost of a page follows the minutes of its range,
not the calls. The ends of a range are taken to whole minutes. The latest calls are kept,
earlier ones are in the sums. Everything can be used from any thread.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import msgspec

from anaphora.audit.envelope import AuditEnvelope
from anaphora.audit.report import CallSums
from anaphora.client.observe.export import BoundedNames

from .search import has_label, has_outcome, has_text, matches
from .sums import DetailedSums
from .values import (
    BlockRow,
    BlockSums,
    CallPage,
    CallQuery,
    ConversationRow,
    Names,
    Overview,
    ShownCall,
    ShownConversation,
    View,
)
from .view import steps_of

K = TypeVar("K")
T = TypeVar("T")

_MOST_CALLS = 10_000
_MOST_CONVERSATIONS = 10_000
#: Calls of one conversation that are shown.
_MOST_TURNS = 500
#: Sums by minute, app, provider and model that are kept.
_MOST_CELLS = 20_000
#: Labels that views were filtered by lately, whose sums are kept too.
_MOST_LABELS = 4
#: Different names of each kind in the sums; each further one is `other`.
_MOST_NAMES = 1_000
_MINUTE = 60


class MemorySource:
    """A `CallSource`."""

    def __init__(
        self, most: int = _MOST_CALLS, *, is_side_call: Callable[[str], bool] = lambda _: False
    ) -> None:
        """`is_side_call` says it of a conversation by its id: a later call may show it."""
        self._most = most
        self._is_side_call = is_side_call
        self._lock = threading.Lock()
        self._version = 0
        self._clear()

    def _clear(self) -> None:
        self._calls: deque[ShownCall] = deque()
        self._numbers: dict[str, int] = {}
        """By the id of a call its number; the first that is kept has `_first`."""
        self._first = 0
        self._all = _MinuteSums()
        self._by_label: OrderedDict[str, _MinuteSums] = OrderedDict()
        self._conversations: OrderedDict[str, _MemoryConversation] = OrderedDict()
        """The one with the latest call is the last."""

    def add(self, call: ShownCall) -> None:
        with self._lock:
            self._version += 1
            self._numbers[call.id] = self._first + len(self._calls)
            self._calls.append(call)
            self._all.add(call.call)
            for label, sums in self._by_label.items():
                if has_label(call.call, label):
                    sums.add(call.call)
            self._add_to_conversation(call)
            if len(self._calls) > self._most:
                del self._numbers[self._calls.popleft().id]
                self._first += 1

    def clear(self) -> None:
        with self._lock:
            self._version += 1
            self._clear()

    def _add_to_conversation(self, shown: ShownCall) -> None:
        id = shown.call.conversation
        if not id:
            return
        found = self._conversations.get(id)
        if found is None:
            found = self._conversations[id] = _MemoryConversation(shown.call.at)
            if len(self._conversations) > _MOST_CONVERSATIONS:
                self._conversations.popitem(last=False)
        found.add(shown)
        self._conversations.move_to_end(id)

    # ── What a source has ────────────────────────────────────────────────────────────────────────

    def version(self) -> int:
        return self._version

    def names(self, view: View) -> Names:
        apps: set[str] = set()
        providers: set[str] = set()
        models: set[str] = set()
        labels: set[str] = set()
        with self._lock:
            for (app, provider, model), cell in self._all.cells(_unfiltered(view)):
                apps.add(app)
                providers.add(provider)
                models.add(model)
                labels.update(cell.blocks)
        apps, providers, models = (each - {""} for each in (apps, providers, models))
        return Names(
            apps=sorted(apps),
            providers=sorted(providers),
            models=sorted(models),
            labels=sorted(labels),
        )

    def overview(self, view: View) -> Overview:
        steps = steps_of(view)
        points = steps.points()
        made = Overview(
            total=CallSums(),
            points=points,
            apps={},
            providers={},
            models={},
            causes={},
            outcomes={},
        )
        keys: dict[tuple[str, str, str], CallSums] = {}
        with self._lock:
            for key, cell in self._sums(view).cells(view):
                points[max(0, steps.index(cell.start))].sums.add_sums(cell.total)
                _of(keys, key, CallSums).add_sums(cell.total)
                for cause, sums in cell.causes.items():
                    _of(made.causes, cause, CallSums).add_sums(sums)
                for outcome, count in cell.outcomes.items():
                    made.outcomes[outcome] = made.outcomes.get(outcome, 0) + count
        for names, sums in keys.items():
            made.total.add_sums(sums)
            for group, name in zip((made.apps, made.providers, made.models), names, strict=True):
                if name:
                    _of(group, name, CallSums).add_sums(sums)
        return made

    def blocks(self, view: View) -> Sequence[BlockRow]:
        """Those with the most tokens first."""
        found: dict[str, BlockSums] = {}
        with self._lock:
            for _, cell in self._sums(view).cells(view):
                for label, sums in cell.blocks.items():
                    if view.label in (None, label):
                        _of(found, label, BlockSums).add_sums(sums)
        ordered = sorted(found.items(), key=lambda each: each[1].tokens, reverse=True)
        return [BlockRow.of(label, sums) for label, sums in ordered]

    def calls(self, query: CallQuery) -> CallPage:
        with self._lock:
            fitting = self._newest(query)
            found = list(itertools.islice(fitting, query.limit))
            more = next(fitting, None) is not None
        return CallPage(calls=found, before=found[-1].id if found and more else None)

    def conversations(self, view: View, limit: int = 100) -> Sequence[ConversationRow]:
        """Those with a call within the view, the latest first; their sums are over all calls."""
        rows: list[ConversationRow] = []
        with self._lock:
            for id, conversation in reversed(self._conversations.items()):
                if len(rows) >= limit:
                    break
                if conversation.fits(view):
                    rows.append(conversation.row(id, self._is_side_call(id)))
        return rows

    def conversation(self, id: str) -> ShownConversation | None:
        with self._lock:
            found = self._conversations.get(id)
            if found is None:
                return None
            row, calls = found.row(id, self._is_side_call(id)), tuple(found.calls)
        return ShownConversation(row=row, calls=calls, left_out=found.count - len(calls))

    def history(self, view: View, limit: int) -> Iterable[AuditEnvelope]:
        with self._lock:
            newest = itertools.islice(self._newest(CallQuery(view=view)), limit)
            found = [shown.call for shown in newest]
        return reversed(found)

    # ── Selecting ────────────────────────────────────────────────────────────────────────────────

    def _sums(self, view: View) -> _MinuteSums:
        """The sums of all calls, or of those with the label of the view."""
        if view.label is None:
            return self._all
        if view.label not in self._by_label:
            sums = self._by_label[view.label] = _MinuteSums()
            for shown in self._calls:
                if has_label(shown.call, view.label):
                    sums.add(shown.call)
            if len(self._by_label) > _MOST_LABELS:
                self._by_label.popitem(last=False)
        self._by_label.move_to_end(view.label)
        return self._by_label[view.label]

    def _newest(self, query: CallQuery) -> Iterator[ShownCall]:
        """The calls of a query, the newest first."""
        skipped = 0
        if query.before is not None:
            # What was dropped meanwhile had nothing before it that is kept.
            number = self._numbers.get(query.before, self._first)
            skipped = self._first + len(self._calls) - number
        text = query.text.casefold()
        for shown in itertools.islice(reversed(self._calls), skipped, None):
            call = shown.call
            if (
                _fits(call, query.view)
                and has_outcome(call, query.outcome)
                and has_text(call, text)
            ):
                yield shown


class _MinuteCell(DetailedSums, kw_only=True):
    """The calls of one minute with the same app, provider and model."""

    start: float


class _MinuteSums:
    """Sums of calls by minute, app, provider and model."""

    def __init__(self) -> None:
        self._minutes: OrderedDict[int, dict[tuple[str, str, str], _MinuteCell]] = OrderedDict()
        self._count = 0
        kinds = ("app", "provider", "model", "block", "cause", "outcome")
        self._names = {kind: BoundedNames(_MOST_NAMES) for kind in kinds}

    def add(self, call: AuditEnvelope) -> None:
        name = self._names
        app, provider = name["app"](call.app), name["provider"](call.provider)
        key = app, provider, name["model"](call.billed_model)
        minute = int(call.at // _MINUTE)
        cells = self._minutes.setdefault(minute, {})
        cell = cells.get(key)
        if cell is None:
            cell = cells[key] = _MinuteCell(start=float(minute * _MINUTE))
            self._count += 1
        cell.add(call, name)
        while self._count > _MOST_CELLS and len(self._minutes) > 1:
            self._count -= len(self._minutes.popitem(last=False)[1])

    def cells(self, view: View) -> Iterator[tuple[tuple[str, str, str], _MinuteCell]]:
        """Those of a view; its label is ignored."""
        first = int(view.since // _MINUTE)
        for minute, cells in self._minutes.items():
            if first <= minute and minute * _MINUTE < view.until:
                for key, cell in cells.items():
                    if matches(view, *key):
                        yield key, cell


class _MemoryConversation:
    def __init__(self, began: float) -> None:
        self._sums = CallSums()
        self._began = self._ended = began
        self._labels: set[str] = set()
        self.count = 0
        self.calls: deque[ShownCall] = deque(maxlen=_MOST_TURNS)

    def add(self, shown: ShownCall) -> None:
        call = shown.call
        self._sums.add(call)
        self._began = min(self._began, call.at)
        self._ended = max(self._ended, call.at + call.seconds)
        self.count += 1
        self.calls.append(shown)
        if len(self._labels) < _MOST_NAMES:
            self._labels.update(block.label for block in call.blocks)

    def fits(self, view: View) -> bool:
        call = self.calls[-1].call
        return (
            self._began < view.until
            and view.since <= self._ended
            and matches(view, call.app, call.provider, call.billed_model)
            and (view.label is None or view.label in self._labels)
        )

    def row(self, id: str, side_call: bool) -> ConversationRow:
        call = self.calls[-1].call
        return ConversationRow(
            id=id,
            app=call.app,
            provider=call.provider,
            model=call.billed_model,
            began=self._began,
            ended=self._ended,
            sums=msgspec.structs.replace(self._sums),
            side_call=side_call,
        )


def _of(group: dict[K, T], name: K, make: Callable[[], T]) -> T:
    found = group.get(name)
    if found is None:
        found = group[name] = make()
    return found


def _unfiltered(view: View) -> View:
    return View(since=view.since, until=view.until, range=view.range)


def _fits(call: AuditEnvelope, view: View) -> bool:
    return (
        view.since // _MINUTE <= call.at // _MINUTE
        and call.at // _MINUTE * _MINUTE < view.until
        and matches(view, call.app, call.provider, call.billed_model)
        and (view.label is None or has_label(call, view.label))
    )
