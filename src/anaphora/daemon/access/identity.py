"""Tokens of apps and administrators, checked in memory for every request.

    directory = await Directory.open(home, store, grants)
    app = directory.authenticate(Secret("ana_…"), Peer("127.0.0.1"))

A token has 256 random bits and is shown once. The store holds its keyed hash; the key is a separate
file of the home folder. Tokens are looked up by hash, so the time depends neither on their number
nor on how much of a guess is right.
"""

from __future__ import annotations

import hmac
import itertools
import time
from collections.abc import Callable, Iterable
from time import monotonic
from typing import TYPE_CHECKING

import msgspec

from anaphora.bounded import BoundedMap
from anaphora.client.config.secrets import Secret
from anaphora.daemon.home.extensions import Grants
from anaphora.daemon.store import TokenBudget, TokenRow
from anaphora.daemon.store.interface import Store
from anaphora.daemon.values import SOCKET, App, Peer
from anaphora.errors import Forbidden, GrantRateLimited, InvalidRequest, Unauthenticated
from anaphora.redaction import shown_name
from anaphora.serving.connection_limits import network_of

from .grants import MOST_DEPTH, AppGrant
from .tokens import (
    MOST_NARROWED,
    NARROWED_PREFIX,
    NarrowedToken,
    TokenHash,
    TokenRows,
    new_id,
    new_secret,
    refusal,
    too_many,
)

if TYPE_CHECKING:
    from anaphora.daemon.home import Home

ADMIN = ""
"""The `app` of an administrator's token."""

CLEAN_EVERY = 1000
"""After how many new narrowed tokens those that ended unused are removed from the store."""
_KEEP_UNUSED = 3600.0
_MINUTE = 60.0
#: Seconds after which a clock's step back is no mistake: the clock was ahead before.
_BELIEVED = 60.0
#: Maximum number of peers with failures; the one without a failure for longest is dropped.
_MOST_PEERS = 10_000


class SteadyClock:
    """Follows another clock. A step back is followed after a minute, as a restart would do at once:
    until then the time stands still, and what has expired stays expired."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._latest = clock()
        self._behind: float | None = None
        """When the other clock was first behind."""

    def __call__(self) -> float:
        now = self._clock()
        if now < self._latest:
            ticks = monotonic()
            if self._behind is None:
                self._behind = ticks
            if ticks - self._behind <= _BELIEVED:
                return self._latest
        self._latest, self._behind = now, None
        return now


class FailedLogins:
    """Limits the failed logins of a peer per minute. Peers of one IPv6 network (/64) count as
    one."""

    def __init__(self, per_minute: int) -> None:
        self._most = per_minute
        self._failures = BoundedMap[str, tuple[float, float]](_MOST_PEERS)
        """The failures of each peer, less those that have expired, and since when."""

    def note(self, peer: Peer, now: float) -> None:
        """Counts a failed login. Raises `GrantRateLimited` if there are too many."""
        rate, name = self._most / _MINUTE, _peer_name(peer)
        used, since = self._failures.pop(name, (0.0, now))
        used = max(0.0, used - max(0.0, now - since) * rate)
        refuses = used + 1 > self._most
        self._failures[name] = (used if refuses else used + 1, now)
        if refuses:
            raise GrantRateLimited(
                "too many failed logins from this address",
                limit="failed_logins",
                retry_after=(used + 1 - self._most) / rate,
            )


def _peer_name(peer: Peer) -> str:
    return f"uid {peer.uid}" if peer.address == SOCKET else network_of(peer.address)


class NewToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token that was just created. It cannot be shown again."""

    row: TokenRow
    token: Secret


def _admits(grant: AppGrant | None, peer: Peer) -> bool:
    """Whether the peer's user may use an app's token. On the socket, `uids` of the grant
    decides."""
    return grant is None or not grant.uids or peer.address != SOCKET or peer.uid in grant.uids


class Directory:
    """All valid tokens and the grants in force. Used from one event loop."""

    def __init__(
        self,
        store: Store,
        hasher: TokenHash,
        rows: Iterable[TokenRow],
        grants: Grants,
        *,
        owner: int,
        failed_logins_per_minute: int = 20,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._hash = hasher
        self._grants = grants
        self._owner = owner
        self._failed = FailedLogins(failed_logins_per_minute)
        self._clock = clock
        self.now = SteadyClock(clock)
        self._by_digest: dict[bytes, TokenRow] = {}
        self._rows = TokenRows()
        self._made = itertools.count()
        self._revoked: list[Callable[[str], None]] = []
        for row in rows:
            self._keep(row)

    @classmethod
    async def open(
        cls,
        home: Home,
        store: Store,
        grants: Grants,
        *,
        failed_logins_per_minute: int = 20,
        clock: Callable[[], float] = time.time,
    ) -> Directory:
        return cls(
            store,
            TokenHash(home.token_key()),
            await store.tokens(),
            grants,
            owner=home.owner,
            failed_logins_per_minute=failed_logins_per_minute,
            clock=clock,
        )

    # ── For every request ────────────────────────────────────────────────────────────────────────

    def authenticate(self, token: Secret, peer: Peer) -> App:
        """The app of a token. Raises `Unauthenticated`, and `GrantRateLimited` after too many
        failures; a valid token is accepted even then, since apps may share an address."""
        row = self._find(token)
        if row is not None and row.app != ADMIN:
            app = self._rows.app(row, self._grants.apps)
            if _admits(app.grant, peer):
                return app
        raise self._refusal(token, peer)

    async def look_up(self, token: Secret) -> None:
        """Reads a narrowed token that is unknown here, as another node has made it. Only holders of
        `tokens.key` can make one that looks valid: a guess costs no query."""
        if not token.reveal().startswith(NARROWED_PREFIX):
            return
        digest = self._hash(token)
        if digest in self._by_digest or not self._hash.is_narrowed(token):
            return
        rows = await self._store.narrowed(digest)
        for row in rows:
            self._keep(row)
        if any(None in self._rows.above(row) for row in rows):
            await self.refresh()  # the token of the app is new, too

    def log_in(self, token: Secret, peer: Peer) -> TokenRow:
        """The token of an administrator or app, for the dashboard. Raises as `authenticate`
        does."""
        row = self._find(token)
        if row is not None and (row.app == ADMIN or _admits(self.grant(row.app), peer)):
            if row.nano_usd is not None:
                raise Forbidden("a narrowed token has no pages: use one of the app", status=403)
            return row
        raise self._refusal(token, peer, admin=True)

    def _refusal(self, token: Secret, peer: Peer, *, admin: bool = False) -> Unauthenticated:
        self._failed.note(peer, self.now())
        return Unauthenticated(refusal(token.reveal(), admin=admin), status=401)

    def is_admin(self, token: Secret | None, peer: Peer) -> bool:
        """Whether the caller has an administrator's token, or none and is the home's owner on the
        socket."""
        if token is None:
            return peer.address == SOCKET and peer.uid == self._owner
        row = self._find(token)
        return row is not None and row.app == ADMIN

    def token(self, token_id: str) -> TokenRow | None:
        """A token that is neither revoked nor expired."""
        row = self._rows.by_id.get(token_id)
        return row if row is not None and self._is_live(row) else None

    async def find_token(self, token_id: str) -> TokenRow | None:
        """The same; the store is asked for one that another node may just have made."""
        if token_id not in self._rows.by_id:
            await self.refresh()
        return self.token(token_id)

    def is_valid(self, token_id: str) -> bool:
        return self.token(token_id) is not None

    def grant(self, app: str) -> AppGrant | None:
        return self._grants.apps.get(app)

    def _find(self, token: Secret) -> TokenRow | None:
        digest = self._hash(token)
        row = self._by_digest.get(digest)
        if row is None or not hmac.compare_digest(row.digest, digest) or not self._is_live(row):
            return None
        return row

    def _is_live(self, row: TokenRow) -> bool:
        return self._rows.is_live(row, self.now())

    # ── Changes ──────────────────────────────────────────────────────────────────────────────────

    @property
    def grants(self) -> Grants:
        return self._grants

    def set_grants(self, grants: Grants) -> None:
        """Applies to requests that arrive after this."""
        self._grants = grants

    def on_revoke(self, callback: Callable[[str], None]) -> None:
        """Registers a function called with the id of a revoked token, to end its running
        streams."""
        self._revoked.append(callback)

    def tokens(self, app: str | None = None) -> list[TokenRow]:
        """Tokens of an app (`ADMIN` for administrators), or all, including revoked and expired
        ones, without narrowed ones."""
        rows = self._rows.by_id.values()
        return [row for row in rows if row.nano_usd is None and app in (None, row.app)]

    def live_tokens(self, app: str) -> list[TokenRow]:
        return [row for row in self.tokens(app) if self._is_live(row)]

    def token_apps(self) -> frozenset[str]:
        """The ids of apps that have a valid token."""
        return frozenset(row.app for row in self._rows.by_id.values() if self._is_live(row)) - {
            ADMIN
        }

    async def create_token(self, app: str, *, lifetime: float | None = None) -> NewToken:
        """Creates a token of an app or an administrator."""
        token = new_secret(admin=app == ADMIN)
        now = self.now()
        row = TokenRow(
            id=new_id(),
            app=app,
            digest=self._hash(token),
            created=now,
            expires=None if lifetime is None else now + lifetime,
        )
        await self._store.add_token(row)
        self.use(row)
        return NewToken(row=row, token=token)

    def narrowed_tokens(self, app: str | None = None) -> list[TokenRow]:
        """The narrowed tokens of an app, or all, that are known here."""
        return self._rows.narrowed(app)

    async def narrow(self, app: str, wanted: NarrowedToken, *, parent: str = "") -> NewToken:
        """Creates a narrowed token of an app, or of one of its tokens, by its id. Raises
        `InvalidRequest`, and `GrantRateLimited` if the app has too many."""
        now, above = self.now(), self._row(parent) if parent else None
        if next(self._made) % CLEAN_EVERY == 0:
            await self._store.remove_unused_budgets(now - _KEEP_UNUSED)
        if await self._store.count_narrowed(app, now) >= MOST_NARROWED:
            raise too_many()
        token = self._hash.new_narrowed()
        row = wanted.row(new_id(), app, self._hash(token), now, above)
        await self._store.add_token(row)
        self.use(row)
        return NewToken(row=row, token=token)

    async def budgets(self, app: App) -> list[TokenBudget]:
        """The budgets of a caller's token and of the valid tokens narrowed from it; of a token of
        the app, all of the app's."""
        found = await self._store.budgets(app.id, since=self.now())
        found = [one for one in found if one.token.revoked is None]
        if not app.budgets:
            return found
        ids = {app.token_id}
        for _ in range(MOST_DEPTH):
            ids |= {one.token.id for one in found if one.token.parent in ids}
        return [one for one in found if one.token.id in ids]

    async def expire_token(self, token_id: str, *, after: float) -> TokenRow:
        """Lets a token expire in `after` seconds, unless it expires earlier."""
        row = self._row(token_id)
        expires = self.now() + after
        if row.expires is None or expires < row.expires:
            row = msgspec.structs.replace(row, expires=expires)
            await self._store.change_token(token_id, expires=expires)
            self.use(row)
        return row

    async def revoke_token(self, token_id: str) -> TokenRow:
        """Revokes a token at once, before the store has written it."""
        row = msgspec.structs.replace(self._row(token_id), revoked=self.now())
        self.use(row)
        await self._store.change_token(token_id, revoked=row.revoked)
        return row

    def use(self, row: TokenRow) -> None:
        """A row that is new or has changed, from now on."""
        before = self._rows.by_id.get(row.id)
        was_live = before is not None and self._is_live(before)
        self._keep(row)
        # A narrowed token that was not valid any more ended with the one above it.
        if not self._is_live(row) and (was_live or row.nano_usd is None):
            for ended in (row, *self._rows.below(row.id)):
                for callback in self._revoked:
                    callback(ended.id)

    async def refresh(self) -> None:
        """Reads changes made by other nodes and commands. A token revoked here stays revoked; if
        the store could not be written then, it is revoked there now."""
        for row in await self._store.tokens():
            before = self._rows.by_id.get(row.id)
            if before is not None and before.revoked is not None:
                if row.revoked is None:
                    await self._store.change_token(row.id, revoked=before.revoked)
                continue
            if row == before:
                continue
            self.use(row)

    def _row(self, token_id: str) -> TokenRow:
        row = self._rows.by_id.get(token_id)
        if row is None:
            raise InvalidRequest(f"there is no token {shown_name(token_id)}")
        return row

    def _keep(self, row: TokenRow) -> None:
        self._by_digest[row.digest] = row
        for dropped in self._rows.keep(row, self.now()):
            del self._by_digest[dropped.digest]
