"""Keys: demanded where the provider wants them, and each a workspace of its own."""

from __future__ import annotations

import msgspec
from blake3 import blake3

from anaphora.errors import Forbidden, Unauthenticated, Upstream

from .asked import Asked
from .routes import Route

#: Servers of one's own, which ask for a key only when they were told one.
_LOCAL = "http://localhost"


class Account(msgspec.Struct, frozen=True):
    """Who asks. The key itself is not kept."""

    workspace: str


class Accounts:
    """Any key is good, or only those that were named."""

    def __init__(self, keys: frozenset[str] | None = None) -> None:
        self._keys = keys

    def of(self, asked: Asked, route: Route) -> Account:
        """The account of a request; the provider's error when it has none."""
        key = _key(asked, route.dialect.auth)
        if not key and _is_local(route):
            return Account("local")
        if not key:
            raise _missing(route)
        if self._keys is not None and key not in self._keys:
            raise Unauthenticated("the key is not known", status=401, code=_code(route))
        return Account(blake3(key.encode()).hexdigest(8))


def _key(asked: Asked, auth: str) -> str:
    """The key, from wherever this provider takes it."""
    bearer = asked.headers.get("authorization", "")
    scheme, _, token = bearer.partition(" ")
    token = token.strip() if scheme.lower() == "bearer" else ""
    if auth in ("x-api-key", "api-key"):
        return asked.headers.get(auth) or token
    if auth == "x-goog-api-key":
        return asked.headers.get(auth) or asked.query.get("key", "") or token
    return token or (asked.headers.get("x-api-key", "") if "/messages" in asked.path else "")


def _is_local(route: Route) -> bool:
    return route.dialect.base_url.startswith(_LOCAL)


def _missing(route: Route) -> Upstream:
    if route.wire == "gemini":
        return Forbidden("the request has no API key", status=403, code="PERMISSION_DENIED")
    where = {"x-api-key": "x-api-key", "api-key": "api-key"}.get(route.dialect.auth)
    place = f"the header {where}" if where else "the header Authorization, as Bearer"
    return Unauthenticated(f"no API key: send it in {place}", status=401, code=_code(route))


def _code(route: Route) -> str | None:
    return "invalid_api_key" if route.wire.startswith("openai") else None
