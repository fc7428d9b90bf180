"""A `CallService` over a real store, connected to the emulator.

async with delegating(emu, tmp_path, models=["claude-*"]) as daemon:
    reply = await daemon.service.complete(daemon.request("anthropic", body))
"""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from anaphora.audit import AuditLog
from anaphora.client.config import ClientConfig
from anaphora.client.config.resolve import resolve
from anaphora.daemon.access.grants import NANO, AppGrant, LlmGrant
from anaphora.daemon.calls.call import AppCall, AppReply, StreamPiece
from anaphora.daemon.calls.delegation import CallService
from anaphora.daemon.calls.translation import parse_request
from anaphora.daemon.money.ledger import Ledger
from anaphora.daemon.store import Spent
from anaphora.daemon.store.sqlite import SqliteStore
from anaphora.daemon.values import App, WireRequest
from anaphora.prompt import Call
from anaphora.wire import bedrock, gemini
from anaphora.wire.known_requests import KnownRequests
from anaphora.wire.reading import decode_members

from .emulated_client import KEY, MODELS, RecordingTransport, Serving, settings
from .waiting import until

PATHS = {
    "anthropic": "/v1/messages",
    "openai_chat": "/v1/chat/completions",
    "openai_responses": "/v1/responses",
}
_NAMED_IN_PATH = {"gemini": gemini.params.path_of, "bedrock": bedrock.params.path_of}
BOTH = frozenset(("llm_complete", "llm_stream"))


def app_of(
    id: str = "notes",
    *,
    providers: Iterable[str] = tuple(MODELS),
    models: Iterable[str] = ("*",),
    capabilities: Iterable[str] = BOTH,
    usd_per_day: float | None = 100.0,
    **grant: Any,
) -> App:
    """An app with a grant; `grant` are fields of `LlmGrant`."""
    limit = None if usd_per_day is None else int(usd_per_day * NANO)
    llm = LlmGrant(
        providers=tuple(providers),
        models=tuple(models),
        nano_usd_per_day=limit,
        **{"max_tokens": 256, **grant},
    )
    return App(
        id=id,
        grant=AppGrant(app=id, capabilities=frozenset(capabilities), llm=llm),
        token_id=f"token of {id}",
    )


class Delegating:
    """A service, and what it did."""

    def __init__(
        self,
        service: CallService,
        store: SqliteStore,
        transport: RecordingTransport,
        audit: AuditLog,
        app: App,
        config: ClientConfig,
    ) -> None:
        self.service = service
        self.config = config
        self.providers = resolve(config, environ={"KEY": KEY})
        self.store = store
        self.transport = transport
        self.audit = audit
        self.app = app
        self._numbers = itertools.count(1)

    def request(
        self, wire: str, body: dict[str, Any] | bytes, *, app: App | None = None, **fields: Any
    ) -> AppCall:
        """A call of a provider-compatible endpoint."""
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        members = decode_members(data)
        stream = bytes(members.get("stream", b"false")) == b"true" or fields.get("stream", False)
        model = fields.pop("model", None)
        if model is None:
            model = msgspec.json.decode(members["model"])
        if wire in _NAMED_IN_PATH:
            path = _NAMED_IN_PATH[wire](model, stream=stream)
        else:
            path = PATHS[wire]
        request = WireRequest(wire=wire, path=path, body=data, members=members)
        call: dict[str, Any] = {
            "app": app or self.app,
            "request_id": f"req-{next(self._numbers)}",
            "method": path,
            "provider": None,
            "model": model,
            "stream": stream,
            "request": request,
        }
        made = AppCall(**{**call, **fields})
        parse_request(made, KnownRequests(0).find(data, wire))
        return made

    def call(self, call: Call, provider: str, *, app: App | None = None, **fields: Any) -> AppCall:
        """A call of JSON-RPC."""
        return AppCall(
            app=app or self.app,
            request_id=f"req-{next(self._numbers)}",
            method="llm.complete",
            provider=provider,
            model=call.model,
            call=call,
            **fields,
        )

    async def stream(self, call: AppCall) -> tuple[list[StreamPiece], AppReply]:
        """All pieces of a stream, and its reply."""
        stream = self.service.stream(call)

        async def read() -> list[StreamPiece]:
            await stream.head()
            return [piece async for piece in stream]

        pieces = await stream.run(read())
        assert stream.reply is not None
        return pieces, stream.reply

    def reload(self, key: str) -> None:
        """Gives all providers another key."""
        self.providers = resolve(self.config, environ={"KEY": key})
        self.service.reload(self.config, self.providers)

    async def spent(self, app: App | None = None) -> Spent:
        """What an app has spent, once everything is settled: that happens behind the answer."""

        async def settled() -> Spent | None:
            spent = await self.store.spent((app or self.app).id, time.time())
            return None if spent.held else spent

        spent: Spent = await until(settled, "nothing is held")
        return spent

    @property
    def sent(self) -> list[dict[str, Any]]:
        """The bodies that the provider got."""
        return [msgspec.json.decode(body) for body in self.transport.bodies]


@asynccontextmanager
async def delegating(
    server: Serving,
    folder: Path,
    names: Iterable[str] = tuple(MODELS),
    *,
    app: App | None = None,
    routes: dict[str, Any] | None = None,
    transport: Any = None,
    **provider: Any,
) -> AsyncIterator[Delegating]:
    """A service with these providers; `provider` adds settings to each of them.
    `transport` sends its requests."""
    providers = settings(server.url, names, **provider)
    if "ollama" in providers:  # without a price, no call is made under a limit
        providers["ollama"]["prices"] = {"*": {"input": 0, "output": 0}}
    config = ClientConfig.from_mapping({"providers": providers, "routes": routes or {}})
    store = SqliteStore.open(folder / "store.sqlite")
    transport = transport or RecordingTransport()
    with AuditLog(folder / "audit") as audit:
        service = CallService(
            config, resolve(config, environ={"KEY": KEY}), Ledger(store), audit, transport=transport
        )
        app = app or app_of(providers=(*names, *(routes or {})))
        service.use_grants([app.grant])
        try:
            yield Delegating(service, store, transport, audit, app, config)
        finally:
            await service.close()
            await transport.close()
            await store.close()
