"""The overview: money spent, saved and lost, by app and model, and the newest calls. The page of
providers: breaker, latency, retries, limits, refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import htpy

from anaphora.cache.verdict.advice import cause_name, what_to_do
from anaphora.dashboard.charts import calls_bars, meter, saved_lost_bars, share_line, spend_bars
from anaphora.dashboard.figures import (
    NOTHING,
    UNKNOWN,
    count,
    lost_usd,
    name,
    percent,
    seconds,
    tokens,
    unless_zero,
    usd,
)
from anaphora.dashboard.past_calls.source import PastCalls
from anaphora.dashboard.past_calls.sums import CallTotals
from anaphora.dashboard.site import PageContent, PageRequest, Site
from anaphora.dashboard.tables import (
    Heading,
    Stat,
    Tone,
    app_url,
    calls_table,
    card,
    empty,
    more,
    numbers,
    stats,
    sums_table,
    table,
    tag,
)
from anaphora.dashboard.values import AppRow, CallQuery, Overview, ProviderRow, View
from anaphora.dashboard.view import FILTERS, query_of
from anaphora.wording import counted

_MOST_ROWS = 12


class OverviewPage:
    def __init__(
        self,
        source: PastCalls,
        *,
        apps: Callable[[], Sequence[AppRow]] | None = None,
        start: htpy.Node = None,
        first_steps: Callable[[], htpy.Node] | None = None,
        newest: int = 20,
    ) -> None:
        """`apps` are those with grants, shown with their spend and limits. `start` says how to send
        a first call, and `first_steps` what to do if there has never been a call; `newest` is how
        many calls are listed."""
        self._source = source
        self._apps = apps
        self._start = start
        self._first_steps = first_steps
        self._newest = newest

    def content(self, request: PageRequest, site: Site) -> PageContent:
        view = request.view
        overview = self._source.overview(view)
        grants = _grants(self._apps(), site) if self._apps is not None else None
        main = [
            htpy.div(".title")[htpy.h1["Overview"]],
            htpy.div("#overview")[
                headline(overview.total) if overview.total.calls else self._no_calls(view, site),
                grants,
                _details(overview, site, view) if overview.total.calls else None,
            ],
            self._calls(view, site) if overview.total.calls else htpy.div("#newest"),
        ]
        return PageContent(title="Overview", main=main, live=("overview", "newest"))

    def _no_calls(self, view: View, site: Site) -> htpy.Node:
        if self._first_steps is not None and not self._source.has_calls():
            return self._first_steps()
        return no_calls(site, view, self._start)

    def _calls(self, view: View, site: Site) -> htpy.Element:
        page = self._source.calls(CallQuery(view=view, limit=self._newest))
        apps = any(shown.call.app for shown in page.calls)
        return htpy.div("#newest")[
            card("Newest calls", calls_table("Newest calls", page.calls, site, apps=apps))
        ]


def no_calls(site: Site, view: View, start: htpy.Node = None, path: str = "") -> htpy.Element:
    """Shown if a view has no calls: a wider view, or how to send a first call."""
    filters: dict[str, str | float | None] = {
        each: None for each in FILTERS if getattr(view, each) is not None
    }
    if filters:
        address = site.url(path, query_of(view, **filters))
        return empty(
            "No call in this range matches the filters",
            htpy.a(".button", href=address)["Remove the filters"],
        )
    if view.range == "month":
        return empty("No calls in the last 30 days", start)
    address = site.url(path, query_of(view, range="month"))
    return empty(
        "No calls in this range",
        htpy.a(".button", href=address)["Show the last 30 days"],
        start,
    )


def headline(total: CallTotals) -> htpy.Element:
    """The headline figures, also in reports."""
    known = []
    if total.unpriced:
        known.append(f"without {counted(total.unpriced, 'call')} of unknown cost")
    if total.unbilled_nano_usd:
        known.append(f"{usd(total.unbilled_nano_usd)} of it without a bill")
    answered = total.calls - total.failed
    each = f"{usd(total.cost_nano_usd // answered)} an answered call" if answered else ""
    failed = percent(total.failed / total.calls) if total.calls else ""
    lost = f"{tokens(total.lost)} billed again, {counted(total.breaks, 'break')}"
    return stats(
        [
            Stat(
                "Spent",
                UNKNOWN if total.unpriced and not total.cost_nano_usd else usd(total.cost_nano_usd),
                ", ".join(known) or each,
            ),
            Stat(
                "Saved by the cache",
                usd(total.saved_nano_usd),
                "compared with no cache",
                "good" if total.saved_nano_usd > 0 else "",
            ),
            Stat(
                "Lost",
                lost_usd(total),
                lost,
                "bad" if total.lost_nano_usd > 0 else "",
            ),
            Stat(
                "Input read from cache",
                percent(total.read_share),
                f"of {tokens(total.reported)}"
                + (f"; not reported for {count(total.unreported)}" if total.unreported else ""),
            ),
            Stat("Calls", count(total.calls), f"{tokens(total.output)} of output"),
            Stat("Errors", count(total.failed), failed, "bad" if total.failed else ""),
        ]
    )


def charts(overview: Overview) -> htpy.Element:
    """The charts over time, also in reports."""
    drawn = (spend_bars, share_line, saved_lost_bars, calls_bars)
    return htpy.div(".grid.charts")[[chart(overview.points) for chart in drawn]]


def causes_card(overview: Overview) -> htpy.Element:
    """Causes of lost tokens, the most expensive first, with advice."""
    ordered = sorted(overview.causes.items(), key=lambda item: -item[1].lost_nano_usd)
    rows = [
        [
            name(cause_name(cause)),
            count(sums.calls),
            count(sums.lost),
            lost_usd(sums),
            what_to_do(cause),
        ]
        for cause, sums in ordered[:_MOST_ROWS]
    ]
    headings = [Heading("Cause"), *numbers("Calls", "Tokens lost", "Lost"), Heading("What to do")]
    shown: htpy.Node = table("Causes of loss", headings, rows)
    if not rows:
        shown = htpy.p(".dim")["No cached tokens were billed again."]
    return card("Causes of loss", shown, more(len(ordered) - _MOST_ROWS, "cause"))


def errors_card(overview: Overview) -> htpy.Element | None:
    """Failed calls by the class of the error."""
    if not overview.outcomes:
        return None
    ordered = sorted(overview.outcomes.items(), key=lambda item: -item[1])
    rows = [[name(outcome), count(calls)] for outcome, calls in ordered[:_MOST_ROWS]]
    shown = table("Errors", [Heading("Error"), *numbers("Calls")], rows)
    return card("Errors", shown, more(len(ordered) - _MOST_ROWS, "kind of error", "kinds of error"))


def _details(overview: Overview, site: Site, view: View) -> htpy.Node:
    groups = {
        "group": overview.groups,
        "app": overview.apps,
        "provider": overview.providers,
        "model": overview.models,
    }
    tables = [
        card(f"By {kind}", sums_table(kind, sums, site, view))
        for kind, sums in groups.items()
        if set(sums) - {""}
    ]
    return [
        charts(overview),
        htpy.div(".grid.wide")[tables, causes_card(overview), errors_card(overview)],
    ]


def _grants(apps: Sequence[AppRow], site: Site) -> htpy.Node:
    """Each app's spend and limits, the closest to a limit first."""
    if not apps:
        return None
    ordered = sorted(apps, key=_nearness, reverse=True)
    shown = [
        htpy.div[
            htpy.dt[app_link(app, site)],
            htpy.dd[
                htpy.span(".dim")["Today (UTC)"],
                app_meter(app, app.today_nano_usd, app.day_limit),
            ],
            htpy.dd[
                htpy.span(".dim")["This month (UTC)"],
                app_meter(app, app.month_nano_usd, app.month_limit),
            ],
        ]
        for app in ordered[:_MOST_ROWS]
    ]
    return card(
        "Spend against grants",
        htpy.dl(".meters")[shown],
        more(len(ordered) - _MOST_ROWS, "app"),
        about="Charges by app, per UTC day and month: the provider's bills.",
    )


def app_link(app: AppRow, site: Site) -> htpy.Node:
    link = htpy.a(href=app_url(site, app.id))[name(app.id)]
    return link if app.granted else [link, " ", tag("no grant", "bad")]


def app_meter(app: AppRow, used: int, limit: int | None) -> htpy.Node:
    """An app without a grant has no limit, and may spend nothing."""
    return meter(used, limit, held=app.held_nano_usd) if app.granted else usd(used)


def _nearness(app: AppRow) -> float:
    pairs = ((app.today_nano_usd, app.day_limit), (app.month_nano_usd, app.month_limit))
    return max((used / limit for used, limit in pairs if limit), default=0.0)


# ── Providers ────────────────────────────────────────────────────────────────────────────────────


_BREAKERS: dict[str, Tone] = {"closed": "good", "open": "bad", "half open": "warn", "unused": ""}
_ABOUT_PROVIDERS = (
    "Breakers and rate limits are current. An open breaker: the provider failed"
    " repeatedly, and gets no calls for a while; half open: a few calls test whether it has"
    " recovered. Rate limits are shown if they are configured, or if the provider reports that"
    " less than half is left."
)


class ProvidersPage:
    def __init__(self, rows: Callable[[View], Sequence[ProviderRow]]) -> None:
        self._rows = rows

    def content(self, request: PageRequest, site: Site) -> PageContent:  # noqa: ARG002
        request.refuse_below()
        rows = self._rows(request.view)
        headings = [Heading("Provider"), Heading("Breaker")]
        headings += numbers("Calls", "Failed", "Retries", "First byte p50", "p99")
        headings += [Heading("Left of rate limits"), Heading("Refusals")]
        shown = empty("llm.yaml has no provider")
        if rows:
            listed = table("Providers", headings, [_provider_line(row) for row in rows])
            shown = htpy.section(".card")[listed, htpy.p(".about")[_ABOUT_PROVIDERS]]
        main = [htpy.div(".title")[htpy.h1["Providers"]], htpy.div("#providers")[shown]]
        return PageContent(title="Providers", main=main, live=("providers",))


def _provider_line(row: ProviderRow) -> list[htpy.Node]:
    refusals = sorted(row.refusals.items(), key=lambda item: (-item[1], item[0]))
    return [
        name(row.name),
        tag(row.breaker, _BREAKERS.get(row.breaker, "")),
        count(row.calls),
        unless_zero(row.failed),
        unless_zero(row.retries),
        NOTHING if row.first_p50 is None else seconds(row.first_p50),
        NOTHING if row.first_p99 is None else seconds(row.first_p99),
        _lines((what, percent(share)) for what, share in sorted(row.headroom.items())),
        _lines((kind, count(calls)) for kind, calls in refusals),
    ]


def _lines(pairs: Iterable[tuple[str, str]]) -> htpy.Node:
    items = [htpy.div[name(what), f":\N{NO-BREAK SPACE}{value}"] for what, value in pairs]
    return htpy.div[items] if items else NOTHING
