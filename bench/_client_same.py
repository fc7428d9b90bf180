"""Whether what everybody is given to send is what ours sends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

from _client_answers import ANSWERS
from _client_bodies import body
from _client_growth import Memory
from _client_ours import OneShot
from _client_workload import PATHS


class Kept(Memory):
    """A transport that keeps what was sent."""

    sent = b""

    async def send(self, outgoing: Any) -> Kept:
        self.sent = bytes(outgoing.body)
        return self


async def _sent(wire: str) -> Any:
    kept = Kept(ANSWERS[PATHS[wire]])
    ours = OneShot(wire, "http://127.0.0.1:1", transport=kept)
    call = await ours.ready()
    for _ in range(2):  # from the second on the call is known to be repeated, and is marked
        await call()
    await ours.close()
    return json.loads(kept.sent)


def same_documents(wires: Iterable[str]) -> None:
    """Ends the benchmark when the documents are not the same, members in another order included."""
    for wire in wires:
        ours, theirs = asyncio.run(_sent(wire)), body(wire)
        if json.dumps(ours) != json.dumps(theirs):
            raise SystemExit(f"{wire}: _client_bodies.py differs from what ours sends")
