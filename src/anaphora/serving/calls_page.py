"""The page that lists calls, their verdicts and their cost, as the emulator and the proxy show it.

The page reads `ROOT/requests?last=200` every two seconds: an object with `now`, `requests` (the
newest first) and, where there is one, a `headline`.
"""

from __future__ import annotations

import html
import pkgutil

#: The page runs only its own script, connects only to its own server, and is in no frame.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; frame-ancestors 'none'"
)
#: Of everything that is served beside it, too.
PAGE_HEADERS = {
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
HTML_HEADERS = {
    **PAGE_HEADERS,
    "content-type": "text/html; charset=utf-8",
    "content-security-policy": _POLICY,
}


def calls_page(*, title: str, root: str, detail: str, empty: str, clock: bool = False) -> bytes:
    """The page of a server whose calls are listed below `root`. `detail` is the title of the column
    about each call, `empty` is shown while there is none; with `clock` the page can move the
    server's clock and reset it."""
    page = (pkgutil.get_data(__package__, "calls_page.html") or b"").decode()
    values = {"title": title, "root": root, "detail": detail, "empty": empty}
    values["clock"] = "yes" if clock else ""
    for name, value in values.items():
        page = page.replace(f"{{{name}}}", html.escape(value))
    return page.encode()
