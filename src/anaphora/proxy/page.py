"""The pages of a watched program. Their URL has a random token, without which nothing is served:
other users of the machine can reach the port as well."""

from __future__ import annotations

import secrets
from collections import deque

import htpy
import msgspec

from anaphora.audit.call_rows import BlockDigests, blocks_of, usage_row
from anaphora.audit.envelope import AuditEnvelope
from anaphora.dashboard.page_site import PAGE_HEADERS, PROGRAM_SECTIONS, PageSite, program_pages
from anaphora.dashboard.pages.blocks import worst_blocks
from anaphora.dashboard.pages.conversations import conversation
from anaphora.dashboard.pages.overview import (
    OverviewPage,
    causes_card,
    charts,
    errors_card,
    headline,
)
from anaphora.dashboard.past_calls.memory import MemoryCalls
from anaphora.dashboard.report import report_file
from anaphora.dashboard.site import PageContent, PageRequest, Site
from anaphora.dashboard.values import CallQuery, ConversationRow, ShownCall, View
from anaphora.serving.exchange import CompleteResponse, HttpExchange
from anaphora.traffic.calls import OUTCOMES, RelayedCall
from anaphora.traffic.judging import Judge
from anaphora.traffic.sums import JudgedCall
from anaphora.wording import counted

from .auditing import row_of_call

#: Notices kept, the latest.
_MOST_NOTICES = 20


class WatchedCalls:
    """An observer that must come after the judge: `observers=[judge, WatchedCalls(judge)]`."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._digests = BlockDigests(secrets.token_bytes(32))
        self.source = MemoryCalls(is_side_call=self._is_side_call, current=self._current)
        self.notices: deque[tuple[int, str]] = deque(maxlen=_MOST_NOTICES)
        """The numbers of calls, and the notices about their responses."""

    def call_ended(self, call: RelayedCall) -> None:
        judged = self._judge.last
        if judged is None or judged.number != call.number:
            return
        self.notices.extend((judged.number, notice.message) for notice in judged.notices)
        if judged.kind in OUTCOMES:
            self.source.add(self._shown(call, judged))

    def _is_side_call(self, id: str) -> bool:
        return self._judge.totals.conversations[int(id) - 1].is_side_call

    def _current(self, shown: ShownCall) -> ShownCall:
        """A first call with its latest verdict: a later call shows whether it is a side call."""
        if shown.call.turn != 1:
            return shown
        first = self._judge.totals.conversations[int(shown.call.conversation) - 1].first
        cause = None if first.verdict is None else first.verdict.cause
        if cause == shown.call.cause:
            return shown
        call = msgspec.structs.replace(shown.call, cause=cause)
        return msgspec.structs.replace(shown, call=call, sentence=_sentence(first))

    def _shown(self, call: RelayedCall, judged: JudgedCall) -> ShownCall:
        sent, change = self._judge.last_sent, judged.change
        blocks = () if sent is None else blocks_of(sent.rendered, sent.marks, self._digests)
        conversation = str(judged.conversation) if judged.conversation else ""
        row = msgspec.structs.replace(
            row_of_call(call, judged, blocks, "", conversation),
            # The name that the program wrote: rows of a log keep only what looks like a name.
            model=judged.model,
            predicted=_predicted_read(judged),
        )
        return ShownCall(
            id=str(judged.number),
            call=row,
            sentence=_sentence(judged),
            excerpts=None if change is None else change.excerpts,
            field="" if change is None else change.path,
            position=None if change is None else change.character,
            predicted=_predicted(row, judged),
        )


def _predicted_read(judged: JudgedCall) -> int | None:
    if judged.predicted is not None:
        return judged.predicted.read
    return None if judged.verdict is None else judged.verdict.predicted


def _predicted(row: AuditEnvelope, judged: JudgedCall) -> AuditEnvelope | None:
    if judged.predicted is None:
        return None
    return msgspec.structs.replace(row, usage=usage_row(judged.predicted))


def _sentence(judged: JudgedCall) -> str:
    """The verdict, or why there is none; the reason for a missing bill, and notices."""
    parts = [judged.sentence]
    if judged.verdict is not None and judged.verdict.remedy is not None:
        parts.append(str(judged.verdict.remedy))
    if judged.verdict is not None and judged.reason:
        parts.append(f"No bill: {judged.reason}.")
    return " ".join([*parts, *(notice.message for notice in judged.notices)])


_ROOT = "/_watch"
_START = "Calls appear here when they have ended."
_NOT_FOUND = CompleteResponse(
    404,
    {**PAGE_HEADERS, "content-type": "text/plain; charset=utf-8"},
    b"not found: open the address that `anaphora watch` has printed\n",
)


class WatchPage:
    """The pages of a proxy (`relay.Pages`)."""

    def __init__(self, judge: Judge, calls: WatchedCalls) -> None:
        self.path = f"{_ROOT}/{secrets.token_urlsafe(24)}"
        """The URL of the overview, with the token."""
        source = calls.source
        pages = program_pages(WatchOverview(judge, calls), source, _START)
        site = Site(root=self.path, title="Watch", sections=PROGRAM_SECTIONS, range="hour")
        self._pages = PageSite(site, pages, source)

    def __repr__(self) -> str:
        return "<WatchPage>"

    def serves(self, path: str) -> bool:
        return path == _ROOT or path.startswith(f"{_ROOT}/")

    async def answer(self, exchange: HttpExchange) -> None:
        root, _, rest = exchange.path[len(_ROOT) + 1 :].partition("/")
        if not secrets.compare_digest(f"{_ROOT}/{root}".encode(), self.path.encode()):
            await exchange.respond(_NOT_FOUND)
            return
        await self._pages.answer(exchange, rest)


class WatchOverview:
    """The overview with the sums of the command's summary, and notices."""

    def __init__(self, judge: Judge, calls: WatchedCalls) -> None:
        self._judge = judge
        self._calls = calls
        self._overview = OverviewPage(calls.source, start=_START, newest=50)

    def content(self, request: PageRequest, site: Site) -> PageContent:
        content = self._overview.content(request, site)
        content.main = [htpy.div("#watched")[self._summary()], content.main]
        content.live = ("watched", *content.live)
        return content

    def _summary(self) -> htpy.Node:
        summary = self._judge.summary(quick=True)
        if not summary.calls:
            return None
        notices = [htpy.li[f"Call {number}: {text}"] for number, text in tuple(self._calls.notices)]
        return [
            htpy.p(".headline")[f"Since the start: {summary.headline}."],
            [htpy.p[sentence] for sentence in summary.advice],
            notices and htpy.ul(".notice", aria_label="Notices")[notices],
        ]


#: Conversations shown in full, those with the greatest loss first.
_MOST_SHOWN = 20
_MINUTE = 60.0


def watch_report(judge: Judge, calls: WatchedCalls, made_at: float) -> bytes:
    """The HTML of the report."""
    summary, source = judge.summary(), calls.source
    if not summary.calls:
        return report_file("Watched calls", [("Summary", htpy.p["No calls."])], made_at)
    view = _whole(calls, made_at)
    overview = source.overview(view)
    rows = source.conversations(view, limit=10_000)
    sections: list[tuple[str, htpy.Node]] = [
        (
            "Summary",
            [
                htpy.p[f"{summary.headline}."],
                [htpy.p[sentence] for sentence in summary.advice],
                [htpy.p[f"Call {number}: {text}"] for number, text in calls.notices],
                headline(overview.total),
                charts(overview),
                causes_card(overview),
                errors_card(overview),
            ],
        ),
        ("Blocks", worst_blocks(source.blocks(view))),
    ]
    worst = sorted(rows, key=_loss, reverse=True)[:_MOST_SHOWN]
    for row in sorted(worst, key=lambda row: row.began):
        shown = source.conversation(row.id)
        if shown is not None:
            sections.append((f"Conversation {row.id}", conversation(shown)))
    if len(rows) > len(worst):
        left = counted(len(rows) - len(worst), "conversation")
        sections.append(("Left out", htpy.p[f"{left} that lost less."]))
    return report_file("Watched calls", sections, made_at)


def _whole(calls: WatchedCalls, made_at: float) -> View:
    """The range from the first call that is kept to the last."""
    everything = View(since=0.0, until=made_at + _MINUTE, range="custom")
    page = calls.source.calls(CallQuery(view=everything, limit=1_000_000)).calls
    first = min((shown.call.at for shown in page), default=made_at - _MINUTE)
    return View(since=first // _MINUTE * _MINUTE, until=made_at + _MINUTE, range="custom")


def _loss(row: ConversationRow) -> tuple[int, int, int]:
    return row.sums.lost_nano_usd, row.sums.lost, row.sums.cost_nano_usd
