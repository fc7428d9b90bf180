"""Credentials of relayed requests: what must not be shown, and which account they stand for."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from urllib.parse import parse_qsl

from blake3 import blake3

from .exchange import Headers, ProxyRoute

#: Headers and query parameters that hold credentials.
_HEADERS = frozenset({"authorization", "x-api-key", "api-key", "x-goog-api-key", "cookie"})
_QUERY = ("key", "api_key", "access_token")
#: Of those, the ones that do not stand for an account.
_NO_ACCOUNT = ("cookie",)


def credentials(headers: Headers, query: str) -> Iterator[str]:
    """The keys in a request, without the scheme before them."""
    for name, value in _named(headers, query):
        yield value.partition(" ")[2] if name == "authorization" and " " in value else value


def _named(headers: Headers, query: str) -> Iterator[tuple[str, str]]:
    yield from ((name, value) for name, value in headers if name in _HEADERS)
    if query:
        yield from ((name, value) for name, value in parse_qsl(query) if name in _QUERY)


class Accounts:
    """Tells apart where requests go, account included, without a key in it."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def digest(self, route: ProxyRoute, headers: Headers, query: str) -> str:
        """The same for requests of one account; it says nothing in another process."""
        digest = blake3(route.upstream.encode(), key=self._key)
        for name, value in _named(headers, query):
            if name not in _NO_ACCOUNT:
                digest.update(b"\0" + value.encode(errors="replace"))
        return digest.hexdigest(16)
