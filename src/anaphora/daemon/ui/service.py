"""Requests to `/ui`: the login, the pages of a logged-in viewer, and their forms.

    GET  /ui/static/NAME          style and script; no login
    GET  /ui/login                the form for a token; POST exchanges it for a cookie
    POST /ui/logout               ends this session
    GET  /ui/session              who is logged in, and until when
    GET  /ui/events               changed parts of an open page
    GET  /ui/…                    pages

Only session cookies are accepted here, and they are accepted nowhere else. Few pages are made at
the same time, since calls of apps have priority. Administrators and apps have separate queues, so
that no app can lock an administrator out by requesting pages; and one app can use only a part of
the apps' queue.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any
from urllib.parse import parse_qs, quote

from msgspec.structs import replace

from anaphora.client.config.secrets import Secret
from anaphora.daemon.access.identity import Directory
from anaphora.daemon.monitoring import JsonLog
from anaphora.daemon.values import ERROR_KEY, Peer, kind_of, public_text
from anaphora.dashboard.page_site import EVENT_HEADERS, PageSite
from anaphora.dashboard.pages.login import login_page, session_page
from anaphora.dashboard.site import PageContent, Site, page_request
from anaphora.errors import (
    Forbidden,
    GrantRateLimited,
    InvalidRequest,
    Io,
    Overloaded,
    Unauthenticated,
    Upstream,
)
from anaphora.redaction import hides_arguments
from anaphora.serving.exchange import (
    CompleteResponse,
    ConnectionEnded,
    HttpExchange,
    ServerStopping,
)
from anaphora.wording import counted

from .access import (
    LOGIN,
    ROOT,
    Action,
    ByteStream,
    LoginSession,
    SessionCookie,
    Sessions,
    UiRequest,
    UiResult,
    Viewer,
    Viewers,
    own_path,
)
from .actions import (
    PLAIN,
    READ,
    MethodNotAllowed,
    check_method,
    check_origin,
    check_query,
    read_form,
    redirect,
)


class PageQueue:
    """Limits how many pages are made at the same time. Used from one event loop."""

    def __init__(self, *, working: int, waiting: int, each: int) -> None:
        """The limits of pages in the making and of waiting pages, for all viewers and for one."""
        self._working = asyncio.Semaphore(working)
        self._most = waiting
        self._most_of_one = each
        self._waiting: Counter[str] = Counter()

    async def run(
        self, viewer: str, making: Coroutine[Any, Any, CompleteResponse]
    ) -> CompleteResponse:
        """Makes a page when a slot is free. Raises `Overloaded` if too many wait. The page is
        completed even if its viewer disconnects, since a thread cannot be interrupted."""
        if self._waiting[viewer] >= self._most_of_one or self._waiting.total() >= self._most:
            making.close()
            raise Overloaded("Too many pages are requested at once. Try again.", status=503)
        self._waiting[viewer] += 1
        try:
            await self._working.acquire()
        except BaseException:
            making.close()
            raise
        finally:
            self._waiting -= Counter({viewer: 1})  # forgets viewers without waiting pages
        task = asyncio.ensure_future(making)
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    def _done(self, task: asyncio.Future[CompleteResponse]) -> None:
        self._working.release()
        if not task.cancelled():
            task.exception()


#: Maximum number of open pages with live updates, of all apps; `LiveStreams` bounds those of each
#: site.
_MOST_STREAMS = 96
#: Maximum number of cookies of the session's name that are looked up: another server on this host
#: may set one for each part of a path.
_MOST_COOKIES = 32
_SERVER_ERROR = 500


class SessionEnded(ConnectionEnded):
    """The session of an open page has ended."""


class UiService:
    """Answers requests to `/ui`. Used from one event loop."""

    def __init__(
        self,
        directory: Directory,
        sessions: Sessions,
        cookie: SessionCookie,
        viewers: Viewers,
        *,
        log: JsonLog,
        clock: Callable[[], float],
        before_page: Callable[[], None] = lambda: None,
    ) -> None:
        """`before_page` is called before each page of a logged-in viewer."""
        self._directory = directory
        self._sessions = sessions
        self._cookie = cookie
        self._viewers = viewers
        self._log = log
        self._clock = clock
        self._before_page = before_page
        self._public = PageSite(Site(root=ROOT, title="Daemon", sections=(), live=False), {})
        """Pages that need no login."""
        self._open: dict[HttpExchange, LoginSession] = {}
        self._admin_queue = PageQueue(working=2, waiting=64, each=64)
        self._app_queue = PageQueue(working=1, waiting=64, each=8)
        directory.on_revoke(self._token_ended)

    def serves(self, path: str) -> bool:
        return path == ROOT or path.startswith(f"{ROOT}/")

    async def handle(self, exchange: HttpExchange, peer: Peer) -> None:
        path = exchange.path.removeprefix(ROOT).strip("/")
        check_query(exchange.query_string)
        if path.startswith("static/"):
            check_method(exchange, *READ)
            request = page_request("GET", path, "", self._clock())
            await exchange.respond(await self._public.respond(request))
        elif path == "login":
            check_method(exchange, *READ, "POST")
            await exchange.respond(await self._login(exchange, peer))
        elif (session := await self._session(exchange)) is None:
            await exchange.respond(self._without_session(exchange, path))
        else:
            self._open[exchange] = session
            try:
                await exchange.run(self._answer(exchange, path, session))
            except SessionEnded:
                if exchange.started:
                    raise
                await exchange.respond(self._without_session(exchange, path))

    # ── Login ────────────────────────────────────────────────────────────────────────────────────

    async def _login(self, exchange: HttpExchange, peer: Peer) -> CompleteResponse:
        if exchange.method == "POST":
            check_origin(exchange)
            return await self._log_in(exchange, peer, await read_form(exchange))
        fields = parse_qs(exchange.query_string.decode("latin-1"))
        return self._login_form(next_path=own_path(fields.get("next", [""])[0]) or "")

    @hides_arguments
    async def _log_in(
        self, exchange: HttpExchange, peer: Peer, form: dict[str, str]
    ) -> CompleteResponse:
        next_path = own_path(form.get("next", "")) or ""
        try:
            row = self._directory.log_in(Secret(form.get("token", "").strip()), peer)
        except (Unauthenticated, GrantRateLimited) as problem:
            exchange.scope[ERROR_KEY] = kind_of(problem)
            return self._login_form(next_path=next_path, problem=problem)
        # Ends the earlier session, so that a cookie set by another page becomes invalid.
        for before in await self._sessions_of(exchange):
            self._end(before)
        cookie, _ = self._sessions.open(row)
        self._log.line("info", "login", token=row.id, app=row.app)
        return redirect(next_path or ROOT, {"set-cookie": self._cookie.header(cookie)})

    def _login_form(
        self, *, next_path: str = "", problem: Upstream | None = None
    ) -> CompleteResponse:
        text, headers = "", dict[str, str]()
        if isinstance(problem, GrantRateLimited):
            seconds = max(1, round(problem.retry_after or 1))
            wait = counted(seconds, "second")
            text = f"There were too many failed logins from this address. Wait {wait}."
            headers["retry-after"] = str(seconds)
        elif problem is not None:
            reason = public_text(problem)
            text = f"{reason[0].upper()}{reason[1:]}."
        status = 200 if problem is None else problem.status or 401
        page = login_page(self._public.site, next_path=next_path, problem=text, status=status)
        shown = self._public.show(page, page_request("GET", "login", "", self._clock()))
        return CompleteResponse(shown.status, {**shown.headers, **headers}, shown.body)

    async def _session(self, exchange: HttpExchange) -> LoginSession | None:
        """The session of a request, an administrator's first: an app with a server on this host
        could set its own cookie in the browser to hide pages from an administrator."""
        found = await self._sessions_of(exchange)
        return max(found, key=lambda one: one.is_admin, default=None)

    async def _sessions_of(self, exchange: HttpExchange) -> list[LoginSession]:
        cookies = self._cookie.values(exchange.header_pairs)[:_MOST_COOKIES]
        return await self._sessions.find(cookies)

    def _without_session(self, exchange: HttpExchange, path: str) -> CompleteResponse:
        if path == "events":
            return CompleteResponse(401, PLAIN, b"log in again\n")
        wanted: str | None = None
        if exchange.method in READ:
            query = exchange.query_string.decode("latin-1")
            wanted = own_path(quote(exchange.path, safe="/") + (f"?{query}" if query else ""))
        if wanted is None or wanted.rstrip("/") == ROOT:
            return redirect(LOGIN)
        return redirect(f"{LOGIN}?next={quote(wanted, safe='/')}")

    def _log_out(self, session: LoginSession) -> CompleteResponse:
        self._end(session)
        self._log.line("info", "logout", token=session.token_id, app=session.app)
        return redirect(LOGIN, {"set-cookie": self._cookie.removal})

    # ── Pages ────────────────────────────────────────────────────────────────────────────────────

    async def _answer(self, exchange: HttpExchange, path: str, session: LoginSession) -> None:
        viewer = self._viewers.of(session)
        if path == "logout":
            check_method(exchange, "POST")
            await self._form(exchange, session)
            del self._open[exchange]  # the response is sent after the end of the session
            await exchange.respond(self._log_out(session))
            return
        self._before_page()
        action = viewer.action(path)
        check_method(exchange, *(READ if action is None else action.methods))
        try:
            request = UiRequest(
                page=page_request(
                    exchange.method, path, exchange.query_string.decode("latin-1"), self._clock()
                ),
                session=session,
                form=await self._form(exchange, session) if exchange.method == "POST" else {},
            )
            await self._send(exchange, viewer, request, action)
        except InvalidRequest as problem:
            failure = viewer.pages.failure(400, str(problem), self._clock(), viewer.site)
            await exchange.respond(failure)
        except Io as problem:
            self._log.line("error", f"a page was not made: {problem}")
            reason = "The calls cannot be read at the moment; the daemon's log says why."
            raise Overloaded(reason, status=503) from None

    async def _send(
        self, exchange: HttpExchange, viewer: Viewer, request: UiRequest, action: Action | None
    ) -> None:
        pages, site, session = viewer.pages, viewer.site, request.session
        made: UiResult
        if action is not None:
            made = await action.run(request, site)
        elif request.page.path == "events":
            made = self._events(viewer, request)
        elif request.page.path == "session":
            made = session_page(
                site,
                opened=session.opened,
                ends=session.opened + self._sessions.lifetime,
                idle=self._sessions.idle,
            )
        else:
            queue = self._admin_queue if session.is_admin else self._app_queue
            made = await queue.run(session.app, pages.respond(request.page, site))
        if isinstance(made, PageContent):
            made = pages.show(made, request.page, site)
        if (cookie := self._sessions.renewed(session)) is not None:
            made = replace(
                made, headers={**made.headers, "set-cookie": self._cookie.header(cookie)}
            )
        if isinstance(made, CompleteResponse):
            await exchange.respond(made)
        else:
            await _stream(exchange, made)

    def _events(self, viewer: Viewer, request: UiRequest) -> ByteStream:
        """Streams the changed parts of a page while its session lasts."""
        if not request.session.is_admin:
            streams = [
                each
                for each, session in self._open.items()
                if each.path == f"{ROOT}/events" and not session.is_admin
            ]
            if len(streams) > _MOST_STREAMS:
                raise Overloaded("Too many pages are open.", status=503)
        allowed = partial(self._sessions.is_valid, request.session)
        return ByteStream(EVENT_HEADERS, viewer.pages.events(request.page, viewer.site, allowed))

    async def _form(self, exchange: HttpExchange, session: LoginSession) -> dict[str, str]:
        """The fields of a form sent from a page of this session."""
        check_origin(exchange)
        form = await read_form(exchange)
        if not session.has_csrf(form.pop("csrf", "")):
            raise Forbidden(
                "This form is of another login. Go back, load the page again and send it anew.",
                status=403,
            )
        return form

    # ── Ends ─────────────────────────────────────────────────────────────────────────────────────

    def error(self, exchange: HttpExchange, problem: Upstream) -> CompleteResponse:
        """An error page for a refused request."""
        session, status = self._open.get(exchange), problem.status or _SERVER_ERROR
        pages, site = self._public, self._public.site
        if session is not None:
            viewer = self._viewers.of(session)
            pages, site = viewer.pages, viewer.site
        made = pages.failure(status, public_text(problem), self._clock(), site)
        headers = dict(made.headers)
        if isinstance(problem, MethodNotAllowed):
            headers["allow"] = problem.allowed
        if problem.retry_after is not None:
            headers["retry-after"] = str(max(1, round(problem.retry_after)))
        return CompleteResponse(made.status, headers, made.body)

    def ended(self, exchange: HttpExchange) -> None:
        """Called when the request is answered or its connection has ended."""
        self._open.pop(exchange, None)

    def end_expired(self) -> None:
        """Ends the open pages of sessions whose time or token has expired."""
        self._disconnect(lambda session: not self._sessions.is_valid(session))

    def stop(self) -> None:
        """Ends open streams: a stopping daemon does not wait for pages."""
        for exchange in tuple(self._open):
            exchange.disconnect(ServerStopping)

    def _end(self, session: LoginSession) -> None:
        self._sessions.log_out(session)
        self._disconnect(lambda one: one.id == session.id)

    def _token_ended(self, token_id: str) -> None:
        self._disconnect(lambda session: session.token_id == token_id)

    def _disconnect(self, ended: Callable[[LoginSession], bool]) -> None:
        """Ends open pages."""
        for exchange, session in tuple(self._open.items()):
            if ended(session):
                exchange.disconnect(SessionEnded)


async def _stream(exchange: HttpExchange, stream: ByteStream) -> None:
    """Sends pieces as they are made, until the viewer disconnects."""
    exchange.watch()
    await exchange.start(200, stream.headers)
    async with contextlib.aclosing(stream.pieces) as pieces:
        if exchange.method != "HEAD":
            async for piece in pieces:
                await exchange.write(piece, more=True)
    await exchange.write(b"")
