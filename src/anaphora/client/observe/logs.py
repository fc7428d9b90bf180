"""A log line for each call: `key=value` pairs, and the same as a field of the log record."""

from __future__ import annotations

import json
import logging
import re
from typing import TypeAlias

from anaphora.client.response import Record

from .export import address, label, outcome, queued, word

Field: TypeAlias = str | int | float

_PLAIN = re.compile(r"[^\s\"=]+")


class Logs:
    """Logs to `anaphora.calls` or the given logger; failed calls are warnings.

    JSON formatters find the fields as a dictionary in the log record's `call`.
    """

    def __init__(self, logger: logging.Logger | None = None, level: int = logging.INFO) -> None:
        self._logger = logging.getLogger("anaphora.calls") if logger is None else logger
        self._level = level

    def __call__(self, record: Record) -> None:
        level = self._level if record.error is None else max(self._level, logging.WARNING)
        if self._logger.isEnabledFor(level):
            known = fields(record)
            self._logger.log(level, "%s", line(known), extra={"call": known})


def line(known: dict[str, Field]) -> str:
    return " ".join(f"{key}={_value(value)}" for key, value in known.items())


def fields(record: Record) -> dict[str, Field]:
    """The known fields of a call; unknown ones are left out, since they are not 0."""
    host, port = address(record.host)
    usage = record.usage
    verdict = record.verdict
    known: dict[str, Field | None] = {
        "operation": record.operation,
        "provider": label(record.provider),
        "system": word(record.system),
        "wire": word(record.wire),
        "host": host if port is None else f"{host}:{port}",
        "model": word(record.model),
        "answered_by": None if record.answered_by is None else word(record.answered_by),
        "outcome": outcome(record.error),
        "status": record.attempts[-1].status if record.attempts else None,
        "request_id": None if record.request_id is None else word(record.request_id),
        "stop_reason": record.stop_reason,
        "seconds": round(record.seconds, 6),
        "first": None if record.first is None else round(record.first, 6),
        "queued": round(queued(record), 6),
        "attempts": len(record.attempts),
        "uncached": usage.uncached,
        "read": usage.read,
        "written": usage.written_total,
        "output": usage.output,
        "predicted": record.predicted,
        "verdict": None if verdict is None else verdict.result,
        "cause": None if verdict is None else verdict.cause,
        "lost": None if verdict is None else verdict.lost,
        "cost_usd": None if record.cost_usd is None else float(record.cost_usd),
        "saved": None if record.saved is None else float(record.saved),
        "notices": ",".join(word(notice.code) for notice in record.notices) or None,
    }
    return {key: value for key, value in known.items() if value is not None}


def _value(value: Field) -> str:
    if isinstance(value, float):
        return f"{value:.9f}".rstrip("0").rstrip(".")
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)
