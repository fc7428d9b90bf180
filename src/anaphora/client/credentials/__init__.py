"""Credentials of the clouds: what a request needs besides a fixed key, such as a signature over it
or a token that expires.

    headers = await credentials.headers("POST", url, request_headers, body)

A provider whose key is a fixed header has none of these (`ResolvedProvider.headers`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from anaphora.client.config.secrets import SecretHeaders


class Credentials(Protocol):
    """The credentials of one provider, shared by all its requests."""

    async def headers(
        self, method: str, url: str, headers: SecretHeaders, body: bytes
    ) -> SecretHeaders:
        """The headers to add to a request. Raises `MissingSecret` or `MissingExtra` if there are
        no credentials, `Unauthenticated` if they are refused, `Transport` if nothing answers."""
        ...

    def renews(self, status: int, headers: Mapping[str, str]) -> bool:
        """Whether a refused request may pass with new headers: the clock was wrong, or a token was
        revoked. Called once for each request."""
        ...

    def secrets(self) -> Iterable[str]:
        """The secrets in use, to remove them from a provider's texts."""
        ...
