"""The report of all cache contracts, as Markdown for a pull request."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from anaphora.cache.verdict.values import format_loss, format_usd
from anaphora.wording import counted

from .contract import ContractResult


def markdown(results: Sequence[ContractResult]) -> str:
    """A table of the tests, and what is wrong in those that failed."""
    if not results:
        return "## Prompt cache\n\nNo test used the fixture `cache_contract`.\n"
    failed = [result for result in results if not result.passed]
    lines = ["## Prompt cache", "", _headline(results, failed), "", *_table(results)]
    for result in failed:
        lines += ["", f"### {_escaped(result.test)}", "", *_fenced("\n\n".join(result.problems))]
    return "\n".join(lines) + "\n"


def _headline(results: Sequence[ContractResult], failed: Sequence[ContractResult]) -> str:
    if not failed:
        return f"✅ {counted(len(results), 'cache contract')} held."
    lost = sum(result.lost for result in failed)
    costs = [result.lost_usd for result in failed]
    dollars = None if None in costs else sum((cost for cost in costs if cost), Decimal(0))
    text = f"❌ {len(failed)} of {counted(len(results), 'cache contract')} failed"
    return (
        f"{text}: {counted(lost, 'token')} paid again, {format_loss(dollars)}."
        if lost
        else text + "."
    )


def _table(results: Sequence[ContractResult]) -> list[str]:
    lines = ["| test | calls | read from cache | cost | lost |", "|---|---:|---:|---:|---:|"]
    for result in results:
        mark = "✅" if result.passed else "❌"
        share = "–" if result.share_read is None else f"{result.share_read:.0%}"
        cost = "unknown" if result.cost_usd is None else format_usd(result.cost_usd)
        lost = "–" if not result.lost else f"{result.lost:,} tokens, {format_loss(result.lost_usd)}"
        lines.append(
            f"| {mark} {_escaped(result.test)} | {result.calls} | {share} | {cost} | {lost} |"
        )
    return lines


def _fenced(text: str) -> list[str]:
    """A code block whose fence is longer than any in the text."""
    fence = "```"
    while fence in text:
        fence += "`"
    return [f"{fence}text", text, fence]


def _escaped(text: str) -> str:
    return "".join(f"\\{char}" if char in "\\|`*_<>[]" else char for char in text)
