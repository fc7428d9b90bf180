"""The report of all cache contracts, as Markdown for a pull request."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from anaphora.wording import counted, format_loss, format_usd

from .contract import ContractResult, ContractState

_MARKS: dict[ContractState, str] = {
    "held": "✅",
    "failed": "❌",
    "skipped": "⏭️",
    "not checked": "⚠️",
}


def markdown(results: Sequence[ContractResult]) -> str:
    """A table of the tests, and what is wrong in those that failed."""
    if not results:
        return "## Prompt cache\n\nNo test used the fixture `cache_contract`.\n"
    failed = [result for result in results if result.state == "failed"]
    lines = ["## Prompt cache", "", _headline(results, failed), "", *_table(results)]
    for result in failed:
        lines += ["", f"### {_escaped(result.test)}", "", *_fenced("\n\n".join(result.problems))]
    return "\n".join(lines) + "\n"


def _headline(results: Sequence[ContractResult], failed: Sequence[ContractResult]) -> str:
    rest = _rest(results)
    if not failed:
        held = sum(result.state == "held" for result in results)
        return f"{'✅' if held else '⚠️'} {counted(held, 'cache contract')} held{rest}."
    lost = sum(result.lost for result in failed)
    costs = [result.lost_usd for result in failed]
    dollars = None if None in costs else sum((cost for cost in costs if cost), Decimal(0))
    text = f"❌ {len(failed)} of {counted(len(results), 'cache contract')} failed{rest}"
    return (
        f"{text}: {counted(lost, 'token')} paid again, {format_loss(dollars)}."
        if lost
        else text + "."
    )


def _rest(results: Sequence[ContractResult]) -> str:
    """How many contracts say nothing, and why."""
    skipped = sum(result.state == "skipped" for result in results)
    unchecked = sum(result.state == "not checked" for result in results)
    text = f", {skipped} skipped" if skipped else ""
    return text + (f", {unchecked} not checked since the test itself failed" if unchecked else "")


def _table(results: Sequence[ContractResult]) -> list[str]:
    lines = ["| test | calls | read from cache | cost | lost |", "|---|---:|---:|---:|---:|"]
    for result in results:
        mark = _MARKS[result.state]
        share = "–" if result.share_read is None else f"{result.share_read:.0%}"
        unknown = "unknown" if result.calls else "–"
        cost = unknown if result.cost_usd is None else format_usd(result.cost_usd)
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
