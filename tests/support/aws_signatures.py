"""Verification of AWS's signatures, by botocore's own signer."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from typing import NamedTuple

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

_FIELD = re.compile(r"(Credential|SignedHeaders|Signature)=([^,\s]+)")
_WINDOW = 300.0
_INVALID = "InvalidSignatureException"


class SignatureProblem(NamedTuple):
    """AWS's code for a wrong signature, and a message."""

    code: str
    message: str


def scope_of(authorization: str) -> tuple[str, str, str]:
    """Access key, region and service."""
    credential = dict(_FIELD.findall(authorization))["Credential"]
    access, _, region, service, _ = credential.split("/")
    return access, region, service


def signature_problem(
    method: str,
    target: str,
    headers: Mapping[str, str],
    body: bytes,
    secrets: Mapping[str, str],
    now: float,
) -> SignatureProblem | None:
    """What is wrong with a signature; None if it is right. `secrets` are by access key, and names
    of headers in lower case."""
    authorization = headers.get("authorization", "")
    if not authorization.startswith("AWS4-HMAC-SHA256 "):
        return SignatureProblem("MissingAuthenticationTokenException", "Missing token")
    given = dict(_FIELD.findall(authorization))
    access, region, service = scope_of(authorization)
    if access not in secrets:
        reason = "The security token included in the request is invalid."
        return SignatureProblem("UnrecognizedClientException", reason)
    names = given["SignedHeaders"].split(";")
    if any(name.startswith("x-amz-") and name not in names for name in headers):
        return SignatureProblem(_INVALID, "Every X-Amz- header must be signed.")
    stamp = headers["x-amz-date"]
    signed_at = datetime.datetime.strptime(f"{stamp}+0000", "%Y%m%dT%H%M%SZ%z").timestamp()
    if abs(now - signed_at) > _WINDOW:
        when = "expired" if signed_at < now else "not yet current"
        return SignatureProblem(_INVALID, f"Signature {when}: {stamp}")
    signed = {name: headers[name] for name in names}
    request = AWSRequest(method, f"http://{signed['host']}{target}", signed, body)
    request.context["timestamp"] = stamp
    signer = SigV4Auth(Credentials(access, secrets[access]), service, region)
    text = signer.string_to_sign(request, signer.canonical_request(request))
    if signer.signature(text, request) != given["Signature"]:
        return SignatureProblem(_INVALID, "The signature does not match.")
    return None
