"""Audit rows for calls through any `LlmAdapter`, such as one that replays recordings."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from anaphora.client.adapter import LlmAdapter, LlmRequest, LlmResponse, StreamChunk
from anaphora.client.failures import reported
from anaphora.client.observe.export import outcome, word

from .envelope import AuditEnvelope, AuditUsage

if TYPE_CHECKING:
    from .log import AuditLog


class AuditedAdapter(LlmAdapter):
    """An adapter whose calls are written to a log. A `ClientAdapter` does not need it: its client's
    `audit` logs its calls, with their cost and verdict."""

    def __init__(self, adapter: LlmAdapter, log: AuditLog) -> None:
        self._adapter = adapter
        self._log = log

    @property
    def adapter_id(self) -> str:
        return self._adapter.adapter_id

    async def complete(self, request: LlmRequest) -> LlmResponse:
        began = time.time()
        try:
            response = await self._adapter.complete(request)
        except BaseException as error:
            self._append(request, began, type(error).__name__)
            raise
        self._append(request, began, None, response)
        return response

    async def stream(self, request: LlmRequest) -> AsyncGenerator[StreamChunk, None]:
        """The chunks; usage and hash of a stream are not known here."""
        began = time.time()
        error: str | None = "GeneratorExit"
        try:
            async for chunk in self._adapter.stream(request):
                yield chunk
            error = None
        except BaseException as problem:
            error = type(problem).__name__
            raise
        finally:
            self._append(request, began, error, streamed=True)

    def _append(
        self,
        request: LlmRequest,
        began: float,
        error: str | None,
        response: LlmResponse | None = None,
        *,
        streamed: bool = False,
    ) -> None:
        """Never raises: a failure to log must not lose the answer."""
        usage = None if response is None else response.usage
        envelope = AuditEnvelope(
            at=round(began, 6),
            adapter=self.adapter_id,
            model=word(request.model),
            answered_by=None if response is None else word(response.model),
            prompt_hash=_hash(request),
            raw_hash="" if response is None else response.raw_hash,
            outcome=outcome(error),
            streamed=streamed,
            seconds=round(time.time() - began, 6),
            usage=AuditUsage()
            if usage is None
            else AuditUsage(uncached=usage.prompt_tokens, output=usage.completion_tokens),
        )
        try:
            self._log.append(envelope)
        except Exception as problem:
            reported("audit_failed", problem)


def _hash(request: LlmRequest) -> str:
    """Empty for a request that was refused as invalid."""
    try:
        return request.prompt_hash()
    except Exception:
        return ""
