"""The guard of `on_cold`: stops a call whose cached beginning is gone, before anything is sent.

guard = cold_guard_of(options, base)
await guard.check(preview)          raises ColdCache, unless the call may be sent
"""

from __future__ import annotations

import inspect
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from anaphora.cache.cold import ALTERNATIVES, COLD_ABOVE_USD
from anaphora.errors import ColdCache, InvalidRequest
from anaphora.wording import format_usd

from .budget import amount_of
from .options import OnCold

if TYPE_CHECKING:
    from .preview import Preview

_SUMMARY = "drop the oldest messages without a summary: compact()"


class ColdGuard(msgspec.Struct, frozen=True, eq=False):
    on_cold: OnCold = "send"
    above_usd: Decimal | None = COLD_ABOVE_USD
    """None: any call whose beginning is gone is stopped, also if no price is known."""

    @property
    def is_on(self) -> bool:
        return self.on_cold != "send"

    async def check(self, preview: Preview, *, of: str = "input") -> None:
        """Raises `ColdCache` if the call may not be sent. Calls the app's function."""
        cold = preview.cold
        if cold is None or not self.is_on:
            return
        if self.above_usd is not None and not cold.costs_more_than(self.above_usd):
            return
        if callable(self.on_cold):
            answer = self.on_cold(preview)
            if await answer if inspect.isawaitable(answer) else answer:
                return
        cost = "an unknown amount"
        if preview.cost_usd is not None and cold.extra_usd is not None:
            cost = f"{format_usd(preview.cost_usd)}, {cold.cost_text} more than from the cache"
        instead = ALTERNATIVES if of == "input" else _SUMMARY
        raise ColdCache(
            f'{cold}: the {of} would cost {cost}; send it with on_cold="send", or {instead}',
            preview=preview,
        )


def cold_guard_of(options: Any, base: ColdGuard | None = None) -> ColdGuard | None:
    """The guard with the keywords among `options`, which are removed. `base` has the others; it is
    the guard if there are none."""
    if "on_cold" not in options and "cold_above_usd" not in options:
        return base
    guard = base or ColdGuard()
    if "on_cold" in options:
        on_cold = options.pop("on_cold")
        if on_cold not in ("raise", "send") and not callable(on_cold):
            reason = f"must be 'raise', 'send' or a function, not {on_cold!r}"
            raise InvalidRequest(reason, path="on_cold")
        guard = replace(guard, on_cold=on_cold)
    if "cold_above_usd" in options:
        above = amount_of(options.pop("cold_above_usd"), "cold_above_usd")
        guard = replace(guard, above_usd=COLD_ABOVE_USD if above is None else above)
    return guard
