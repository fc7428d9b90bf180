"""The report of a watched program: one file with its sums, charts, and conversations down to the
text at each break."""

from __future__ import annotations

import htpy

from anaphora.dashboard.pages.blocks import worst_blocks
from anaphora.dashboard.pages.conversation import conversation
from anaphora.dashboard.pages.overview import causes_card, charts, errors_card, headline
from anaphora.dashboard.report import report_file
from anaphora.dashboard.values import CallQuery, ConversationRow, View
from anaphora.traffic.judging import Judge
from anaphora.wording import counted

from .watched_calls import WatchedCalls

#: Conversations that are shown in full, those first that lost most.
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
                htpy.p[str(summary.savings)],
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
    """From the first call that is kept to the last."""
    everything = View(since=0.0, until=made_at + _MINUTE, range="custom")
    page = calls.source.calls(CallQuery(view=everything, limit=1_000_000)).calls
    first = min((shown.call.at for shown in page), default=made_at - _MINUTE)
    return View(since=first // _MINUTE * _MINUTE, until=made_at + _MINUTE, range="custom")


def _loss(row: ConversationRow) -> tuple[int, int, int]:
    return row.sums.lost_nano_usd, row.sums.lost, row.sums.cost_nano_usd
