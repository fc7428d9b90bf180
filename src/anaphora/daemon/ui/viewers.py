"""Who sees what: an administrator all pages, the token of an app the pages of that app only."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from anaphora.bounded import BoundedMap
from anaphora.dashboard.page_site import PageSite
from anaphora.dashboard.site import PageContent, PageRequest, Site
from anaphora.serving.exchange import CompleteResponse

from .access import LoginSession

#: Apps whose pages are kept ready.
_MOST_APPS = 256


class UiRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request of someone who is logged in."""

    page: PageRequest
    session: LoginSession
    form: Mapping[str, str] = {}
    """The fields of a form that was sent, without its CSRF token, which is checked."""


class ByteStream(msgspec.Struct, frozen=True):
    """A response that is sent as it is made."""

    headers: dict[str, str]
    pieces: AsyncGenerator[bytes, None]


UiResult: TypeAlias = PageContent | CompleteResponse | ByteStream


class Action(msgspec.Struct, frozen=True):
    """Answers a path that is no page. Runs on the event loop."""

    methods: tuple[str, ...]
    run: Callable[[UiRequest, Site], Awaitable[UiResult]]


class Viewer(msgspec.Struct, frozen=True, kw_only=True):
    """The pages of one session."""

    pages: PageSite
    site: Site
    action: Callable[[str], Action | None]
    """By the path below the root."""


class Viewers:
    def __init__(
        self,
        admin: PageSite,
        action: Callable[[str], Action | None],
        app_pages: Callable[[str], PageSite],
    ) -> None:
        """`action` is for administrators; `app_pages` are those of an app by its id."""
        self._admin = admin
        self._action = action
        self._app_pages = app_pages
        self._apps = BoundedMap[str, PageSite](_MOST_APPS)

    def of(self, session: LoginSession) -> Viewer:
        pages = self._admin if session.is_admin else self._app(session.app)
        site = replace(pages.site, viewer=session.viewer, csrf=session.csrf)
        return Viewer(
            pages=pages, site=site, action=self._action if session.is_admin else _no_action
        )

    def _app(self, app: str) -> PageSite:
        pages = self._apps.use(app)
        if pages is None:
            pages = self._apps[app] = self._app_pages(app)
        return pages


def _no_action(path: str) -> None:  # noqa: ARG001
    return None
