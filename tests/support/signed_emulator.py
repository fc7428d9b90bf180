"""An emulator that verifies AWS's signatures."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from anaphora.emulator import Emulator, EmulatorOptions
from anaphora.emulator.engine import Engine
from anaphora.emulator.server import EmulatorHandler
from anaphora.errors import Unauthenticated
from anaphora.serving.app import HostGuard, ServedApp
from anaphora.serving.exchange import HttpExchange
from anaphora.serving.server import running

from .aws_signatures import signature_problem


@contextlib.contextmanager
def signed_emulator(options: EmulatorOptions, access: str, secret: str) -> Iterator[Emulator]:
    """Requests that are signed need the signature of this key pair; bearer keys may be any."""
    engine = Engine(options)
    app = _BufferedApp(_SignedHandler(engine, {access: secret}), HostGuard("127.0.0.1"))
    with running(app, host="127.0.0.1", port=0, extra="emulator", name="emulator") as address:
        yield Emulator(engine, address)


class _BufferedApp(ServedApp):
    """Reads each body before the handler does."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        messages = [await receive()]
        while messages[-1].get("more_body"):
            messages.append(await receive())
        scope["body"] = b"".join(message.get("body", b"") for message in messages)

        async def again() -> Any:
            return messages.pop(0) if messages else await receive()

        await super().__call__(scope, again, send)


class _SignedHandler(EmulatorHandler):
    def __init__(self, engine: Engine, secrets: dict[str, str]) -> None:
        super().__init__(engine)
        self._secrets = secrets

    async def handle(self, exchange: HttpExchange) -> None:
        given = exchange.headers.get("authorization", "")
        if given.startswith("AWS4-"):
            target = (exchange.scope["raw_path"] + b"?" + exchange.query_string).decode()
            body, now = exchange.scope["body"], time.time()
            found = signature_problem(
                exchange.method, target, exchange.headers, body, self._secrets, now
            )
            if found is not None:
                raise Unauthenticated(found.message, status=403, code=found.code)
        await super().handle(exchange)
