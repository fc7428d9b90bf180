"""A report: pages of the dashboard as one self-contained file, to send to a colleague."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence

import htpy
from markupsafe import Markup

from anaphora.audit.envelope import AuditEnvelope
from anaphora.dashboard.pages.blocks import all_blocks, worst_blocks
from anaphora.dashboard.pages.overview import causes_card, charts, errors_card, headline
from anaphora.dashboard.past_calls.adding import NO_LABEL
from anaphora.dashboard.past_calls.memory import summed
from anaphora.dashboard.past_calls.sums import CallTotals
from anaphora.version import __version__

from .figures import local_time
from .layout import page_bytes, static_content
from .tables import card, empty, sums_table


def report_file(title: str, sections: Sequence[tuple[str, htpy.Node]], made_at: float) -> bytes:
    """The HTML of a report. Its inline style is allowed by its hash; it has no script, so times are
    in UTC."""
    style = static_content("dashboard.css").decode()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'"
    page = htpy.html(lang="en")[
        htpy.head[
            htpy.meta(charset="utf-8"),
            htpy.meta({"http-equiv": "Content-Security-Policy"}, content=policy),
            htpy.meta(name="viewport", content="width=device-width, initial-scale=1"),
            htpy.meta(name="color-scheme", content="light dark"),
            htpy.title[f"{title} · Anaphora"],
            htpy.style[Markup(style)],
        ],
        htpy.body[
            htpy.a(".skip", href="#main")["Skip to the content"],
            htpy.header(".top")[htpy.span(".brand")[htpy.b["Anaphora"], " ", htpy.span["Report"]]],
            htpy.main("#main", tabindex="-1")[
                htpy.div(".title")[
                    htpy.h1[title],
                    htpy.span(".dim")["Made ", local_time(made_at), ". Times are in UTC."],
                ],
                [_section(heading, content) for heading, content in sections],
            ],
            htpy.footer[htpy.p[f"Anaphora {__version__}"]],
        ],
    ]
    return page_bytes(str(page))


def _section(heading: str, content: htpy.Node) -> htpy.Element:
    return htpy.section[htpy.h2(".report-heading")[heading], content]


def log_report(title: str, calls: Iterable[AuditEnvelope], made_at: float) -> bytes:
    """The HTML of a report of these calls."""
    log = summed(calls, charts=True)
    if log is None:
        return report_file(title, [("Calls", empty("No calls"))], made_at)
    overview = log.overview(log.view)
    groups = {
        "group": overview.groups,
        "app": overview.apps,
        "provider": overview.providers,
        "model": overview.models,
        "label": log.labels,
    }
    span = htpy.p(".dim")["From ", local_time(log.first), " to ", local_time(log.last), "."]
    sections: list[tuple[str, htpy.Node]] = [
        ("Overview", [span, headline(overview.total), charts(overview)]),
        (
            "Where it went",
            [
                htpy.div(".grid.wide")[_tables(groups)],
                causes_card(overview),
                errors_card(overview),
            ],
        ),
    ]
    rows = [row for row in log.blocks(log.view) if row.calls or row.breaks]
    if rows:
        sections.append(("Blocks", [worst_blocks(rows), all_blocks(rows)]))
    return report_file(title, sections, made_at)


def _tables(groups: Mapping[str, Mapping[str, CallTotals]]) -> list[htpy.Element]:
    shown = {kind: sums for kind, sums in groups.items() if set(sums) - {NO_LABEL, ""}}
    return [card(f"By {kind}", sums_table(kind, sums)) for kind, sums in shown.items()]
