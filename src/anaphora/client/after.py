"""Steps that follow a complete answer: a failure of one is reported beside the answer.

The provider has been paid by then, so nothing may lose the answer: what goes wrong becomes a notice
on the response and an error in the log (`anaphora`). Exceptions that are no `Exception` (Ctrl-C, a
cancelled task) still pass through.

| code                  | what failed |
|-----------------------|-------------|
| `price_failed`        | looking up the price; dollars are unknown |
| `verdict_failed`      | comparing the bill with the prediction; there is no verdict |
| `planner_failed`      | noting a single call for the cache planner |
| `record_failed`       | building the record; it holds the essentials only |
| `conversation_failed` | adding the answer to the conversation |
| `save_failed`         | the app's `save`; the messages are handed over again at the next one |
| `observer_failed`     | a watcher |
| `limits_failed`       | updating rate limits and the breaker |
| `routing_failed`      | noting where the conversation is |
| `connection_failed`   | closing the connection |
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import ParamSpec, TypeVar

import msgspec

from anaphora.errors import AnaphoraError
from anaphora.values import Notice

from .response import Response

P = ParamSpec("P")
T = TypeVar("T")
D = TypeVar("D")

_log = logging.getLogger("anaphora")

#: Exceptions whose message is no quotation: ours, the system's (with a number), the importer's.
_PLAIN = (AnaphoraError, OSError, ImportError)

_STEPS = {
    "price_failed": "looking up the price",
    "verdict_failed": "the verdict on the cache",
    "planner_failed": "noting the call for the planner",
    "record_failed": "building the record",
    "conversation_failed": "adding the answer to the conversation",
    "save_failed": "`save`",
    "observer_failed": "a watcher",
    "limits_failed": "updating the rate limits",
    "routing_failed": "noting where the conversation is",
    "connection_failed": "closing the connection",
}


class AfterAnswer:
    """Of one call: runs its last steps, and keeps what went wrong with them."""

    __slots__ = ("_notices",)

    def __init__(self) -> None:
        self._notices: list[Notice] = []

    def run(
        self, code: str, default: D, step: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T | D:
        """The step's result, or `default` where it failed."""
        try:
            return step(*args, **kwargs)
        except Exception as problem:
            self.failed(code, problem)
            return default

    def failed(self, code: str, problem: Exception) -> None:
        self._notices.append(reported(code, problem))

    def add(self, *notices: Notice) -> None:
        self._notices += notices

    def take(self) -> tuple[Notice, ...]:
        """What was reported since it was last asked for."""
        taken = tuple(self._notices)
        self._notices.clear()
        return taken


def with_notices(answered: Response, notices: tuple[Notice, ...]) -> Response:
    if not notices:
        return answered
    replace = msgspec.structs.replace
    record = replace(answered.record, notices=(*answered.record.notices, *notices))
    return replace(answered, record=record)


def reported(code: str, problem: Exception) -> Notice:
    """The notice of a failure, which is also logged."""
    notice = failure_notice(code, problem)
    log(logging.ERROR, notice.message, problem)
    return notice


def failure_notice(code: str, problem: Exception) -> Notice:
    return Notice(code, f"{_STEPS[code]} failed after the answer arrived: {described(problem)}")


def log(level: int, message: str, problem: Exception) -> None:
    """With the lines that led to the exception, but without its message, which may quote."""
    lines = "".join(traceback.format_tb(problem.__traceback__))
    try:
        _log.log(level, "%s\n%s", message, lines)
    except Exception:  # a handler or filter of the app's; the notice is there
        pass


def described(problem: BaseException) -> str:
    """The class and the line; the message only where it cannot quote a prompt or an answer."""
    where = f"{type(problem).__name__} at {line_of(problem.__traceback__)}"
    if not isinstance(problem, _PLAIN):
        return where
    if isinstance(problem, OSError) and problem.errno is None:
        return where  # raised by a program with a text of its own
    try:
        return f"{where}: {problem}".removesuffix(": ")
    except Exception:  # its own `__str__`
        return where


def line_of(trace: TracebackType | None) -> str:
    if trace is None:
        return "an unknown line"
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
