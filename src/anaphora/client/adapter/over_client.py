"""An adapter over the client: every provider of `llm.yaml` in the small shape."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from anaphora.client.failures import event_error
from anaphora.client.structured import Structured
from anaphora.errors import InvalidRequest, Parse
from anaphora.values import (
    Event,
    PartDelta,
    PartEnd,
    PartStart,
    Refusal,
    Reply,
    ReplyEnd,
    ReplyFail,
    Text,
)

from .budget import Budget
from .protocol import LlmAdapter
from .saying import call_of, finish_reason, own_places, text_of, token_usage
from .values import LlmRequest, LlmResponse, StreamChunk

if TYPE_CHECKING:
    from anaphora.client.client import AsyncClient

_ID = re.compile(r"[a-z][a-z0-9_.-]*")


class ClientAdapter(LlmAdapter):
    """One provider of the client's, or one of its routes."""

    def __init__(self, client: AsyncClient, provider_id: str, adapter_id: str) -> None:
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
        budget = Budget(request.timeout_ms)
        with own_places():
            answered = await budget.spent_on(
                self._client.complete(call, self._provider, timeout=budget.seconds)
            )
        return LlmResponse(
            text=text_of(answered.reply),
            parsed_json=None if form is None else _parsed(form, answered.reply),
            model=answered.reply.model,
            usage=token_usage(answered.reply.usage),
            raw_hash=answered.raw_hash,
        )

    async def stream(self, request: LlmRequest) -> AsyncGenerator[StreamChunk, None]:
        """The text as it comes. Whether it fits a schema is known at its end only: `Parse` is then
        raised in place of the last chunk."""
        call, form, _ = call_of(request)
        budget = Budget(request.timeout_ms)
        heard = _Heard()
        with own_places():
            coming = self._client.stream(call, self._provider, timeout=budget.seconds)
        async with aclosing(coming) as events:
            while True:
                with own_places():
                    event = await budget.spent_on(anext(events, None))
                if event is None:
                    return
                if delta := heard.more(event):
                    yield StreamChunk(delta)
                if isinstance(event, ReplyFail):
                    raise event_error(event)
                if isinstance(event, ReplyEnd):
                    if form is not None:
                        _parsed(form, event.reply)
                    yield StreamChunk("", finish_reason(event.reply))


def _parsed(form: Structured[Any], reply: Reply) -> Any:
    """The answer in the form that was asked for; an error carries the answer."""
    try:
        return form.of(reply)
    except Parse as problem:
        problem.partial = reply
        raise


class _Heard:
    """The text among a stream's events, as `text_of` has it: thinking and tool calls are none."""

    def __init__(self) -> None:
        self._texts: dict[int, int] = {}
        """How much of each part of text was heard."""

    def more(self, event: Event) -> str:
        if isinstance(event, PartStart) and event.kind in ("text", "refusal"):
            self._texts[event.index] = 0
        elif isinstance(event, PartDelta) and event.index in self._texts:
            self._texts[event.index] += len(event.delta)
            return event.delta
        elif isinstance(event, PartEnd) and isinstance(event.part, Text | Refusal):
            # A part may come whole, without a delta.
            return event.part.text[self._texts.get(event.index, 0) :]
        return ""
