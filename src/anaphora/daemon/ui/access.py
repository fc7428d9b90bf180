"""Logins of the dashboard: a token is exchanged for a cookie that is valid for `/ui` only.

    sessions = Sessions(directory, key, lifetime=43_200, idle=3_600, clock=time.time)
    cookie, session = sessions.open(directory.log_in(token, peer))
    await sessions.find([cookie])         its session, or none

Sessions are not stored: the cookie has the id of the token and when it ends, signed with a key of
the home. So it is valid on all nodes, and after a restart. The token is looked up for each page: a
session ends with it.

An administrator sees all pages, an app's token only the app's own pages (`Viewers`).
"""

from __future__ import annotations

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
from anaphora.daemon.access.identity import ADMIN, Directory, SteadyClock
from anaphora.daemon.store import TokenRow
from anaphora.dashboard.page_site import PageSite
from anaphora.dashboard.site import PageContent, PageRequest, Site
from anaphora.redaction import hides_arguments
from anaphora.serving.exchange import CompleteResponse

ROOT = "/ui"
LOGIN = f"{ROOT}/login"
LINKED_PAGES = (ROOT, f"{ROOT}/", LOGIN)
"""Pages that a link on another site may open. Such a request has no cookie, so a login follows."""

#: Maximum number of sessions that this process remembers as ended.
_MOST_ENDED = 10_000
_COOKIE = "anaphora_ui"
#: Session id, token id, seconds since 1970 of the login and of the end, signature.
_SIGNED = re.compile(r"([0-9a-f]{32})\.(\w{1,64})\.(\d{1,12})\.(\d{1,12})\.([0-9a-f]{64})")
#: The part of the idle time after which a cookie is replaced by one that ends later.
_RENEWED = 1 / 60
#: A path of the dashboard with a query: nothing that a browser could read as another host.
_OWN_PATH = re.compile(r"/ui(?:[/?][A-Za-z0-9/?&=%+:;,@!~*'()$._-]*)?\Z")
_LONGEST_PATH = 2_000


class LoginSession(msgspec.Struct, kw_only=True, frozen=True):
    """One login."""

    id: str
    token_id: str
    app: str
    """The app of the token; `ADMIN` for an administrator."""
    csrf: str
    """The CSRF token in every form of the session."""
    opened: float
    until: float

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
        key: bytes,
        *,
        lifetime: float,
        idle: float,
        clock: Callable[[], float],
    ) -> None:
        """`lifetime` and `idle` are seconds after the login and after the last request. Logins are
        valid on all nodes that have the same `key`."""
        self._directory = directory
        self._key = key
        self.lifetime = lifetime
        self.idle = idle
        self._now = SteadyClock(clock)
        self._ended = BoundedMap[str, None](_MOST_ENDED)
        """Sessions that were logged out at this process."""

    @hides_arguments
    async def find(self, cookies: Iterable[str]) -> list[LoginSession]:
        """The sessions of cookies."""
        found = [await self._session(cookie) for cookie in cookies]
        return [session for session in found if session is not None]

    @hides_arguments
    async def _session(self, cookie: str) -> LoginSession | None:
        signed = _SIGNED.fullmatch(cookie)
        if signed is None:
            return None
        id, token_id, opened, until, signature = signed.groups()
        own = self._sign("login", id, token_id, opened, until)
        if not hmac.compare_digest(own, signature):
            return None
        row = await self._directory.find_token(token_id)
        if row is None:
            return None
        session = self._made(id, row, float(opened), float(until))
        return session if self.is_valid(session) else None

    def _made(self, id: str, row: TokenRow, opened: float, until: float) -> LoginSession:
        csrf = self._sign("csrf", id)
        return LoginSession(
            id=id, token_id=row.id, app=row.app, csrf=csrf, opened=opened, until=until
        )

    def open(self, row: TokenRow) -> tuple[Secret, LoginSession]:
        """Opens a session of a token. Returns it with the value of its cookie."""
        opened = float(int(self._now()))
        session = self._made(secrets.token_hex(16), row, opened, self._end(opened))
        return self._cookie(session), session

    def renewed(self, session: LoginSession) -> Secret | None:
        """A cookie that ends later, since the session is used; None if it would end hardly
        later."""
        until = self._end(session.opened)
        if until - session.until < self.idle * _RENEWED:
            return None
        return self._cookie(replace(session, until=until))

    def is_valid(self, session: LoginSession) -> bool:
        """Whether it has not ended, and its token is valid."""
        now = self._now()
        return (
            session.id not in self._ended
            and now < min(session.until, session.opened + self.lifetime)
            and self._directory.is_valid(session.token_id)
        )

    def log_out(self, session: LoginSession) -> None:
        """Ends a session at this process. Elsewhere a copy of its cookie is valid until it ends."""
        self._ended[session.id] = None

    # ── Forms ────────────────────────────────────────────────────────────────────────────────────

    def confirmation(self, session: LoginSession, *action: str) -> str:
        """A number for a form of this session that does only this action. The action says what it
        changes, so that the number is worthless afterwards."""
        return self._sign("form", session.id, *action)

    def confirm(self, session: LoginSession, number: str, *action: str) -> bool:
        own = self.confirmation(session, *action)
        return hmac.compare_digest(own.encode(), number.encode(errors="replace"))

    def _end(self, opened: float) -> float:
        return float(int(min(opened + self.lifetime, self._now() + self.idle)))

    def _cookie(self, session: LoginSession) -> Secret:
        times = f"{session.opened:.0f}", f"{session.until:.0f}"
        fields = session.id, session.token_id, *times
        return Secret(".".join((*fields, self._sign("login", *fields))))

    def _sign(self, *fields: str) -> str:
        return blake3(msgspec.json.encode(fields), key=self._key).hexdigest()


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
