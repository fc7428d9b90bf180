"""Limits of providers' APIs that hold for every model: dated rows of `api_limits.toml`.

output_limits("openai_responses").least_tokens    the shortest answer that may be asked for
batch_limits("anthropic").most_requests           requests of one batch
"""

from __future__ import annotations

import datetime
from typing import Any

import msgspec

from .load import SHIPPED
from .rows import decode_structs, read_toml
from .values import Limit, Named

FILE = "api_limits.toml"


class _Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    source: Named
    date: datetime.date


class OutputLimits(_Row, frozen=True, kw_only=True):
    """The answers that a wire may be asked for."""

    wire: str = ""
    """Empty: every wire."""
    least_tokens: Limit
    rejected_by: tuple[str, ...] = ()
    """Providers that are known to reject less."""


class BatchLimits(_Row, frozen=True, kw_only=True):
    """The size of one batch."""

    provider: Named
    most_requests: Limit
    most_bytes: Limit
    """Of the whole body, or of the file with the requests."""


def output_limits(wire: str) -> OutputLimits:
    rows: tuple[OutputLimits, ...] = _tables()[0]
    return [row for row in rows if row.wire in ("", wire)][-1]


def batch_limits(provider: str) -> BatchLimits | None:
    """None: no Batch API of the provider is known."""
    rows: tuple[BatchLimits, ...] = _tables()[1]
    return next((row for row in reversed(rows) if row.provider == provider), None)


def _tables() -> list[tuple[Any, ...]]:
    return SHIPPED.table(FILE, _decode)


def _decode(text: str) -> list[tuple[Any, ...]]:
    return decode_structs(read_toml(text, FILE), FILE, output=OutputLimits, batch=BatchLimits)
