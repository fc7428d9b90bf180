"""The whole page around a section: navigation, range and filters, live status, footer; its style
and its script. The names of these files contain a hash of the content, so browsers keep them for
good and still get new ones after an update."""

from __future__ import annotations

import hashlib
import pkgutil
from collections.abc import Sequence
from urllib.parse import parse_qsl

import htpy

from anaphora.serving.exchange import CompleteResponse
from anaphora.version import __version__
from anaphora.wording import DIRECTIONS, visible

from .figures import local_time, plain_name
from .site import PageContent, Site
from .values import Names, RangeName, View
from .view import FILTERS, iso_time, query_of

#: Folder of the static files, in this package and below the root of a site.
STATIC = "static"
_TYPES = {
    "dashboard.css": "text/css; charset=utf-8",
    "dashboard.js": "text/javascript; charset=utf-8",
}
#: Sent with every static file: opened directly, it loads nothing.
_HEADERS = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
}


def static_content(name: str) -> bytes:
    """A file of the package, such as `dashboard.css`."""
    content = pkgutil.get_data(__package__, f"{STATIC}/{name}")
    assert content is not None, name
    return content


def static_url(root: str, name: str) -> str:
    """The URL of a static file."""
    return f"{root}/{STATIC}/{_hashed_name(name)}"


def static_file(name: str) -> CompleteResponse:
    """The static file with this hashed name."""
    for plain, kind in _TYPES.items():
        if name == _hashed_name(plain):
            headers = {
                **_HEADERS,
                "content-type": kind,
                "cache-control": "public, max-age=31536000, immutable",
            }
            return CompleteResponse(200, headers, static_content(plain))
    headers = {"content-type": "text/plain; charset=utf-8", "cache-control": "no-store"}
    return CompleteResponse(404, {**_HEADERS, **headers}, b"not found\n")


def _hashed_name(name: str) -> str:
    """The name of a file with the hash of its content: `dashboard.0f1e2d3c4b5a.css`."""
    stem, _, ending = name.rpartition(".")
    digest = hashlib.sha256(static_content(name)).hexdigest()[:12]
    return f"{stem}.{digest}.{ending}"


_RANGES: tuple[tuple[RangeName, str], ...] = (
    ("hour", "Hour"),
    ("day", "Day"),
    ("week", "Week"),
    ("month", "Month"),
)
_FILTER_TITLES = {
    "app": "App", "group": "Group", "provider": "Provider", "model": "Model", "label": "Block",
}  # fmt: skip
#: Id of the element that shows the time range of a page.
SPAN = "span"
#: Maximum number of options in one field.
_MOST_OPTIONS = 200
_ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E"
    "%3Crect width='16' height='16' rx='3' fill='%230b5cad'/%3E"
    "%3Cpath d='M4 12V7h2v5zm3 0V4h2v8zm3 0V9h2v3z' fill='%23fff'/%3E%3C/svg%3E"
)


def document(site: Site, content: PageContent, view: View, names: Names, path: str) -> bytes:
    """The full HTML page for that content. `names` are the filter options, `path` is the page's
    path below the root of the site."""
    page = htpy.html(lang="en")[
        htpy.head[
            htpy.meta(charset="utf-8"),
            htpy.meta(name="viewport", content="width=device-width, initial-scale=1"),
            htpy.meta(name="color-scheme", content="light dark"),
            htpy.title[f"{content.title} · {site.title} · Anaphora"],
            htpy.link(rel="icon", href=_ICON),
            htpy.link(rel="stylesheet", href=static_url(site.root, "dashboard.css")),
            htpy.script(src=static_url(site.root, "dashboard.js"), defer=True),
        ],
        htpy.body(
            data_root=site.root,
            data_path=path,
            data_live="yes" if site.live and content.live else None,
        )[
            htpy.a(".skip", href="#main")["Skip to the content"],
            _header(site, view, path),
            htpy.main("#main", tabindex="-1")[
                filter_bar(site, view, names, path) if content.filters else None, content.main
            ],
            _footer(),
        ],
    ]
    return page_bytes(str(page))


def page_bytes(page: str) -> bytes:
    """The HTML without control characters from apps and providers; markup needs only line breaks.
    Text direction characters stay: `<bdi>` isolates names, and blocks isolate texts."""
    return visible(page, keep="\n\r\t" + DIRECTIONS).encode()


def _header(site: Site, view: View, path: str) -> htpy.Element:
    here = path.partition("/")[0]
    links = []
    for section in site.sections:
        # `conversation/ID` belongs to the section `conversations`.
        current = section.name in (here, f"{here}s") if here else not section.name
        address = site.url(section.name, query_of(view))
        links.append(
            htpy.li[htpy.a(href=address, aria_current="page" if current else None)[section.title]]
        )
    return htpy.header(".top")[
        htpy.a(".brand", href=site.url())[htpy.b["Anaphora"], " ", htpy.span[site.title]],
        htpy.nav(aria_label="Sections")[htpy.ul[links]] if links else None,
        htpy.div(".session")[
            htpy.span("#live.live", role="status", aria_live="polite"),
            site.viewer and _logout(site),
        ],
    ]


def _logout(site: Site) -> htpy.Element:
    return htpy.form(method="post", action=site.url("logout"))[
        htpy.a(".dim", href=site.url("session"))[htpy.bdi[plain_name(site.viewer, 40)]],
        htpy.input(type="hidden", name="csrf", value=site.csrf),
        htpy.button(type="submit")["Log out"],
    ]


def filter_bar(site: Site, view: View, names: Names, path: str) -> htpy.Element:
    """Range and filters; the choice is kept in the URL."""
    ranges = [
        htpy.li[
            htpy.a(
                href=site.url(path, query_of(view, range=each)),
                aria_current="true" if view.range == each else None,
            )[title]
        ]
        for each, title in _RANGES
    ]
    return htpy.section(".filters", aria_label="Range and filters")[
        htpy.ul(".ranges", aria_label="Range")[ranges],
        _custom_range(site, view, path),
        _filter_form(site, view, names, path),
        time_span(view),
        _chosen(site, view, path),
    ]


def time_span(view: View) -> htpy.Element:
    """The time range that the page covers: a live element, as most ranges end now."""
    return htpy.p(f"#{SPAN}.span.dim")[local_time(view.since), " to ", local_time(view.until)]


def _custom_range(site: Site, view: View, path: str) -> htpy.Element:
    fields = []
    for field, title, at in (("since", "From", view.since), ("until", "To", view.until)):
        fields.append(
            htpy.label[
                f"{title} (UTC)",
                htpy.input(
                    type="datetime-local",
                    name=field,
                    value=iso_time(at)[:16],
                    required=field == "since",
                ),
            ]
        )
    return htpy.details(".custom", data_key="custom range", open=view.range == "custom")[
        htpy.summary["Custom"],
        htpy.form(method="get", action=site.url(path))[
            htpy.input(type="hidden", name="range", value="custom"),
            view_fields(view, FILTERS),
            fields,
            htpy.button(type="submit")["Show"],
        ],
    ]


def _filter_form(site: Site, view: View, names: Names, path: str) -> htpy.Element | None:
    choices = {
        "app": names.apps,
        "group": names.groups,
        "provider": names.providers,
        "model": names.models,
        "label": names.labels,
    }
    fields = []
    for field in FILTERS:
        chosen = getattr(view, field)
        if chosen is not None or any(choices[field]):
            options = _options(choices[field], chosen)
            fields.append(
                htpy.label[_FILTER_TITLES[field], htpy.select(name=field)[options]],
            )
    if not fields:
        return None
    return htpy.form(".choices", method="get", action=site.url(path))[
        view_fields(view, ("range", "since", "until")), fields, htpy.button(type="submit")["Apply"]
    ]


def _options(names: Sequence[str], chosen: str | None) -> list[htpy.Element]:
    shown = [name for name in names if name][:_MOST_OPTIONS]
    if chosen is not None and chosen not in shown:
        shown.insert(0, chosen)
    options = [htpy.option(value="")["all"]]
    options += [
        htpy.option(value=name, selected=name == chosen)[plain_name(name, 60)] for name in shown
    ]
    if len(names) > _MOST_OPTIONS:
        left = f"{len(names) - _MOST_OPTIONS:,} more: choose them in a table"
        options.append(htpy.option(disabled=True)[left])
    return options


def view_fields(
    view: View, names: Sequence[str] = View.__struct_fields__
) -> list[htpy.VoidElement]:
    """Hidden fields for the parts of a view that a form does not change."""
    return [
        htpy.input(type="hidden", name=name, value=value)
        for name, value in parse_qsl(query_of(view))
        if name in names
    ]


def _chosen(site: Site, view: View, path: str) -> htpy.Element | None:
    """The active filters, each with a link that removes it."""
    items = []
    for field in FILTERS:
        value = getattr(view, field)
        if value is not None:
            title = _FILTER_TITLES[field]
            items.append(
                htpy.li[
                    f"{title}: ",
                    htpy.bdi[plain_name(value, 40)],
                    " ",
                    htpy.a(
                        href=site.url(path, query_of(view, **{field: None})),
                        aria_label=f"Remove the filter of {title.lower()}",
                    )["×"],
                ]
            )
    return htpy.ul(".chosen", aria_label="Filters that are set")[items] if items else None


def _footer() -> htpy.Element:
    return htpy.footer[htpy.p[f"Anaphora {__version__} · times in ", htpy.span(".zone")["UTC"]],]
