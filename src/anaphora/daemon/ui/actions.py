"""Administrator's actions on the dashboard: revoke and rotate tokens of apps, verify and export the
audit log. Each is logged with the id of the administrator's token."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast, get_args
from urllib.parse import parse_qsl, unquote_plus

from anaphora.daemon.access.identity import Directory
from anaphora.daemon.admin import Admin, RevokeParams, RotateParams
from anaphora.daemon.monitoring import JsonLog
from anaphora.dashboard.page_site import PAGE_HEADERS
from anaphora.dashboard.pages.apps import OVERLAPS, AppAction, confirm_page, done_page, new_token
from anaphora.dashboard.site import PageContent, Site
from anaphora.dashboard.values import TokenState
from anaphora.errors import Forbidden, InvalidRequest, NotFound, RequestRejected, TooLarge
from anaphora.redaction import hides_arguments, looks_like_key
from anaphora.serving.exchange import CompleteResponse, HttpExchange
from anaphora.wording import counted

from .access import ROOT, Action, ByteStream, Sessions, UiRequest
from .audit_log import ChainVerifier, LogExport

_FORM = "application/x-www-form-urlencoded"
_LONGEST_QUERY, _MOST_FIELDS = 32_768, 64
_LARGEST_FORM = 16 * 1024
#: Names of fields that may contain a token.
_TOKEN_NAMES = frozenset(
    ("token", "key", "api_key", "apikey", "access_token", "admin_token", "auth", "password")
)


PLAIN = {**PAGE_HEADERS, "content-type": "text/plain; charset=utf-8"}
READ = ("GET", "HEAD")
"""Allowed methods of pages."""


class MethodNotAllowed(RequestRejected):
    def __init__(self, method: str, allowed: tuple[str, ...]) -> None:
        self.allowed = ", ".join(allowed)
        super().__init__(f"{method[:20]} is not allowed here; use {self.allowed}", status=405)


def check_method(exchange: HttpExchange, *allowed: str) -> None:
    if exchange.method not in allowed:
        raise MethodNotAllowed(exchange.method, allowed)


class TokenInAddress(RequestRejected):
    """The address contains a token, and browsers and proxies store addresses."""


@hides_arguments
def check_query(query: bytes) -> None:
    """Raises `TokenInAddress`, and `RequestRejected` for a query longer than any page's."""
    if len(query) > _LONGEST_QUERY:
        reason = f"the address is too long: its query has more than {_LONGEST_QUERY:,} bytes"
        raise RequestRejected(reason, status=414)
    fields = query.split(b"&")
    if len(fields) > _MOST_FIELDS:
        reason = f"the query of the address has more than {_MOST_FIELDS} fields"
        raise RequestRejected(reason, status=400)
    for field in fields:
        name, _, value = unquote_plus(field.decode("latin-1")).partition("=")
        if name.strip().lower() in _TOKEN_NAMES or looks_like_key(value.strip()):
            raise TokenInAddress(
                "The address has a token or a key in it, where browsers and proxies keep it. It"
                " was not used. Revoke it if it is real, and log in with the form.",
                status=400,
            )


def check_origin(exchange: HttpExchange) -> None:
    """Raises `Forbidden` unless a form was sent from a page of this server. `HostGuard` has
    compared the Origin with the host; a browser sends at least one of the two headers."""
    site = exchange.headers.get("sec-fetch-site")
    if site == "same-origin" or (site is None and "origin" in exchange.headers):
        return
    raise Forbidden(
        "A form is accepted only from a page of this server: the request has neither an Origin nor"
        " `Sec-Fetch-Site: same-origin`."
        if site is None
        else "A form is accepted only from a page of this server.",
        status=403,
    )


@hides_arguments
async def read_form(exchange: HttpExchange) -> dict[str, str]:
    """The fields of a form. Raises `RequestRejected` if it is not a form or has a field twice."""
    declared = exchange.headers.get("content-length", "")
    if not (declared.isascii() and declared.isdecimal()):
        raise RequestRejected("a form needs a content-length", status=411)
    if len(declared) > 9 or int(declared) > _LARGEST_FORM:
        raise TooLarge(f"a form may have at most {_LARGEST_FORM:,} bytes", status=413)
    if exchange.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
        raise RequestRejected(f"a form must be sent as {_FORM}", status=415)
    body = await exchange.read_body()
    try:
        pairs = parse_qsl(
            body.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_MOST_FIELDS,
        )
    except ValueError:
        raise RequestRejected("the form cannot be read", status=400) from None
    form = dict(pairs)
    if len(form) < len(pairs):
        raise RequestRejected("the form has a field twice", status=400)
    return form


def redirect(path: str, headers: Mapping[str, str] | None = None) -> CompleteResponse:
    return CompleteResponse(303, {**PLAIN, "location": path, **(headers or {})}, b"")


#: Seconds that the answer waits for the check of a short log.
_CHECK_SECONDS = 0.5


class AdminActions:
    """The actions by path below the root."""

    def __init__(
        self,
        tokens: AppTokens,
        *,
        chain: ChainVerifier | None,
        export: LogExport | None,
        log: JsonLog,
    ) -> None:
        self._tokens = tokens
        self._chain = chain
        self._export = export
        self._log = log

    def find(self, path: str) -> Action | None:
        match path.split("/"):
            case ["audit", "verify"] if self._chain is not None:
                return Action(("POST",), self._verify)
            case ["audit", "export"] if self._export is not None:
                return Action(READ, self._exported)
            case ["apps", app, action] if app and action in get_args(AppAction):
                kind = cast(AppAction, action)
                return Action(
                    (*READ, "POST"),
                    lambda request, site: self._tokens.run(app, kind, request, site),
                )
            case _:
                return None

    async def _exported(self, request: UiRequest, site: Site) -> ByteStream:  # noqa: ARG002
        assert self._export is not None
        exported = self._export.stream(request.page)
        self._log.line("info", "audit export", by=request.session.token_id)
        return exported

    async def _verify(self, request: UiRequest, site: Site) -> CompleteResponse:  # noqa: ARG002
        assert self._chain is not None
        self._log.line("info", "audit verify", by=request.session.token_id)
        self._chain.start()
        await asyncio.to_thread(self._chain.wait, _CHECK_SECONDS)
        return redirect(f"{ROOT}/audit")


class AppTokens:
    """Revokes and rotates the tokens of an app: a page to confirm it, and the action itself."""

    def __init__(
        self, admin: Admin, directory: Directory, sessions: Sessions, log: JsonLog
    ) -> None:
        self._admin = admin
        self._directory = directory
        self._sessions = sessions
        self._log = log
        self._one = asyncio.Lock()
        """A form that is sent twice at once must not be valid both times."""

    async def run(self, app: str, action: AppAction, request: UiRequest, site: Site) -> PageContent:
        """Raises `NotFound` for an app without a valid token."""
        if request.page.method == "POST":
            async with self._one:
                return await self._write(app, action, request, site)
        wanted = request.page.query.get("id", "") if action == "revoke" else ""
        valid = self._directory.is_valid
        if wanted and not valid(wanted):
            await self._directory.refresh()  # another node may have made it
        narrowed = [row for row in self._directory.narrowed_tokens(app) if valid(row.id) and wanted]
        tokens = [
            row.id
            for row in (*self._directory.live_tokens(app), *narrowed)
            if app and wanted in ("", row.id)
        ]
        if not tokens:
            raise NotFound("There is no valid token of this app.", status=404)
        number = self._sessions.confirmation(request.session, *self._changes(app, action, wanted))
        return confirm_page(site, app, action, tokens=tokens, only=wanted, confirmation=number)

    def _changes(self, app: str, action: AppAction, wanted: str) -> tuple[str, ...]:
        """What an action changes: the same form cannot do it again."""
        rows = (*self._directory.live_tokens(app), *self._directory.narrowed_tokens(app))
        valid = sorted(row.id for row in rows if self._directory.is_valid(row.id))
        return app, action, wanted, *valid

    async def _write(
        self, app: str, action: AppAction, request: UiRequest, site: Site
    ) -> PageContent:
        form, session = request.form, request.session
        wanted = form.get("id", "")
        number = form.get("confirmation", "")
        if not self._sessions.confirm(session, number, *self._changes(app, action, wanted)):
            text = "This form was sent before, or is too old. Nothing was changed now."
            return done_page(site, app, "Not done", text, status=409)
        try:
            if action == "revoke":
                return await self._revoke(app, wanted, request, site)
            return await self._rotate(app, form.get("overlap", ""), request, site)
        except InvalidRequest as problem:
            return done_page(
                site, app, "Not done", f"Nothing was changed: {problem.reason}.", status=409
            )

    async def _revoke(self, app: str, token: str, request: UiRequest, site: Site) -> PageContent:
        result = await self._admin.revoke_app(RevokeParams(app=app, token=token or None))
        ids = [each["id"] for each in result["revoked"]]
        self._log.line("info", "tokens revoked", app=app, tokens=ids, by=request.session.token_id)
        text = f"{counted(len(ids), 'token')} revoked: {', '.join(ids)}."
        return done_page(site, app, "Revoked", text)

    async def _rotate(self, app: str, overlap: str, request: UiRequest, site: Site) -> PageContent:
        if overlap not in map(str, OVERLAPS):
            raise InvalidRequest("choose one of the times of the form", path="overlap")
        result = await self._admin.rotate_app(RotateParams(app=app, overlap=float(overlap)))
        by, made = request.session.token_id, result["token_id"]
        self._log.line("info", "token rotated", app=app, token=made, by=by)
        ending = [_state(each) for each in result["ending"]]
        return done_page(site, app, "New token", new_token(result["token"], ending))


def _state(token: dict[str, Any]) -> TokenState:
    fields = {name: token[name] for name in TokenState.__struct_fields__}
    return TokenState(**fields)
