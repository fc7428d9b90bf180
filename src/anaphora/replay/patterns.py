"""Regular expressions whose cost is bounded: matching takes time in proportion to the text.

Python's `re` tries one way through a pattern after the other, and some patterns have more ways than
can be tried: `(a+)+b` takes hours for forty letters. So a pattern is checked when it is compiled:

- An open repeat (`*`, `+`, `{3,}`) is repeated at most `LONGEST` times more than it has to.
- Where the next character does not decide how to go on, all ways have to be tried. Their number
  times the longest match must not exceed `MOST_STEPS`: that many steps are taken at most for each
  character of a text.

`\\d+ tokens` has one way: a space is no digit. `.*x` has as many ways as `.*` may be repeated.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any, TypeAlias

#: The most that an open repeat takes.
LONGEST = 512
#: The most steps for each character of a text.
MOST_STEPS = 1_000_000

#: A set of characters: ASCII by code, and 128 for all others.
_Chars: TypeAlias = frozenset[int]
_ALL: _Chars = frozenset(range(129))
_OTHER = 128
_TOO_MANY = 10**12

#: Flags for a part of a pattern: `(?i:…)`.
_SCOPED = re.compile(r"\(\?([a-zA-Z]+)")

_parser: Any = import_module("re._parser")
_names: Any = import_module("re._constants")
_REPEATS = (_names.MAX_REPEAT, _names.MIN_REPEAT, _names.POSSESSIVE_REPEAT)
_CATEGORIES = {
    _names.CATEGORY_DIGIT: r"\d",
    _names.CATEGORY_NOT_DIGIT: r"\D",
    _names.CATEGORY_SPACE: r"\s",
    _names.CATEGORY_NOT_SPACE: r"\S",
    _names.CATEGORY_WORD: r"\w",
    _names.CATEGORY_NOT_WORD: r"\W",
}
#: Classes that characters beyond ASCII may belong to, too: all of them.
_CATEGORY_CHARS: dict[Any, _Chars] = {
    name: frozenset([*(code for code in range(128) if re.match(text, chr(code))), _OTHER])
    for name, text in _CATEGORIES.items()
}


@functools.lru_cache(maxsize=512)
def bounded_pattern(text: str) -> re.Pattern[str]:
    """The compiled pattern. Raises `ValueError` for one that is not valid, that matches the empty
    text, or that may take too long."""
    try:
        tree = _parser.parse(text)
        compiled = re.compile(text)
    except (re.error, OverflowError, RecursionError) as problem:
        raise ValueError(f"not a regular expression: {problem}") from None
    if compiled.match("") is not None:
        raise ValueError("matches the empty text, which is everywhere")
    ignore_case = bool(compiled.flags & re.IGNORECASE) or "i" in "".join(_SCOPED.findall(text))
    cost = _CostCounter(ignore_case).of(list(tree), frozenset())
    if cost.ways * cost.width > MOST_STEPS:
        raise ValueError(
            f"may take more than {MOST_STEPS:,} steps for each character of a text: bound its"
            " repeats ({1,20} instead of +), and let none end with what may follow it"
        )
    if not cost.is_open:
        return compiled
    _limit(tree)
    limited: re.Pattern[str] = import_module("re._compiler").compile(tree)
    return limited


class _PatternCost:
    """The most ways through a part of a pattern, the longest match, and whether it is unbounded as
    written."""

    __slots__ = ("is_open", "ways", "width")

    def __init__(self, ways: int = 1, width: int = 0, is_open: bool = False) -> None:
        self.ways, self.width, self.is_open = ways, width, is_open


class _CostCounter:
    def __init__(self, ignore_case: bool) -> None:
        self._ignore_case = ignore_case

    def of(self, nodes: Sequence[Any], after: _Chars) -> _PatternCost:
        """The cost of nodes in a row, where `after` are the characters that may follow them."""
        total = _PatternCost()
        for index in range(len(nodes) - 1, -1, -1):
            cost = self._node(nodes[index], after)
            total.ways = min(total.ways * cost.ways, _TOO_MANY)
            total.width = min(total.width + cost.width, _TOO_MANY)
            total.is_open |= cost.is_open
            first, may_be_empty = self.first(nodes[index : index + 1])
            after = first | after if may_be_empty else first
        return total

    def _node(self, node: Any, after: _Chars) -> _PatternCost:
        name, value = node
        if name in (_names.LITERAL, _names.NOT_LITERAL, _names.ANY, _names.IN):
            return _PatternCost(width=1)
        if name is _names.AT:
            return _PatternCost()
        if name is _names.SUBPATTERN:
            return self.of(list(value[3]), after)
        if name is _names.ATOMIC_GROUP:
            return self.of(list(value), after)
        if name in (_names.ASSERT, _names.ASSERT_NOT):
            return self.of(list(value[1]), _ALL)
        if name is _names.BRANCH:
            return self._branch(value[1], after)
        if name in _REPEATS:
            least, most, body = value
            return self._repeat(least, most, body, after)
        what = "a reference to a group" if "GROUPREF" in str(name) else str(name).lower()
        raise ValueError(f"{what} is not supported: its cost is not bounded")

    def _branch(self, branches: Sequence[Any], after: _Chars) -> _PatternCost:
        costs = [self.of(list(branch), after) for branch in branches]
        width = max(cost.width for cost in costs)
        is_open = any(cost.is_open for cost in costs)
        firsts = [self._or_after(branch, after) for branch in branches]
        if sum(map(len, firsts)) == len(frozenset().union(*firsts)):
            return _PatternCost(max(cost.ways for cost in costs), width, is_open)
        return _PatternCost(min(sum(cost.ways for cost in costs), _TOO_MANY), width, is_open)

    def _repeat(self, least: int, most: Any, body: Any, after: _Chars) -> _PatternCost:
        is_open = most is _names.MAXREPEAT
        most = least + LONGEST if is_open else int(most)
        nodes = list(body)
        first, may_be_empty = self.first(nodes)
        # What follows a round of the body is another round, or what follows the repeat.
        cost = self.of(nodes, first | after)
        ways = 1 if least == most or not (first & after or may_be_empty) else most - least + 1
        if cost.ways > 1:
            ways = min(ways * cost.ways ** min(most, 64), _TOO_MANY)
        return _PatternCost(ways, min(cost.width * most, _TOO_MANY), cost.is_open or is_open)

    def _or_after(self, nodes: Iterable[Any], after: _Chars) -> _Chars:
        first, may_be_empty = self.first(list(nodes))
        return first | after if may_be_empty else first

    def first(self, nodes: Sequence[Any]) -> tuple[_Chars, bool]:
        """The characters that a match may begin with, and whether it may be empty."""
        chars: _Chars = frozenset()
        for node in nodes:
            own, may_be_empty = self._first_of(*node)
            chars |= own
            if not may_be_empty:
                return chars, False
        return chars, True

    def _first_of(self, name: Any, value: Any) -> tuple[_Chars, bool]:
        if name in (_names.AT, _names.ASSERT, _names.ASSERT_NOT):
            return frozenset(), True
        if name is _names.SUBPATTERN:
            return self.first(list(value[3]))
        if name is _names.ATOMIC_GROUP:
            return self.first(list(value))
        if name is _names.BRANCH:
            firsts = [self.first(list(branch)) for branch in value[1]]
            return frozenset().union(*(own for own, _ in firsts)), any(e for _, e in firsts)
        if name in _REPEATS:
            own, may_be_empty = self.first(list(value[2]))
            return own, may_be_empty or value[0] == 0
        return self._chars(name, value), False

    def _chars(self, name: Any, value: Any) -> _Chars:
        if name is _names.ANY:
            return _ALL
        if name is _names.LITERAL:
            return self._cased({min(value, _OTHER)})
        if name is _names.NOT_LITERAL:
            return _ALL - (self._cased({value}) if value < _OTHER else frozenset())
        if name is not _names.IN:
            return _ALL
        negated = value[0][0] is _names.NEGATE
        chars: set[int] = set()
        for kind, what in value[negated:]:
            if kind is _names.LITERAL:
                chars |= self._cased({min(what, _OTHER)})
            elif kind is _names.RANGE:
                begin, end = what
                chars |= self._cased({*range(begin, min(end, 127) + 1)})
                if end > 127:
                    chars.add(_OTHER)
            else:
                chars |= _CATEGORY_CHARS[what]
        if not negated:
            return frozenset(chars)
        return (_ALL - chars) | {_OTHER}

    def _cased(self, codes: set[int]) -> _Chars:
        if not self._ignore_case:
            return frozenset(codes)
        letters = {
            ord(other) for code in codes for other in (chr(code).swapcase(),) if len(other) == 1
        }
        return frozenset(min(code, _OTHER) for code in codes | letters) | {_OTHER}


def _limit(nodes: Any) -> None:
    """Limits the open repeats of a parsed pattern."""
    for index in range(len(nodes)):
        name, value = nodes[index]
        if name in _REPEATS:
            least, most, body = value
            if most is _names.MAXREPEAT:
                nodes[index] = (name, (least, least + LONGEST, body))
            _limit(body)
        elif name is _names.SUBPATTERN:
            _limit(value[3])
        elif name is _names.ATOMIC_GROUP:
            _limit(value)
        elif name in (_names.ASSERT, _names.ASSERT_NOT):
            _limit(value[1])
        elif name is _names.BRANCH:
            for branch in value[1]:
                _limit(branch)
