"""The audit log: search of its calls, state of its hash chain, and export."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import get_args

import htpy
import msgspec

from anaphora.audit.reading import VerifiedLog
from anaphora.cache.verdict.advice import cause_name
from anaphora.dashboard.figures import (
    NOTHING,
    call_cost,
    count,
    local_time,
    name,
    reported,
    short_id,
)
from anaphora.dashboard.layout import view_fields
from anaphora.dashboard.past_calls.source import PastCalls
from anaphora.dashboard.site import PageContent, PageRequest, Site
from anaphora.dashboard.tables import Heading, card, empty, numbers, table, tag
from anaphora.dashboard.values import CallOutcome, CallPage, CallQuery, ShownCall, View
from anaphora.dashboard.view import query_of
from anaphora.errors import InvalidRequest
from anaphora.wording import counted

_OUTCOMES: dict[CallOutcome, str] = {
    "": "all",
    "ok": "answered",
    "failed": "failed or refused",
    "broke": "broke the cache",
}
_LONGEST_TEXT = 200


class ChainStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the hash chain of a log."""

    written: int = 0
    """Number of the last committed row."""
    failing: bool = False
    """Whether rows wait that could not be written."""
    running_rows: int | None = None
    """Rows checked so far by the running check; None if none runs."""
    verified: VerifiedLog | None = None
    """The last check that found the chain whole."""
    problem: str = ""
    """What the last check found wrong."""
    unchecked: str = ""
    """Why the last check could not be made."""
    checked_at: float | None = None


def call_query(query: Mapping[str, str], view: View, *, limit: int = 50) -> CallQuery:
    """The search described by a query. Raises `InvalidRequest`."""
    text, outcome = query.get("text", "").strip(), query.get("outcome", "")
    if len(text) > _LONGEST_TEXT:
        raise InvalidRequest(f"has more than {_LONGEST_TEXT} characters", path="text")
    if outcome not in _OUTCOMES:
        allowed = ", ".join(get_args(CallOutcome)[1:])
        raise InvalidRequest(f"{outcome[:60]!r} is none of {allowed}", path="outcome")
    return CallQuery(
        view=view,
        text=text,
        outcome=outcome,
        before=query.get("before") or None,
        limit=limit,
    )


class AuditPage:
    def __init__(self, source: PastCalls, chain: Callable[[], ChainStatus | None]) -> None:
        """`chain` is None if there is no log."""
        self._source = source
        self._chain = chain

    def content(self, request: PageRequest, site: Site) -> PageContent:
        request.refuse_below()
        query = call_query(request.query, request.view)
        chain = self._chain()
        main = [
            htpy.div(".title")[htpy.h1["Audit log"]],
            htpy.div("#chain")[_off() if chain is None else _chain(chain, site)],
            _search(query, site),
            htpy.div("#calls")[_calls(self._source.calls(query), query, site)],
        ]
        live = ("chain", "calls") if query.before is None else ("chain",)
        return PageContent(title="Audit log", main=main, live=live)


def _off() -> htpy.Element:
    return htpy.p(".notice.warn")[
        "The audit log is off, so there are no calls to show. Write ",
        htpy.code["audit: true"],
        " in the daemon section of llm.yaml.",
    ]


# ── The chain ────────────────────────────────────────────────────────────────────────────────────


def _chain(chain: ChainStatus, site: Site) -> htpy.Element:
    failing = htpy.p(".notice.bad")["Rows cannot be written; the daemon's log says why."]
    return card(
        "Hash chain",
        failing if chain.failing else None,
        htpy.p[_checked(chain)],
        htpy.form(method="post", action=site.url("audit/verify"))[
            htpy.input(type="hidden", name="csrf", value=site.csrf),
            htpy.button(type="submit", disabled=chain.running_rows is not None)["Verify now"],
        ],
    )


def _checked(chain: ChainStatus) -> htpy.Node:
    written = f"The last row is {chain.written:,}. "
    running = None
    if chain.running_rows is not None:
        running = f" A check is running: {counted(chain.running_rows, 'row')} so far."
    if chain.checked_at is None:
        return [written, "The rows have not been checked since the daemon started.", running]
    when = local_time(chain.checked_at, "second")
    if problem := chain.problem or chain.unchecked:
        title = "The chain is broken: " if chain.problem else "It could not be checked: "
        return [
            written,
            htpy.strong(".problem")[title, name(problem, 500)],
            " (checked at ",
            when,
            ")",
            running,
        ]
    assert chain.verified is not None
    log = chain.verified
    later = max(0, chain.written - log.last)
    return [
        written,
        htpy.strong[f"Rows {log.first:,} to {log.last:,} are whole"],
        " (checked at ",
        when,
        ").",
        f" Rows 1 to {log.first - 1:,} were pruned, which a row confirms." if log.first > 1 else "",
        f" {counted(later, 'row')} since then: not checked yet." if later else "",
        running,
    ]


# ── Calls ────────────────────────────────────────────────────────────────────────────────────────


def _parameters(query: CallQuery, **changes: str | None) -> str:
    text, outcome = query.text or None, query.outcome or None
    return query_of(query.view, **{"text": text, "outcome": outcome, **changes})


def _search(query: CallQuery, site: Site) -> htpy.Element:
    return htpy.form(".filters.search", method="get", action=site.url("audit"), role="search")[
        view_fields(query.view),
        htpy.label[
            "App, provider, model, cause, id or budget",
            htpy.input(type="search", name="text", value=query.text, maxlength=str(_LONGEST_TEXT)),
        ],
        htpy.label[
            "Calls",
            htpy.select(name="outcome")[
                (
                    htpy.option(value=value, selected=value == query.outcome)[text]
                    for value, text in _OUTCOMES.items()
                )
            ],
        ],
        htpy.button(type="submit")["Search"],
    ]


def _calls(page: CallPage, query: CallQuery, site: Site) -> htpy.Node:
    if not page.calls:
        return empty("No call was found in this range")
    newest = earlier = None
    if query.before is not None:
        newest = htpy.a(".button", href=site.url("audit", _parameters(query)))["Newest calls"]
    if page.before is not None:
        url = site.url("audit", _parameters(query, before=page.before))
        earlier = htpy.a(".button", href=url, rel="next")["Earlier calls"]
    rows = htpy.a(href=site.url("audit/export", _parameters(query)), download=True)["JSON lines"]
    headings = [Heading(each) for each in ("Call", "App", "Model", "Outcome")]
    headings += numbers("Input", "Read", "Output", "Cost")
    return card(
        "Calls",
        table("Calls", headings, [_line(each) for each in page.calls]),
        htpy.p(".actions")[newest, " ", earlier] if newest or earlier else None,
        htpy.p(".actions")["Download all calls found: ", rows],
    )


def _line(shown: ShownCall) -> list[htpy.Node]:
    call = shown.call
    usage = call.usage
    repeats = f" × {call.repeats:,}" if call.repeats > 1 else ""
    id = call.call_id or call.request_id
    differs = call.verdict == "first" and call.changed
    told = call.outcome != "ok" or differs
    return [
        [local_time(call.at, "second"), id and htpy.div(".dim")[htpy.code[short_id(id, 40)]]],
        [name(call.app), call.budget and htpy.div(".dim")[name(call.budget_label or call.budget)]],
        [name(call.billed_model), htpy.div(".dim")[name(call.provider)]],
        [
            tag([name(call.outcome, 40), repeats], "good" if call.outcome == "ok" else "bad"),
            call.cause and not differs and htpy.div[name(cause_name(call.cause))],
            told and htpy.div[name(shown.sentence, 400)],
        ],
        count(usage.input) if usage.input else NOTHING,
        reported(usage.read),
        reported(usage.output),
        call_cost(call),
    ]
