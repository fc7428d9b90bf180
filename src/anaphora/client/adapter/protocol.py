"""The surface that every backend has."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from .values import LlmRequest, LlmResponse, StreamChunk


class LlmAdapter(Protocol):
    """A backend. Subclasses that cannot stream inherit a `stream` of one chunk."""

    @property
    def adapter_id(self) -> str:
        """Constant and lower-case: it stands in audit records."""
        ...

    async def complete(self, request: LlmRequest) -> LlmResponse:
        """Raises `errors.Timeout` when `request.timeout_ms` is over: keeping to it is the
        adapter's own business."""
        ...

    async def stream(self, request: LlmRequest) -> AsyncIterator[StreamChunk]:
        """The text as it comes; the last chunk has a finish reason."""
        response = await self.complete(request)
        yield StreamChunk(response.text, "stop")
