"""The pages of a running emulator: its calls with their verdicts, its clock."""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from typing import TYPE_CHECKING

import htpy

from anaphora.audit.call_rows import BlockDigests, blocks_of, usage_row, verdict_fields
from anaphora.audit.envelope import AuditEnvelope, AuditUsage
from anaphora.bounded import BoundedMap
from anaphora.cache.verdict import Verdict
from anaphora.catalog.prices import nano_usd
from anaphora.dashboard.figures import local_time
from anaphora.dashboard.layout import STATIC
from anaphora.dashboard.page_site import EVENTS, PROGRAM_SECTIONS, PageSite, program_pages
from anaphora.dashboard.pages.overview import OverviewPage
from anaphora.dashboard.past_calls.memory import MemoryCalls
from anaphora.dashboard.site import PageContent, PageRequest, Site
from anaphora.dashboard.values import ShownCall

from .journal import CallRecord, JournalEntry

if TYPE_CHECKING:
    from anaphora.serving.exchange import HttpExchange

    from .engine import Engine
    from .journal import Journal

#: Calls whose conversation is remembered.
_MOST_CALLS = 10_000
_FIRST_ERROR = 400
_START = "Point a client at this address; any key will do."


class EmulatorCalls:
    """The calls of the journal. New entries are copied when a page is opened."""

    def __init__(self, engine: Engine) -> None:
        self.source = MemoryCalls(update=self.update)
        self._engine = engine
        self._updating = threading.Lock()
        self._journal: Journal | None = None
        self._taken = 0

    def update(self) -> None:
        with self._updating:
            journal = self._engine.journal
            if journal is not self._journal:
                self._journal, self._taken = journal, 0
                self.source.clear()
            self._taken, added = journal.shown(self._taken)
            for shown in added:
                self.source.add(shown)


class EmulatorPages:
    """The pages below `root`."""

    def __init__(self, engine: Engine, root: str) -> None:
        self._engine = engine
        self._calls = calls = EmulatorCalls(engine)
        pages = program_pages(EmulatorOverview(engine, calls.source), calls.source, _START)
        self._names = {*pages, STATIC, EVENTS}
        site = Site(root=root, title="Emulator", sections=PROGRAM_SECTIONS)
        self._site = PageSite(site, pages, calls.source, clock=lambda: time.time() + engine.offset)
        self._root = root

    def serves(self, path: str) -> bool:
        rest = path.removeprefix(self._root).strip("/")
        return path.startswith(self._root) and rest.partition("/")[0] in self._names

    async def answer(self, exchange: HttpExchange) -> None:
        await asyncio.to_thread(self._calls.update)
        await self._site.answer(exchange, exchange.path.removeprefix(self._root))


class EmulatorOverview:
    """The overview, and the clock."""

    def __init__(self, engine: Engine, calls: MemoryCalls) -> None:
        self._engine = engine
        self._overview = OverviewPage(calls, start=_START, newest=50)

    def content(self, request: PageRequest, site: Site) -> PageContent:
        content = self._overview.content(request, site)
        content.main = [self._clock(request, site), content.main]
        content.live = ("clock", *content.live)
        return content

    def _clock(self, request: PageRequest, site: Site) -> htpy.Element:
        ahead = f", {self._engine.offset:,.0f} s ahead" if round(self._engine.offset) else ""
        buttons = [
            _form(site, "clock", "Advance 5 min", 300),
            _form(site, "clock", "Advance 1 h", 3_600),
            _form(site, "reset", "Reset"),
        ]
        return htpy.div(".controls", role="group", aria_label="Clock of the emulator")[
            htpy.p("#clock")["Clock: ", local_time(request.now, "second"), ahead], buttons
        ]


def _form(site: Site, action: str, title: str, advance: int | None = None) -> htpy.Element:
    return htpy.form(method="post", action=site.url(f"forms/{action}"))[
        advance is not None and htpy.input(type="hidden", name="advance", value=str(advance)),
        htpy.button(type="submit")[title],
    ]


# ── Calls as pages show them ─────────────────────────────────────────────────────────────────────


class ShownCalls:
    """Converts journal entries, in order, and remembers their conversations."""

    def __init__(self) -> None:
        self._digests = BlockDigests(secrets.token_bytes(32))
        self._turns = BoundedMap[int, tuple[str, int]](_MOST_CALLS)
        """The conversation and the turn of each call, by its number."""

    def make(self, entry: JournalEntry) -> ShownCall | None:
        """The row of a page; None for a request without a model call: a list of models, a stored
        file."""
        if entry.billed is None and not entry.error and not entry.fault:
            return None
        verdict = entry.judged
        change = None if verdict is None else verdict.change
        return ShownCall(
            id=str(entry.number),
            call=self._row(entry, entry.billed, verdict),
            sentence=_sentence(entry),
            excerpts=None if change is None else change.excerpts,
            field="" if change is None else change.path,
            position=None if change is None else change.character,
        )

    def _row(
        self, entry: JournalEntry, billed: CallRecord | None, verdict: Verdict | None
    ) -> AuditEnvelope:
        failed = entry.error or entry.status >= _FIRST_ERROR or billed is None
        usage = None if billed is None else billed.outcome.usage(entry.output)
        details = entry.details or {}
        cost_usd = None
        if usage is not None and billed is not None and entry.price is not None:
            cost_usd = entry.price.of(usage, marked=bool(billed.sent.marks.marks))
        conversation, turn = ("", 0) if billed is None else self._turn(entry, details)
        return AuditEnvelope(
            at=entry.at,
            adapter="emulator",
            provider=entry.provider,
            system=entry.provider,
            wire=entry.wire,
            model=entry.model or f"{entry.method} {entry.path}",
            request_id=entry.request_id or None,
            response_id=entry.reply_id or None,
            method=entry.path,
            operation=entry.operation or "chat",
            outcome="Upstream" if failed else "ok",
            status=entry.status or None,
            streamed=entry.stream,
            usage=AuditUsage() if usage is None else usage_row(usage),
            predicted=None if verdict is None else verdict.predicted,
            cost_nano_usd=nano_usd(cost_usd),
            output_nano_usd=None
            if entry.price is None or usage is None
            else nano_usd(entry.price.of_output(usage)),
            saved_nano_usd=None if verdict is None else nano_usd(verdict.saved),
            **({} if verdict is None else verdict_fields(verdict)),
            automatic=None if billed is None else billed.sent.marks.automatic,
            conversation=conversation,
            turn=turn,
            blocks=()
            if billed is None
            else blocks_of(billed.sent.rendered, billed.sent.marks, self._digests),
        )

    def _turn(self, entry: JournalEntry, details: dict[str, object]) -> tuple[str, int]:
        """A call is the next turn of the one that it continues, or the first of a conversation."""
        before, turn = details.get("compared_with"), (str(entry.number), 1)
        if details.get("same_conversation") and isinstance(before, int) and before in self._turns:
            conversation, number = self._turns[before]
            turn = conversation, number + 1
        self._turns[entry.number] = turn
        return turn


def _sentence(entry: JournalEntry) -> str:
    """The error or the verdict, the injected fault, and the stored prompt that was read."""
    details = entry.details or {}
    verdict = "" if entry.judged is None else entry.judged.describe(excerpts=False)
    verdict = verdict or details.get("verdict", {}).get("sentence", "")
    parts = [f"Fault: {entry.fault}." if entry.fault else "", entry.error or verdict]
    if held := details.get("held"):
        parts.append(f"Read from {held}.")
    return " ".join(filter(None, parts))
