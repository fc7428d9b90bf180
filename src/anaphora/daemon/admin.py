"""Operations of an administrator: tokens of apps and administrators, and explained grants.

    admin = Admin(directory, store, config=lambda: settings.config)
    await admin.methods()["admin.apps.add"]({"app": "marketing"})

Commands call them on an opened store or as JSON-RPC methods of a running daemon, with the same
names, params and JSON results.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from anaphora.client.config import ClientConfig
from anaphora.client.config.secrets import ResolvedProvider
from anaphora.errors import InvalidConfig, InvalidRequest, StoreUnavailable
from anaphora.redaction import shown_name
from anaphora.yaml_values import from_python

from .access.effective_grants import grant_sources, granted_provider, outer_limits
from .access.grants import APP_ID, AppGrant, LlmGrant, dollars
from .access.identity import ADMIN, Directory, NewToken
from .access.isolation import shared_caches
from .access.tokens import NarrowedToken
from .home.amounts import UNLIMITED
from .home.extensions import PERMISSIONS
from .store import Spent, TokenRow
from .store.interface import Store

P = TypeVar("P", bound=msgspec.Struct)

DAY = 86_400.0
_OVERLAP = DAY
_LIFETIME = 30 * DAY
_MOST_SECONDS = 366 * DAY

Seconds = Annotated[float, Meta(ge=0, le=_MOST_SECONDS)]


class AdminParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of the params of all administrator's methods."""


class AppParams(AdminParams, frozen=True):
    app: str


class RotateParams(AdminParams, frozen=True):
    app: str
    overlap: Seconds = _OVERLAP
    """How long earlier tokens stay valid."""


class RevokeParams(AdminParams, frozen=True):
    app: str | None = None
    """By default any, and administrators."""
    token: str | None = None
    """The id of one token; by default all tokens of the app."""


class NarrowAppParams(AdminParams, frozen=True):
    app: str
    usd: str
    """In decimal digits."""
    expires_s: float
    models: tuple[str, ...] | None = None
    label: str = ""


class AdminTokenParams(AdminParams, frozen=True):
    lifetime: Annotated[float, Meta(gt=0, le=_MOST_SECONDS)] = _LIFETIME


class NoParams(AdminParams, frozen=True):
    pass


class AdminMethod(msgspec.Struct, frozen=True):
    """A method: its name, the struct of its params, and the function that runs it."""

    name: str
    params: type[msgspec.Struct]
    run: Callable[[Any], Awaitable[Any]]
    """Takes the params and returns the result, a JSON value."""

    async def __call__(self, params: Mapping[str, Any]) -> Any:
        """Raises `InvalidRequest` for invalid params."""
        try:
            decoded = from_python(dict(params), self.params)
        except InvalidConfig as problem:
            raise InvalidRequest(str(problem)) from None
        return await self.run(decoded)


class Admin:
    def __init__(
        self,
        directory: Directory,
        store: Store,
        *,
        config: Callable[[], ClientConfig],
        providers: Callable[[], Mapping[str, ResolvedProvider]] = dict,
        problems: Callable[[], Sequence[str]] = tuple,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`providers` have their keys if these are known; `problems` are those of files that are
        not in force."""
        self._directory = directory
        self._store = store
        self._config = config
        self._providers = providers
        self._problems = problems
        self._clock = clock
        self._methods: dict[str, AdminMethod] = {}
        self.register("admin.apps.add", AppParams, self.add_app)
        self.register("admin.apps.rotate", RotateParams, self.rotate_app)
        self.register("admin.apps.revoke", RevokeParams, self.revoke_app)
        self.register("admin.apps.narrow", NarrowAppParams, self.narrow_app)
        self.register("admin.apps.list", NoParams, self.list_apps)
        self.register("admin.token.create", AdminTokenParams, self.create_admin_token)
        self.register("admin.grants.check", AppParams, self.check_grant)

    def methods(self) -> Mapping[str, AdminMethod]:
        return self._methods

    def register(self, name: str, kind: type[P], method: Callable[[P], Awaitable[Any]]) -> None:
        """Adds a method; `kind` is the struct of its params."""
        self._methods[name] = AdminMethod(name, kind, method)

    # ── Apps ─────────────────────────────────────────────────────────────────────────────────────

    async def add_app(self, params: AppParams) -> dict[str, Any]:
        """Creates the first token of an app."""
        app = _checked_id(params.app)
        await self._refresh()
        if self._directory.live_tokens(app):
            raise InvalidRequest(
                f"{app} has a token; replace it with: anaphora apps rotate {app} (or revoke it"
                f" with: anaphora apps revoke {app}, and add the app again)",
                path="app",
            )
        new = await self._directory.create_token(app)
        return {**self._shown_once(new), "warnings": self._warnings(app)}

    async def rotate_app(self, params: RotateParams) -> dict[str, Any]:
        """Creates another token. Earlier ones stay valid for a while."""
        app = _checked_id(params.app)
        await self._refresh()
        before = self._directory.live_tokens(app)
        if not before:
            raise InvalidRequest(
                f"{app} has no token; create one with: anaphora apps add {app}", path="app"
            )
        new = await self._directory.create_token(app)
        ending = [
            await self._directory.expire_token(row.id, after=params.overlap) for row in before
        ]
        return {
            **self._shown_once(new),
            "ending": [self._token(row) for row in ending],
        }

    async def revoke_app(self, params: RevokeParams) -> dict[str, Any]:
        """Revokes tokens at once, with those narrowed from them, and ends their running streams."""
        app = None if params.app is None else _checked_id(params.app)
        if app is None and params.token is None:
            raise InvalidRequest("name an app, or a token by its id", path="app")
        await self._refresh()
        valid = self._directory.is_valid
        rows = [
            row
            for row in (*self._directory.tokens(app), *self._directory.narrowed_tokens(app))
            if row.revoked is None
            and (row.id == params.token or (params.token is None and not row.parent))
            and (row.nano_usd is None or valid(row.id))
        ]
        if not rows:
            which = "no token" if params.token is None else "no token of this id"
            holder = "there is" if app is None else f"{shown_name(app)} has"
            raise InvalidRequest(f"{holder} {which}", path="app")
        revoked = [await self._directory.revoke_token(row.id) for row in rows]
        return {"revoked": [self._token(row) | {"app": row.app} for row in revoked]}

    async def narrow_app(self, params: NarrowAppParams) -> dict[str, Any]:
        """Creates a token of an app with a budget of its own."""
        app = _checked_id(params.app)
        wanted = NarrowedToken.checked(
            usd=params.usd,
            models=params.models,
            seconds=params.expires_s,
            label=params.label,
        )
        await self._refresh()
        new = await self._directory.narrow(app, wanted)
        return {**self._shown_once(new), **_budget(new.row), "warnings": self._warnings(app)}

    async def list_apps(self, _params: NoParams) -> dict[str, Any]:
        """Apps with a grant or a token, and the tokens of administrators."""
        await self._refresh()
        grants = self._directory.grants
        tokens: dict[str, list[TokenRow]] = {app: [] for app in grants.apps}
        for row in self._directory.tokens():
            if row.app != ADMIN:
                tokens.setdefault(row.app, []).append(row)
        narrowed: dict[str, list[dict[str, Any]]] = {}
        for one in await self._store.budgets(since=self._clock()):
            if one.token.revoked is None:
                shown = self._token(one.token) | _budget(one.token)
                amounts = {"spent_usd": dollars(one.spent), "held_usd": dollars(one.held)}
                narrowed.setdefault(one.token.app, []).append(shown | amounts)
        apps = [
            {
                "app": app,
                "granted": app in grants.apps,
                "capabilities": sorted(_grant(grants.apps, app).capabilities),
                "unmet": sorted(_grant(grants.apps, app).missing),
                "tokens": [self._token(row) for row in rows],
                "narrowed": narrowed.get(app, []),
            }
            for app, rows in sorted(tokens.items())
        ]
        admins = [self._token(row) for row in self._directory.tokens(ADMIN)]
        return {"apps": apps, "administrators": admins}

    # ── Administrators ───────────────────────────────────────────────────────────────────────────

    async def create_admin_token(self, params: AdminTokenParams) -> dict[str, Any]:
        return self._shown_once(await self._directory.create_token(ADMIN, lifetime=params.lifetime))

    async def _refresh(self) -> None:
        """Reads what other nodes have written. If the store fails, the known tokens are used, so
        that a token can still be revoked here."""
        with contextlib.suppress(StoreUnavailable):
            await self._directory.refresh()

    # ── Grants ───────────────────────────────────────────────────────────────────────────────────

    async def check_grant(self, params: AppParams) -> dict[str, Any]:
        """What an app may do, and the reasons for what it may not."""
        app = _checked_id(params.app)
        grant = self._directory.grant(app)
        llm = LlmGrant() if grant is None else grant.llm
        spent = await self._store.spent(app, self._clock())
        granted = grant is not None and "llm_complete" in grant.capabilities
        usable = granted and not _grant(self._directory.grants.apps, app).missing
        usable = usable and llm.prompt_problem is None
        return {
            "app": app,
            "granted": grant is not None,
            "may_call": bool(
                usable and llm.providers and llm.models and app in self._directory.token_apps()
            ),
            "capabilities": [] if grant is None else sorted(grant.capabilities),
            "unmet": [] if grant is None else sorted(grant.missing),
            "tokens": len(self._directory.live_tokens(app)),
            "uids": [] if grant is None else sorted(grant.uids),
            "providers": [granted_provider(name, llm, self._config()) for name in llm.providers],
            "models": list(llm.models),
            "max_tokens": llm.max_tokens,
            "over_max_tokens": llm.over_max_tokens,
            "n": llm.n,
            "requests_per_minute": llm.requests_per_minute,
            "tokens_per_minute": llm.tokens_per_minute,
            "max_body_bytes": llm.max_body_bytes,
            "usd_per_day": _limit(llm.nano_usd_per_day) if granted else None,
            "usd_per_month": _limit(llm.nano_usd_per_month) if granted else None,
            "spent_today": dollars(spent.today),
            "spent_this_month": dollars(spent.month),
            "held": dollars(spent.held),
            "tools": list(llm.tools),
            "allow": [each for each in PERMISSIONS if each in llm.permissions],
            "betas": sorted(llm.betas),
            "fields": sorted(llm.fields),
            "approved_prompt": llm.approved_prompt,
            "place_markers": llm.place_markers,
            "share_cache": llm.share_cache,
            "cold_above_usd": None if llm.cold_above is None else dollars(llm.cold_above),
            **await self._outer(app),
            "warnings": [*self._warnings(app), *self._shared(app)],
            "problems": [f"not in force: {each}" for each in self._problems()],
        }

    async def _outer(self, app: str) -> dict[str, Any]:
        """The limits of the app's group, of the daemon and of providers, and the source of each
        value."""
        grants, config = self._directory.grants, self._config()
        if app not in grants.apps:
            return {}
        grant, shown = grants.apps[app], None
        if (limits := grant.group_limits) is not None:
            found = await self._store.spent_by_group(self._clock())
            spent = found.get(grant.group, Spent(day=""))
            shown = {
                "usd_per_day": _limit(limits.nano_usd_per_day),
                "usd_per_month": _limit(limits.nano_usd_per_month),
                "spent_today": dollars(spent.today),
                "spent_this_month": dollars(spent.month),
            }
        return {
            "group": grant.group,
            "group_limits": shown,
            **outer_limits(grants, app, config),
            "sources": grant_sources(grants, app, config),
        }

    def _warnings(self, app: str) -> list[str]:
        grants = self._directory.grants
        if app not in grants.apps:
            return [f"extensions.yaml has no grant for {app}: all its calls are refused"]
        alone = msgspec.structs.replace(grants, apps={app: grants.apps[app]})
        return [*alone.warnings(self._directory.token_apps())]

    def _shared(self, app: str) -> list[str]:
        apps, routes = self._directory.grants.apps.values(), self._config().routes
        shared = shared_caches(apps, routes, self._providers())
        return [str(each) for each in shared if app in each.apps]

    def _shown_once(self, new: NewToken) -> dict[str, Any]:
        row, token = new.row, new.token.reveal()
        return {"app": row.app, "token": token, "token_id": row.id, "expires": row.expires}

    def _token(self, row: TokenRow) -> dict[str, Any]:
        state = "valid" if self._directory.is_valid(row.id) else "expired"
        if row.revoked is not None:
            state = "revoked"
        return {
            "id": row.id,
            "state": state,
            "created": row.created,
            "expires": row.expires,
            "revoked": row.revoked,
        }


def _budget(row: TokenRow) -> dict[str, Any]:
    return {
        "parent": row.parent,
        "label": row.label,
        "usd": dollars(row.nano_usd or 0),
        "models": list(row.models),
    }


def _checked_id(app: str) -> str:
    if not APP_ID.match(app):
        raise InvalidRequest(
            "an app's id has 1 to 64 letters, digits, dots, dashes and underscores, and begins with"
            " a letter or a digit",
            path="app",
        )
    return app


def _grant(apps: Mapping[str, AppGrant], app: str) -> AppGrant:
    return apps.get(app, AppGrant(app=app))


def _limit(nano: int | None) -> str:
    return UNLIMITED if nano is None else dollars(nano)
