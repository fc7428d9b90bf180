"""AWS Signature Version 4: signing requests, and verifying them. Pure: the time is an argument.

    Signer(keys, "us-east-1", "bedrock").headers("POST", url, headers, sha256(body), now)
    verify(request, secret_of, now)          Verified, or a SignatureProblem

The canonical path is the sent path, percent-encoded once more, as for every service but S3.
"""

from __future__ import annotations

import datetime
import email.utils
import hmac
import re
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from typing import NamedTuple
from urllib.parse import quote, urlsplit

import msgspec

from anaphora.client.config.secrets import Secret, SecretHeaders

ALGORITHM = "AWS4-HMAC-SHA256"
#: The longest difference between the time of a signature and that of its arrival.
WINDOW_SECONDS = 300
#: A clock that differs by fewer seconds is not the reason for a refusal.
SKEW = 60.0

_PORTS = {"http": 80, "https": 443}
#: Signed besides host and date. Proxies may change other headers.
_SIGNED = re.compile(r"content-type\Z|x-amz-|x-amzn-(?!trace-id\Z)")
_OWN = frozenset(("authorization", "x-amz-date", "x-amz-security-token"))
_STAMP = re.compile(r"\d{8}T\d{6}Z\Z")
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

    __slots__ = ("_keys", "_of_day", "_region", "_service")

    def __init__(self, keys: AwsKeys, region: str, service: str) -> None:
        self._keys = keys
        self._region, self._service = region, service
        self._of_day = "", b""
        """A day and its key; replaced at once, since threads share the signer."""

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
        host, path, query = _address(url)
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


# ── Verifying ────────────────────────────────────────────────────────────────────────────────────


class Verified(msgspec.Struct, frozen=True):
    """A request with a valid signature. Each signature should be accepted once until `until`."""

    access_key: str
    region: str
    service: str
    signature: str
    until: float
    """The end of the time in which the signature is valid, in seconds since 1970."""
    names: tuple[str, ...] = ()
    """The signed headers."""


class SignatureProblem(msgspec.Struct, frozen=True):
    """Why a signature is refused: AWS's code for it, and a message."""

    code: str
    message: str


class SignedRequest(NamedTuple):
    """A request as received. `body_hash` is the SHA-256 of the body that arrived, in hex."""

    method: str
    path: str
    query: str
    headers: Iterable[tuple[str, str]]
    body_hash: str

    def __repr__(self) -> str:
        return f"<SignedRequest {self.method}>"


def access_key_in(request: SignedRequest) -> str:
    """The access key that a request names, not verified; empty if it has no signature."""
    given = next((value for name, value in request.headers if name == "authorization"), "")
    found = _AUTHORIZATION.match(given)
    return "" if found is None else found["access"]


def verify(
    request: SignedRequest, secret_of: Callable[[str], Secret | None], now: float
) -> Verified | SignatureProblem:
    """Checks the signature of a request. `secret_of` returns the secret of an access key.

    The hash is that of the body, whatever a header states. Unsigned and chunk-signed bodies and
    presigned queries are refused. A signature is not remembered here: see `Verified`."""
    headers = _joined(request.headers)
    given = headers.get("authorization", "")
    found = _AUTHORIZATION.match(given)
    if found is None:
        return _not_understood(request, given)
    names = found["names"].split(";")
    problem = _check_names(names, headers) or _check_hash(headers, request.body_hash)
    if problem is not None:
        return problem
    stamp = headers["x-amz-date"]
    if not _STAMP.match(stamp) or stamp[:8] != found["day"]:
        return _invalid("X-Amz-Date is not the time of the credential scope, as YYYYMMDDTHHMMSSZ.")
    try:
        signed_at = datetime.datetime.strptime(stamp, "%Y%m%dT%H%M%SZ")
        at = signed_at.replace(tzinfo=datetime.UTC).timestamp()
    except ValueError:
        return _invalid("X-Amz-Date is not a time.")
    if abs(now - at) > WINDOW_SECONDS:
        when = "expired" if at < now else "not yet current"
        return _invalid(f"Signature {when}: {stamp} is more than 5 min. from the time here.")
    secret = secret_of(found["access"])
    if secret is None:
        message = "The security token included in the request is invalid."
        return SignatureProblem("UnrecognizedClientException", message)
    lines = "".join(f"{name}:{' '.join(headers[name].split())}\n" for name in names)
    canonical = (
        f"{request.method}\n{canonical_path(request.path)}\n{canonical_query(request.query)}\n"
        f"{lines}\n{found['names']}\n{request.body_hash}"
    )
    scope = f"{found['day']}/{found['region']}/{found['service']}/aws4_request"
    key = signing_key(secret, found["day"], found["region"], found["service"])
    expected = _signature(key, stamp, scope, canonical)
    if not hmac.compare_digest(expected, found["signature"]):
        return _invalid(
            "The request signature we calculated does not match the signature you provided. Check"
            " your AWS Secret Access Key and signing method."
        )
    return Verified(
        found["access"],
        found["region"],
        found["service"],
        expected,
        at + WINDOW_SECONDS,
        tuple(names),
    )


def _invalid(message: str) -> SignatureProblem:
    return SignatureProblem("InvalidSignatureException", message)


def _joined(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The headers by lower-case names; values of the same name are joined with commas."""
    joined: dict[str, str] = {}
    for name, value in headers:
        low = name.lower()
        joined[low] = f"{joined[low]},{value}" if low in joined else value
    return joined


def _not_understood(request: SignedRequest, authorization: str) -> SignatureProblem:
    """The problem of a request without a signature that can be read."""
    if re.search(r"(?i)(?:\A|&)x-amz-(?:signature|algorithm|credential)=", request.query):
        return _invalid("Presigned queries are not accepted: sign the headers.")
    if not authorization:
        message = "Missing Authentication Token"
        return SignatureProblem("MissingAuthenticationTokenException", message)
    message = f"Authorization must be '{ALGORITHM} Credential=…, SignedHeaders=…, Signature=…'."
    return SignatureProblem("IncompleteSignatureException", message)


def _check_names(names: list[str], headers: Mapping[str, str]) -> SignatureProblem | None:
    for name in ("host", "x-amz-date"):
        if name not in names:
            return _invalid(f"{name} must be signed.")
    if names != sorted(set(names)):
        return _invalid("SignedHeaders must be in lower case, sorted, each once.")
    missing = next((name for name in names if name not in headers), None)
    if missing is not None:
        return _invalid("A signed header is missing in the request.")
    if any(name.startswith("x-amz-") and name not in names for name in headers):
        return _invalid("Every X-Amz- header must be signed.")
    return None


def _check_hash(headers: Mapping[str, str], body_hash: str) -> SignatureProblem | None:
    stated = headers.get("x-amz-content-sha256")
    if stated is None or stated == body_hash:
        return None
    if stated == "UNSIGNED-PAYLOAD":
        return _invalid("Unsigned bodies are not accepted.")
    if stated.startswith("STREAMING-"):
        return _invalid("Bodies that are signed in chunks are not accepted.")
    return _invalid("X-Amz-Content-SHA256 is not the SHA-256 of the body.")
