"""A report: pages of the dashboard as one file that needs nothing else, to send to a colleague."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence

import htpy
from markupsafe import Markup

from anaphora.version import __version__

from .figures import moment
from .layout import page_bytes
from .static_files import static_content


def report_file(title: str, sections: Sequence[tuple[str, htpy.Node]], made_at: float) -> bytes:
    """The HTML of a report. Its style is inside, allowed by its hash; it has no script, so that
    times are in UTC."""
    style = static_content("dashboard.css").decode()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'"
    page = htpy.html(lang="en")[
        htpy.head[
            htpy.meta(charset="utf-8"),
            htpy.meta({"http-equiv": "Content-Security-Policy"}, content=policy),
            htpy.meta(name="viewport", content="width=device-width, initial-scale=1"),
            htpy.meta(name="color-scheme", content="light dark"),
            htpy.title[f"{title} · Anaphora"],
            htpy.style[Markup(style)],
        ],
        htpy.body[
            htpy.a(".skip", href="#main")["Skip to the content"],
            htpy.header(".top")[htpy.span(".brand")[htpy.b["Anaphora"], " ", htpy.span["Report"]]],
            htpy.main("#main", tabindex="-1")[
                htpy.div(".title")[
                    htpy.h1[title],
                    htpy.span(".dim")["Made ", moment(made_at), ". Times are in UTC."],
                ],
                [_section(heading, content) for heading, content in sections],
            ],
            htpy.footer[htpy.p[f"Anaphora {__version__}"]],
        ],
    ]
    return page_bytes(str(page))


def _section(heading: str, content: htpy.Node) -> htpy.Element:
    return htpy.section[htpy.h2(".report-heading")[heading], content]
