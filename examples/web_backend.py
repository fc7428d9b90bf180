"""An ASGI backend with one session per user; all users share the cached beginning of the prompt.

    python examples/web_backend.py
    curl --no-buffer -d 'Hello?' http://127.0.0.1:8000/chat/ada

It runs against the emulator, so it needs no key and no network. To use a provider, pass the path of
an llm.yaml to `create_app`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from anaphora import AsyncClient, Session, emulator
from anaphora.errors import AnaphoraError

INSTRUCTIONS = "You are the assistant of a bookshop. You answer in one sentence. " * 60


class Users:
    """A session and a lock for each user: a session takes one turn at a time."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._sessions: dict[str, tuple[Session, asyncio.Lock]] = {}

    def session(self, user: str) -> tuple[Session, asyncio.Lock]:
        if user not in self._sessions:
            session = self._client.session("claude", system=INSTRUCTIONS)
            self._sessions[user] = session, asyncio.Lock()
        return self._sessions[user]

    def costs(self) -> dict[str, dict[str, str]]:
        return {
            user: {"cost_usd": str(session.cost_usd), "verdict": str(session.last.verdict)}
            for user, (session, _) in self._sessions.items()
            if session.last is not None
        }


async def chat(request: Request) -> StreamingResponse:
    """Stream the answer to the message in the request's body."""
    session, lock = request.app.state.users.session(request.path_params["user"])
    message = (await request.body()).decode()

    async def answer() -> AsyncIterator[str]:
        try:
            # When the browser disconnects, leaving the block closes the provider's connection.
            async with lock, session.send(message).text as pieces:
                async for piece in pieces:
                    yield piece
        except AnaphoraError as problem:
            yield f"\n[error: {problem}]"

    return StreamingResponse(answer(), media_type="text/plain; charset=utf-8")


async def costs(request: Request) -> JSONResponse:
    """What each user's conversation cost, and how its last call used the cache."""
    return JSONResponse(request.app.state.users.costs())


def create_app(config: Any, environ: dict[str, str] | None = None) -> Starlette:
    """The application; it opens one client when it starts and closes it when it stops."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with AsyncClient.from_config(config, environ=environ) as client:
            app.state.users = Users(client)
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
