"""The emulator in a process of its own, for a client that makes calls as fast as it can.

    python soak/_unlimited.py emulator PORT

An account's limits are not headers: the client would keep to them, and wait for most of the time. Now
and then something goes wrong, in every way that does not take long.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "bench"))

from _served import serve

from anaphora.emulator import EmulatorOptions, Latency
from anaphora.emulator.engine import Engine
from anaphora.emulator.faults import Faults
from anaphora.emulator.server import application
from anaphora.serving.exchange import ConnectionEnded

#: Faults, and the share of requests that each befalls.
FAULTS = {
    "529": 0.015,
    "reset": 0.004,
    "cut": 0.01,
    "stream-error": 0.004,
    "broken-json": 0.002,
    "ok-error": 0.002,
    "spend-cap": 0.002,
}

_LIMITS = (b"anthropic-ratelimit-", b"x-ratelimit-")


def options() -> EmulatorOptions:
    rows = "".join(f'  - {{fault: "{name}", rate: {rate}}}\n' for name, rate in FAULTS.items())
    faults = Faults.decode("faults:\n" + rows, "faults.yaml")
    return EmulatorOptions(faults=faults, latency=Latency(first=0.0))


class Unlimited:
    """The emulator's application, silent about limits."""

    def __init__(self) -> None:
        self._app = application(Engine(options()))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def send_unlimited(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = [pair for pair in message["headers"] if not pair[0].startswith(_LIMITS)]
                message = {**message, "headers": headers}
            await send(message)

        try:
            await self._app(scope, receive, send_unlimited)
        except ConnectionEnded:
            raise ConnectionError("cut on purpose") from None


if __name__ == "__main__":
    serve(Unlimited(), int(sys.argv[2]))
