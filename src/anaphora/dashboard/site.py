"""A site of pages: its sections, the request for a page and its content.

`page_site.PageSite` answers the requests; `layout.document` makes the whole page.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol
from urllib.parse import parse_qsl

import htpy
import msgspec

from anaphora.errors import NotFound

from .values import RangeName, View
from .view import view_from_query


class Section(msgspec.Struct, frozen=True):
    """An entry of the navigation."""

    name: str
    """The path below the root; empty for the overview."""
    title: str


class Site(msgspec.Struct, frozen=True, kw_only=True):
    root: str
    """`/ui`, without a trailing slash."""
    title: str
    sections: tuple[Section, ...]
    viewer: str = ""
    """Shown beside the log-out button; empty if there is no login."""
    csrf: str = ""
    """CSRF token of forms; empty if nothing can be written."""
    live: bool = True
    """Whether pages are updated while they are open."""
    range: RangeName = "day"
    """Range of a URL that names none."""

    def url(self, path: str = "", query: str = "") -> str:
        """The URL of a page. `query` may be that of a view (`view.query_of`)."""
        first, _, rest = query.partition("&")
        query = rest if first == f"range={self.range}" else query
        address = f"{self.root}/{path}" if path else self.root
        return f"{address}?{query}" if query else address


class PageRequest(msgspec.Struct, frozen=True, kw_only=True):
    method: str = "GET"
    path: str
    """Below the root, without a slash at its beginning or end."""
    query: Mapping[str, str]
    now: float
    view: View

    def refuse_below(self) -> None:
        """Refuses subpaths, for a page that has none. Raises `NotFound`."""
        if "/" in self.path:
            raise NotFound("no page at this address", status=404)


class PageContent(msgspec.Struct, kw_only=True):
    title: str
    main: htpy.Node
    live: tuple[str, ...] = ()
    """Ids of elements within `main` that are replaced when calls are added."""
    status: int = 200
    filters: bool = True
    """Whether the page shows calls of a view; if so, it has the form for range and filters."""


class Page(Protocol):
    """One section, and the paths below it that are not sections themselves."""

    def content(self, request: PageRequest, site: Site) -> PageContent:
        """Runs outside the event loop. Raises `InvalidRequest` for a wrong query, and `NotFound`
        for an unknown path below its own."""
        ...


def page_request(
    method: str, path: str, query_string: str, now: float, range: RangeName = "day"
) -> PageRequest:
    """The request for a path below the root; `range` is the site's default. Raises `InvalidRequest`
    for a wrong view."""
    query = dict(parse_qsl(query_string, keep_blank_values=True))
    return PageRequest(
        method=method,
        path=path.strip("/"),
        query=query,
        now=now,
        view=view_from_query(query, now, range),
    )
