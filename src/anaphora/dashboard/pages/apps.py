"""Apps of the daemon: their grants, use of limits, refused calls and tokens. Revoking and rotating
tokens are confirmed on separate pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import htpy

from anaphora.dashboard.charts import meter
from anaphora.dashboard.figures import NOTHING, count, local_time, name, plain_name, short_id, usd
from anaphora.dashboard.past_calls.source import PastCalls
from anaphora.dashboard.site import PageContent, PageRequest, Site
from anaphora.dashboard.tables import (
    Heading,
    Tone,
    app_url,
    card,
    empty,
    facts,
    numbers,
    table,
    tag,
)
from anaphora.dashboard.values import AppRow, TokenState, View
from anaphora.dashboard.view import query_of
from anaphora.errors import NotFound
from anaphora.wording import counted

from .overview import app_link, app_meter, causes_card, charts, headline

AppAction: TypeAlias = Literal["revoke", "rotate"]
"""What can be done to the tokens of an app."""

#: How long earlier tokens stay valid after a rotation, in seconds.
OVERLAPS = {0: "not at all", 3_600: "an hour", 86_400: "a day", 7 * 86_400: "a week"}
_OVERLAP = 86_400
TokenStatus: TypeAlias = Literal["valid", "expired", "revoked"]
_TONES: dict[TokenStatus, Tone] = {"valid": "good", "expired": "", "revoked": "bad"}
#: Apps on a page of the list.
_MOST_ROWS = 100
#: Names in a cell of the list; the page of an app shows all.
_FEW = 4


class AppsPage:
    """The list at `apps`, and each app at `apps/APP`."""

    def __init__(
        self, apps: Callable[[View], Sequence[AppRow]], app: Callable[[str, View], AppRow | None]
    ) -> None:
        self._apps = apps
        self._app = app

    def content(self, request: PageRequest, site: Site) -> PageContent:
        _, _, id = request.path.partition("/")
        if not id:
            return _listed(self._apps(request.view), request, site)
        row = self._app(id, request.view)
        if row is None:
            raise NotFound("there is no such app", status=404)
        title = plain_name(row.id)
        main = [
            htpy.div(".title")[htpy.h1["App ", name(row.id)]],
            htpy.div("#app")[use_of(row), htpy.div(".grid")[grant_of(row), denied_calls(row)]],
            budgets_of(row, site),
            corrections_of(row),
            _tokens(row, site, request.now),
        ]
        return PageContent(title=title, main=main, live=("app",))


class OwnAppPage:
    """The page of one app, as its own token sees it."""

    def __init__(
        self, app: str, row: Callable[[str, View], AppRow | None], source: PastCalls
    ) -> None:
        """`source` has the calls of this app only."""
        self._app = app
        self._row = row
        self._source = source

    def content(self, request: PageRequest, site: Site) -> PageContent:  # noqa: ARG002
        row = self._row(self._app, request.view)
        if row is None:
            raise NotFound("there is no such app", status=404)
        overview = self._source.overview(request.view)
        main = [
            htpy.div(".title")[htpy.h1["App ", name(row.id)]],
            htpy.div("#app")[
                use_of(row),
                headline(overview.total),
                charts(overview),
                htpy.div(".grid.wide")[causes_card(overview), denied_calls(row), grant_of(row)],
                budgets_of(row),
            ],
        ]
        return PageContent(title=plain_name(row.id), main=main, live=("app",))


# ── The list ─────────────────────────────────────────────────────────────────────────────────────


def _listed(rows: Sequence[AppRow], request: PageRequest, site: Site) -> PageContent:
    after = request.query.get("after", "")
    left = [row for row in rows if row.id > after]
    rows = left[:_MOST_ROWS]
    headings = [Heading("App"), Heading("Today (UTC)"), Heading("This month (UTC)")]
    headings += [*numbers("Refused"), Heading("Tokens"), Heading("Models")]
    shown: htpy.Node = empty(
        "There are no apps yet",
        ["Write a grant in extensions.yaml, and run ", htpy.code["anaphora apps add APP"], "."],
    )
    if rows:
        cells = [_line(row, site, request.now) for row in rows]
        further = None
        if len(left) > len(rows):
            url = site.url("apps", query_of(request.view, after=rows[-1].id))
            further = htpy.p(".actions")[
                htpy.a(".button", href=url, rel="next")[
                    counted(len(left) - len(rows), "further app")
                ]
            ]
        shown = htpy.section(".card")[table("Apps", headings, cells), further]
    main = [htpy.div(".title")[htpy.h1["Apps"]], htpy.div("#apps")[shown]]
    return PageContent(title="Apps", main=main, live=("apps",))


def _line(row: AppRow, site: Site, now: float) -> list[htpy.Node]:
    valid = sum(state_of(token, now) == "valid" for token in row.tokens)
    return [
        app_link(row, site),
        app_meter(row, row.today_nano_usd, row.day_limit),
        app_meter(row, row.month_nano_usd, row.month_limit),
        count(sum(row.denied.values())) if row.denied else NOTHING,
        f"{valid:,} valid" if valid else tag("none valid", "warn"),
        _names(row.models, _FEW),
    ]


def _names(names: Sequence[str], most: int | None = None) -> htpy.Node:
    if not names:
        return name("")
    shown = names[:most]
    left = len(names) - len(shown)
    return [
        [[", " if index else "", name(each)] for index, each in enumerate(shown)],
        f" and {left:,} more" if left else None,
    ]


# ── One app ──────────────────────────────────────────────────────────────────────────────────────


def use_of(row: AppRow) -> htpy.Element:
    """An app's use of its limits."""
    periods = (
        ("Today (UTC)", row.today_nano_usd, row.day_limit),
        ("This month (UTC)", row.month_nano_usd, row.month_limit),
    )
    return card(
        "Use",
        htpy.dl(".meters")[
            (
                htpy.div[htpy.dt[title], htpy.dd[app_meter(row, used, limit)]]
                for title, used, limit in periods
            ),
            htpy.div[htpy.dt["Held for running calls"], htpy.dd[usd(row.held_nano_usd)]],
        ],
    )


def grant_of(row: AppRow) -> htpy.Element:
    """What an app may do."""
    if not row.granted:
        text = "extensions.yaml has no grant for this app: all its calls are refused."
        return card("Grant", htpy.p(".notice.bad")[text])
    pairs: list[tuple[str, htpy.Node]] = [
        ("Capabilities", _names(row.capabilities)),
        ("Providers", _names(row.providers)),
        ("Models", _names(row.models)),
        *([("Group", name(row.group))] if row.group else []),
        ("Requests per minute", _rate(row.requests_per_minute)),
        ("Tokens per minute", _rate(row.tokens_per_minute)),
    ]
    missing = htpy.p(".notice.bad")[
        "Required and not granted, so that all its calls are refused: ", _names(row.missing)
    ]
    return card(
        "Grant",
        missing if row.missing else None,
        facts(pairs),
    )


def _rate(limit: int | None) -> str:
    return "no limit" if limit is None else count(limit)


def denied_calls(row: AppRow) -> htpy.Element:
    """Calls that the daemon refused, by reason."""
    reasons = sorted(row.denied.items(), key=lambda item: (-item[1], item[0]))
    shown: htpy.Node = htpy.p(".dim")["None in this time range."]
    if reasons:
        rows = [[name(reason), count(calls)] for reason, calls in reasons]
        shown = table("Refused calls", [Heading("Reason"), *numbers("Calls")], rows)
    return card("Refused calls", shown, about="Repeats within a minute are added when it is over.")


#: Narrowed tokens on a page; `anaphora apps list` lists all.
_MOST_BUDGETS = 200


def budgets_of(row: AppRow, site: Site | None = None) -> htpy.Node:
    """The budgets of an app's narrowed tokens; nothing if there are none. With a site, tokens can
    be revoked."""
    if not row.narrowed:
        return None
    names = ["Label", "Token", "Budget", "Ends", *(["Revoke"] if site is not None else [])]
    cells: list[list[htpy.Node]] = []
    for one in sorted(row.narrowed, key=lambda one: -one.token.created)[:_MOST_BUDGETS]:
        used: htpy.Node = usd(one.limit_nano_usd)
        if one.spent_nano_usd is not None:
            used = meter(one.spent_nano_usd, one.limit_nano_usd, held=one.held_nano_usd)
        line = [name(one.label), htpy.code[one.token.id]]
        line.append(used)
        line.append(NOTHING if one.token.expires is None else local_time(one.token.expires))
        if site is not None:
            line.append(_revoke_link(row.id, one.token.id, site))
        cells.append(line)
    more = len(row.narrowed) - len(cells)
    about = f"The newest; {more:,} more are valid." if more else "Of valid tokens."
    headings = [Heading(each) for each in names]
    return card("Narrowed tokens", table("Narrowed tokens", headings, cells), about=about)


def corrections_of(row: AppRow) -> htpy.Node:
    """An administrator's corrections of the app's calls; nothing if there are none."""
    if not row.corrections:
        return None
    headings = [Heading(each) for each in ("Corrected", "Day of the call", "Request", "Entry")]
    cells: list[list[htpy.Node]] = [
        [
            local_time(one.at),
            one.day,
            short_id(one.request_id),
            htpy.code[short_id(one.entry)],
            usd(one.added_nano_usd),
            name(one.reason),
        ]
        for one in row.corrections
    ]
    headings += [*numbers("Added"), Heading("Reason")]
    about = "The latest. They are charged to the day of the call; nothing is edited."
    return card("Corrections", table("Corrections", headings, cells), about=about)


# ── Tokens ───────────────────────────────────────────────────────────────────────────────────────


def state_of(token: TokenState, now: float) -> TokenStatus:
    if token.revoked is not None:
        return "revoked"
    if token.expires is not None and token.expires <= now:
        return "expired"
    return "valid"


def _tokens(row: AppRow, site: Site, now: float) -> htpy.Element:
    headings = [Heading(each) for each in ("Token", "State", "Created", "Ends", "Revoke")]
    newest = sorted(row.tokens, key=lambda token: -token.created)
    rows = [_token(row.id, token, site, now) for token in newest]
    actions: htpy.Node = [
        "No valid token. Create one with ",
        htpy.code["anaphora apps add ", name(row.id)],
        ".",
    ]
    if any(state_of(token, now) == "valid" for token in row.tokens):
        actions = [
            htpy.a(".button", href=app_url(site, row.id, "rotate"))["Rotate the token"],
            " ",
            htpy.a(".button", href=app_url(site, row.id, "revoke"))["Revoke all tokens"],
        ]
    listed = table("Tokens", headings, rows) if rows else None
    return card("Tokens", listed, htpy.p(".actions")[actions])


def _token(app: str, token: TokenState, site: Site, now: float) -> list[htpy.Node]:
    state = state_of(token, now)
    ends: htpy.Node = "never" if token.expires is None else local_time(token.expires)
    return [
        htpy.code[token.id],
        tag(state, _TONES[state]),
        local_time(token.created),
        ends if token.revoked is None else ["revoked ", local_time(token.revoked)],
        _revoke_link(app, token.id, site) if state == "valid" else NOTHING,
    ]


def _revoke_link(app: str, token: str, site: Site) -> htpy.Element:
    url = app_url(site, app, "revoke", id=token)
    return htpy.a(href=url, aria_label=f"Revoke the token {token}")["Revoke"]


# ── Writes ───────────────────────────────────────────────────────────────────────────────────────


def confirm_page(
    site: Site,
    app: str,
    action: AppAction,
    *,
    tokens: Sequence[str],
    only: str = "",
    confirmation: str,
) -> PageContent:
    """Asks before tokens are revoked or replaced. `tokens` are the ids of the tokens concerned;
    `only` is set if the page is about one of several. The form can be sent once, by its
    `confirmation`."""
    listed = htpy.ul[(htpy.li[htpy.code[each]] for each in tokens)]
    if action == "revoke":
        title, button = "Revoke tokens", "Revoke"
        text = f"{counted(len(tokens), 'token')} of this app will be refused from now on, and calls"
        explained: htpy.Node = htpy.p[text, " that run with them end at once:"]
        options: htpy.Node = None
    else:
        title, button = "Rotate the token", "Create a new token"
        explained = htpy.p["The app gets a new token. These stay valid for a while:"]
        options = htpy.p[
            htpy.label(for_="overlap")["How long they stay valid"],
            " ",
            htpy.select("#overlap", name="overlap")[
                (
                    htpy.option(value=str(each), selected=each == _OVERLAP)[text]
                    for each, text in OVERLAPS.items()
                )
            ],
        ]
    form = htpy.form(".confirm", method="post", action=app_url(site, app, action))[
        htpy.input(type="hidden", name="csrf", value=site.csrf),
        htpy.input(type="hidden", name="confirmation", value=confirmation),
        htpy.input(type="hidden", name="id", value=only) if only else None,
        options,
        htpy.p(".actions")[
            htpy.button(class_="danger" if action == "revoke" else None, type="submit")[button],
            " ",
            htpy.a(".button", href=app_url(site, app))["Cancel"],
        ],
    ]
    main = [
        htpy.div(".title")[htpy.h1[title, " of ", name(app)]],
        htpy.section(".card", aria_label=title)[explained, listed, form],
    ]
    return PageContent(title=title, main=main, filters=False)


def done_page(
    site: Site, app: str, title: str, result: htpy.Node, *, status: int = 200
) -> PageContent:
    """The result of a write."""
    main = [
        htpy.div(".title")[htpy.h1[title]],
        htpy.section(".card", aria_label=title)[
            htpy.div(role="status")[result],
            htpy.p[htpy.a(href=app_url(site, app))["Back to ", name(app)]],
        ],
    ]
    return PageContent(title=title, main=main, status=status, filters=False)


def new_token(token: str, ending: Sequence[TokenState]) -> htpy.Node:
    """A token that was just created; it cannot be shown again."""
    return [
        htpy.p["This is the only time that the token is shown. Copy it now:"],
        htpy.p[htpy.code("#new-token.excerpt")[token]],
        htpy.p["Earlier tokens:"] if ending else None,
        htpy.ul[
            (
                htpy.li[
                    htpy.code[each.id],
                    " is valid until " if each.expires is not None else " is valid",
                    None if each.expires is None else local_time(each.expires, "second"),
                ]
                for each in ending
            )
        ],
    ]
