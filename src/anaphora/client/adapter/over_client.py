"""An adapter over the client: every provider of `llm.yaml` in the small shape."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable
from contextlib import aclosing
from typing import TYPE_CHECKING, TypeVar

from anaphora.client.failing import raised
from anaphora.errors import InvalidRequest, Timeout
from anaphora.values import Event, PartDelta, PartEnd, PartStart, ReplyEnd, ReplyFail, Text

from .protocol import LlmAdapter
from .saying import call_of, finish_reason, token_usage
from .values import LlmRequest, LlmResponse, StreamChunk

if TYPE_CHECKING:
    from anaphora.client.client import Client

T = TypeVar("T")

_ID = re.compile(r"[a-z][a-z0-9_.-]*")


class ClientAdapter(LlmAdapter):
    """One provider of the client's, or one of its routes."""

    def __init__(self, client: Client, provider_id: str, adapter_id: str) -> None:
        if not _ID.fullmatch(adapter_id):
            raise InvalidRequest(
                "must be lower-case letters, digits, `_`, `.` and `-`, a letter first",
                path="adapter_id",
            )
        self._client = client
        self._provider = provider_id
        self._id = adapter_id

    @property
    def adapter_id(self) -> str:
        return self._id

    def __repr__(self) -> str:
        return f"<ClientAdapter {self._id} over {self._provider}>"

    async def complete(self, request: LlmRequest) -> LlmResponse:
        call, form, _ = call_of(request)
        budget = _Budget(request.timeout_ms)
        answered = await budget.spent_on(
            self._client.complete(call, self._provider, timeout=budget.seconds)
        )
        return LlmResponse(
            text=answered.text,
            parsed_json=None if form is None else form.of(answered.reply),
            model=answered.reply.model,
            usage=token_usage(answered.reply.usage),
            raw_hash=answered.raw_hash,
        )

    async def stream(self, request: LlmRequest) -> AsyncIterator[StreamChunk]:
        """The text as it comes. Whether it fits a schema is known at its end only: `Parse` is then
        raised in place of the last chunk."""
        call, form, _ = call_of(request)
        budget = _Budget(request.timeout_ms)
        heard = _Heard()
        coming = self._client.stream(call, self._provider, timeout=budget.seconds)
        async with aclosing(coming) as events:
            while (event := await budget.spent_on(anext(events, None))) is not None:
                if delta := heard.more(event):
                    yield StreamChunk(delta)
                if isinstance(event, ReplyFail):
                    raise raised(event)
                if isinstance(event, ReplyEnd):
                    if form is not None:
                        form.of(event.reply)
                    yield StreamChunk("", finish_reason(event.reply))


class _Heard:
    """The text among a stream's events: thinking and tool calls are none."""

    def __init__(self) -> None:
        self._texts: dict[int, int] = {}
        """How much of each part of text was heard."""

    def more(self, event: Event) -> str:
        if isinstance(event, PartStart) and event.kind == "text":
            self._texts[event.index] = 0
        elif isinstance(event, PartDelta) and event.index in self._texts:
            self._texts[event.index] += len(event.delta)
            return event.delta
        elif isinstance(event, PartEnd) and isinstance(event.part, Text):
            # A part may come whole, without a delta.
            return event.part.text[self._texts.get(event.index, 0) :]
        return ""


class _Budget:
    """What the caller allows a call to take. The client keeps to it as well; here it holds
    whatever the client is busy with, and the error names the caller's own figure."""

    def __init__(self, timeout_ms: int) -> None:
        self._ms = timeout_ms
        self.seconds = timeout_ms / 1000
        self._deadline = asyncio.get_running_loop().time() + self.seconds

    async def spent_on(self, work: Awaitable[T]) -> T:
        scope = asyncio.timeout_at(self._deadline)
        try:
            async with scope:
                return await work
        except Timeout:
            raise Timeout(self._ms) from None
        except TimeoutError:
            if not scope.expired():
                raise
            raise Timeout(self._ms) from None
