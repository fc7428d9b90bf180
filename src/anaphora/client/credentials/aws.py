"""AWS: requests signed with the key pair of a chain of sources, as botocore has it.

Keys of the environment, of shared files, of an assumed role and of a web identity need no SDK
(aws_profiles.py). The others (SSO, a process, containers, instances) come from botocore, in the
extra `aws`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from typing import Any

from anaphora.client.config.secrets import SecretHeaders
from anaphora.errors import MissingExtra, MissingSecret, Transport, Unauthenticated
from anaphora.redaction import shown_name, shown_text

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


class BotocoreKeys:
    """The keys of botocore's chain, or of one profile of it. `why` says for which keys botocore is
    needed."""

    def __init__(self, profile: str | None, why: str) -> None:
        self._profile = profile
        self._why = why
        self._found: Any = None

    def __call__(self) -> Fetched[AwsKeys]:
        try:
            import botocore.exceptions
            import botocore.session
        except ImportError:
            command = "pip install 'anaphora[aws]'"
            command += "" if self._profile is not None else f"; or {ADVICE}"
            raise MissingExtra(
                f"{self._why}, which needs the package botocore: {command}", extra="aws"
            ) from None
        name = "" if self._profile is None else f" of the profile {shown_name(self._profile)}"
        unreachable = (
            botocore.exceptions.HTTPClientError,
            botocore.exceptions.MetadataRetrievalError,
        )
        try:
            if self._found is None:
                self._found = botocore.session.Session(profile=self._profile).get_credentials()
            if self._found is None:
                raise MissingSecret(f"no AWS credentials{name}: {ADVICE}")
            keys = self._found.get_frozen_credentials()
            expiry = getattr(self._found, "_expiry_time", None)
            fetched = AwsKeys(keys.access_key, keys.secret_key, keys.token)
            return Fetched(fetched, None if expiry is None else expiry.timestamp())
        except unreachable as error:
            failure: Exception = Transport(f"AWS credentials{name}: {_shown(error)}")
        except botocore.exceptions.BotoCoreError as error:
            failure = Unauthenticated(f"AWS credentials{name}: {_shown(error)}", status=401)
        except botocore.exceptions.ClientError as error:
            failure = Unauthenticated(f"AWS credentials{name}: {_shown(error)}", status=401)
        raise failure


ADVICE = (
    "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or"
    " AWS_BEARER_TOKEN_BEDROCK, or run `aws configure`"
)


def _shown(error: Exception) -> str:
    return f"{type(error).__name__}: {shown_text(str(error))}"[:400]
