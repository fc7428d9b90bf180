"""The keywords of `map`, checked."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from anaphora.client.arguments import amount_of, callback_of, choice_of, flag_of, seconds_of
from anaphora.client.options import CALL_KEYWORDS, CallOptions, MapOptions, WarmUp
from anaphora.errors import InvalidRequest

from .values import FanOutProgress, FanOutSettings


def split_options(
    options: MapOptions,
) -> tuple[FanOutSettings, Callable[[FanOutProgress], None] | None, CallOptions]:
    """The settings of a fan-out, and the keywords of each call."""
    warm, results = options.get("warm", "auto"), options.get("results")
    choice_of(warm, WarmUp, "warm")
    if results is not None and not isinstance(results, str | os.PathLike):
        raise InvalidRequest(f"must be the path of a file, not {results!r}", path="results")
    concurrency: Any = options.get("concurrency", 100)
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
        raise InvalidRequest(f"must be an int ≥ 1, not {concurrency!r}", path="concurrency")
    settings = FanOutSettings(
        ordered=flag_of(options.get("ordered", False), "ordered"),
        concurrency=concurrency,
        max_cost_usd=amount_of(options.get("max_cost_usd"), "max_cost_usd"),
        warm=warm,
        visibility_delay=seconds_of(options.get("visibility_delay"), "visibility_delay"),
        batch=flag_of(options.get("batch", False), "batch"),
        results=None if results is None else Path(results),
    )
    calls = {name: value for name, value in options.items() if name in CALL_KEYWORDS}
    on_progress = callback_of(options.get("on_progress"), "on_progress")
    return settings, on_progress, cast(CallOptions, calls)
