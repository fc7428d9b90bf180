"""AWS Signature Version 4. Pure: the time is an argument.

    Signer(keys, "us-east-1", "bedrock").headers("POST", url, headers, sha256(body), now)

The canonical path is the sent path, percent-encoded once more, as for every service but S3.
"""

from __future__ import annotations

import datetime
import email.utils
import hmac
import re
from collections.abc import Mapping
from hashlib import sha256
from typing import NamedTuple
from urllib.parse import quote, urlsplit

from anaphora.client.config.secrets import Secret, SecretHeaders

ALGORITHM = "AWS4-HMAC-SHA256"
#: A clock that differs by fewer seconds is not the reason for a refusal.
SKEW = 60.0

_PORTS = {"http": 80, "https": 443}
#: Signed besides host and date. Proxies may change other headers.
_SIGNED = re.compile(r"content-type\Z|x-amz-|x-amzn-(?!trace-id\Z)")
_OWN = frozenset(("authorization", "x-amz-date", "x-amz-security-token"))
_AUTHORIZATION = re.compile(
    ALGORITHM + r"\s+Credential=(?P<access>[^/,\s]{1,256})/(?P<day>\d{8})/(?P<region>[^/,\s]{1,64})"
    r"/(?P<service>[^/,\s]{1,64})/aws4_request\s*,\s*SignedHeaders=(?P<names>[^,\s]{1,4096})\s*,\s*"
    r"Signature=(?P<signature>[0-9a-f]{64})\Z"
)


class AwsKeys:
    """A key pair, with the token of temporary keys. No repr shows it."""

    __slots__ = ("_secret", "_token", "access_key")

    def __init__(self, access_key: str, secret: str, token: str | None = None) -> None:
        self.access_key = access_key
        self._secret = Secret(secret)
        self._token = None if not token else Secret(token)

    def __repr__(self) -> str:
        return "<AwsKeys>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AwsKeys) and self.values() == other.values()

    __hash__ = None  # type: ignore[assignment]

    @property
    def secret(self) -> Secret:
        return self._secret

    @property
    def token(self) -> Secret | None:
        return self._token

    def values(self) -> tuple[str, ...]:
        token = () if self._token is None else (self._token.reveal(),)
        return (self.access_key, self._secret.reveal(), *token)


class Scope(NamedTuple):
    """What a signature says of itself."""

    access_key: str
    region: str
    service: str


def scope_in(authorization: str) -> Scope | None:
    """The scope of a signed request by its Authorization header, which is not verified; None if it
    is not signed."""
    found = _AUTHORIZATION.match(authorization)
    return None if found is None else Scope(found["access"], found["region"], found["service"])


def signing_key(secret: Secret, day: str, region: str, service: str) -> bytes:
    """The key that signs the requests of a day."""
    key = f"AWS4{secret.reveal()}".encode()
    for part in (day, region, service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


class Signer:
    """Signs requests to one service with one key pair."""

    __slots__ = ("_keys", "_last", "_of_day", "_region", "_service")

    def __init__(self, keys: AwsKeys, region: str, service: str) -> None:
        self._keys = keys
        self._region, self._service = region, service
        self._of_day = "", b""
        """A day and its key; replaced at once, since threads share the signer."""
        self._last = "", ("", "", "")
        """The last URL and its address, likewise: most requests go to one."""

    def headers(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | SecretHeaders,
        body_hash: str,
        now: float,
    ) -> SecretHeaders:
        """The headers that sign a request; `body_hash` is the SHA-256 of its body."""
        stamp = datetime.datetime.fromtimestamp(now, datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
        last, address = self._last
        if last != url:
            address = _address(url)
            self._last = url, address
        host, path, query = address
        signed = {"host": host, "x-amz-date": stamp}
        token = self._keys.token
        if token is not None:
            signed["x-amz-security-token"] = token.reveal()
        for name, value in headers.items():
            low = name.lower()
            if _SIGNED.match(low) and low not in _OWN:
                signed[low] = " ".join(value.split())
        names = sorted(signed)
        listed = ";".join(names)
        lines = [f"{name}:{signed[name]}\n" for name in names]
        request = f"{method}\n{path}\n{query}\n{''.join(lines)}\n{listed}\n{body_hash}"
        scope = f"{stamp[:8]}/{self._region}/{self._service}/aws4_request"
        day, key = self._of_day
        if day != stamp[:8]:
            key = signing_key(self._keys.secret, stamp[:8], self._region, self._service)
            self._of_day = stamp[:8], key
        signature = _signature(key, stamp, scope, request)
        added = {
            "x-amz-date": stamp,
            "authorization": f"{ALGORITHM} Credential={self._keys.access_key}/{scope},"
            f" SignedHeaders={listed}, Signature={signature}",
        }
        if token is not None:
            added["x-amz-security-token"] = token.reveal()
        return SecretHeaders(added)


def clock_offset(headers: Mapping[str, str], now: float) -> float | None:
    """How far a service's clock is ahead of this machine's, by the Date of its answer."""
    try:
        sent = email.utils.parsedate_to_datetime(headers["date"])
        return sent.replace(tzinfo=sent.tzinfo or datetime.UTC).timestamp() - now
    except (KeyError, ValueError, OverflowError):
        return None


def _signature(key: bytes, stamp: str, scope: str, request: str) -> str:
    text = f"{ALGORITHM}\n{stamp}\n{scope}\n{sha256(request.encode()).hexdigest()}"
    return hmac.digest(key, text.encode(), "sha256").hex()


def _address(url: str) -> tuple[str, str, str]:
    """Host, canonical path and canonical query of a URL."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if ":" in host:
        host = f"[{host}]"
    if parts.port is not None and parts.port != _PORTS.get(parts.scheme):
        host = f"{host}:{parts.port}"
    return host, canonical_path(parts.path), canonical_query(parts.query)


def canonical_path(path: str) -> str:
    """The sent path without dot segments and doubled slashes, percent-encoded once more."""
    steps: list[str] = []
    for step in path.split("/"):
        if step == "..":
            del steps[-1:]
        elif step and step != ".":
            steps.append(step)
    end = "/" if steps and path.endswith("/") else ""
    return quote(f"/{'/'.join(steps)}{end}", safe="/~")


def canonical_query(query: str) -> str:
    """The sent query in order; its encoding stays as it is."""
    if not query:
        return ""
    pairs = sorted(pair.partition("=")[::2] for pair in query.split("&"))
    return "&".join(f"{name}={value}" for name, value in pairs)
