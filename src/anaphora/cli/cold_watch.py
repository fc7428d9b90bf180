"""`anaphora watch --cold`: what happens to calls whose cached beginning is gone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

import click
from click.shell_completion import CompletionItem

from anaphora.wording import format_usd

from .parameters import completions
from .watch_output import announce

if TYPE_CHECKING:
    from anaphora.proxy.cold_guard import ColdCheck
    from anaphora.traffic.judging import Judge

ColdMode: TypeAlias = Literal["ask", "refuse", "warn"]
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


class Cold(NamedTuple):
    mode: ColdMode
    above: Decimal | None
    """The additional cost from which a call counts."""


class _ColdParameter(click.ParamType[Cold]):
    """`refuse`, or with an amount `refuse:0.50`."""

    name = "cold"

    def convert(self, value: Any, param: Any, ctx: Any) -> Cold:
        if isinstance(value, Cold):
            return value
        mode, colon, usd = value.partition(":")
        modes = click.Choice(get_args(ColdMode))
        return Cold(
            modes.convert(mode, param, ctx), Dollars().convert(usd, param, ctx) if colon else None
        )

    def shell_complete(self, ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
        return completions(get_args(ColdMode), incomplete)


cold_option = click.option(
    "--cold",
    type=_ColdParameter(),
    metavar="ask|refuse|warn[:USD]",
    help="Before a call whose cached beginning is gone: ask, refuse it once, or warn, if it costs"
    " this much more than from the cache.  [default: 0.50]",
)


def cold_check(
    judge: Judge, cold: Cold | None, words: Sequence[str], report: Callable[[str], None]
) -> ColdCheck | None:
    """The check of `--cold`. Says how it asks."""
    if cold is None:
        return None
    from anaphora.cache.cold import COLD_ABOVE_USD
    from anaphora.proxy.cold_guard import ColdCheck, ask_on_terminal, has_terminal
    from anaphora.proxy.programs import owns_terminal

    mode = cold.mode
    limit = COLD_ABOVE_USD if cold.above is None else cold.above
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
    return ColdCheck(judge, mode, above_usd=limit, ask=ask, report=report)
