"""An emulator that also takes WebSockets at OpenAI's Responses."""

import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

from anaphora.emulator import Emulator, EmulatorOptions
from anaphora.emulator.engine import Engine
from anaphora.emulator.exchange import EmulatorRequest
from anaphora.emulator.server import EmulatorHandler
from anaphora.serving.app import HostGuard, ServedApp
from anaphora.serving.server import running
from anaphora.serving.websocket import ServedWebSocket


@contextlib.contextmanager
def websocket_emulator(options: EmulatorOptions | None = None) -> Iterator[Emulator]:
    engine = Engine(options)

    async def serve(socket: ServedWebSocket) -> None:
        await socket.accept()
        ahead: dict[str, list[Any]] = {}
        while (message := await socket.receive()) is not None:
            for event in _answers(engine, dict(socket.headers), message, ahead):
                await socket.send(json.dumps(event))

    app = ServedApp(EmulatorHandler(engine), HostGuard("127.0.0.1"), websocket=serve)
    with running(app, host="127.0.0.1", port=0, extra="emulator", name="emulator") as address:
        yield Emulator(engine, address)


def _answers(engine: Engine, headers: Any, message: Any, ahead: Any) -> Iterator[Any]:
    """`ahead`: items of requests that generate nothing, by the ids that continue them."""
    try:
        body = json.loads(message)
    except ValueError:
        body = {"type": "not a JSON object"}
    kind, stream = body.pop("type"), {k: body.pop(k) for k in ("stream_id",) if k in body}
    if kind != "response.create":
        yield {"type": "error", "error": {"message": f"expected a response.create, got {kind}"}}
        return
    given, previous = body.get("input"), body.get("previous_response_id")
    if previous in ahead:
        del body["previous_response_id"]
        body["input"] = [*ahead[previous], *given] if isinstance(given, list) else given
    if body.pop("generate", True) is False:
        response: Any = {"id": f"resp_ahead{len(ahead)}", "output": [], "usage": None}
        ahead[response["id"]] = given
        yield {"type": "response.completed", "response": response, **stream}
        return
    sent = json.dumps({**body, "store": True, "stream": True}).encode()  # later ones continue it
    fields: Any = {"method": "POST", "path": "/v1/responses", "now": time.time()}
    answer = engine.respond(EmulatorRequest(**fields, headers=headers, body=sent))
    if answer.status != 200:
        yield {"type": "error", "status": answer.status, **json.loads(answer.body), **stream}
    for line in answer.body.splitlines():
        if line.startswith(b"data: {"):
            yield {**json.loads(line.removeprefix(b"data: ")), **stream}
