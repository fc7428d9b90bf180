"""The keywords of `map`, checked, and what it returns: an item for each prompt, the progress, and
the whole result."""

from __future__ import annotations

import os
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, Generic, Literal, cast

import msgspec

from anaphora.client.arguments import callback_of, choice_of, flag_of, seconds_of
from anaphora.client.budget import amount_of
from anaphora.client.cold_guard import ColdGuard
from anaphora.client.options import CALL_KEYWORDS, CallOptions, FanOutProgress, MapOptions, WarmUp
from anaphora.client.response import Parsed, Response
from anaphora.errors import InvalidRequest
from anaphora.values import Notice
from anaphora.wording import format_share


class FanOutItem(msgspec.Struct, Generic[Parsed], frozen=True, kw_only=True, eq=False):
    """The result of one prompt: a response, or an error."""

    index: int
    """The position of the prompt."""
    key: str
    """Identifies the request by its content: the same in every run."""
    response: Response[Parsed] | None = None
    error: Exception | None = None
    cost_usd: Decimal | None = None
    """Set also for a reply that could not be used."""
    resumed: bool = False
    """Whether the response is from an earlier run."""

    @property
    def text(self) -> str:
        """The text of the response; raises the error if there is none."""
        return self.unwrap().text

    @property
    def parsed(self) -> Parsed:
        return self.unwrap().parsed

    def unwrap(self) -> Response[Parsed]:
        """The response; raises the error if there is none."""
        if self.response is None:
            assert self.error is not None
            raise self.error
        return self.response


class FanOutResult(msgspec.Struct, Generic[Parsed], frozen=True, kw_only=True, eq=False):
    """All items in the order of the prompts."""

    items: tuple[FanOutItem[Parsed], ...]
    progress: FanOutProgress
    stop_reason: Literal["done", "cost_usd"] = "done"
    """`cost_usd`: calls were not sent, because they could have exceeded `max_cost_usd`."""
    notices: tuple[Notice, ...] = ()

    @property
    def responses(self) -> tuple[Response[Parsed], ...]:
        """The responses in the order of the prompts; raises the first error."""
        return tuple(item.unwrap() for item in self.items)

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(item.text for item in self.items)

    @property
    def errors(self) -> tuple[FanOutItem[Parsed], ...]:
        """The items without a response."""
        return tuple(item for item in self.items if item.response is None)

    @property
    def cost_usd(self) -> Decimal | None:
        """The cost of all calls, warm-ups included; None if that of one is unknown."""
        return None if self.progress.unpriced else self.progress.cost_usd

    @property
    def read_share(self) -> float:
        return self.progress.read_share

    def __repr__(self) -> str:
        progress, failed = self.progress, len(self.errors)
        cost = "unknown" if self.cost_usd is None else f"${self.cost_usd:.4f}"
        return (
            f"<FanOutResult of {progress.total}, {failed} failed: {cost},"
            f" {format_share(progress.read_share)} read from the cache>"
        )


class FanOutSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The checked options of a fan-out."""

    ordered: bool = False
    concurrency: int = 100
    max_cost_usd: Decimal | None = None
    warm: WarmUp = "auto"
    visibility_delay: float | None = None
    """None: the provider's value in the catalog."""
    batch: bool = False
    results: Path | None = None
    cold: ColdGuard | None = None
    labels: tuple[dict[str, object], ...] = ()
    """For each prompt, the first fields of its line in the results."""


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
