"""The head of a request: request line and headers, validated and encoded."""

from __future__ import annotations

import re
from collections.abc import Mapping

import aiohttp
from yarl import URL

from anaphora.errors import InvalidRequest

#: Methods that need no Content-Length without a body.
_BODILESS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})

#: Set by the transport alone: a second value would let the server end the message elsewhere.
_FRAMING = frozenset({"content-length", "transfer-encoding"})

_TOKEN = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z]+")
_FORBIDDEN = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


class HeadWriter:
    """Encodes the heads of requests to one URL."""

    __slots__ = ("_defaults", "_target")

    def __init__(self, url: URL, proxy: URL | None, destination: aiohttp.ClientRequest) -> None:
        # aiohttp's own defaults, credentials of the URL included.
        defaults = dict(destination.headers)
        self._target = url.raw_path_qs
        if proxy is not None and url.scheme == "http":
            bare = url.with_user(None) if url.raw_user or url.raw_password else url
            self._target = str(bare.with_fragment(None))
            if password := aiohttp.ClientRequest("GET", proxy).headers.get("Authorization"):
                defaults["Proxy-Authorization"] = password
        self._defaults = {name.lower(): f"{name}: {value}\r\n" for name, value in defaults.items()}

    def encode(self, method: str, headers: Mapping[str, str], size: int) -> bytes:
        """The head of a request with a body of `size` bytes."""
        if not _TOKEN.fullmatch(method):
            raise InvalidRequest("not an HTTP method", path="method")
        method = method.upper()
        names = set()
        lines = []
        for name, value in headers.items():
            names.add(_lowered(name))
            if not (value.isascii() and value.isprintable()) and _FORBIDDEN.search(value):
                raise _invalid_header()
            lines.append(f"{name}: {value}\r\n")
        if "authorization" in names and "authorization" in self._defaults:
            raise InvalidRequest("the URL also has credentials", path="headers")
        defaults = "".join([line for name, line in self._defaults.items() if name not in names])
        if size and "content-type" not in names:
            lines.append("Content-Type: application/octet-stream\r\n")
        if size or method not in _BODILESS:
            lines.append(f"Content-Length: {size}\r\n")
        text = f"{method} {self._target} HTTP/1.1\r\n{defaults}{''.join(lines)}\r\n"
        try:
            return text.encode()
        except UnicodeEncodeError:
            raise _invalid_header() from None


def _lowered(name: str) -> str:
    lowered = name.lower()
    if not _TOKEN.fullmatch(name) or lowered in _FRAMING:
        raise _invalid_header()
    return lowered


def _invalid_header() -> InvalidRequest:
    # Not quoted: it may be a key.
    return InvalidRequest("invalid HTTP header", path="headers")
