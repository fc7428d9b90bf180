"""Stops cold requests of a program before they are sent: `anaphora watch --cold`.

    judge = Judge()
    guard = ColdCheck(judge, "refuse", above_usd=Decimal("0.50"))
    with running(routes, observers=[judge, guard]) as proxy: ...

A refusal is an error in the format of the program's wire, so that a person sees it in the program
itself; the same request passes if it is sent again within some minutes. If the terminal is free, a
person is asked there instead. Requests are assigned to conversations by their prefixes, as for
verdicts. One that cannot be read, or whose price is not known, is not cold.

The terminal is only used if it is free: this process is in the foreground, and the terminal is in
its normal mode. A program that draws on it or edits a line has switched that off; then there is no
answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from anaphora.cache import PrefixIndex
from anaphora.cache.cold import (
    ALLOWED,
    ALTERNATIVES,
    COLD_ABOVE_USD,
    COLD_HEADER,
    ColdPasses,
    ColdPrefix,
    refusal,
)
from anaphora.cache.compared_prompt import CallHints
from anaphora.cache.sent_call import SentCall
from anaphora.catalog.pricing import PriceBook
from anaphora.client.transport.decoding import InvalidCompression, UnknownCompression
from anaphora.errors import AnaphoraError, ColdCallRefused, Denied
from anaphora.traffic.accounts import Accounts, credentials
from anaphora.traffic.calls import RelayedCall, UpstreamRequest, header_of
from anaphora.traffic.judging import Judge
from anaphora.traffic.matching import RememberedCall, answered_call
from anaphora.traffic.sent_requests import unsent_request
from anaphora.wire.known_requests import MOST_BYTES, KnownRequests
from anaphora.wording import visible

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


#: Remembered calls, and bytes of their prompts.
_MOST_CALLS, _MOST_BYTES = 4096, 32 * 1024 * 1024


class ColdRequest(msgspec.Struct, frozen=True, eq=False):
    """A request that costs more than the limit because its beginning is not cached."""

    number: int
    model: str
    call: RememberedCall
    hints: CallHints
    cold: ColdPrefix | None
    scope: Hashable


class ColdCalls:
    """The recent requests of all programs. Bounded."""

    def __init__(self, above_usd: Decimal) -> None:
        self._above = above_usd
        self._lock = threading.RLock()
        self._index: PrefixIndex[RememberedCall] = PrefixIndex(
            _MOST_CALLS, _MOST_BYTES, drop_text=RememberedCall.drop_text
        )
        self._requests = KnownRequests(MOST_BYTES)
        self._passes = ColdPasses()
        self._accounts = Accounts()
        self._prices: PriceBook | None = None
        self._open: dict[int, RememberedCall] = {}
        """The calls that have not ended, by number."""

    def find(self, request: UpstreamRequest) -> ColdRequest | None:
        """The request, if it is cold and may not pass. Any other is remembered as sent."""
        with self._lock:
            return self._find(request)

    def _find(self, request: UpstreamRequest) -> ColdRequest | None:
        try:
            unsent = unsent_request(request, self._requests)
        except (AnaphoraError, InvalidCompression, UnknownCompression, ValueError):
            return None
        if unsent is None or not unsent[0].sent.complete:
            return None
        read = unsent[0]
        found = credentials(request.headers, request.query)
        account = self._accounts.digest(request.route, found)
        scope = account, read.provider, read.wire, read.model
        rendered, at = read.sent.rendered, request.started
        earlier = self._index.find(rendered, scope=scope, hints=read.hints)
        call = RememberedCall(sent=read.sent, conversation="", rules=read.rules)
        call.follow(earlier)
        call.earlier = answered_call(earlier)
        call.uses = self._index.last_uses(rendered, scope=scope, hints=read.hints)
        if self._prices is None:
            self._prices = PriceBook(at)
        price = self._prices.price(read.provider, read.model, at, read.wire, read.service_tier)
        cold = call.cold(read.rules, price=price, profile=read.profile)
        result = ColdRequest(request.number, read.model, call, read.hints, cold, scope)
        if cold is not None and cold.costs_more_than(self._above):
            allowed = header_of(request.headers, COLD_HEADER).strip().lower() == ALLOWED
            if not allowed and not self.passes(result):
                return result
        self.allow(result)
        return None

    def passes(self, found: ColdRequest) -> bool:
        """Whether it was refused a short time ago, or allowed."""
        with self._lock:
            sent = found.call.sent
            return self._passes.allows(found.scope, sent.rendered, sent.at or 0.0)

    def let_pass(self, found: ColdRequest, since: float = 0.0) -> None:
        """The same request passes for some minutes, if it began after a time."""
        with self._lock:
            sent = found.call.sent
            self._passes.add(self._passes.key(found.scope, sent.rendered), sent.at or 0.0, since)

    def allow(self, found: ColdRequest) -> None:
        """The request is sent: later ones are compared with it."""
        with self._lock:
            call = found.call
            self._index.add(call.sent.rendered, call, scope=found.scope, hints=found.hints)
            self._open[found.number] = call

    def ended(self, number: int, sent: SentCall | None, *, answered: bool) -> None:
        """A call has ended; `sent` has its bill and its times, if these could be read."""
        with self._lock:
            call = self._open.pop(number, None)
            if call is None:
                return
            if not answered:
                call.fail()
                return
            call.earlier = call.before = call.expected = None
            if sent is not None:
                call.sent = replace(
                    call.sent,
                    usage=sent.usage,
                    began=sent.began,
                    ended=sent.ended,
                    reply_lines=sent.reply_lines,
                    host=sent.host,
                )
            call.end()


#: Seconds to wait for an answer, and between two looks at whether the program still waits.
_PATIENCE, _LOOK = 300.0, 0.1
_LONGEST_ANSWER = 1024
_TERMINAL = "/dev/tty"


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
