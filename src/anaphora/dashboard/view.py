"""The view of a page, as the query of its URL: a time range and filters.

`range` is `hour`, `day`, `week` or `month`, which end now, or `custom` between `since` and `until`,
in ISO 8601 (UTC if there is no zone). `app`, `group`, `provider`, `model` and `label` are filters;
an empty one is ignored. The charts of a view have steps of time. `is_found` tells whether a search
in a view finds a call.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, get_args
from urllib.parse import urlencode

import msgspec

from anaphora.audit.envelope import AuditEnvelope
from anaphora.dashboard.past_calls.sums import CallTotals
from anaphora.errors import InvalidRequest

from .values import CallOutcome, CallQuery, Point, RangeName, View

#: The seconds of each range that ends now.
RANGE_SECONDS: Final[Mapping[RangeName, float]] = {
    "hour": 3_600.0,
    "day": 86_400.0,
    "week": 7 * 86_400.0,
    "month": 30 * 86_400.0,
}
FILTERS: Final = ("app", "group", "provider", "model", "label")
#: Characters of a wrong value that an error repeats.
_SHOWN = 60
#: The step lengths of charts, in seconds, and the maximum number of steps.
_STEPS = (60, 300, 900, 1_800, 3_600, 7_200, 14_400, 28_800, 86_400, 7 * 86_400, 28 * 86_400)
_MOST_STEPS = 100
_HOUR, _DAY = 3_600, 86_400


def view_from_query(query: Mapping[str, str], now: float, default: RangeName = "day") -> View:
    """The view described by a query; `default` is the range if the query has none. Raises
    `InvalidRequest` for an invalid range or time; other parameters belong to the pages."""
    name = query.get("range") or ("custom" if query.get("since") else default)
    filters = {each: query.get(each) or None for each in FILTERS}
    for range_name, seconds in RANGE_SECONDS.items():
        if name == range_name:
            return View(since=now - seconds, until=now, range=range_name, **filters)
    if name != "custom":
        allowed = ", ".join(get_args(RangeName))
        raise InvalidRequest(f"{name[:_SHOWN]!r} is none of {allowed}", path="range")
    if not query.get("since"):
        raise InvalidRequest("a custom range needs a time, such as 2026-11-16T13:00", path="since")
    since = _time(query["since"], "since")
    until = _time(query["until"], "until") if query.get("until") else now
    if since >= until:
        raise InvalidRequest("must be before the end of the range", path="since")
    return View(since=since, until=until, range="custom", **filters)


def query_of(view: View, **changes: str | float | None) -> str:
    """The query of a URL that shows the same view. `changes` replace fields of the view, or add
    parameters of a page; None removes one. Ranges that end now stay relative."""
    fields = {name: changes.pop(name) for name in View.__struct_fields__ if name in changes}
    if "since" in fields or "until" in fields:
        fields.setdefault("range", "custom")
    view = msgspec.structs.replace(view, **fields)
    pairs: dict[str, str] = {"range": view.range}
    if view.range == "custom":
        pairs |= {"since": iso_time(view.since), "until": iso_time(view.until)}
    for name in FILTERS:
        if (value := getattr(view, name)) is not None:
            pairs[name] = value
    pairs |= {name: str(value) for name, value in changes.items() if value is not None}
    return urlencode(pairs)


def iso_time(at: float) -> str:
    """A UTC time as written in queries and forms: `2026-11-16T13:05:00`."""
    return datetime.datetime.fromtimestamp(at, datetime.UTC).replace(tzinfo=None).isoformat()


def _time(text: str, path: str) -> float:
    try:
        at = datetime.datetime.fromisoformat(text)
        at = at if at.tzinfo is not None else at.replace(tzinfo=datetime.UTC)
        # In UTC it may be before year 1 or after year 9999.
        return at.astimezone(datetime.UTC).timestamp()
    except (ValueError, OverflowError):
        reason = f"{text[:_SHOWN]!r} is not a time; write it as 2026-11-16T13:00 (UTC)"
        raise InvalidRequest(reason, path=path) from None


class ChartSteps(msgspec.Struct, frozen=True):
    """The steps of a chart, at whole multiples of their length since 1970 (UTC)."""

    start: float
    seconds: int
    count: int

    def index(self, at: float) -> int:
        """The step that a time is in."""
        return int((at - self.start) // self.seconds)

    def points(self, sums: Mapping[int, CallTotals] = MappingProxyType({})) -> list[Point]:
        """The points of a chart, with the sums of each step by its number."""
        return [
            Point(
                start=self.start + number * self.seconds,
                seconds=self.seconds,
                sums=sums.get(number) or CallTotals(),
            )
            for number in range(self.count)
        ]


def steps_of(view: View, first: float | None = None) -> ChartSteps:
    """The shortest steps with which a chart of the view has at most a hundred (plus a partial one
    at each end). If the `first` call is later than the range's start, the chart begins there: a
    first day is shown by hour, not as one bar in an empty month."""
    since, finest = view.since, _STEPS[0]
    if first is not None and view.since < (begin := min(first, view.until - _DAY)):
        since, finest = begin, _HOUR
    length = view.until - since
    longest = _STEPS[-1] * math.ceil(length / _STEPS[-1] / _MOST_STEPS)
    steps = (each for each in _STEPS if each >= finest and length / each <= _MOST_STEPS)
    seconds = next(steps, longest)
    start = since // seconds * seconds
    return ChartSteps(start, seconds, max(1, math.ceil((view.until - start) / seconds)))


def is_found(call: AuditEnvelope, query: CallQuery) -> bool:
    """Whether a search finds a call."""
    return (
        _in_view(call, query.view)
        and has_outcome(call, query.outcome)
        and has_text(call, query.text.casefold())
    )


def _in_view(call: AuditEnvelope, view: View) -> bool:
    return (
        view.since <= call.at < view.until
        and matches(view, call.app, call.provider, call.billed_model)
        and view.group in (None, call.group)
        and (view.label is None or has_label(call, view.label))
    )


def matches(view: View, app: str, provider: str, model: str) -> bool:
    """Whether the filters of a view, except its label, match these names."""
    return (
        view.app in (None, app)
        and view.provider in (None, provider)
        and view.model in (None, model)
    )


def has_label(call: AuditEnvelope, label: str) -> bool:
    return any(block.label == label for block in call.blocks)


def has_outcome(call: AuditEnvelope, outcome: CallOutcome) -> bool:
    match outcome:
        case "":
            return True
        case "ok":
            return call.outcome == "ok"
        case "failed":
            return call.outcome != "ok"
        case "broke":
            return call.broke


def has_text(call: AuditEnvelope, text: str) -> bool:
    """`text` is casefolded. True if it is part of a name or an id."""
    if not text:
        return True
    ids = call.call_id, call.request_id, call.response_id, call.budget, call.budget_label
    fields = call.app, call.provider, call.model, call.answered_by, call.cause, *ids
    return any(field and text in field.casefold() for field in fields)
