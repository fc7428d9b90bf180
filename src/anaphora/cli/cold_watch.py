"""`anaphora watch --cold`: what happens to calls whose cached beginning is gone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, cast

import click

from anaphora.wording import format_usd

from .watch_output import announce

if TYPE_CHECKING:
    from anaphora.proxy.cold_guard import ColdCheck, ColdMode
    from anaphora.traffic.judging import Judge

_PASSES = "the same call passes if it is sent again within 10 minutes"


class Dollars(click.ParamType[Decimal]):
    """An amount in dollars, 0 or more."""

    name = "usd"

    def convert(self, value: Any, param: Any, ctx: Any) -> Decimal:
        try:
            amount = Decimal(str(value).removeprefix("$"))
        except InvalidOperation:
            amount = Decimal("NaN")
        if not amount.is_finite() or amount < 0:
            self.fail(f"{value!r} is not an amount in dollars, such as 0.50", param, ctx)
        return amount


def cold_options(command: Callable[..., None]) -> Callable[..., None]:
    above = click.option(
        "--cold-above",
        type=Dollars(),
        metavar="USD",
        help="Additional cost from which a call counts for --cold.  [default: 0.50]",
    )
    cold = click.option(
        "--cold",
        type=click.Choice(("ask", "refuse", "warn")),
        help="Before a call whose cached beginning is gone: ask, refuse it once, or warn.",
    )
    return cold(above(command))


def cold_check(
    judge: Judge,
    mode: str | None,
    above: Decimal | None,
    words: Sequence[str],
    report: Callable[[str], None],
) -> ColdCheck | None:
    """The check of `--cold`. Says how it asks."""
    if mode is None:
        if above is not None:
            raise click.UsageError("--cold-above needs --cold ask, refuse or warn.")
        return None
    from anaphora.cache.cold import COLD_ABOVE_USD
    from anaphora.proxy.asking import ask_on_terminal, has_terminal
    from anaphora.proxy.cold_guard import ColdCheck
    from anaphora.proxy.programs import owns_terminal

    limit = COLD_ABOVE_USD if above is None else above
    what = f"calls that cost {format_usd(limit)} more than from the cache"
    ask = None
    if mode == "ask" and owns_terminal(words):
        announce(f"the command draws on the terminal: {what} are refused there; {_PASSES}")
    elif mode == "ask" and not has_terminal():
        announce(f"there is no terminal to ask on: {what} are refused; {_PASSES}")
    elif mode == "ask":
        ask = ask_on_terminal
        announce(f"before {what}, a question is asked here")
    elif mode == "refuse":
        announce(f"{what} are refused; {_PASSES}")
    return ColdCheck(judge, cast("ColdMode", mode), above_usd=limit, ask=ask, report=report)
