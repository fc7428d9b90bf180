"""Requests for a transport, with canaries that must never appear in an error."""

from __future__ import annotations

from anaphora.client.config import Timeouts
from anaphora.client.config.secrets import SecretHeaders
from anaphora.client.transport import HttpRequest

CANARY = "canary"
"""In the path, the query, a header and the body of every request."""


def outgoing(
    url: str,
    body: bytes = b'{"said":"canary"}',
    *,
    method: str = "POST",
    headers: dict[str, str] | None = None,
    largest: int = 1_000_000,
    **seconds: float,
) -> HttpRequest:
    """A request with long timeouts, except for those in `seconds`."""
    limits = {"connect": 30.0, "first_byte": 30.0, "idle": 8.0, **seconds}
    return HttpRequest(
        method=method,
        url=f"{url}/canary/v1?key=canary",
        headers=SecretHeaders({"x-api-key": "canary", **(headers or {})}),
        body=body,
        timeouts=Timeouts(**limits),
        max_response_bytes=largest,
    )
