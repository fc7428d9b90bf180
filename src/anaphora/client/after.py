"""Reports failures of steps that follow a complete response (`InFlight.guarded`).

The provider has been paid by then, so nothing may lose the response: a failure becomes a notice on
it and an error in the log (`anaphora`). Exceptions that are no `Exception` (Ctrl-C, a cancelled
task) still pass through.

| code                  | what failed |
|-----------------------|-------------|
| `price_failed`        | looking up the price; the cost is unknown |
| `verdict_failed`      | comparing the bill with the prediction; there is no verdict |
| `planner_failed`      | noting a single call for the cache planner |
| `record_failed`       | building the record; it holds the essentials only |
| `conversation_failed` | adding the reply to the conversation |
| `save_failed`         | the app's `save`; the messages are handed over again at the next one |
| `observer_failed`     | a watcher |
| `limits_failed`       | updating rate limits and the breaker |
| `routing_failed`      | noting where the conversation is |
| `connection_failed`   | closing the connection |
"""

from __future__ import annotations

import logging
import traceback
from types import TracebackType

from anaphora.errors import AnaphoraError
from anaphora.values import Notice

_log = logging.getLogger("anaphora")

#: Exceptions whose message quotes nothing: ours, the system's (with a number), the importer's.
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


def reported(code: str, problem: Exception) -> Notice:
    """The notice of a failure, which is also logged."""
    notice = failure_notice(code, problem)
    log(logging.ERROR, notice.message, problem)
    return notice


def failure_notice(code: str, problem: Exception) -> Notice:
    return Notice(code, f"{_STEPS[code]} failed after the answer arrived: {described(problem)}")


def log(level: int, message: str, problem: Exception) -> None:
    """Logs the traceback without the exception's message, which may quote a prompt."""
    lines = "".join(traceback.format_tb(problem.__traceback__))
    try:
        _log.log(level, "%s\n%s", message, lines)
    except Exception:  # from a handler or filter of the app
        pass


def described(problem: BaseException) -> str:
    """The class and the line; the message only where it cannot quote a prompt or a reply."""
    where = f"{type(problem).__name__} at {line_of(problem.__traceback__)}"
    if not isinstance(problem, _PLAIN):
        return where
    if isinstance(problem, OSError) and problem.errno is None:
        return where  # raised by a program with its own text
    try:
        return f"{where}: {problem}".removesuffix(": ")
    except Exception:  # from the exception's `__str__`
        return where


def line_of(trace: TracebackType | None) -> str:
    if trace is None:
        return "an unknown line"
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
