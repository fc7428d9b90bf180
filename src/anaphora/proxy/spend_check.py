"""Stops a program's calls at a limit in dollars: `anaphora watch --max-usd`.

    judge, limit = Judge(), ProgramLimit(Decimal("0.50"))
    with running(routes, observers=[judge, SpendCheck(judge, limit)]) as proxy: ...

A refusal is an error 402 in the format of the program's wire, which no SDK repeats.
"""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from anaphora.errors import Denied
from anaphora.traffic.calls import RelayedCall, UpstreamRequest
from anaphora.traffic.judging import Judge
from anaphora.traffic.spend_limit import ProgramLimit

#: Seconds between two looks at the calls in flight, and until a call that waits for them is
#: refused: they might wait for it.
_LOOK, _PATIENCE = 0.01, 600.0


class SpendCheck:
    """An observer that also checks requests. It must come after the judge, which reads the
    bills."""

    def __init__(self, judge: Judge, limit: ProgramLimit) -> None:
        self._judge = judge
        self.limit = limit
        self._lock = threading.Lock()
        self._reading = ThreadPoolExecutor(1, "anaphora-limit")

    async def check(self, request: UpstreamRequest) -> Denied | None:
        loop = asyncio.get_running_loop()
        call = await loop.run_in_executor(self._reading, self.limit.read, request)
        until = time.monotonic() + _PATIENCE
        while call is not None:
            with self._lock:
                refused = self.limit.admit(call)
                if not call.waits:
                    return refused
                if time.monotonic() > until:
                    return self.limit.refuse("the calls in flight may use what is left")
            await asyncio.sleep(_LOOK)
        return None

    def call_ended(self, call: RelayedCall) -> None:
        with self._lock:
            self.limit.ended(call, self._judge.last)
