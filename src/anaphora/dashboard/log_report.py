"""A report of an audit log as one HTML file, for `anaphora audit report --html`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import htpy

from anaphora.audit.envelope import AuditEnvelope
from anaphora.audit.report import NO_LABEL, CallSums
from anaphora.client.observe.export import BoundedNames

from .cards import card, empty
from .figures import moment
from .pages.blocks import all_blocks, worst_blocks
from .pages.overview import causes_card, charts, errors_card, headline
from .report import report_file
from .sums import DetailedSums
from .tables import sums_table
from .values import BlockRow, Overview, View
from .view import steps_of

#: Different names in one table; each further one is `other`.
_MOST_NAMES = 1_000
#: Sums over time that are kept: where there are more, their steps become longer.
_MOST_CELLS = 20_000
_FIRST_STEP, _FACTOR = 60, 60
_GROUPS = ("app", "provider", "model", "label")


class LogSums:
    """The sums of a log that is read once, from its beginning to its end. Bounded."""

    def __init__(self) -> None:
        self.details = DetailedSums()
        self.first, self.last = math.inf, -math.inf
        self.groups: dict[str, dict[str, CallSums]] = {kind: {} for kind in _GROUPS}
        """By app, provider, model, and what the application calls its calls."""
        self._step = _FIRST_STEP
        self._cells: dict[int, CallSums] = {}
        """By the number of the step."""
        kinds = (*_GROUPS, "block", "cause", "outcome")
        self._names = {kind: BoundedNames(_MOST_NAMES) for kind in kinds}

    def add(self, call: AuditEnvelope) -> None:
        self.details.add(call, self._names)
        self.first, self.last = min(self.first, call.at), max(self.last, call.at)
        self._add_to_cell(call)
        named = {"app": (call.app,), "provider": (call.provider,), "model": (call.billed_model,)}
        for kind, names in named.items():
            self._add_to_group(kind, names, call)
        self._add_to_group("label", tuple(dict.fromkeys(call.labels)) or (NO_LABEL,), call)

    def _add_to_group(self, kind: str, names: Iterable[str], call: AuditEnvelope) -> None:
        for text in names:
            if text:
                name = self._names[kind](text)
                self.groups[kind].setdefault(name, CallSums()).add(call)

    def _add_to_cell(self, call: AuditEnvelope) -> None:
        self._cells.setdefault(int(call.at // self._step), CallSums()).add(call)
        if len(self._cells) > _MOST_CELLS:
            cells, self._cells = self._cells, {}
            self._step *= _FACTOR
            for number, sums in cells.items():
                self._cells.setdefault(number // _FACTOR, CallSums()).add_sums(sums)

    def overview(self) -> Overview:
        steps = steps_of(View(since=self.first, until=self.last + 1.0, range="custom"))
        points = steps.points()
        for number, sums in self._cells.items():
            place = steps.index(number * self._step)
            points[min(max(place, 0), steps.count - 1)].sums.add_sums(sums)
        return Overview(
            total=self.details.total,
            points=points,
            apps=self.groups["app"],
            providers=self.groups["provider"],
            models=self.groups["model"],
            causes=self.details.causes,
            outcomes=self.details.outcomes,
        )


def log_report(title: str, calls: Iterable[AuditEnvelope], made_at: float) -> bytes:
    """The HTML of a report of these calls."""
    sums = LogSums()
    for call in calls:
        sums.add(call)
    if not sums.details.total.calls:
        return report_file(title, [("Calls", empty("No calls"))], made_at)
    overview = sums.overview()
    span = htpy.p(".dim")["From ", moment(sums.first), " to ", moment(sums.last), "."]
    sections: list[tuple[str, htpy.Node]] = [
        ("Overview", [span, headline(overview.total), charts(overview)]),
        (
            "Where it went",
            [
                htpy.div(".grid.wide")[_tables(sums.groups)],
                causes_card(overview),
                errors_card(overview),
            ],
        ),
    ]
    blocks = sums.details.blocks.items()
    rows = [BlockRow.of(label, block) for label, block in blocks if block.calls or block.breaks]
    if rows:
        sections.append(("Blocks", [worst_blocks(rows), all_blocks(rows)]))
    return report_file(title, sections, made_at)


def _tables(groups: Mapping[str, Mapping[str, CallSums]]) -> list[htpy.Element]:
    shown = {kind: sums for kind, sums in groups.items() if set(sums) - {NO_LABEL}}
    return [card(f"By {kind}", sums_table(kind, sums)) for kind, sums in shown.items()]
