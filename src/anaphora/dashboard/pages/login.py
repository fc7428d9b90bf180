"""The form that exchanges a token for a session, and the page that ends one."""

from __future__ import annotations

import htpy

from anaphora.dashboard.figures import local_time, name, seconds
from anaphora.dashboard.site import PageContent, Site
from anaphora.dashboard.tables import card, facts


def login_page(
    site: Site, *, next_path: str = "", problem: str = "", status: int = 200
) -> PageContent:
    """`next_path` is the page that the viewer asked for; `problem` is why a token was rejected."""
    field = htpy.input(
        "#token",
        type="password",
        name="token",
        required=True,
        autofocus=True,
        size="52",
        autocomplete="off",
        autocapitalize="off",
        spellcheck="false",
        aria_describedby="token-help" + (" problem" if problem else ""),
    )
    form = htpy.form(method="post", action=site.url("login"))[
        htpy.p[htpy.label["Token", field]],
        htpy.input(type="hidden", name="next", value=next_path) if next_path else None,
        htpy.p(".actions")[htpy.button(type="submit")["Log in"]],
    ]
    main = [
        htpy.div(".title")[htpy.h1["Log in"]],
        htpy.section(".card", aria_label="Log in")[
            htpy.p("#problem.notice.bad", role="alert")[problem] if problem else None,
            form,
            htpy.p("#token-help.dim")[
                "On the daemon's machine, ",
                htpy.code["anaphora admin token"],
                " prints an administrator's token. With an app's token, the app's own page is"
                " shown.",
            ],
            htpy.p(".dim")[
                "Already logged in, and followed a link from another site? ",
                htpy.a(href=next_path or site.url())["Open the dashboard"],
                ".",
            ],
        ],
    ]
    return PageContent(title="Log in", main=main, status=status, filters=False)


def session_page(site: Site, *, opened: float, ends: float, idle: float) -> PageContent:
    """The session's user and end, and how to log out. `idle` are the seconds without a
    request after which the session ends early."""

    log_out = htpy.form(method="post", action=site.url("logout"))[
        htpy.input(type="hidden", name="csrf", value=site.csrf),
        htpy.p[
            htpy.button(type="submit")["Log out"],
            htpy.span(".dim")[" removes the login from this browser"],
        ],
    ]
    pairs: list[tuple[str, htpy.Node]] = [
        ("Logged in as", name(site.viewer)),
        ("Since", local_time(opened)),
        ("Until", [local_time(ends), f", or {seconds(idle)} without a request"]),
    ]
    main = [
        htpy.div(".title")[htpy.h1["Session"]],
        card("Session", facts(pairs), log_out),
    ]
    return PageContent(title="Session", main=main, filters=False)
