"""The head of a request: its line and headers, and the URL that it goes to."""

from __future__ import annotations

import re

import aiohttp
from aiohttp.client_reqrep import ConnectionKey
from yarl import URL

from anaphora import __version__
from anaphora.client.config.secrets import SecretHeaders
from anaphora.errors import InvalidRequest

from .decoding import ACCEPT_ENCODING

_AGENT = {"User-Agent": f"anaphora/{__version__}"}
#: Methods that need no Content-Length without a body.
_BODILESS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
#: Set by the transport alone: a second value would let the server end the message elsewhere.
_FRAMING = frozenset({"content-length", "transfer-encoding"})
_TOKEN = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z]+")
_FORBIDDEN = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")


class Destination(aiohttp.ClientRequest):
    """The request that aiohttp's connector takes an address from. Never sent; shared by all
    requests to one URL."""

    connection_key: ConnectionKey = None  # type: ignore[assignment]

    def __init__(self, url: URL, proxy: URL | None, proxy_headers: SecretHeaders) -> None:
        super().__init__(
            "GET", url, headers=_AGENT, proxy=proxy, proxy_headers={**_AGENT, **proxy_headers}
        )
        # Computed once: the connector adds to the proxy headers, which are part of the key.
        self.connection_key = super().connection_key


class RequestHead:
    """Request line and headers. No frame but its own holds them: the local variables of others are
    shown where an exception passes through, asyncio's included."""

    __slots__ = ("_length", "_lines")

    def __init__(self, lines: bytes, length: bytes) -> None:
        self._lines = lines
        self._length = length

    def with_length(self, size: int) -> RequestHead:
        """The same for a body of another size."""
        return RequestHead(self._lines, b"Content-Length: %d\r\n\r\n" % size)

    def with_body(self, body: bytes = b"") -> memoryview:
        """All bytes; a memoryview has no repr of them."""
        return memoryview(b"".join((self._lines, self._length, body)))


class UrlRoute:
    """A URL, the key of its connections, and the last head that was sent there."""

    __slots__ = ("_defaults", "_target", "destination", "last", "url")

    def __init__(self, url: URL, proxy: URL | None, proxy_headers: SecretHeaders) -> None:
        self.url = url
        self.destination = Destination(url, proxy, proxy_headers)
        self.last: tuple[str, SecretHeaders, RequestHead] | None = None
        """The last request with a body: method, headers and head."""
        self._target = url.raw_path_qs
        if proxy is not None and url.scheme == "http":
            bare = url.with_user(None) if url.raw_user or url.raw_password else url
            self._target = str(bare.with_fragment(None))
        else:
            proxy_headers = SecretHeaders()
        # aiohttp's own defaults, credentials of the URL included.
        defaults = {**self.destination.headers, **proxy_headers}
        self._defaults = SecretHeaders({**defaults, "Accept-Encoding": ACCEPT_ENCODING})

    def head(self, method: str, headers: SecretHeaders, size: int) -> RequestHead:
        """Request line and headers of a request with a body of `size` bytes."""
        if not _TOKEN.fullmatch(method):
            raise InvalidRequest("not an HTTP method", path="method")
        if not _are_valid(headers):
            # Not quoted: it may be a key.
            raise InvalidRequest("invalid HTTP header", path="headers")
        names = {name.lower() for name in headers}
        if "authorization" in names and "Authorization" in self._defaults:
            raise InvalidRequest("the URL also has credentials", path="headers")
        head = self._encode(method.upper(), headers, names, size)
        if size:
            self.last = method, headers, head
        return head

    def _encode(
        self, method: str, headers: SecretHeaders, names: set[str], size: int
    ) -> RequestHead:
        length = b"\r\n"
        if size or method not in _BODILESS:
            length = b"Content-Length: %d\r\n\r\n" % size
        lines = [f"{method} {self._target} HTTP/1.1\r\n"]
        lines += [
            f"{name}: {self._defaults[name]}\r\n"
            for name in self._defaults
            if name.lower() not in names
        ]
        lines += [f"{name}: {headers[name]}\r\n" for name in headers]
        if size and "content-type" not in names:
            lines.append("Content-Type: application/octet-stream\r\n")
        return RequestHead("".join(lines).encode(), length)


def _are_valid(headers: SecretHeaders) -> bool:
    for name, value in headers.items():
        if not _TOKEN.fullmatch(name) or name.lower() in _FRAMING:
            return False
        if not (value.isascii() and value.isprintable()) and _FORBIDDEN.search(value):
            return False
    return True
