"""The fields of a record that may leave this process (names, numbers, ids, our own codes), and a
log line with them for each call.

Never exported: error messages (providers quote prompts in them), the texts of notices and verdicts,
the bytes around a change, the raw usage object, credentials in a URL.
"""

from __future__ import annotations

import builtins
import json
import logging
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import TypeAlias

from anaphora import errors
from anaphora.client.response import BlockShare, Record
from anaphora.values import Section, SegmentRole

#: Replaces a name that does not look like one, or exceeds the allowed number of names.
OTHER = "other"

#: OpenTelemetry's word for an error without a known class.
OTHER_ERROR = "_OTHER"

Field: TypeAlias = str | int | float

_PLAIN = re.compile(r"[^\s\"=]+")
_WORD = re.compile(r"[\x21-\x7e]{1,200}")
_MAX_LABEL = 80
_ROLES = frozenset(role.value for role in SegmentRole)
_ERRORS = frozenset(
    name
    for module, base in ((errors, errors.AnaphoraError), (builtins, BaseException))
    for name, value in vars(module).items()
    if isinstance(value, type) and issubclass(value, base)
) | {"CancelledError"}


def word(text: str) -> str:
    """A name or an id from a provider. Ids have no spaces; a sentence has."""
    return text if _WORD.fullmatch(text) else OTHER


def label(text: str) -> str:
    """A name that the application chose, as one short line."""
    if len(text) > _MAX_LABEL:
        text = text[: _MAX_LABEL - 1] + "…"
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def error_type(name: str | None) -> str | None:
    """The class of an error; `_OTHER` for an unknown one."""
    return name if name is None or name in _ERRORS else OTHER_ERROR


def outcome(error: str | None) -> str:
    return "ok" if error is None else error_type(error) or "ok"


def address(host: str) -> tuple[str, int | None]:
    """Host and port of `host`, `host:port` or `[v6]:port`, without credentials."""
    host = host.rpartition("@")[2]
    name, colon, port = host.rpartition(":")
    if colon and port.isdecimal() and len(port) <= 5 and (":" not in name or name.endswith("]")):
        return word(name.strip("[]")), int(port)
    return word(host.strip("[]")), None


def queued(record: Record) -> float:
    seconds = 0.0
    for attempt in record.attempts:
        seconds += attempt.queued
    return seconds


def block_label(text: str, section: Section) -> str:
    """A block's label; for a message only its role, since ids are unbounded."""
    if section == "messages" and (role := text.partition(" ")[0]) in _ROLES:
        return role
    return label(text)


#: Labels stay the same from call to call.
known_block_label = lru_cache(maxsize=512)(block_label)


def shares(blocks: Iterable[BlockShare], most: int) -> dict[str, int]:
    """Tokens by label, in prompt order; labels after the first `most` are summed as `other`."""
    out: dict[str, int] = {}
    for block in blocks:
        name = block_label(block.label, block.section)
        if name not in out and len(out) >= most:
            name = OTHER
        out[name] = out.get(name, 0) + block.tokens
    return out


class BoundedNames:
    """Passes the first `most` different names; each further one is `other`."""

    __slots__ = ("_most", "_seen")

    def __init__(self, most: int) -> None:
        self._most = most
        self._seen: set[str] = set()

    def __call__(self, text: str) -> str:
        if text in self._seen:
            return text
        if len(self._seen) >= self._most:
            return OTHER
        self._seen.add(text)
        return text


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


class Logs:
    """Logs to `anaphora.calls` or the given logger; failed calls are warnings. JSON formatters find
    the fields as a dictionary in the log record's `call`."""

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


def _value(value: Field) -> str:
    if isinstance(value, float):
        return f"{value:.9f}".rstrip("0").rstrip(".")
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def missing_extra(
    error: ModuleNotFoundError, feature: str, *, module: str, package: str
) -> ModuleNotFoundError:
    """An error that names the package to install, if `module` is what is missing."""
    if error.name is None or error.name.partition(".")[0] != module:
        return error
    message = f"{feature} need {package}; install it with: pip install 'anaphora[observe]'"
    return ModuleNotFoundError(message, name=module)
