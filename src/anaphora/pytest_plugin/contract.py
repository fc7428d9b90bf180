"""The cache contract of a test: no prefix breaks, and limits on reads and cost. Also the report of
all contracts, as Markdown for a pull request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Literal, TypeAlias

import msgspec
import pytest

from anaphora.traffic.judging import Judge
from anaphora.traffic.summary import WatchSummary
from anaphora.traffic.sums import JudgedCall
from anaphora.wording import counted, format_loss, format_share, format_usd

#: Breaks and failed calls shown in full in a failure.
_SHOWN = 3
_NO_CALLS = """\
No call reached the proxy of cache_contract.
  A client that is created at import reads its base URL before the test begins: set
  `anaphora_redirect = true` in the pytest configuration.
  A fixture that creates a client has to request cache_contract itself.
  A base URL in the code has to be taken from the environment instead.
  For a test without calls, set min_calls=0."""
_OPEN = (
    "A call was still open when the test ended, and is not judged: read its stream to the end, or"
    " close it."
)
_KEEP = (
    "A provider reads its cache up to the first byte that differs. Move text that changes (dates,\n"
    "ids, counters, retrieved texts) after the text that stays, or keep it equal in a conversation."
)


class ContractLimits(msgspec.Struct, frozen=True, kw_only=True):
    min_read_share: float | None = None
    """Minimum share of all input tokens read from the cache."""
    max_cost_usd: Decimal | None = None
    """Maximum cost of all calls of the test."""
    min_calls: int = 1
    """A test with fewer calls fails: its calls may have gone elsewhere."""
    allow_breaks: str | None = None
    """Why a prefix may break in this test."""
    live: bool = False
    """The calls go to the provider, not to the emulator."""


ContractState: TypeAlias = Literal["held", "failed", "skipped", "not checked"]
"""`not checked`: the test itself failed, without breaking its contract first."""


class ContractResult(msgspec.Struct, frozen=True, kw_only=True):
    """The row of one test in the report."""

    test: str
    state: ContractState
    calls: int = 0
    share_read: float | None = None
    cost_usd: Decimal | None = None
    lost: int = 0
    lost_usd: Decimal | None = None
    problems: tuple[str, ...] = ()


class CacheContract:
    """The judged calls of a test. `check` is called when the test has passed."""

    title = "prompt cache"

    def __init__(self, judge: Judge, limits: ContractLimits, settle: Callable[[], bool]) -> None:
        self._judge = judge
        self._settle = settle
        self.limits = limits
        self.checked = False
        self._ended: bool | None = None

    def _settled(self) -> bool:
        """Waits until all calls have ended; once, after the test."""
        if self._ended is None or not self.checked:
            self._ended = self._settle()
        return self._ended

    @property
    def calls(self) -> tuple[JudgedCall, ...]:
        """The calls so far, in the order they ended."""
        self._settled()
        return self._judge.calls

    @property
    def summary(self) -> WatchSummary:
        self._settled()
        return self._judge.summary()

    @property
    def share_read(self) -> float | None:
        """The share of all input tokens that was read from the cache; None without a bill."""
        return self.summary.share_read

    @property
    def cost_usd(self) -> Decimal | None:
        """The cost of the calls; None if a price is unknown."""
        return _cost_usd(self.summary)

    def problems(self) -> list[str]:
        """Problems, one paragraph each."""
        settled = self._settled()
        calls = self._judge.calls
        if len(calls) < self.limits.min_calls:
            return [self._too_few(len(calls), settled)]
        return [*self.problems_so_far(), *(self._limits_exceeded() if calls else ())]

    def problems_so_far(self) -> list[str]:
        """Problems to report if the test itself failed, except those that an incomplete run
        explains."""
        calls = self.calls
        judged = [call for call in calls if call.kind == "judged"]
        found = _failures(calls) if calls and not judged else []
        broken = [call for call in judged if call.broke]
        if broken and self.limits.allow_breaks is None:
            found.append(_breaks(broken, len(judged)))
        return found

    def _too_few(self, calls: int, settled: bool) -> str:
        if not settled:
            return _OPEN
        if not calls:
            return _NO_CALLS
        least = self.limits.min_calls
        return f"The test made {counted(calls, 'call')}. The contract requires {least} or more."

    def _limits_exceeded(self) -> list[str]:
        found = []
        summary = self._judge.summary()
        least, share = self.limits.min_read_share, summary.share_read
        if least is not None and (share is None or share < least):
            shown = "unknown: no bill says it" if share is None else f"{share:.1%}"
            found.append(
                f"Read from the cache: {shown}. The contract requires {least:.1%} or more."
            )
        most, cost = self.limits.max_cost_usd, _cost_usd(summary)
        if most is not None and (cost is None or cost > most):
            shown = _unknown_cost(summary) if cost is None else format_usd(cost)
            found.append(f"Cost: {shown}. The contract allows {format_usd(most)}.")
        return found

    def check(self) -> None:
        """Fails the test if the contract does not hold."""
        self._settled()
        self.checked = True
        problems = self.problems()
        if problems:
            pytest.fail("\n\n".join(problems), pytrace=False)


def result_of(test: str, contract: CacheContract | None, outcome: str) -> ContractResult:
    """The report's row for a test that `passed`, `failed` or was `skipped`, which includes expected
    failures."""
    if outcome == "skipped":
        return ContractResult(test=test, state="skipped")
    if contract is None:
        return ContractResult(test=test, state="not checked")
    problems = contract.problems() if contract.checked else contract.problems_so_far()
    calls, summary = contract.calls, contract.summary
    broken = [call for call in calls if call.broke]
    state: ContractState = "failed" if problems else "held"
    if not contract.checked and not (broken and problems):
        state, problems = "not checked", []
    return ContractResult(
        test=test,
        state=state,
        calls=len(calls),
        share_read=summary.share_read,
        cost_usd=contract.cost_usd,
        lost=sum(call.lost for call in broken),
        lost_usd=_lost_usd(broken),
        problems=tuple(problems),
    )


def limits_of(options: dict[str, Any], ini: dict[str, str]) -> ContractLimits:
    """The limits of a test: those of its marker, else those of the configuration. Raises
    `pytest.UsageError` for an invalid value."""
    known = ContractLimits.__struct_fields__
    for name in options:
        if name not in known:
            raise pytest.UsageError(f"cache_contract has no {name!r}; it takes {', '.join(known)}")
    least_calls = options.get("min_calls", ini["min_calls"] or 1)
    share = options.get("min_read_share", ini["min_read_share"] or None)
    cost = options.get("max_cost_usd", ini["max_cost_usd"] or None)
    reason = options.get("allow_breaks")
    if reason is not None and (not isinstance(reason, str) or not reason.strip()):
        raise pytest.UsageError("allow_breaks is the reason why a prefix may break, as a text")
    return ContractLimits(
        min_read_share=None if share is None else _share(share),
        max_cost_usd=None if cost is None else _dollars(cost),
        min_calls=_calls(least_calls),
        allow_breaks=reason,
        live=bool(options.get("live", False)),
    )


def _share(value: object) -> float:
    try:
        share = float(str(value))
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise pytest.UsageError(f"min_read_share is a number from 0 to 1, got {value!r}")
    return share


def _calls(value: object) -> int:
    text = str(value)
    if not text.isdecimal():
        raise pytest.UsageError(f"min_calls is a number of calls, got {value!r}")
    return int(text)


def _dollars(value: object) -> Decimal:
    try:
        dollars = Decimal(str(value))
    except InvalidOperation:
        dollars = Decimal(-1)
    if not dollars.is_finite() or dollars < 0:
        raise pytest.UsageError(f"max_cost_usd is an amount in dollars, got {value!r}")
    return dollars


def _breaks(broken: list[JudgedCall], judged: int) -> str:
    lost, dollars = sum(call.lost for call in broken), _lost_usd(broken)
    parts = [
        f"Prompt prefix broke at {len(broken)} of {counted(judged, 'call')}:"
        f" {counted(lost, 'token')} billed again, {format_loss(dollars)}."
    ]
    worst = sorted(broken, key=lambda call: -call.lost)[:_SHOWN]
    parts += [_break(call) for call in worst]
    if len(broken) > _SHOWN:
        parts.append(f"  … and {counted(len(broken) - _SHOWN, 'more break')}")
    parts.append(_KEEP)
    return "\n\n".join(parts)


def _break(call: JudgedCall) -> str:
    lines = [f"  call {call.number}, {call.provider} {call.model}"]
    if call.compared_with is not None:
        lines[0] += f", compared with call {call.compared_with}"
    if (change := call.change) is not None:
        before, after = change.excerpts
        lines += [f"    {change.place}", f"    before: {before}", f"    after:  {after}"]
    else:
        lines.append(f"    {call.sentence}")
    lines.append(f"    {counted(call.lost, 'token')} billed again, {format_loss(call.lost_usd)}")
    return "\n".join(lines)


def _failures(calls: Iterable[JudgedCall]) -> list[str]:
    """Why no call could be judged."""
    lines = [
        f"  {call.method} {call.path}: {call.status or 'no response'} {call.reason}".rstrip()
        for call in calls
    ]
    more = [f"  … and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    return ["\n".join(["No call could be judged:", *lines[:_SHOWN], *more])]


def _unknown_cost(summary: WatchSummary) -> str:
    unpriced = ", ".join(summary.unpriced)
    return f"unknown: no price for {unpriced}" if unpriced else "unknown: a call has no bill"


def _cost_usd(summary: WatchSummary) -> Decimal | None:
    sums = (summary.judged, summary.side_calls)
    if any(each.unpriced or each.no_bill for each in sums):
        return None
    return sum((each.cost_usd for each in sums), Decimal(0))


def _lost_usd(calls: Iterable[JudgedCall]) -> Decimal | None:
    total = Decimal(0)
    for call in calls:
        if call.lost_usd is None:
            return None
        total += call.lost_usd
    return total


# ── The report of all contracts ──────────────────────────────────────────────────────────────────


_MARKS: dict[ContractState, str] = {
    "held": "✅",
    "failed": "❌",
    "skipped": "⏭️",
    "not checked": "⚠️",
}


def markdown(results: Sequence[ContractResult]) -> str:
    """A table of the tests, and the problems of those that failed."""
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
        f"{text}: {counted(lost, 'token')} billed again, {format_loss(dollars)}."
        if lost
        else text + "."
    )


def _rest(results: Sequence[ContractResult]) -> str:
    """How many contracts were not checked, and why."""
    skipped = sum(result.state == "skipped" for result in results)
    unchecked = sum(result.state == "not checked" for result in results)
    text = f", {skipped} skipped" if skipped else ""
    return text + (f", {unchecked} not checked since the test itself failed" if unchecked else "")


def _table(results: Sequence[ContractResult]) -> list[str]:
    lines = ["| test | calls | read from cache | cost | lost |", "|---|---:|---:|---:|---:|"]
    for result in results:
        mark = _MARKS[result.state]
        share = "–" if result.share_read is None else format_share(result.share_read)
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
