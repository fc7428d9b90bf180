"""Verifies signatures of AWS (SigV4), as a service does. Pure: the time is an argument.

verify(request, secret_of, now)          Verified, or a SignatureProblem
"""

from __future__ import annotations

import datetime
import hmac
import re
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from typing import NamedTuple

import msgspec

from anaphora.client.config.secrets import Secret
from anaphora.client.credentials.sigv4 import (
    ALGORITHM,
    canonical_path,
    canonical_query,
    signing_key,
)

#: The longest difference between the time of a signature and that of its arrival.
WINDOW_SECONDS = 300
_STAMP = re.compile(r"\d{8}T\d{6}Z\Z")
_AUTHORIZATION = re.compile(
    ALGORITHM + r"\s+Credential=(?P<access>[^/,\s]{1,256})/(?P<day>\d{8})/(?P<region>[^/,\s]{1,64})"
    r"/(?P<service>[^/,\s]{1,64})/aws4_request\s*,\s*SignedHeaders=(?P<names>[^,\s]{1,4096})\s*,\s*"
    r"Signature=(?P<signature>[0-9a-f]{64})\Z"
)


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
    text = f"{ALGORITHM}\n{stamp}\n{scope}\n{sha256(canonical.encode()).hexdigest()}"
    expected = hmac.digest(key, text.encode(), "sha256").hex()
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
