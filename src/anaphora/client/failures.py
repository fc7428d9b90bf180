"""Failures after a complete response as notices, and how failures are logged.

A complete response is paid for and must not be lost: a failure of a later step (`InFlight.guarded`)
becomes a notice on it and an error in the log (`anaphora`). A `BaseException` (Ctrl-C, a cancelled
task) still passes through.
"""

from __future__ import annotations

import logging
import os
import traceback
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from anaphora.errors import (
    AnaphoraError,
)
from anaphora.values import Notice

_log = logging.getLogger("anaphora")
_LIBRARY = f"{Path(__file__).parents[1]}{os.sep}"

#: Exceptions whose message quotes no text: ours, the system's (with a number), the importer's.
_PLAIN = (AnaphoraError, OSError, ImportError)

#: The codes of these notices, and the step that failed.
STEPS = {
    "price_failed": "looking up the price",
    "verdict_failed": "the verdict on the cache",
    "planner_failed": "noting the call for the planner",
    "record_failed": "building the record",
    "conversation_failed": "adding the answer to the conversation",
    "save_failed": "`save`",
    "observer_failed": "a watcher",
    "audit_failed": "the audit log",
    "limits_failed": "updating the rate limits",
    "routing_failed": "noting where the conversation is",
    "connection_failed": "closing the connection",
    "batch_cancel_failed": "canceling the batch",
    "results_failed": "writing the results",
    "settle_failed": "settling what the call cost",
}


def reported(code: str, problem: Exception) -> Notice:
    """The notice of a failure, which is also logged."""
    notice = failure_notice(code, problem)
    log(logging.ERROR, notice.message, problem)
    return notice


def failure_notice(code: str, problem: Exception) -> Notice:
    return Notice(code, f"{STEPS[code]} failed after the answer arrived: {described(problem)}")


def log_error(message: str, problem: BaseException) -> None:
    log(logging.ERROR, message, problem)


def log(
    level: int, message: str, problem: BaseException, logger: logging.Logger | None = None
) -> None:
    """Logs the traceback without the exception's message, which may quote a prompt."""
    lines = "".join(traceback.format_tb(problem.__traceback__))
    try:
        (logger or _log).log(level, "%s", f"{message}\n{lines}".strip())
    except Exception:  # from a handler or filter of the app
        pass


def log_in_short(message: str, problem: BaseException, logger: logging.Logger) -> None:
    """Logs an error of the app's own code: one line, and at DEBUG the traceback without frames of
    this library."""
    with suppress(Exception):  # from a handler or filter of the app
        logger.error("%s", message)
        if logger.isEnabledFor(logging.DEBUG):
            frames = traceback.extract_tb(problem.__traceback__)
            own = [frame for frame in frames if not frame.filename.startswith(_LIBRARY)]
            logger.debug("%s", f"{message}\n{''.join(traceback.format_list(own))}".strip())


def described(problem: BaseException) -> str:
    """The class and the line; the message only if it cannot quote a prompt or a reply."""
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
