"""A daemon whose grants have `keep_warm`, an emulator as its provider, and a clock of the test's.

conversation = Conversation(WarmDaemon(daemon, provider, shift))
conversation.converse(7, 7)     three calls with pauses of seven minutes
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from anaphora.audit import AuditEnvelope, rows
from anaphora.emulator.exchange import EmulatorRequest, EmulatorResponse, ResponseChunk
from anaphora.emulator.server import Emulator

from .daemon import GRANT, TestedDaemon
from .waiting import PATIENCE

MINUTE = 60.0
CANARY = "CANARY-of-the-prompt"
SYSTEM = f"You are terse and to the point. {CANARY} " * 450
PARAGRAPH = "A line of a file that the user sent. " * 200
MARK = {"type": "ephemeral"}


def grant(keep_warm: Any = True, **llm: Any) -> dict[str, Any]:
    return {**GRANT, "llm": {**GRANT["llm"], "keep_warm": keep_warm, **llm}}


class Provider:
    """The emulator, which notes what it gets, and on demand refuses refreshes, or reports tokens
    that cannot be true."""

    def __init__(self, emulator: Emulator) -> None:
        self.requests: list[EmulatorRequest] = []
        self.refuses = self.hangs = self.overstates = False
        self._answer = emulator.engine.receive

    def receive(self, request: EmulatorRequest) -> EmulatorResponse:
        self.requests.append(request)
        if self.refuses and is_refresh(json.loads(request.body)):
            text = {"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}
            chunk = ResponseChunk(0.0, json.dumps(text).encode())
            headers = {"content-type": "application/json"}
            return EmulatorResponse(status=400, headers=headers, chunks=[chunk])
        if self.hangs:
            return EmulatorResponse(hang=True)
        response = self._answer(request)
        if self.overstates and is_refresh(json.loads(request.body)):
            body = json.loads(b"".join(chunk.data for chunk in response.chunks))
            body["usage"]["cache_read_input_tokens"] = 2**31
            response.chunks = [ResponseChunk(0.0, json.dumps(body).encode())]
            response.headers.pop("content-length", None)
        return response


class WarmDaemon:
    """A daemon and an emulator whose clock is advanced by the test."""

    def __init__(self, daemon: TestedDaemon, provider: Provider, shift: list[float]) -> None:
        self.daemon = daemon
        self.provider = provider
        self._shift = shift

    def jump(self, seconds: float) -> None:
        self._shift[0] += seconds

    def wait(self, seconds: float) -> None:
        """Passes time in steps that are shorter than the margin of a refresh."""
        service, directory = (
            self.daemon.daemon.services.calls,
            self.daemon.daemon.services.directory,
        )

        async def look() -> None:
            service.refresh_prefixes(directory.is_valid)
            refresher = service.tools.refresher
            while refresher is not None and refresher.running:  # noqa: ASYNC110
                await asyncio.sleep(0.001)

        while seconds > 0:
            step = min(10.0, seconds)
            self._shift[0] += step
            seconds -= step
            asyncio.run_coroutine_threadsafe(look(), self.daemon.daemon._loop).result(PATIENCE)

    def sent(self) -> list[dict[str, Any]]:
        """What reached the provider."""
        return [json.loads(request.body) for request in self.provider.requests]

    def reload(self) -> None:
        """Uses changed files."""

        async def reload() -> None:
            self.daemon.daemon.reload()

        asyncio.run_coroutine_threadsafe(reload(), self.daemon.daemon._loop).result(PATIENCE)

    def refreshes(self) -> list[dict[str, Any]]:
        return [body for body in self.sent() if is_refresh(body)]

    def audited(self) -> list[AuditEnvelope]:
        """After the daemon has ended."""
        path = self.daemon.home / "audit"
        return [row.content for row in rows(path) if isinstance(row.content, AuditEnvelope)]


def is_refresh(body: dict[str, Any]) -> bool:
    options = body.get("prompt_cache_options") or {}
    return bool(body.get("max_tokens") in (0, 1) or options.get("prewarm"))


class Conversation:
    """Of an app that marks its prompts itself, with Anthropic's SDK format."""

    def __init__(self, warm: WarmDaemon, name: str = "", app: str = "demo", **fields: Any) -> None:
        self.warm = warm
        self.name = name
        self.app = app
        self.fields = fields
        self.messages: list[dict[str, Any]] = []
        self.ids: list[str] = []

    def body(self) -> dict[str, Any]:
        text = f"{self.name} {len(self.messages)}: {PARAGRAPH}"
        self.messages.append({"role": "user", "content": [{"type": "text", "text": text}]})
        *before, last = self.messages
        marked = {"role": "user", "content": [{**last["content"][0], "cache_control": MARK}]}
        return {
            "model": "claude-sonnet-4-5",
            "max_tokens": 64,
            "system": [{"type": "text", "text": SYSTEM, "cache_control": MARK}],
            "messages": [*before, marked],
            **self.fields,
        }

    def send(self) -> dict[str, Any]:
        with self.warm.daemon.client(self.app) as client:
            answer = client.post("/v1/messages", json=self.body())
        assert answer.status_code == 200, answer.text
        self.ids.append(answer.headers["anaphora-request-id"])
        self.messages.append({"role": "assistant", "content": "Yes."})
        return dict(answer.json()) if not self.fields.get("stream") else {}

    def converse(self, *minutes: float) -> None:
        self.send()
        for each in minutes:
            self.warm.wait(each * MINUTE)
            self.send()

    def explained(self) -> dict[str, Any]:
        """The last call."""
        call = {
            "jsonrpc": "2.0", "id": 1, "method": "llm.explain",
            "params": {"request_id": self.ids[-1]},
        }  # fmt: skip
        with self.warm.daemon.client(self.app) as client:
            return dict(client.post("/rpc", json=call).json()["result"])
