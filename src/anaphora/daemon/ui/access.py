"""Logins of the dashboard: a token is exchanged for a cookie that is valid for `/ui` only.

    sessions = Sessions(directory, lifetime=43_200, idle=3_600, clock=time.time)
    cookie, session = await sessions.open(directory.log_in(token, peer))
    await sessions.find([cookie])               its session, or none

Sessions are in memory, by a keyed hash of their cookie: a restart of the daemon ends them all. With
several nodes they are also in PostgreSQL, and every node accepts them. A session ends after its
lifetime, when unused, at logout, and with the token that opened it.

An administrator sees all pages, an app's token only the app's own pages (`Viewers`).
"""

from __future__ import annotations

import asyncio
import hmac
import re
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from typing import TypeAlias
from urllib.parse import unquote

import msgspec
from blake3 import blake3
from msgspec.structs import replace

from anaphora.bounded import BoundedMap
from anaphora.client.config.secrets import Secret
from anaphora.daemon.access.identity import ADMIN, Directory
from anaphora.daemon.access.steady_clock import SteadyClock
from anaphora.daemon.store import TokenRow
from anaphora.dashboard.page_site import PageSite
from anaphora.dashboard.site import PageContent, PageRequest, Site
from anaphora.errors import StoreUnavailable
from anaphora.redaction import hides_arguments
from anaphora.serving.exchange import CompleteResponse

from .shared_logins import SharedLogin, SharedLogins

ROOT = "/ui"
LOGIN = f"{ROOT}/login"
LINKED_PAGES = (ROOT, f"{ROOT}/", LOGIN)
"""Pages that a link on another site may open. Such a request has no cookie, so a login follows."""

#: Maximum number of sessions in total and per token. The least recently used one ends for a new
#: one.
_MOST_SESSIONS, _MOST_PER_TOKEN = 1_000, 20
#: Maximum number of open confirmations of one session.
_MOST_CONFIRMATIONS = 32
#: Seconds between checks for sessions that ended on another node.
_FOLLOW_SECONDS = 0.4
_RANDOM_BYTES = 32
_COOKIE = "anaphora_ui"
#: A path of the dashboard with a query: nothing that a browser could read as another host.
_OWN_PATH = re.compile(r"/ui(?:[/?][A-Za-z0-9/?&=%+:;,@!~*'()$._-]*)?\Z")
_LONGEST_PATH = 2_000


class LoginSession(msgspec.Struct, kw_only=True, eq=False):
    """One login."""

    digest: bytes
    token_id: str
    app: str
    """The app of the token; `ADMIN` for an administrator."""
    csrf: str
    """The CSRF token in every form of the session."""
    opened: float
    used: float
    confirmations: BoundedMap[str, tuple[str, ...]] = msgspec.field(
        default_factory=lambda: BoundedMap(_MOST_CONFIRMATIONS)
    )
    """Actions of forms that have not been sent yet, by the form's number."""

    @property
    def is_admin(self) -> bool:
        return self.app == ADMIN

    @property
    def viewer(self) -> str:
        return "administrator" if self.is_admin else self.app

    def has_csrf(self, text: str) -> bool:
        return hmac.compare_digest(self.csrf.encode(), text.encode(errors="replace"))


class Sessions:
    """The logins of a daemon. Used from one event loop."""

    def __init__(
        self,
        directory: Directory,
        *,
        lifetime: float,
        idle: float,
        clock: Callable[[], float],
        shared: SharedLogins | None = None,
        key: bytes | None = None,
    ) -> None:
        """`lifetime` and `idle` are seconds after the login and after the last request. Logins
        are valid on all nodes that have the same `shared` and `key`."""
        self._directory = directory
        self.lifetime = lifetime
        self.idle = idle
        self._shared = shared
        self._key = key or secrets.token_bytes(32)
        self._now = SteadyClock(clock)
        self._open: dict[bytes, LoginSession] = {}
        """With several nodes, those that this one has seen."""
        self._ended: list[Callable[[LoginSession], None]] = []
        directory.on_revoke(self.end_token)

    def on_end(self, callback: Callable[[LoginSession], None]) -> None:
        """Registers a function called with each session that ends, to end its open streams."""
        self._ended.append(callback)

    @hides_arguments
    async def find(self, cookies: Iterable[str]) -> list[LoginSession]:
        """The sessions of cookies, which count as used now."""
        found = {self._hash(cookie): cookie for cookie in cookies}
        if self._shared is not None:
            self._apply_shared(found, await self._shared.find([*found]))
        sessions = []
        for digest in found:
            session = self._open.get(digest)
            if session is None:
                continue
            if not self.is_valid(session):
                self.end(session)
                continue
            await self._use(session)
            sessions.append(session)
        return sessions

    def _apply_shared(
        self, cookies: Mapping[bytes, str], logins: Mapping[bytes, SharedLogin]
    ) -> None:
        """Applies logins, requests and logouts of other nodes."""
        for digest, cookie in cookies.items():
            login, session = logins.get(digest), self._open.get(digest)
            if login is None:
                if session is not None:
                    self.end(session)
            elif session is None:
                self._open[digest] = LoginSession(
                    digest=digest,
                    token_id=login.token,
                    app=login.app,
                    csrf=self._csrf(cookie),
                    opened=login.opened,
                    used=login.used,
                )
            else:
                session.used = max(session.used, login.used)

    async def _use(self, session: LoginSession) -> None:
        now, before = self._now(), session.used
        session.used = now
        # Not for every request: other nodes need it only to a fraction of the idle time.
        if self._shared is not None and now - before > min(self.idle / 60, 10.0):
            await self._shared.use(session.digest, now)

    async def open(self, row: TokenRow) -> tuple[Secret, LoginSession]:
        """Opens a session of a token. Returns it with the random value of its cookie."""
        now = self._now()
        self.end_expired()
        cookie = Secret(secrets.token_urlsafe(_RANDOM_BYTES))
        session = LoginSession(
            digest=self._hash(cookie.reveal()),
            token_id=row.id,
            app=row.app,
            csrf=self._csrf(cookie.reveal()),
            opened=now,
            used=now,
        )
        if self._shared is not None:
            await self._shared.end_expired(opened=now - self.lifetime, used=now - self.idle)
            login = SharedLogin(session.digest, row.id, row.app, now, now)
            await self._shared.add(login, most=_MOST_SESSIONS, of_token=_MOST_PER_TOKEN)
        own = [one for one in self._open.values() if one.token_id == row.id]
        self._make_room(own, _MOST_PER_TOKEN)
        self._make_room(self._open.values(), _MOST_SESSIONS)
        self._open[session.digest] = session
        return cookie, session

    def is_valid(self, session: LoginSession) -> bool:
        """Whether it is open, neither too old nor unused for too long, and its token valid."""
        now = self._now()
        return (
            session.digest in self._open
            and now < session.opened + self.lifetime
            and now < session.used + self.idle
            and self._directory.is_valid(session.token_id)
        )

    # ── Ends ─────────────────────────────────────────────────────────────────────────────────────

    async def log_out(self, *sessions: LoginSession) -> None:
        """Ends a session on all nodes."""
        for session in sessions:
            self.end(session)
        if self._shared is not None and sessions:
            await self._shared.end(session.digest for session in sessions)

    async def log_out_token(self, token_id: str) -> None:
        """Ends all sessions of a token on all nodes."""
        self.end_token(token_id)
        if self._shared is not None:
            await self._shared.end_token(token_id)

    def end(self, session: LoginSession) -> None:
        """Ends a session on this node. Other nodes find out by themselves or by `log_out`."""
        if self._open.pop(session.digest, None) is not None:
            for callback in self._ended:
                callback(session)

    def end_token(self, token_id: str) -> None:
        """Ends all sessions of a revoked token."""
        for session in [one for one in self._open.values() if one.token_id == token_id]:
            self.end(session)

    def end_expired(self) -> None:
        for session in tuple(self._open.values()):
            if not self.is_valid(session):
                self.end(session)

    async def follow(self) -> None:
        """Ends sessions that were ended on other nodes, with their open pages. Never returns."""
        assert self._shared is not None
        while True:
            await asyncio.sleep(_FOLLOW_SECONDS)
            sessions = tuple(self._open.values())
            try:
                logins = await self._shared.find([session.digest for session in sessions])
            except StoreUnavailable:  # they stay open until the store responds
                continue
            for session in sessions:
                if (login := logins.get(session.digest)) is None:
                    self.end(session)
                else:
                    session.used = max(session.used, login.used)

    def _make_room(self, among: Iterable[LoginSession], most: int) -> None:
        ordered = sorted(among, key=lambda one: one.used)
        for session in ordered[: max(0, len(ordered) - most + 1)]:
            self.end(session)

    # ── Forms ────────────────────────────────────────────────────────────────────────────────────

    async def confirmation(self, session: LoginSession, *action: str) -> str:
        """A number for a form that can be sent once, only for this action."""
        number = secrets.token_urlsafe(16)
        if self._shared is not None:
            await self._shared.add_form(session.digest, number, action, most=_MOST_CONFIRMATIONS)
            return number
        session.confirmations[number] = action
        return number

    async def confirm(self, session: LoginSession, number: str, *action: str) -> bool:
        """Whether the form was made for this action and not sent before."""
        if self._shared is not None:
            return await self._shared.take_form(session.digest, number, action)
        if session.confirmations.get(number) != action:
            return False
        del session.confirmations[number]
        return True

    def _hash(self, cookie: str) -> bytes:
        return blake3(cookie.encode(errors="replace"), key=self._key).digest()

    def _csrf(self, cookie: str) -> str:
        return self._hash(f"csrf {cookie}").hex()


class SessionCookie:
    """The headers of the session cookie. With TLS, here or at a reverse proxy, its name begins with
    `__Secure-`, so that browsers do not let pages without TLS set it."""

    def __init__(self, *, secure: bool, lifetime: float) -> None:
        self.name = f"__Secure-{_COOKIE}" if secure else _COOKIE
        self._flags = f"Path={ROOT}; HttpOnly; SameSite=Strict" + ("; Secure" if secure else "")
        self._lifetime = lifetime

    @hides_arguments
    def header(self, cookie: Secret) -> str:
        """The value of `set-cookie` after a login."""
        return f"{self.name}={cookie.reveal()}; Max-Age={int(self._lifetime)}; {self._flags}"

    @property
    def removal(self) -> str:
        return f"{self.name}=; Max-Age=0; {self._flags}"

    def values(self, header_pairs: Iterable[tuple[str, str]]) -> list[str]:
        """The values in a request. There may be several, since another server on this host may set
        one."""
        found = []
        for name, text in header_pairs:
            if name == "cookie":
                for pair in text.split(";"):
                    key, _, value = pair.strip().partition("=")
                    if key == self.name and value:
                        found.append(value.strip('"'))
        return found


def own_path(text: str) -> str | None:
    """A path of the dashboard to go to after a login; None for anything else."""
    if len(text) > _LONGEST_PATH or _OWN_PATH.match(text) is None:
        return None
    path = unquote(text.partition("?")[0])
    if "//" in path or "\\" in path or ".." in path or path in (LOGIN, f"{ROOT}/logout"):
        return None
    return text


# ── Viewers ──────────────────────────────────────────────────────────────────────────────────────

#: Maximum number of apps whose pages are cached.
_MOST_APPS = 256


class UiRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request of a logged-in viewer."""

    page: PageRequest
    session: LoginSession
    form: Mapping[str, str] = {}
    """The fields of a sent form, without its CSRF token, which is already checked."""


class ByteStream(msgspec.Struct, frozen=True):
    """A response that is sent while it is made."""

    headers: dict[str, str]
    pieces: AsyncGenerator[bytes, None]


UiResult: TypeAlias = PageContent | CompleteResponse | ByteStream


class Action(msgspec.Struct, frozen=True):
    """Answers a path that is not a page. Runs on the event loop."""

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
        """`action` is for administrators; `app_pages` returns the pages of an app by its id."""
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
