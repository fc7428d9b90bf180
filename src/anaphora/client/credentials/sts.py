"""AWS STS: temporary keys of a role, over the client's own transport."""

from __future__ import annotations

import asyncio
import datetime
import html
import re
import time
from hashlib import sha256
from urllib.parse import urlencode

import msgspec

from anaphora.client.config import Timeouts
from anaphora.client.config.secrets import Secret, SecretHeaders
from anaphora.errors import MissingSecret, Transport, Unauthenticated
from anaphora.redaction import shown_name, shown_text

from .refreshing import Fetched
from .sigv4 import SKEW, AwsKeys, Signer, clock_offset

_FORM = "application/x-www-form-urlencoded; charset=utf-8"
_TIMEOUTS = Timeouts(connect=5.0, first_byte=10.0, idle=10.0, total=20.0)
_MOST_BYTES = 1024 * 1024
_REGION = re.compile(r"[a-z0-9-]{1,63}")


class RoleRequest(msgspec.Struct, frozen=True):
    """A role, with the token of a web identity or to be assumed with keys."""

    action: str
    arn: str
    session_name: str | None = None
    seconds: int | None = None
    external_id: str | None = None
    token: Secret | None = None

    def form(self) -> bytes:
        fields = {
            "Action": self.action,
            "Version": "2011-06-15",
            "RoleArn": self.arn,
            "RoleSessionName": self.session_name or f"anaphora-{int(time.time())}",
        }
        if self.seconds is not None:
            fields["DurationSeconds"] = str(self.seconds)
        if self.external_id is not None:
            fields["ExternalId"] = self.external_id
        if self.token is not None:
            fields["WebIdentityToken"] = self.token.reveal()
        return urlencode(fields).encode()


class StsClient:
    """STS in one region. Blocks: call it in a thread."""

    def __init__(
        self,
        region: str,
        endpoint: str | None = None,
        *,
        proxy: Secret | None = None,
        ca: str | None = None,
    ) -> None:
        suffix = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
        self._url = (endpoint or f"https://sts.{region}.{suffix}").rstrip("/") + "/"
        self._region = region
        self._proxy, self._ca = proxy, ca

    def fetch(self, asked: RoleRequest, keys: AwsKeys | None) -> Fetched[AwsKeys]:
        """The keys of a role, requested with `keys`."""
        if not _REGION.fullmatch(self._region):  # it may be that of a request, and names the host
            raise MissingSecret(f"not a region of AWS: {shown_name(self._region)}")
        return asyncio.run(self._fetch(asked, keys))

    async def _fetch(
        self, asked: RoleRequest, keys: AwsKeys | None, offset: float = 0.0
    ) -> Fetched[AwsKeys]:
        from anaphora.client.transport import HttpRequest, read_answer
        from anaphora.client.transport.over_aiohttp import AiohttpTransport

        body = asked.form()
        headers = SecretHeaders({"content-type": _FORM})
        if keys is not None:
            signer = Signer(keys, self._region, "sts")
            body_hash = sha256(body).hexdigest()
            signed = signer.headers("POST", self._url, headers, body_hash, time.time() + offset)
            headers = SecretHeaders({**headers, **signed})
        request = HttpRequest(
            method="POST",
            url=self._url,
            headers=headers,
            body=body,
            timeouts=_TIMEOUTS,
            max_response_bytes=_MOST_BYTES,
        )
        transport = AiohttpTransport(self._proxy, self._ca)
        try:
            answer = await transport.send(request)
            try:
                data = await read_answer(answer)
            finally:
                await answer.close()
        finally:
            await transport.close()
        skew = clock_offset(answer.headers, time.time()) or 0.0
        if keys is not None and not offset and answer.status in (400, 403) and abs(skew) > SKEW:
            return await self._fetch(asked, keys, skew)  # this machine's clock is wrong
        return _read(answer.status, Secret(data.decode(errors="replace")), asked, offset)


def _read(status: int, answer: Secret, asked: RoleRequest, offset: float = 0.0) -> Fetched[AwsKeys]:
    if status != 200:
        code, message = _field(answer, "Code") or str(status), _field(answer, "Message") or ""
        text = f"{asked.action} of {asked.arn}: {code}: {shown_text(message)}"[:400]
        if status >= 500:
            raise Transport(f"STS failed: {text}")
        raise Unauthenticated(f"STS refused {text}", status=status, code=code)
    names = ("AccessKeyId", "SecretAccessKey", "SessionToken")
    if any(_field(answer, name) is None for name in (*names, "Expiration")):
        raise Transport("STS: the answer has no credentials", phase="body")
    keys = AwsKeys(*(_field(answer, name) or "" for name in names))
    try:
        expires = datetime.datetime.fromisoformat(_field(answer, "Expiration") or "")
    except ValueError:
        raise Transport("STS: the expiration is not a time", phase="body") from None
    expires = expires.replace(tzinfo=expires.tzinfo or datetime.UTC)
    return Fetched(keys, expires.timestamp() - offset)


def _field(answer: Secret, name: str) -> str | None:
    found = re.search(rf"<{name}>([^<]*)</{name}>", answer.reveal())
    return None if found is None else html.unescape(found[1].strip())
