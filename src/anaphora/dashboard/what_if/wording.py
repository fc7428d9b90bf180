"""The basis of an estimate, in sentences: for the page and the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from anaphora.dashboard.figures import count, percent, usd
from anaphora.wording import counted

from .estimate import CostEstimate, WhatIf
from .selection import LEFT_OUT_TEXTS


def sentences(result: WhatIf) -> Iterator[str]:
    """What the amounts cover, and how wide their ranges are and why."""
    check = result.check
    yield (
        f"{counted(result.calls, 'call')}, billed {usd(result.billed_nano_usd)},"
        f" {percent(result.read_share)} of the input read from the cache."
    )
    if check.error is not None:
        yield (
            f"Simulated as they were sent, they cost {usd(check.simulated_nano_usd)};"
            f" {usd(check.billed_nano_usd)} was billed. Call by call the difference is"
            f" {percent(check.error)} of the bill. With the share of one call, or 1%, a simulated"
            f" cost is stated to ±{percent(check.width)}, and wider if lengths or misses are"
            " uncertain."
        )
    if result.sampled:
        groups = f"{count(result.played_groups)} of {counted(result.groups, 'conversation')}"
        yield (
            f"Only {counted(result.played, 'call')} were simulated, those of {groups},"
            " chosen at random. Amounts are scaled to the whole bill, which widens the ranges."
        )
    if result.began_before:
        yield (
            f"{counted(result.began_before, 'call')} continue earlier ones that are not among"
            " these: the ranges cover both extremes, all or none of their input cached."
        )
    if linked := result.links.get("counts", 0):
        yield (
            f"The log names no conversation for {counted(linked, 'call')}: their earlier calls were"
            " recognised by the tokens read."
        )
    if result.other_price:
        yield (
            f"{counted(result.other_price, 'call')} had another price than the listed one,"
            " because of service tier, batch or configuration; the same ratio is assumed."
        )


def left_out_sentence(result: WhatIf) -> str:
    """Calls that are in no amount, and why; empty if there are none."""
    reasons = [
        f"{count(number)} that {LEFT_OUT_TEXTS[reason]}"
        for reason, number in sorted(result.left_out.items(), key=lambda item: -item[1])
    ]
    return f"Left out: {', '.join(reasons)}." if reasons else ""


def range_text(cost: CostEstimate | None) -> str:
    """`$1.20 to $1.31`; one amount if it is certain."""
    if cost is None:
        return usd(None)
    if cost.low == cost.high:
        return usd(cost.estimate)
    return f"{usd(cost.low)} to {usd(cost.high)}"
