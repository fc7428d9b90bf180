"""An ASGI backend with a session for each request, so that any of its processes can answer.

    python examples/web_backend.py
    curl --no-buffer -d 'Hello?' http://127.0.0.1:8000/chat/ada

The app keeps the histories (`Messages`, a dict that stands for a database). The client stores its
state of a conversation under the conversation's id: here in the process, with several processes in
Redis (`conversations=redis.asyncio.from_url(…)`).

It runs against the emulator, so it needs no key and no network. To use a provider, pass the path of
an llm.yaml to `create_app`.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from anaphora import AsyncClient, Message, emulator, from_json, to_json
from anaphora.errors import AnaphoraError

INSTRUCTIONS = "You are the assistant of a bookshop. You answer in one sentence. " * 60


class Messages:
    """The messages of all users as JSON, and what their last call cost and read."""

    def __init__(self) -> None:
        self._rows: defaultdict[str, list[bytes]] = defaultdict(list)
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.costs: dict[str, dict[str, str]] = {}

    def load(self, user: str) -> list[Message]:
        return [from_json(row, Message) for row in self._rows[user]]

    def save(self, user: str, message: Message) -> None:
        self._rows[user].append(to_json(message))

    def lock(self, user: str) -> asyncio.Lock:
        """One answer at a time for each user; a double click waits."""
        return self._locks[user]


async def chat(request: Request) -> StreamingResponse:
    """Stream the answer to the message in the request's body."""
    client: AsyncClient = request.app.state.client
    messages: Messages = request.app.state.messages
    user = request.path_params["user"]
    content = (await request.body()).decode()

    async def answer() -> AsyncIterator[str]:
        async with messages.lock(user):
            session = client.session(
                "claude",
                id=f"bookshop-{user}",
                system=INSTRUCTIONS,
                messages=messages.load(user),
                save=lambda message: messages.save(user, message),
            )
            try:
                # When the browser disconnects, leaving the block closes the provider's connection.
                async with session.send(content).text as pieces:
                    async for piece in pieces:
                        yield piece
            except AnaphoraError as problem:
                yield f"\n[error: {problem}]"
            if session.last is not None:
                verdict = str(session.last.verdict)
                messages.costs[user] = {"cost_usd": str(session.cost_usd), "verdict": verdict}

    return StreamingResponse(answer(), media_type="text/plain; charset=utf-8")


async def costs(request: Request) -> JSONResponse:
    """What each user's conversation cost, and how its last call used the cache."""
    return JSONResponse(request.app.state.messages.costs)


def create_app(
    config: Any, environ: dict[str, str] | None = None, conversations: Any = None
) -> Starlette:
    """The application; it opens one client when it starts and closes it when it stops."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with AsyncClient.from_config(
            config, environ=environ, conversations=conversations
        ) as client:
            app.state.client, app.state.messages = client, Messages()
            yield

    routes = [Route("/chat/{user}", chat, methods=["POST"]), Route("/costs", costs)]
    return Starlette(routes=routes, lifespan=lifespan)


def emulated_config(url: str) -> dict[str, Any]:
    claude = {"wire": "anthropic", "model": "claude-sonnet-5-5", "key": {"env": "KEY"}}
    return {"providers": {"claude": claude | {"base_url": url}}}


def main() -> None:
    from granian.constants import Interfaces
    from granian.server.embed import Server

    with emulator.running() as emu:
        app = create_app(emulated_config(emu.url), environ={"KEY": "any"})
        asyncio.run(Server(app, interface=Interfaces.ASGI, port=8000).serve())


if __name__ == "__main__":
    main()
