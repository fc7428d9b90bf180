"""Verification of the signatures (SigV4) of requests to AWS's services."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

from anaphora import catalog
from anaphora.errors import Unauthenticated

from .hosts.host import RoutedRequest

if TYPE_CHECKING:
    from anaphora.client.credentials.sigv4 import AwsKeys


class SignatureCheck:
    """Accepts the signatures of some key pairs; without keys, any."""

    def __init__(self, keys: tuple[AwsKeys, ...] | None) -> None:
        self._secrets = None if keys is None else {pair.access_key: pair.secret for pair in keys}

    def check(self, request: RoutedRequest, now: float) -> None:
        """Raises AWS's error for a request whose signature is wrong, or is for a service that the
        provider does not have. Keys in headers are not signatures, and do not replace one."""
        row = request.route.dialect
        if self._secrets is None or row.cloud is None or row.cloud.kind != "aws":
            return
        given = request.headers.get("authorization", "")
        if given[:7].lower() == "bearer " or (not given and row.auth in request.headers):
            return
        from anaphora.client.credentials import sigv4  # only this option needs it

        path, _, query = (request.target or request.path).partition("?")
        body_hash, headers = sha256(request.body).hexdigest(), request.headers.items()
        signed = sigv4.SignedRequest(request.method, path, query, headers, body_hash)
        found = sigv4.verify(signed, self._secrets.get, now)
        if isinstance(found, sigv4.SignatureProblem):
            raise Unauthenticated(found.message, status=403, code=found.code)
        own = (each for each in catalog.dialects().rows if each.provider == row.provider)
        if found.service not in {each.cloud.service for each in own if each.cloud is not None}:
            reason = f"Credential should be scoped to correct service: '{row.cloud.service}'."
            raise Unauthenticated(reason, status=403, code="InvalidSignatureException")
