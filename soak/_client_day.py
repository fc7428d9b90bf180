"""What apps do with a client, over and over: conversations that come and go, with tools, as streams
and in one piece; branches; calls on their own; calls that fail, and calls that are abandoned.

Every conversation differs from all before it, so that anything kept per conversation would
show.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

import anaphora
from anaphora import Call, Message, Params, PromptBlock, PromptIR
from anaphora.errors import AnaphoraError

#: The wire and the model of each provider. One of them always fails; `main` is a way around it.
PROVIDERS = {
    "claude": ("anthropic", "claude-sonnet-4-6"),
    "chat": ("openai_chat", "gpt-5.1"),
    "responses": ("openai_responses", "gpt-5.1"),
    "gemini": ("gemini", "gemini-2.5-flash"),
    "broken": ("anthropic", "claude-sonnet-4-6"),
}
#: Where conversations are, each as often as it is named, and calls on their own.
TALKS = ("claude", "claude", "claude", "main", "chat", "chat", "responses", "responses")
CALLS = (*PROVIDERS, "main")

GUIDE = "You are the assistant of a shop, and answer in one line. " * 120
_WORDS = "the order was sent on Monday and the parcel is with the carrier since; it says so".split()

tools = anaphora.ToolRegistry()


@tools.tool
def find_order(number: int) -> str:
    """Find an order by its number."""
    return f"Order {number}: sent on Monday. " * 5


@tools.tool
async def track(parcel: str, detail: bool = False) -> str:
    """Say where a parcel is."""
    await asyncio.sleep(0)
    return f"{parcel} is with the carrier{' since Monday' if detail else ''}. " * 5


class Fare(msgspec.Struct):
    """What an order costs."""

    city: str
    euros: float


def settings(url: str) -> dict[str, Any]:
    providers: dict[str, Any] = {}
    for name, (wire, model) in PROVIDERS.items():
        providers[name] = {
            "wire": wire,
            "base_url": url,
            "model": model,
            "key": {"env": "KEY"},
            "retry": {"max_attempts": 3, "first_wait": 0.005},
            "breaker": {"failures": 20, "open_for": 0.05},
            "timeouts": {"first_byte": 20, "total": 60},
        }
    providers["broken"]["headers"] = {"x-emulator-fault": "529"}
    providers["broken"]["retry"] = {"max_attempts": 2, "first_wait": 0.001}
    return {
        "providers": providers,
        "routes": {"main": [{"provider": "broken"}, {"provider": "claude"}]},
    }


class App:
    """One of those who use the client at the same time."""

    def __init__(self, client: anaphora.AsyncClient, number: int) -> None:
        self._client = client
        self._chance = random.Random(number)
        self._number = number
        self._sent = 0
        self.failed = 0
        self.cancelled = 0

    async def something(self) -> None:
        """A conversation, mostly; or a call on its own."""
        drawn = self._chance.random()
        if drawn < 0.6:
            await self._conversation(self._chance.choice(TALKS))
        elif drawn < 0.8:
            await self._tool_loop(self._chance.choice(TALKS))
        else:
            await self._on_its_own(self._chance.choice(CALLS))

    # ── Steps ─────────────────────────────────────────────────────────────────────────────

    async def _conversation(self, place: str) -> None:
        chat = self._session(place, tools=None)
        form = {"output": Fare} if self._chance.random() < 0.1 else {}
        for turn in range(self._chance.randint(5, 8)):
            await self._turn(chat, form)
            if turn == 2 and self._chance.random() < 0.25:
                branch = chat.fork()
                await asyncio.gather(self._turn(branch, form), self._turn(chat, form))
                await self._turn(branch, form)
            if self._chance.random() < 0.1:
                chat.preview("What would this cost?")
        if self._chance.random() < 0.5:
            await self._trying(chat.close)  # the others are simply forgotten

    async def _tool_loop(self, place: str) -> None:
        chat = self._session(place, tools=tools)
        for _ in range(self._chance.randint(2, 3)):
            if self._chance.random() < 0.5:
                await self._trying(lambda: chat.run(self._words(), max_turns=4))
            else:
                await self._trying(lambda: _through(chat.run(self._words(), max_turns=4)))
            if chat.messages and chat.messages[-1].role != "assistant":
                return  # it failed between two turns; this app does not go on

    async def _on_its_own(self, place: str) -> None:
        ir = PromptIR.chat([Message.user(self._words())], system=GUIDE)
        _, model = PROVIDERS["claude" if place == "main" else place]
        call = Call(ir=ir, model=model, params=Params(max_tokens=200))
        match self._chance.randrange(4):
            case 0:
                await self._trying(lambda: self._client.complete(call, place))
            case 1:
                await self._trying(lambda: _through(self._client.send(call, place)))
            case 2:
                await self._trying(lambda: self._client.complete(self._words(), place))
            case 3:
                await self._trying(lambda: self._client.complete(call, place, output=Fare))

    # ── One turn ─────────────────────────────────────────────────────────────────────────────────

    async def _turn(self, chat: Any, form: dict[str, Any]) -> None:
        drawn, words = self._chance.random(), self._words()
        if drawn < 0.44:
            await self._trying(lambda: chat.send(words, **form))
        elif drawn < 0.88:
            await self._trying(lambda: _through(chat.send(words, **form)))
        elif drawn < 0.92:
            after = self._chance.randint(1, 4)
            await self._trying(lambda: _left(chat.send(words, **form), after))
        elif drawn < 0.96:
            await self._cancelled(_through(chat.send(words, **form)))
        elif drawn < 0.98:
            await self._cancelled(_whole(chat.send(words, **form)))
        else:
            await self._trying(lambda: chat.send(words, timeout=0.002, **form))

    async def _trying(self, what: Callable[[], Awaitable[object]]) -> None:
        try:
            await what()
        except AnaphoraError:
            self.failed += 1

    async def _cancelled(self, what: Any) -> None:
        """Begun, and given up a moment later, wherever it is by then."""
        task = asyncio.ensure_future(what)
        await asyncio.sleep(self._chance.uniform(0, 0.01))
        task.cancel()
        self.cancelled += 1
        with contextlib.suppress(asyncio.CancelledError, AnaphoraError):
            await task

    # ── Content ─────────────────────────────────────────────────────────────────────────────

    def _session(self, place: str, **options: Any) -> Any:
        """One that goes on with saved messages. Some have a system prompt of their own, or a
        moving state; some let the provider keep the answers."""
        system: Any = GUIDE
        drawn = self._chance.random()
        if drawn < 0.15:
            system = f"The customer: {self._words()} {GUIDE}"
        elif drawn < 0.3:
            system = [
                PromptBlock.cached_long("guide", GUIDE),
                PromptBlock.cached_long("customer", f"The customer: {self._words()}"),
            ]
        return self._client.session(
            place,
            system=system,
            messages=self._saved(self._chance.randint(6, 18)),
            state=self._words if self._chance.random() < 0.2 else None,
            store=True if place == "responses" and self._chance.random() < 0.3 else None,
            max_tokens=200,
            **options,
        )

    def _saved(self, pairs: int) -> list[Message]:
        messages: list[Message] = []
        for _ in range(pairs):
            messages += [Message.user(self._words(8)), Message.assistant(self._words(8))]
        return messages

    def _words(self, most: int = 100) -> str:
        self._sent += 1
        words = self._chance.choices(_WORDS, k=self._chance.randint(2, most))
        return f"{self._number}.{self._sent}: {' '.join(words)}"


async def _whole(turn: Any) -> None:
    await turn


async def _through(turn: Any) -> None:
    async for _ in turn:
        pass


async def _left(turn: Any, after: int) -> None:
    """A stream that is not read to its end."""
    async for _ in turn:
        after -= 1
        if not after:
            break
