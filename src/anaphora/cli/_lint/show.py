"""Findings for people."""

from __future__ import annotations

from rich.console import Group
from rich.text import Text

from anaphora.analysis.lint import RULES, SEVERITIES, Finding, Severity, at_least
from anaphora.cli._console import Terminal
from anaphora.cli._simulate.money import unknown_said

_COLOURS = {"note": "cyan", "warning": "yellow", "error": "red"}
_CONTROLS = dict.fromkeys([*range(32), 127], " ")


def page(findings: list[Finding], threshold: Severity, *, unpriced: tuple[str, ...]) -> None:
    lines: list[Text] = []
    for finding in findings:
        if finding.suppressed is None and at_least(finding, threshold):
            lines += _finding(finding)
    lines.append(_sum(findings, threshold))
    if unpriced and findings:
        lines.append(Text(unknown_said(unpriced), style="dim"))
    Terminal().page(Group(*lines))


def _finding(finding: Finding) -> list[Text]:
    head = Text(f"{_where(finding)}: ")
    head.append(finding.severity, style=_COLOURS[finding.severity])
    head.append(f" [{finding.rule}] {RULES[finding.rule].title}")
    lines = [head]
    if finding.excerpt:
        lines.append(Text(f"    {finding.excerpt.translate(_CONTROLS)}", style="bold"))
    lines.append(Text(f"    why: {finding.why}{_cost(finding)}"))
    lines.append(Text(f"    fix: {finding.fix}"))
    return lines


def _where(finding: Finding) -> str:
    if finding.line is not None:
        return f"{finding.file}:{finding.line}:{finding.column}"
    return f"{finding.file} {finding.path}".rstrip()


def _cost(finding: Finding) -> str:
    said = []
    if finding.tokens:
        said.append(f"{finding.tokens:,} tokens stand behind it")
    if finding.cost_usd:
        most = "up to " if RULES[finding.rule].seldom else ""
        said.append(f"{most}${finding.cost_usd:.2f} per 1,000 calls")
    return f" ({', '.join(said)})" if said else ""


def _sum(findings: list[Finding], threshold: Severity) -> Text:
    open_ = [finding for finding in findings if finding.suppressed is None]
    counts = [
        f"{count} {severity}{'s' if count > 1 else ''}"
        for severity in reversed(SEVERITIES)
        if (count := sum(finding.severity == severity for finding in open_))
    ]
    said = ", ".join(counts) or "nothing found"
    hidden = sum(not at_least(finding, threshold) for finding in open_)
    if hidden:
        said += f" ({hidden} below {threshold} not shown)"
    if left := len(findings) - len(open_):
        said += f", {left} suppressed"
    return Text(said, style="bold")
