"""Where requests go, their credentials, which must not be shown, and the account of these."""

from __future__ import annotations

import secrets
from typing import TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

from blake3 import blake3

from anaphora.errors import InvalidRequest
from anaphora.redaction import shown_url

from .calls import Headers, ProxyRoute

#: Headers and query parameters that hold credentials.
_HEADERS = frozenset({"authorization", "x-api-key", "api-key", "x-goog-api-key", "cookie"})
_QUERY = ("key", "api_key", "access_token")
#: Of those, the ones that do not stand for an account.
_NO_ACCOUNT = ("cookie",)
#: Requests whose digest is kept.
_MOST_KNOWN = 64

#: Names and values.
Credentials: TypeAlias = tuple[tuple[str, str], ...]


def checked_upstream(url: str, name: str = "upstream") -> str:
    """A base URL without a slash at its end."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        valid, parts = False, urlsplit("")
    if not valid or not url.isascii() or not url.isprintable() or " " in url:
        reason = f"not a base URL like https://api.example.com: {shown_url(url)}"
        raise InvalidRequest(reason, path=name)
    if parts.query or parts.fragment or parts.username is not None or parts.password is not None:
        reason = f"a base URL has no user, query or fragment: {shown_url(url)}"
        raise InvalidRequest(reason, path=name)
    return url.rstrip("/")


def decoded_path(path: str) -> str:
    """A path without percent encoding."""
    return unquote(path)


def credentials(headers: Headers, query: str) -> Credentials:
    """The credentials of a request, by the name of their header or parameter."""
    found = [pair for pair in headers if pair[0] in _HEADERS]
    if query:
        found += [pair for pair in parse_qsl(query) if pair[0] in _QUERY]
    return tuple(found)


def keys_in(found: Credentials) -> list[str]:
    """The keys, without the scheme before them."""
    return [
        value.partition(" ")[2] if name == "authorization" and " " in value else value
        for name, value in found
    ]


class Accounts:
    """Tells apart where requests go, account included, without a key in it."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._known: dict[tuple[str, Credentials], str] = {}
        """The digests of recent requests, which are mostly those of the next one."""

    def digest(self, route: ProxyRoute, found: Credentials) -> str:
        """The same for requests of one account; it says nothing in another process."""
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
