"""Tokens: their texts and keyed hashes, and the narrowed ones. Each of these has a budget, and may
do at most what the token above it may.

    wanted = NarrowedToken.checked(usd=0.5, models=["claude-haiku-*"], seconds=3600, label="task 4")
    new = await directory.narrow("marketing", wanted, parent=app.token_id)

They belong to the app: rotating its token keeps them, revoking a token revokes all that were
narrowed from it. No row changes for that: a token is valid if all above it are.
"""

from __future__ import annotations

import hmac
import itertools
import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal

import msgspec
from blake3 import blake3

from anaphora.client.config.secrets import Secret
from anaphora.daemon.home.amounts import nano_usd_of
from anaphora.daemon.store import TokenRow
from anaphora.daemon.values import App
from anaphora.errors import GrantRateLimited, InvalidRequest

from .grants import AppGrant, narrowed_grant

PREFIX = "ana_"
ADMIN_PREFIX = "ana_admin_"
NARROWED_PREFIX = PREFIX + "n_"
ID_PREFIX = "tok_"

_TOKEN_BYTES, _ID_BYTES = 32, 6
_CHECK_DIGITS = 16
#: The beginnings of keys that are no tokens of a daemon, and whose they are.
_KEYS = {
    "sk-ant-": "of Anthropic",
    "sk-or-": "of OpenRouter",
    "sk-proj-": "of OpenAI",
    "AIza": "of Google",
    "gsk_": "of Groq",
    "xai-": "of xAI",
    "ABSK": "of Amazon Bedrock",
    "sk-": "of a provider",
}

DAY = 86_400.0
LONGEST = 7 * DAY
"""The longest life of a narrowed token, in seconds."""
MOST_NARROWED = 10_000
"""Maximum number of an app's narrowed tokens that are valid at the same time."""
LONGEST_LABEL = 64
_MOST_MODELS, _LONGEST_MODEL = 64, 200
#: After how many new tokens expired ones are dropped.
_DROP_EVERY = 1000
#: Seconds after which an app with too many may try again.
_RETRY = 60.0


def refusal(text: str, *, admin: bool = False) -> str:
    """Why a token is refused, by its form alone: the same for tokens that were never made and for
    those that ended. `admin`: where administrators' tokens are accepted."""
    if not text:
        return "the request has no token"
    if text.startswith(ADMIN_PREFIX) and not admin:
        return "this is an administrator's token, and calls need the token of an app"
    if text.startswith(PREFIX):
        return "this token is wrong, expired or revoked"
    named = "anaphora apps add APP prints one, which begins with ana_"
    whose = next((whose for start, whose in _KEYS.items() if text.startswith(start)), "")
    if whose:
        return f"this is a key {whose}; send the app's token of this daemon instead: {named}"
    return f"this is no token of this daemon: {named}"


def new_secret(*, admin: bool = False) -> Secret:
    return Secret((ADMIN_PREFIX if admin else PREFIX) + secrets.token_urlsafe(_TOKEN_BYTES))


def new_id() -> str:
    return ID_PREFIX + secrets.token_hex(_ID_BYTES)


class TokenHash:
    """Keyed BLAKE3 of tokens."""

    def __init__(self, key: Secret) -> None:
        self._keyed = blake3(key=bytes.fromhex(key.reveal()))

    def new_narrowed(self) -> Secret:
        """A token that shows holders of the key that it was made with it."""
        text = NARROWED_PREFIX + secrets.token_urlsafe(_TOKEN_BYTES)
        return Secret(text + self._check(text))

    def is_narrowed(self, token: Secret) -> bool:
        """Whether a token was made by `new_narrowed`."""
        text = token.reveal()
        if not text.startswith(NARROWED_PREFIX) or not text.isascii():
            return False
        return hmac.compare_digest(self._check(text[:-_CHECK_DIGITS]), text[-_CHECK_DIGITS:])

    def _check(self, text: str) -> str:
        return self._keyed.copy().update(f"narrowed {text}".encode()).hexdigest()[:_CHECK_DIGITS]

    def __call__(self, token: Secret) -> bytes:
        return self._keyed.copy().update(token.reveal().encode(errors="replace")).digest()


# ── Narrowed tokens ──────────────────────────────────────────────────────────────────────────────


class NarrowedToken(msgspec.Struct, frozen=True, kw_only=True):
    """A narrowed token that is to be made."""

    nano_usd: int
    """What it may spend in its life."""
    models: tuple[str, ...] = ()
    """Globs; empty: those of the token above it."""
    seconds: float
    """Its life."""
    label: str = ""

    @classmethod
    def checked(
        cls,
        *,
        usd: str | float,
        models: Sequence[str] | None,
        seconds: float,
        label: str = "",
    ) -> NarrowedToken:
        """Raises `InvalidRequest` with the name of the param."""
        nano = nano_usd_of(usd if isinstance(usd, str) else str(Decimal(repr(usd))))
        if not nano:
            raise InvalidRequest("must be more than 0", path="usd")
        if not 0 < seconds <= LONGEST:
            raise InvalidRequest(f"must be more than 0 and at most {LONGEST:.0f}", path="expires_s")
        if len(label) > LONGEST_LABEL or not label.isprintable():
            reason = f"must have at most {LONGEST_LABEL} characters, all of them printable"
            raise InvalidRequest(reason, path="label")
        _check_models(models)
        return cls(nano_usd=nano, models=tuple(models or ()), seconds=seconds, label=label)

    def row(
        self, id: str, app: str, digest: bytes, now: float, parent: TokenRow | None
    ) -> TokenRow:
        """Its row. It ends with the token above it at the latest."""
        expires = now + self.seconds
        if parent is not None:
            expires = min(expires, _expires(parent))
        return TokenRow(
            id=id,
            app=app,
            digest=digest,
            created=now,
            expires=expires,
            parent="" if parent is None else parent.id,
            nano_usd=self.nano_usd,
            models=self.models,
            label=self.label,
        )


def _check_models(models: Sequence[str] | None) -> None:
    if models is None:
        return
    if not 0 < len(models) <= _MOST_MODELS:
        reason = f"must list 1 to {_MOST_MODELS} names of models; `*` is any text"
        raise InvalidRequest(reason, path="models")
    for index, name in enumerate(models):
        if not 0 < len(name) <= _LONGEST_MODEL or not name.isprintable() or name != name.strip():
            reason = f"must be the name of a model, of 1 to {_LONGEST_MODEL} characters"
            raise InvalidRequest(reason, path=f"models[{index}]")


class TokenRows:
    """The tokens that a process knows, by id, and which of them are valid."""

    def __init__(self) -> None:
        self.by_id: dict[str, TokenRow] = {}
        self._narrowed: dict[str, set[str]] = {}
        """The ids of narrowed tokens, by app."""
        self._apps: dict[str, App] = {}
        """By the id of a narrowed token: not made anew for each call."""
        self._added = itertools.count(1)

    def keep(self, row: TokenRow, now: float) -> list[TokenRow]:
        """Adds a row or replaces it. Returns those that were dropped."""
        self.by_id[row.id] = row
        if row.nano_usd is None:
            return []
        self._narrowed.setdefault(row.app, set()).add(row.id)
        return self._drop(now) if next(self._added) % _DROP_EVERY == 0 else []

    def _drop(self, before: float) -> list[TokenRow]:
        """Drops narrowed tokens that expired before a time."""
        ended = [
            row
            for ids in self._narrowed.values()
            for row in map(self.by_id.__getitem__, ids)
            if _expires(row) < before
        ]
        for row in ended:
            del self.by_id[row.id]
            self._apps.pop(row.id, None)
            self._narrowed[row.app].discard(row.id)
        return ended

    def above(self, row: TokenRow) -> Iterator[TokenRow | None]:
        """The tokens from which one was narrowed, the nearest first; None: unknown."""
        while row.parent:
            parent = self.by_id.get(row.parent)
            yield parent
            if parent is None:
                return
            row = parent

    def is_live(self, row: TokenRow, now: float) -> bool:
        """Whether it is neither revoked nor expired, and none above it is. A token of the app that
        expires, after a rotation, keeps what was narrowed from it."""
        if row.revoked is not None or (row.expires is not None and now >= row.expires):
            return False
        return not row.parent or all(
            one is not None
            and one.revoked is None
            and (one.nano_usd is None or now < _expires(one))
            for one in self.above(row)
        )

    def below(self, id: str) -> list[TokenRow]:
        """The tokens that were narrowed from one."""
        found = self.by_id.get(id)
        rows = [] if found is None else self.narrowed(found.app)
        return [row for row in rows if any(one and one.id == id for one in self.above(row))]

    def narrowed(self, app: str | None) -> list[TokenRow]:
        found = self._narrowed.values() if app is None else [self._narrowed.get(app, set())]
        return [self.by_id[id] for ids in found for id in ids]

    def app(self, row: TokenRow, grants: Mapping[str, AppGrant]) -> App:
        """The app as one of its tokens may act for it."""
        grant = grants.get(row.app) or AppGrant(app=row.app)
        if row.nano_usd is None:
            return App(id=row.app, grant=grant, token_id=row.id)
        known = self._apps.get(row.id)
        if known is not None and known.app_grant is grant:
            return known
        chain = [row, *(one for one in self.above(row) if one and one.nano_usd is not None)][::-1]
        made = self._apps[row.id] = App(
            id=row.app,
            grant=narrowed_grant(grant, tuple(one.models for one in chain)),
            app_grant=grant,
            token_id=row.id,
            label=row.label,
            budgets=tuple(one.id for one in chain),
            budget_limits=tuple(one.nano_usd or 0 for one in chain),
        )
        return made


def _expires(row: TokenRow) -> float:
    return math.inf if row.expires is None else row.expires


def too_many() -> GrantRateLimited:
    reason = f"this app has {MOST_NARROWED:,} narrowed tokens: wait until some expire"
    return GrantRateLimited(reason, limit="narrowed_tokens", retry_after=_RETRY)
