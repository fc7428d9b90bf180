"""Assembles the dashboard of a daemon: its source of calls, its pages and viewers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import htpy
from msgspec.structs import replace

from anaphora.daemon.audit import checked_rows
from anaphora.daemon.home import derived_key
from anaphora.daemon.home.config import DaemonConfig
from anaphora.dashboard.page_site import PageSite
from anaphora.dashboard.pages.apps import AppsPage, OwnAppPage
from anaphora.dashboard.pages.audit import AuditPage
from anaphora.dashboard.pages.blocks import BlocksPage
from anaphora.dashboard.pages.conversations import ConversationPage, ConversationsPage
from anaphora.dashboard.pages.overview import OverviewPage, ProvidersPage
from anaphora.dashboard.past_calls.source import LogCalls
from anaphora.dashboard.site import Page, PageContent, PageRequest, Section, Site

from .access import ROOT, SessionCookie, Sessions, Viewers
from .actions import AdminActions, AppTokens
from .audit_log import ChainVerifier, LogExport
from .first_steps import FirstSteps
from .records import AppRecords, ProviderRecords, TextConversationPage
from .service import UiService

if TYPE_CHECKING:
    from anaphora.daemon.server import Daemon

_HOUR, _MINUTE = 3_600.0, 60.0
#: Seconds after the daemon's start until the audit log is summed, unless a page is requested
#: earlier.
_FILL_AFTER = 5.0

_TITLES = {
    "": "Overview",
    "conversations": "Conversations",
    "blocks": "Blocks",
    "apps": "Apps",
    "providers": "Providers",
    "audit": "Audit",
}
_APP_TITLES = {"": "App", "conversations": "Conversations", "blocks": "Blocks"}
_START = ["Create a token with ", htpy.code["anaphora apps add APP"], ", and call a model with it."]


def open_ui(
    stack: contextlib.AsyncExitStack, daemon: Daemon, config: DaemonConfig, *, tls: bool
) -> UiService:
    """The dashboard of a daemon, until `stack` closes."""
    services, clock, log = daemon.services, daemon.services.ledger.clock, daemon.log
    chain = export = None
    if services.audit is not None:
        row_key = partial(checked_rows, daemon.home)
        chain = ChainVerifier(services.audit, clock, row_key)
        export = LogExport(services.audit.path)
        stack.callback(chain.close)
        stack.callback(export.close)
    sessions = Sessions(
        services.directory,
        derived_key(daemon.home, "dashboard logins"),
        lifetime=config.ui.session_hours * _HOUR,
        idle=config.ui.idle_minutes * _MINUTE,
        clock=clock,
    )
    tokens = AppTokens(services.admin, services.directory, sessions, log)
    actions = AdminActions(tokens, chain=chain, export=export, log=log)
    source = LogCalls(daemon.home.dashboard, daemon.home.audit, clock=clock)
    services.calls.tools.texts.allow(config.ui.shows_text)
    filling = _Filling(source)
    stack.callback(filling.close)
    pages = _Pages(daemon, source, chain)
    return UiService(
        services.directory,
        sessions,
        SessionCookie(secure=tls or config.behind_proxy, lifetime=sessions.lifetime),
        Viewers(pages.of_admin(), actions.find, pages.of_app),
        log=log,
        clock=clock,
        before_page=filling.start,
    )


class _Filling:
    """Sums the audit log in the background, from the first page on or some time after the start."""

    def __init__(self, source: LogCalls) -> None:
        self._source = source
        self._is_running = False
        self._timer = asyncio.get_running_loop().call_later(_FILL_AFTER, self.start)

    def start(self) -> None:
        if not self._is_running:
            self._is_running = True
            self._timer.cancel()
            self._source.start()

    def close(self) -> None:
        self._timer.cancel()
        self._source.close()


class _Pages:
    """The pages of each kind of viewer."""

    def __init__(self, daemon: Daemon, source: LogCalls, chain: ChainVerifier | None) -> None:
        services = daemon.services
        self._clock = services.ledger.clock
        self._source = source
        self._texts = services.calls.tools.texts
        source.error_of = self._texts.error
        self._chain = chain
        self._problems = daemon.not_in_force
        loop = asyncio.get_running_loop()
        self._providers = ProviderRecords(services.calls.tools.pool, source, loop=loop)
        self._apps = AppRecords(
            services.directory,
            services.store,
            source,
            loop=loop,
            clock=self._clock,
            hides_reads=services.calls.hides_reads,
        )

        self._first_steps = FirstSteps(daemon, self._apps.spent)

    def of_admin(self) -> PageSite:
        source, apps, chain = self._source, self._apps, self._chain
        pages: dict[str, Page] = {
            "": OverviewPage(source, apps=apps.spent, start=_START, first_steps=self._first_steps),
            "conversations": ConversationsPage(source, start=_START),
            "conversation": TextConversationPage(source, self._texts),
            "blocks": BlocksPage(source, start=_START),
            "apps": AppsPage(apps.all, apps.one),
            "providers": ProvidersPage(self._providers.all),
            "audit": AuditPage(source, lambda: None if chain is None else chain.state()),
        }
        return self._site(pages, _TITLES, source, self._problems)

    def of_app(self, app: str) -> PageSite:
        """The pages of an app: only its own calls, as it may see them."""
        source = self._source.for_app(app)
        pages: dict[str, Page] = {
            "": OwnAppPage(app, self._apps.own, source),
            "conversations": ConversationsPage(source),
            "conversation": ConversationPage(source, no_text="pages of an app have no text"),
            "blocks": BlocksPage(source),
        }
        return self._site(pages, _APP_TITLES, source)

    def _site(
        self,
        pages: dict[str, Page],
        titles: dict[str, str],
        source: LogCalls,
        problems: Callable[[], list[str]] = list,
    ) -> PageSite:
        sections = tuple(Section(name, title) for name, title in titles.items())
        site = Site(root=ROOT, title="Daemon", sections=sections)
        noticed = {name: _WithNotice(page, source, problems) for name, page in pages.items()}
        return PageSite(site, noticed, source, clock=self._clock)


class _WithNotice:
    """A page with a notice about incomplete figures, and for administrators about settings that are
    not in force."""

    def __init__(self, page: Page, source: LogCalls, problems: Callable[[], list[str]]) -> None:
        self._page = page
        self._source = source
        self._problems = problems

    def content(self, request: PageRequest, site: Site) -> PageContent:
        notices = self._problems()
        if self._source.problem:
            notices.append("The latest calls are missing here: the daemon's log says why.")
        elif self._source.behind:
            notices.append("The audit log is being summed: the figures are not complete yet.")
        content = self._page.content(request, site)
        shown = [htpy.p(".notice.warn", role="status")[notice] for notice in notices]
        return replace(
            content,
            main=[htpy.div("#notice")[shown], content.main],
            live=("notice", *content.live) if content.live else (),
        )
