"""Findings as SARIF 2.1.0, which code-scanning services read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .values import RULES, Finding

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_ORDER = tuple(RULES)


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
    told: dict[str, Any] = {
        "ruleId": finding.rule,
        "ruleIndex": _ORDER.index(finding.rule),
        "level": finding.severity,
        "message": {"text": message(finding)},
        "locations": [location],
    }
    known = {
        "tokens": finding.tokens,
        "costUsdPer1000Calls": None if finding.cost_usd is None else str(finding.cost_usd),
    }
    if properties := {name: value for name, value in known.items() if value is not None}:
        told["properties"] = properties
    if finding.suppressed is not None:
        kind = finding.suppressed_in or "external"
        told["suppressions"] = [{"kind": kind, "justification": finding.suppressed}]
    return told


def message(finding: Finding) -> str:
    """All of it in a sentence or two."""
    shown = f": {finding.excerpt}" if finding.excerpt else ""
    return f"{RULES[finding.rule].title}{shown}. {finding.why}. Fix: {finding.fix}."


def _uri(file: str) -> str:
    """Relative, with slashes; what a URI may not hold is spelt out."""
    path = file.replace("\\", "/")
    return "".join(
        one if one.isascii() and (one.isalnum() or one in "/._-~") else _escaped(one)
        for one in path
    )


def _escaped(one: str) -> str:
    return "".join(f"%{byte:02X}" for byte in one.encode(errors="replace"))
