"""Stops cold requests of a program before they are sent: `anaphora watch --cold`.

    judge = Judge()
    guard = ColdCheck(judge, "refuse", above_usd=Decimal("0.50"))
    with running(routes, observers=[judge, guard]) as proxy: ...

A refusal is an error in the format of the program's wire, so that a person sees it in the program
itself; the same request passes if it is sent again within some minutes. If the terminal is free, a
person is asked there instead.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Literal, TypeAlias

from anaphora.cache.cold import ALTERNATIVES, COLD_ABOVE_USD, ColdPrefix, refusal
from anaphora.errors import ColdCallRefused, Denied
from anaphora.traffic.calls import RelayedCall, UpstreamRequest
from anaphora.traffic.cold_calls import ColdCalls
from anaphora.traffic.judging import Judge

ColdMode: TypeAlias = Literal["ask", "refuse", "warn"]
Question: TypeAlias = Callable[[str, threading.Event], bool | None]
"""Whether the answer to a question is yes; None if there is none. Ends when the event is set."""
_FIRST_ERROR = 400


class ColdCheck:
    """An observer that also checks requests. It must come after the judge, which reads the bills:
    `observers=[judge, ColdCheck(judge, "refuse")]`."""

    def __init__(
        self,
        judge: Judge,
        mode: ColdMode,
        *,
        above_usd: Decimal = COLD_ABOVE_USD,
        ask: Question | None = None,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`ask` is called in a thread, one question at a time; without it, `ask` refuses. `report`
        gets the text of each warning."""
        self._judge = judge
        self._mode = mode
        self._ask = ask
        self._report = report
        self._calls = ColdCalls(above_usd)
        self._reading = ThreadPoolExecutor(1, "anaphora-cold")
        self._asking = asyncio.Lock()

    async def check(self, request: UpstreamRequest) -> Denied | None:
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._reading, self._calls.find, request)
        if found is None or found.cold is None:
            return None
        if self._mode == "warn":
            self._report(f"{found.model}: {_cost(found.cold)}")
            self._calls.allow(found)
            return None
        answer = None
        if self._mode == "ask" and self._ask is not None:
            async with self._asking:
                if not self._calls.passes(found):  # since an earlier question
                    answer = await self._answer(self._ask, found.model, found.cold)
        if answer or (answer is None and self._calls.passes(found)):
            self._calls.let_pass(found)
            self._calls.allow(found)
            return None
        text = refusal(found.cold)
        if answer is None:  # requests that are waiting beside it are no answer to the refusal
            self._calls.let_pass(found, since=time.time())
        else:
            text = f"cold cache: {found.cold}. This call was not sent: the answer was no."
        return ColdCallRefused(text, cold=found.cold)

    async def _answer(self, ask: Question, model: str, cold: ColdPrefix) -> bool | None:
        ended = threading.Event()
        text = f"{model}: {_cost(cold)}. Instead, {ALTERNATIVES}."
        try:
            return await asyncio.to_thread(ask, text, ended)
        finally:
            ended.set()  # the program no longer waits, if the question is still open

    def call_ended(self, call: RelayedCall) -> None:
        """Remembers the bill of a call, and when its cache was used."""
        sent = self._judge.last_sent
        answered = call.outcome in ("complete", "cancelled") and call.status < _FIRST_ERROR
        self._calls.ended(call.number, sent, answered=answered)


def _cost(cold: ColdPrefix) -> str:
    return f"{cold}: it costs {cold.cost_text} more than from the cache"
