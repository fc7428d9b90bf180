"""Finds variables by comparing texts of two runs, and writes match rules for them.

    Session: 81f3-22, ready        pattern = 'Session: (?P<value>[^,\\n]{1,512})'
    Session: 90aa-07, ready        placeholder = "{{session}}"

A rule needs words before the value in its line, which find it again. Lines that only one of the
texts has give no rule.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator

from .rules import SHORTEST_VALUE, MatchRule, MatchRules

#: Characters of the line before the value in a rule, and the letters and digits it needs there.
_BEFORE, _LEAST_BEFORE = 48, 3
#: Texts with more lines, and lines with more tokens, are not compared.
_MOST_LINES, _MOST_TOKENS = 5_000, 2_000
#: The longest value; RE2 allows repeats up to 1,000.
_LONGEST = 512
#: A value of this length with a digit means the same in the whole request.
_LONG = 8
#: What replaced a value that is known already: a rule is searched in the text before that.
_PLACEHOLDER = re.compile(r"\{\{[a-z_]+\}\}|<[a-z ]+>")
_TOKENS = re.compile(rf"(?:{_PLACEHOLDER.pattern}|[^\s\"'`<>,;()\[\]{{}}=|])+|.", re.DOTALL)
_WORDS = re.compile(r"[A-Za-z][A-Za-z0-9]*")
_PATH = re.compile(r"(?:~?/|[A-Za-z]:\\)")


def rules_between(texts: Iterable[tuple[str, str]]) -> list[MatchRule]:
    """Rules that make pairs of texts equal, as far as possible."""
    found: dict[str, MatchRule] = {}
    for one, two in texts:
        made = {rule.pattern: rule for rule in _text_rules(one, two)}
        found |= {pattern: rule for pattern, rule in made.items() if pattern not in found}
    return list(found.values())


def _text_rules(one: str, two: str) -> Iterator[MatchRule]:
    for before, after in _changed_lines(one, two):
        for rule in _line_rules(before, after):
            # A rule must replace its value in both lines; others may remain.
            if len({_with(rule, before), _with(rule, after)} & {before, after}) == 0:
                yield rule


def _with(rule: MatchRule, line: str) -> str:
    rules = MatchRules([rule], shipped=False)
    text: str = rules.apply(line)[0]
    return text


def _changed_lines(one: str, two: str) -> Iterator[tuple[str, str]]:
    """Lines that are at the same place in both texts, and differ."""
    first, second = one.splitlines(), two.splitlines()
    if max(len(first), len(second)) > _MOST_LINES:
        return
    matcher = difflib.SequenceMatcher(None, first, second, autojunk=False)
    for kind, begin, end, from_, to in matcher.get_opcodes():
        if kind == "replace" and end - begin == to - from_:
            yield from zip(first[begin:end], second[from_:to], strict=True)


def _line_rules(one: str, two: str) -> Iterator[MatchRule]:
    first, second = _TOKENS.findall(one), _TOKENS.findall(two)
    if max(len(first), len(second)) > _MOST_TOKENS:
        return
    last = 0
    for begin, end, from_, to in _changed_spans(first, second):
        before, last = "".join(first[last:begin]), end
        values = "".join(first[begin:end]), "".join(second[from_:to])
        rule = _rule(before, values, "".join(first[end : end + 1]))
        if rule is not None:
            yield rule


def _changed_spans(first: list[str], second: list[str]) -> list[tuple[int, int, int, int]]:
    """The tokens that differ; spans with only a space or the like between them are one."""
    matcher = difflib.SequenceMatcher(None, first, second, autojunk=False)
    spans: list[tuple[int, int, int, int]] = []
    for kind, *place in matcher.get_opcodes():
        if kind == "equal":
            continue
        begin, end, from_, to = place
        if spans and not "".join(first[spans[-1][1] : begin]).strip():
            spans[-1] = spans[-1][0], end, spans[-1][2], to
        else:
            spans.append((begin, end, from_, to))
    return spans


def _rule(before: str, values: tuple[str, str], after: str) -> MatchRule | None:
    known = [match.end() for match in _PLACEHOLDER.finditer(before)]
    context = before[known[-1] if known else 0 :]
    if len(context) > _BEFORE:  # begins with a whole word
        context = context[-_BEFORE:].partition(" ")[2] or context[-_BEFORE:]
    words = _WORDS.findall(context)
    letters = sum(map(len, words))
    if not all(values) or max(map(len, values)) > _LONGEST or letters < _LEAST_BEFORE:
        return None
    stop = after if len(after) == 1 and not any(after in value for value in values) else ""
    excluded = re.escape(stop) if stop.strip() else r"\s" if stop else ""
    everywhere = all(
        len(value) >= SHORTEST_VALUE
        and (_PATH.match(value) or (len(value) >= _LONG and re.search(r"\d", value)))
        for value in values
    )
    name = "_".join(word.lower() for word in words[-2:])
    return MatchRule(
        pattern=rf"{re.escape(context)}(?P<value>[^{excluded}\n]{{1,{_LONGEST}}})",
        placeholder=f"{{{{{name}}}}}",
        everywhere=bool(everywhere),
    )


def as_toml(rules: Iterable[MatchRule]) -> str:
    """The rules as replay.toml has them."""
    lines = []
    for rule in rules:
        pattern = rule.pattern.replace("\\", "\\\\").replace('"', '\\"').replace("\t", "\\t")
        lines += ["[[rule]]", f'pattern = "{pattern}"', f'placeholder = "{rule.placeholder}"']
        lines += ["everywhere = true", ""] if rule.everywhere else [""]
    return "\n".join(lines)
