"""Shared by the adapters of frameworks: a client for any thread and any event loop, and replies
that survive a framework's own messages.

A framework may run each evaluation in another event loop, and each sample in another thread. The
calls of one adapter use one `anaphora.Client`, and concurrent ones its gate, so that a shared
beginning is written to the cache once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import aclosing
from typing import Any, TypeAlias, Unpack

from anaphora import canonical
from anaphora.catalog import Profile
from anaphora.client.client import AsyncClient
from anaphora.client.content import Content
from anaphora.client.options import CallOptions
from anaphora.client.provider_errors import event_error
from anaphora.client.response import Response
from anaphora.client.structured import output_of
from anaphora.client.sync import Client
from anaphora.errors import AnaphoraError, InvalidRequest
from anaphora.prompt import OutputFormat
from anaphora.values import (
    Event,
    Message,
    ReplyEnd,
    ReplyFail,
    Text,
    Tool,
    ToolCall,
    from_json,
    to_json,
)
from anaphora.values.codec import loads

StreamItem: TypeAlias = Event | Response[Any]


class FrameworkClient:
    """Makes the calls of one adapter, from any thread and any event loop."""

    def __init__(
        self,
        client: Client | None = None,
        *,
        config: Any = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """`client` is the application's client, which the application closes. Without it this makes
        its own: from `config`, the path of llm.yaml or its content, or from the keys in the
        environment."""
        given: object = client
        if client is None:
            if config is None:
                client = Client.from_env(environ)
            else:
                client = Client.from_config(config, environ=environ)
        elif not isinstance(given, Client):
            reason = f"must be an anaphora.Client, not {type(given).__name__}"
            if isinstance(given, AsyncClient):
                reason = "must be an anaphora.Client, which works in any event loop and thread"
            raise InvalidRequest(reason, path="client")
        elif config is not None:
            raise InvalidRequest("cannot be combined with a client, which has one", path="config")
        self.client = client

    def __deepcopy__(self, memo: object) -> FrameworkClient:
        """Copies of a framework's model share the client."""
        return self

    def model_profile(self, provider: str | None, model: str | None) -> Profile:
        """The catalog's profile of the called model. Raises if there is none."""
        choose = self.client._client._targets
        targets, _ = self.client._background.do(lambda: choose(provider, model))
        return targets[0].profile

    def complete(
        self, content: Content, provider: str | None = None, **options: Unpack[CallOptions]
    ) -> Response[Any]:
        return self.client._background.call(lambda: self._gated(content, provider, options))

    def complete_several(
        self,
        count: int,
        content: Content,
        provider: str | None = None,
        **options: Unpack[CallOptions],
    ) -> list[Response[Any]]:
        """The responses to `count` calls with the same content."""

        async def all_of_them() -> list[Response[Any]]:
            calls = (self._gated(content, provider, options) for _ in range(count))
            return list(await asyncio.gather(*calls))

        return self.client._background.call(all_of_them)

    async def acomplete(
        self, content: Content, provider: str | None = None, **options: Unpack[CallOptions]
    ) -> Response[Any]:
        background = self.client._background
        return await background.call_from_loop(lambda: self._gated(content, provider, options))

    async def _gated(
        self, content: Content, provider: str | None, options: CallOptions
    ) -> Response[Any]:
        return await self.client._client.call_gate.complete(content, provider, **options)

    def stream(
        self, content: Content, provider: str | None = None, **options: Unpack[CallOptions]
    ) -> Generator[StreamItem, None, None]:
        """The events of a call, with the response as the last item. Raises if it breaks."""
        return self.client._background.iterate(lambda: self._events(content, provider, options))

    def astream(
        self, content: Content, provider: str | None = None, **options: Unpack[CallOptions]
    ) -> AsyncGenerator[StreamItem, None]:
        background = self.client._background
        return background.iterate_from_loop(lambda: self._events(content, provider, options))

    async def _events(
        self, content: Content, provider: str | None, options: CallOptions
    ) -> AsyncGenerator[StreamItem, None]:
        turn = self.client._client.send(content, provider, **options)
        async with aclosing(aiter(turn)) as events:
            async for event in events:
                if isinstance(event, ReplyFail):
                    raise event_error(event)
                if not isinstance(event, ReplyEnd):
                    yield event
        assert turn.response is not None
        yield turn.response


def function_tool(
    name: str, description: str | None, schema: Mapping[str, Any], *, strict: bool | None = None
) -> Tool:
    """A tool that the framework runs."""
    text = canonical.dumps(dict(schema), path=f"tools.{name}").decode()
    return Tool(name, description or "", text, strict=strict)


def output_schema(
    schema: Mapping[str, Any],
    name: str | None = None,
    *,
    description: str | None = None,
    strict: bool | None = None,
) -> OutputFormat:
    """The schema of a reply that the framework parses."""
    return output_of(dict(schema), name, description=description, strict=strict).output


def kept_reply(message: Message) -> str | None:
    """The reply as JSON if the framework's messages cannot represent it exactly (signatures of
    reasoning, blocks of the provider), else None."""
    if all(isinstance(part, Text | ToolCall) and part.extras is None for part in message.parts):
        return None
    return to_json(message).decode()


def restored_reply(kept: object, rebuilt: Message) -> Message:
    """The kept reply, unless the application has changed the framework's message."""
    if not isinstance(kept, str):
        return rebuilt
    try:
        message = from_json(kept, Message)
    except AnaphoraError:
        return rebuilt
    same = message.text == rebuilt.text and _calls(message) == _calls(rebuilt)
    return message if same else rebuilt


def _calls(message: Message) -> list[tuple[str, str, Any]]:
    return [
        (part.id, part.name, loads(part.arguments or "{}"))
        for part in message.parts
        if isinstance(part, ToolCall)
    ]
