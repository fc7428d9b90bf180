"""Checks of a program's requests before they are sent: `anaphora watch --cold` and `--max-usd`.

    judge = Judge()
    guard = ColdCheck(judge, "refuse", above_usd=Decimal("0.50"))
    limit = SpendCheck(judge, ProgramLimit(Decimal("0.50")))
    with running(routes, observers=[judge, guard, limit]) as proxy: ...

A refusal is an error in the format of the program's wire, so that a person sees it in the program
itself: 402 at the limit, which no SDK repeats. A cold request passes if it is sent again within
some minutes. If the terminal is free, a person is asked there instead: this process is in the
foreground, and the terminal is in its normal mode. A program that draws on it or edits a line has
switched that off; then there is no answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import sys
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
from anaphora.traffic.spend_limit import ProgramLimit
from anaphora.wording import visible

ColdMode: TypeAlias = Literal["ask", "refuse", "warn"]
Question: TypeAlias = Callable[[str, threading.Event], bool | None]
"""Whether the answer to a question is yes; None if there is none. Ends when the event is set."""
_FIRST_ERROR = 400
#: Seconds between two looks at the calls in flight, and until a call that waits for them is
#: refused: they might wait for it.
_SPEND_LOOK, _SPEND_PATIENCE = 0.01, 600.0
#: Seconds to wait for an answer, and between two looks at whether the program still waits.
_PATIENCE, _LOOK = 300.0, 0.1
_LONGEST_ANSWER = 1024
_TERMINAL = "/dev/tty"


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
        until = time.monotonic() + _SPEND_PATIENCE
        while call is not None:
            with self._lock:
                refused = self.limit.admit(call)
                if not call.waits:
                    return refused
                if time.monotonic() > until:
                    return self.limit.refuse("the calls in flight may use what is left")
            await asyncio.sleep(_SPEND_LOOK)
        return None

    def call_ended(self, call: RelayedCall) -> None:
        with self._lock:
            self.limit.ended(call, self._judge.last)


# ── Asking on the terminal ───────────────────────────────────────────────────────────────────────


def has_terminal() -> bool:
    """Whether there is a terminal to ask on."""
    if sys.platform == "win32":
        return False
    with contextlib.suppress(OSError):
        os.close(os.open(_TERMINAL, os.O_RDWR | os.O_NOCTTY))
        return True
    return False


def ask_on_terminal(text: str, ended: threading.Event) -> bool | None:
    """Whether the answer is yes; None if there is none. Ends when `ended` is set."""
    if sys.platform == "win32":
        return None
    import termios

    try:
        terminal = os.open(_TERMINAL, os.O_RDWR | os.O_NOCTTY)
    except OSError:
        return None
    try:
        if not _is_free(terminal):
            return None
        termios.tcflush(terminal, termios.TCIFLUSH)  # what was typed before is no answer
        _write(terminal, f"\nanaphora: {visible(text)}\nanaphora: send it? [y/N] ")
        answer = _read_line(terminal, ended)
        if answer is None:
            _write(terminal, "\nanaphora: no answer; not sent\n")
            return None
        return answer.strip().lower() in ("y", "yes")
    except (OSError, termios.error):
        return None  # the terminal is gone
    finally:
        os.close(terminal)


def _write(terminal: int, text: str) -> None:
    os.write(terminal, text.encode(errors="replace"))


def _read_line(terminal: int, ended: threading.Event) -> str | None:
    until, line = time.monotonic() + _PATIENCE, b""
    while time.monotonic() < until and not ended.is_set() and _is_free(terminal):
        if select.select([terminal], [], [], _LOOK)[0]:
            data = os.read(terminal, _LONGEST_ANSWER)
            line += data
            if not data or b"\n" in data:
                return line.decode(errors="replace")
    return None


def _is_free(terminal: int) -> bool:
    if sys.platform == "win32":
        return False
    import termios

    lines = termios.tcgetattr(terminal)[3] & termios.ICANON
    return bool(lines) and os.tcgetpgrp(terminal) == os.getpgrp()
