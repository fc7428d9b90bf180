"""`anaphora watch --max-usd`: the limit of what a command may spend."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING

import click

from .cold_watch import Dollars

if TYPE_CHECKING:
    from anaphora.proxy.spend_check import SpendCheck
    from anaphora.traffic.judging import Judge


def spend_options(command: Callable[..., None]) -> Callable[..., None]:
    unpriced = click.option(
        "--allow-unpriced",
        is_flag=True,
        help="With --max-usd, send calls whose cost is unknown; they are not counted.",
    )
    limit = click.option(
        "--max-usd",
        type=Dollars(),
        metavar="USD",
        help="Refuse calls once this much is spent. The last call may exceed it.",
    )
    return limit(unpriced(command))


def spend_check(judge: Judge, limit: Decimal | None, allow_unpriced: bool) -> SpendCheck | None:
    """The check of `--max-usd`."""
    if limit is None:
        if allow_unpriced:
            raise click.UsageError("--allow-unpriced needs --max-usd.")
        return None
    from anaphora.proxy.spend_check import SpendCheck
    from anaphora.traffic.spend_limit import ProgramLimit

    return SpendCheck(judge, ProgramLimit(limit, allow_unpriced=allow_unpriced))
