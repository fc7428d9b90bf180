"""Findings that somebody has looked at and left alone, with the reason why."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

import msgspec
from msgspec.structs import replace

from .values import RULES, Finding, found

_INLINE = re.compile(r"anaphora:\s*ignore\[([\w*,\s-]+)\][ \t]*([^\n]*)")
_ENDS = re.compile(r"\s*(?:-->|\*/|#\}|%>)\s*$")


class Ignore(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One entry of the configuration. Names may hold a *."""

    rule: str
    reason: str
    file: str = "*"
    path: str = "*"

    def covers(self, finding: Finding) -> bool:
        file = finding.file.replace("\\", "/")
        return (
            fnmatchcase(finding.rule, self.rule)
            and (fnmatchcase(file, self.file) or fnmatchcase(file, f"*/{self.file}"))
            and (self.path == "*" or _matches(finding.path, self.path))
        )


def _matches(path: str, pattern: str) -> bool:
    """Paths have brackets in them, so only * is special here."""
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), path) is not None


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What `.anaphora-lint.toml` may say."""

    severity: str | None = None
    provider: str | None = None
    model: str | None = None
    ignore: tuple[Ignore, ...] = ()


class Inline(msgspec.Struct, frozen=True):
    """A suppression in a text: for its own line and the next."""

    line: int
    rules: tuple[str, ...]
    reason: str

    def covers(self, finding: Finding) -> bool:
        near = finding.line is not None and finding.line - self.line in (0, 1)
        return near and any(fnmatchcase(finding.rule, rule) for rule in self.rules)


def inline(text: str) -> list[Inline]:
    return [
        Inline(
            text.count("\n", 0, one.start()) + 1,
            tuple(name.strip() for name in one.group(1).split(",") if name.strip()),
            _ENDS.sub("", one.group(2)).strip(" :-–—"),
        )
        for one in _INLINE.finditer(text)
    ]


def suppressed(
    findings: Iterable[Finding], file: str, ignores: tuple[Ignore, ...], text: str = ""
) -> Iterator[Finding]:
    """The findings of a file, those that are left alone with the reason. A suppression without one
    suppresses nothing, and is a finding itself; one that nothing needs is a note."""
    written = inline(text)
    reasoned = [one for one in written if one.reason]
    used: set[int] = set()
    for finding in findings:
        reason = next((one.reason for one in ignores if one.reason and one.covers(finding)), None)
        where = None if reason is None else "external"
        for one in reasoned:
            if one.covers(finding):
                used.add(id(one))
                reason, where = one.reason, "inSource"
        yield replace(finding, suppressed=reason, suppressed_in=where)
    for one in written:
        if not one.reason:
            yield found("ignore-without-reason", file=file, line=one.line, column=1)
        elif id(one) not in used:
            yield found("unused-ignore", file=file, line=one.line, column=1)
        for rule in one.rules:
            if "*" not in rule and rule not in RULES:
                why = f"there is no rule {rule!r}"
                yield found("unused-ignore", file=file, line=one.line, column=1, why=why)
