"""The credentials of requests: they tell accounts apart, are removed from texts, and may sign the
body."""

from __future__ import annotations

import secrets
from typing import TypeAlias

from blake3 import blake3

from anaphora.client.credentials.sigv4 import ALGORITHM, scope_in

from .calls import Headers, ProxyRoute, parameters

#: Headers and query parameters that hold credentials.
_HEADERS = frozenset(
    "authorization x-api-key api-key x-goog-api-key cookie x-amz-security-token".split()
)
_QUERY = ("key", "api_key", "access_token")
#: Of those, the ones that do not identify an account.
_NO_ACCOUNT = ("cookie", "x-amz-security-token")
#: Requests whose digests are kept.
_MOST_KNOWN = 64

#: Headers and scheme of signed requests.
_SIGNED_HEADERS = ("x-amz-content-sha256", "signature", "signature-input")
SIGNED_SCHEME = "AWS4-"
#: Names and values.
Credentials: TypeAlias = tuple[tuple[str, str], ...]


def credentials(headers: Headers, query: str) -> Credentials:
    """The credentials of a request, by header or parameter name."""
    found = [_lasting(pair) for pair in headers if pair[0] in _HEADERS]
    if query:
        found += [pair for pair in parameters(query) if pair[0] in _QUERY]
    return tuple(found)


def _lasting(pair: tuple[str, str]) -> tuple[str, str]:
    """A credential; of a signature, which each request has its own of, the id of the key."""
    scope = scope_in(pair[1]) if pair[0] == "authorization" else None
    return pair if scope is None else (pair[0], f"{ALGORITHM} {scope.access_key}")


def is_signed(headers: Headers) -> bool:
    """Whether a request carries a signature of its body, which a change would invalidate."""
    return any(
        name in _SIGNED_HEADERS or (name == "authorization" and value.startswith(SIGNED_SCHEME))
        for name, value in headers
    )


def keys_in(found: Credentials) -> list[str]:
    """The keys without their auth scheme."""
    return [
        value.partition(" ")[2] if name == "authorization" and " " in value else value
        for name, value in found
    ]


class Accounts:
    """Identifies the destination of requests, including the account, without exposing a key."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._known: dict[tuple[str, Credentials], str] = {}
        """Digests of recent requests, which mostly match the next one."""

    def digest(self, route: ProxyRoute, found: Credentials) -> str:
        """Equal for requests of one account; meaningless in another process."""
        known = self._known.get((route.upstream, found))
        if known is not None:
            return known
        digest = blake3(route.upstream.encode(), key=self._key)
        for name, value in found:
            if name not in _NO_ACCOUNT:
                digest.update(b"\0" + value.encode(errors="replace"))
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        known = self._known[route.upstream, found] = digest.hexdigest(16)
        return known
