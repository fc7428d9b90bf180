"""A report of an audit log as one HTML file, for `anaphora audit report --html`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import htpy

from anaphora.audit.envelope import AuditEnvelope

from .cards import card, empty
from .figures import moment
from .pages.blocks import all_blocks, worst_blocks
from .pages.overview import causes_card, charts, errors_card, headline
from .past_calls.adding import NO_LABEL
from .past_calls.report import summed
from .past_calls.sums import CallSums
from .report import report_file
from .tables import sums_table


def log_report(title: str, calls: Iterable[AuditEnvelope], made_at: float) -> bytes:
    """The HTML of a report of these calls."""
    log = summed(calls, blocks=True)
    if log is None:
        return report_file(title, [("Calls", empty("No calls"))], made_at)
    overview = log.calls.overview(log.view)
    groups = {
        "app": overview.apps,
        "provider": overview.providers,
        "model": overview.models,
        "label": log.labels,
    }
    span = htpy.p(".dim")["From ", moment(log.first), " to ", moment(log.last), "."]
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
    rows = [row for row in log.calls.blocks(log.view) if row.calls or row.breaks]
    if rows:
        sections.append(("Blocks", [worst_blocks(rows), all_blocks(rows)]))
    return report_file(title, sections, made_at)


def _tables(groups: Mapping[str, Mapping[str, CallSums]]) -> list[htpy.Element]:
    shown = {kind: sums for kind, sums in groups.items() if set(sums) - {NO_LABEL}}
    return [card(f"By {kind}", sums_table(kind, sums)) for kind, sums in shown.items()]
