"""Where requests to one address go, and the head that is written in front of their bodies."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

import aiohttp
from aiohttp.client_reqrep import ConnectionKey
from yarl import URL

import anaphora
from anaphora.errors import InvalidRequest

#: May be sent again without harm where nobody answered.
REPEATABLE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})

#: Say nothing about a body where there is none.
_BODILESS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})

#: Where a message ends is for us to say: a second opinion would cut it elsewhere.
_OURS = frozenset({"content-length", "transfer-encoding"})

_AGENT = {"User-Agent": f"anaphora/{anaphora.__version__}"}
_TOKEN = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z]+")
_FORBIDDEN = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


class Destination(aiohttp.ClientRequest):
    """What aiohttp's connector asks for the way. It is never sent, and serves many requests."""

    def __init__(self, url: URL, proxy: URL | None) -> None:
        super().__init__("GET", url, headers=_AGENT, proxy=proxy, proxy_headers=_AGENT)
        # Not asked for again: the connector adds to the proxy's headers, which are a part of it.
        self._key = super().connection_key

    @property
    def connection_key(self) -> ConnectionKey:
        return self._key


class Route:
    """An address and the way there, with all that its requests have in common."""

    __slots__ = ("url", "destination", "_target", "_defaults", "_usual", "_last")

    def __init__(self, url: URL, proxy: URL | None) -> None:
        self.url = url
        self.destination = Destination(url, proxy)
        # What aiohttp would say by itself, credentials of the address included.
        defaults = dict(self.destination.headers)
        self._target = url.raw_path_qs
        if proxy is not None and url.scheme == "http":
            bare = url.with_user(None) if url.raw_user or url.raw_password else url
            self._target = str(bare.with_fragment(None))
            if password := aiohttp.ClientRequest("GET", proxy).headers.get("Authorization"):
                defaults["Proxy-Authorization"] = password
        self._defaults = {name.lower(): f"{name}: {said}\r\n" for name, said in defaults.items()}
        self._usual = "".join(self._defaults.values())
        self._last: tuple[str, dict[str, str], bytes] | None = None
        """The last request with a body: method, headers, and its head but for the length."""

    def head(self, method: str, headers: Mapping[str, str], size: int) -> bytes:
        """The request up to its body of `size` bytes."""
        if size and self._last is not None:
            # A conversation's requests differ in their length only.
            said, spoken, begin = self._last
            if said == method and spoken == headers:
                return begin + b"Content-Length: %d\r\n\r\n" % size
        head = self._written(method, headers, size)
        if size:
            self._last = method, dict(headers), head[: head.rindex(b"Content-Length: ")]
        return head

    def _written(self, method: str, headers: Mapping[str, str], size: int) -> bytes:
        given = set()
        lines = []
        for name, value in headers.items():
            given.add(_lowered(name))
            if not (value.isascii() and value.isprintable()) and _FORBIDDEN.search(value):
                raise _unsendable()
            lines.append(f"{name}: {value}\r\n")
        defaults = self._usual
        if not given.isdisjoint(self._defaults):
            if "authorization" in given and "authorization" in self._defaults:
                raise InvalidRequest("the address has credentials, too", path="headers")
            defaults = "".join([line for name, line in self._defaults.items() if name not in given])
        if size and "content-type" not in given:
            lines.append("Content-Type: application/octet-stream\r\n")
        if size or method not in _BODILESS:
            lines.append(f"Content-Length: {size}\r\n")
        text = f"{method} {self._target} HTTP/1.1\r\n{defaults}{''.join(lines)}\r\n"
        try:
            return text.encode()
        except UnicodeEncodeError:
            raise _unsendable() from None


@lru_cache(maxsize=64)
def read_method(text: str) -> str:
    if not _TOKEN.fullmatch(text):
        raise InvalidRequest("not a method", path="method")
    return text.upper()


@lru_cache(maxsize=512)
def _lowered(name: str) -> str:
    lowered = name.lower()
    if not _TOKEN.fullmatch(name) or lowered in _OURS:
        raise _unsendable()
    return lowered


def _unsendable() -> InvalidRequest:
    # Not quoted: it may be a key.
    return InvalidRequest("cannot be sent as they are", path="headers")
