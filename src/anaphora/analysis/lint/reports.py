"""Suppressed findings, with their reasons, and findings as SARIF 2.1.0 for code scanning."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Any

import msgspec
from msgspec.structs import replace

from .findings import RULES, Finding, finding_of

_INLINE = re.compile(r"anaphora:\s*ignore\[([\w*,\s-]+)\][ \t]*([^\n]*)")
_COMMENT_END = re.compile(r"(?:-->|\*/|#\}|%>)$")
_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_RULE_INDEX = tuple(RULES)


class Ignore(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One suppression in the configuration. Values may contain a *."""

    rule: str
    reason: str
    file: str = "*"
    path: str = "*"

    def covers(self, finding: Finding) -> bool:
        file = finding.file.replace("\\", "/")
        # Paths contain brackets, so only * is special in them.
        path = re.escape(self.path).replace(r"\*", ".*")
        return (
            fnmatchcase(finding.rule, self.rule)
            and (fnmatchcase(file, self.file) or fnmatchcase(file, f"*/{self.file}"))
            and (self.path == "*" or re.fullmatch(path, finding.path) is not None)
        )


class LintConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The contents of `.anaphora-lint.toml`."""

    severity: str | None = None
    provider: str | None = None
    model: str | None = None
    ignore: tuple[Ignore, ...] = ()


class InlineIgnore(msgspec.Struct, frozen=True):
    """A suppression in a text: for its own line and the next."""

    line: int
    rules: tuple[str, ...]
    reason: str

    def covers(self, finding: Finding) -> bool:
        return any(fnmatchcase(finding.rule, rule) for rule in self.rules)


def _inline_ignores(text: str) -> list[InlineIgnore]:
    ignores: list[InlineIgnore] = []
    line, last = 1, 0
    for match in _INLINE.finditer(text):
        line, last = line + text.count("\n", last, match.start()), match.start()
        rules = tuple(name.strip() for name in match.group(1).split(",") if name.strip())
        reason = _COMMENT_END.sub("", match.group(2).rstrip()).strip(" :-–—")
        ignores.append(InlineIgnore(line, rules, reason))
    return ignores


def suppressed(
    findings: Iterable[Finding], file: str, ignores: tuple[Ignore, ...], text: str = ""
) -> Iterator[Finding]:
    """The findings of a file, suppressed ones with their reason. A suppression without a reason
    suppresses nothing and is a finding itself; an unused one is a note."""
    inline = _inline_ignores(text)
    by_line: dict[int, list[int]] = {}
    for index, one in enumerate(inline):
        for line in (one.line, one.line + 1):
            by_line.setdefault(line, []).append(index)
    used: set[int] = set()
    for finding in findings:
        reason = next((one.reason for one in ignores if one.reason and one.covers(finding)), None)
        where = None if reason is None else "external"
        for index in by_line.get(finding.line or 0, ()):
            one = inline[index]
            if one.reason and one.covers(finding):
                used.add(index)
                reason, where = one.reason, "inSource"
        yield replace(finding, suppressed=reason, suppressed_in=where)
    for index, one in enumerate(inline):
        if not one.reason:
            yield finding_of("ignore-without-reason", file=file, line=one.line, column=1)
        elif index not in used:
            yield finding_of("unused-ignore", file=file, line=one.line, column=1)
        for rule in one.rules:
            if "*" not in rule and rule not in RULES:
                why = f"there is no rule {rule!r}"
                yield finding_of("unused-ignore", file=file, line=one.line, column=1, why=why)


def sarif(findings: Iterable[Finding], version: str) -> dict[str, Any]:
    driver = {
        "name": "anaphora",
        "version": version,
        "rules": [
            {
                "id": rule,
                "shortDescription": {"text": row.title},
                "fullDescription": {"text": row.why},
                "help": {"text": row.fix},
                "defaultConfiguration": {"level": row.severity},
            }
            for rule, row in RULES.items()
        ],
    }
    return {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": driver},
                "columnKind": "unicodeCodePoints",
                "results": [_result(finding) for finding in findings],
            }
        ],
    }


def _result(finding: Finding) -> dict[str, Any]:
    location: dict[str, Any] = {
        "physicalLocation": {"artifactLocation": {"uri": _uri(finding.file)}}
    }
    if finding.line is not None:
        region = {"startLine": finding.line, "startColumn": finding.column or 1}
        location["physicalLocation"]["region"] = region
    if finding.path:
        location["logicalLocations"] = [{"fullyQualifiedName": finding.path, "kind": "member"}]
    excerpt = f": {finding.excerpt}" if finding.excerpt else ""
    message = f"{RULES[finding.rule].title}{excerpt}. {finding.why}. Fix: {finding.fix}."
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "ruleIndex": _RULE_INDEX.index(finding.rule),
        "level": finding.severity,
        "message": {"text": message},
        "locations": [location],
    }
    properties = {
        "tokens": finding.tokens,
        "costUsdPer1000Calls": None if finding.cost_usd is None else str(finding.cost_usd),
    }
    if known := {name: value for name, value in properties.items() if value is not None}:
        result["properties"] = known
    if finding.suppressed is not None:
        kind = finding.suppressed_in or "external"
        result["suppressions"] = [{"kind": kind, "justification": finding.suppressed}]
    return result


def _uri(file: str) -> str:
    """Relative, with slashes and percent escapes."""
    return "".join(
        char
        if char.isascii() and (char.isalnum() or char in "/._-~")
        else "".join(f"%{byte:02X}" for byte in char.encode(errors="replace"))
        for char in file.replace("\\", "/")
    )
