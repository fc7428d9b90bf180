"""Ours: a call on its own, and a turn of a conversation with everything that a session does for it.

On its own: `complete` with a conversation that is new each time, so that nothing of its messages is
known from before; making the call of them counts. Tools, system prompt and parameters are the
app's, the same objects at every call: their bytes are those of the call before.

A turn: sessions go on with 35 saved messages. Their first turn is cold and does not count; the five
that follow do, with 38, 40, 42, 44 and 46 messages, 42 on average. Prefix certified, next call
planned, prediction, verdict and dollars for every turn.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Awaitable, Callable
from typing import Any

from _client_workload import (
    MAX_TOKENS,
    MODELS,
    SCHEMA,
    SYSTEM,
    TOOLS,
    Line,
    arguments,
    prose,
    script,
    tool_of,
)

import anaphora
from anaphora import Call, Conversation, Message, Params, PromptIR, Tool, ToolCall

#: Messages that a session begins with, and turns that are counted after its first.
BEGIN, TURNS = 35, 5
#: Texts are made at the start: between two calls, that would leave cold CPU caches to ours alone.
TEXTS = 64

_TOOLS = tuple(Tool(name, about, json.dumps(SCHEMA)) for name, about in TOOLS)


def client(wire: str, url: str, **options: Any) -> Any:
    provider = {"wire": wire, "base_url": url, "key": {"env": "KEY"}}
    settings = {"providers": {"local": provider}}
    return anaphora.AsyncClient.from_config(settings, environ={"KEY": "k"}, **options)


def message(line: Line) -> Message:
    role, text, call = line
    if role == "user":
        return Message.user(text)
    if role == "tool":
        return Message.tool(call, text)
    if not call:
        return Message.assistant(text)
    return Message.assistant(text, ToolCall(call, tool_of(call), json.dumps(arguments(call))))


def session(client: Any, wire: str, count: int = BEGIN) -> Any:
    """A conversation that goes on with saved messages."""
    history = [message(line) for line in script(count)]
    return client.session(
        "local",
        model=MODELS[wire],
        system=SYSTEM,
        tools=_TOOLS,
        messages=history,
        max_tokens=MAX_TOKENS,
        on_prefix_break="raise",
    )


class OneShot:
    def __init__(self, wire: str, url: str, **options: Any) -> None:
        self._client, self._wire = client(wire, url, **options), wire

    async def ready(self) -> Callable[[], Awaitable[object]]:
        line = [message(each) for each in script()]

        async def call() -> Any:
            ir = PromptIR.chat(Conversation(line), system=SYSTEM)
            params = Params(max_tokens=MAX_TOKENS)
            whole = Call(ir=ir, model=MODELS[self._wire], tools=_TOOLS, params=params)
            return await self._client.complete(whole, "local")

        return call

    async def close(self) -> None:
        await self._client.close()


class Session:
    def __init__(self, wire: str, url: str) -> None:
        self._client, self._wire = client(wire, url), wire
        self._texts = itertools.cycle([prose(760, 10_000 + at) for at in range(TEXTS)])
        self._left = 0
        self._chat: Any = None

    async def ready(self) -> Callable[[], Awaitable[object]]:
        if not self._left:
            self._check()
            self._chat = session(self._client, self._wire)
            await self._chat.send(message(script()[BEGIN]))
            self._left = TURNS
        self._left -= 1
        text, chat = next(self._texts), self._chat

        async def call() -> Any:
            return await chat.send(text)

        return call

    async def close(self) -> None:
        await self._client.close()

    def _check(self) -> None:
        """The turns were what they are to be: hits, held against a prediction, with a price."""
        if self._chat is not None:
            record = self._chat.last.record
            assert record.verdict.result == "hit", str(record.verdict)
            assert record.predicted, record
            assert record.cost_usd, record


def asker(who: str, wire: str, url: str) -> OneShot | Session:
    return OneShot(wire, url) if who == "one-shot" else Session(wire, url)
