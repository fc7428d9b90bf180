"""AWS: requests signed with a key pair (aws_keys.py)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256

from anaphora.client.config.secrets import SecretHeaders

from .refreshing import Fetched, RefreshedValue
from .sigv4 import SKEW, AwsKeys, Signer, clock_offset

#: Keys are fetched again this many seconds before they expire; botocore renews them from 15 min.
AHEAD = 600.0
#: Larger bodies are hashed in a thread.
_LARGE = 512 * 1024
_REFUSED = (400, 401, 403)
_EXPIRED = ("ExpiredToken", "UnrecognizedClient", "InvalidClientTokenId")

AwsSource = Callable[[], Fetched[AwsKeys]]
"""Returns the keys; may block."""


class AwsCredentials:
    """Signs the requests to one service in one region."""

    def __init__(
        self,
        source: AwsSource,
        region: str,
        service: str,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._keys = RefreshedValue(source, ahead=AHEAD, clock=clock)
        self._region, self._service = region, service
        self._clock = clock
        self._offset = 0.0
        """How far the service's clock is ahead of this machine's."""
        self._signer: tuple[AwsKeys, Signer] | None = None

    def __repr__(self) -> str:
        return f"<AwsCredentials {self._service} in {self._region}>"

    async def headers(
        self, method: str, url: str, headers: SecretHeaders, body: bytes
    ) -> SecretHeaders:
        keys = await self._keys.get()
        if len(body) > _LARGE:
            body_hash = await asyncio.to_thread(_hash, body)
        else:
            body_hash = _hash(body)
        return self.signer(keys).headers(
            method, url, headers, body_hash, self._clock() + self._offset
        )

    def signer(self, keys: AwsKeys) -> Signer:
        """The signer of a key pair; the last one is kept with the key of its day."""
        if self._signer is None or self._signer[0] is not keys:
            self._signer = keys, Signer(keys, self._region, self._service)
        return self._signer[1]

    def renews(self, status: int, headers: Mapping[str, str]) -> bool:
        """Corrects the clock by the answer's Date, or drops keys that have expired."""
        if status not in _REFUSED:
            return False
        offset = clock_offset(headers, self._clock())
        if offset is not None and abs(offset - self._offset) > SKEW:
            self._offset = offset
            return True
        kind = headers.get("x-amzn-errortype", "")
        if self._signer is None or not kind.startswith(_EXPIRED):
            return False
        return self._keys.drop(self._signer[0])

    def secrets(self) -> Iterable[str]:
        return [text for keys in self._keys.history for text in keys.values()]


def _hash(body: bytes) -> str:
    return sha256(body).hexdigest()
