"""What a program or a test suite did against the emulator, as a table."""

from __future__ import annotations

import textwrap
from typing import Literal, NamedTuple, TypeAlias

Verdict: TypeAlias = Literal["passed", "failed", "refused", "skipped"]
"""`refused`: the emulator answered with an error that the provider would answer with too."""


class CaseResult(NamedTuple):
    program: str
    case: str
    verdict: Verdict
    reason: str = ""


def table(results: list[CaseResult]) -> str:
    """The counts of each program, then each reason with the cases it holds for."""
    verdicts: tuple[Verdict, ...] = ("passed", "failed", "refused", "skipped")
    lines = [f"{'program':32}" + "".join(f"{name:>9}" for name in verdicts)]
    reasons: dict[tuple[Verdict, str, str], list[str]] = {}
    for program in dict.fromkeys(result.program for result in results):
        own = [result for result in results if result.program == program]
        counts = (sum(result.verdict == name for result in own) for name in verdicts)
        lines.append(f"{program:32}" + "".join(f"{count:9}" for count in counts))
        for result in own:
            if result.verdict != "passed":
                key = result.verdict, program, result.reason
                reasons.setdefault(key, []).append(result.case)
    for (verdict, program, reason), cases in sorted(reasons.items()):
        more = f" and {len(cases) - 1} more" if len(cases) > 1 else ""
        lines.append(f"\n{verdict}: {program}: {cases[0]}{more}")
        lines.append(textwrap.indent(textwrap.fill(reason, 96), "    "))
    return "\n".join(lines)
