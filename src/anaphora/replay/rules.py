"""Match rules: texts that differ from run to run are replaced before a request is looked up.

Agents write dates, directories and ids into their prompts. A rule is a pattern and a placeholder;
the key of a request is taken of the request with placeholders. Rules come from three files: the one
of this package, for programs it knows, `replay.toml` in the folder of the recordings, and a file
that the caller names.

    [[rule]]
    pattern = "Ticket (?P<value>[A-Z]+-[0-9]+)"
    placeholder = "<ticket>"

What is replaced is the group `value`, or the whole match where there is no such group. With
`everywhere = true` the text of the group is replaced wherever it stands in the request: a working
directory also occurs in the results of tools.
"""

from __future__ import annotations

import functools
import itertools
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from anaphora.errors import InvalidConfig, Io

from .index import RULES as FILE
from .patterns import bounded_pattern

#: Shorter values are replaced where their rule finds them only: `/` is in every path.
_SHORTEST_VALUE = 4
#: How many texts of one request are replaced everywhere, and how many of others: each costs time.
_MOST_VALUES, _MOST_KNOWN = 16, 64
#: Texts whose result is remembered, and how long they may be together.
_REMEMBERED, _REMEMBERED_LENGTH = 4096, 16 * 1024 * 1024


class MatchRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A text that differs from run to run, and what replaces it."""

    pattern: str
    placeholder: str
    everywhere: bool = False
    """The text is replaced wherever it stands in a request in which the pattern finds it."""
    program: str = ""
    """The program whose prompts have it."""


class RedactedPattern(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A secret by its form: what matches is replaced before a recording is written."""

    pattern: str


class ReplaySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a `replay.toml`."""

    shipped_rules: bool = True
    """Whether the rules of this package apply, too."""
    rule: tuple[MatchRule, ...] = ()
    redact: tuple[RedactedPattern, ...] = ()

    @classmethod
    def decode(cls, data: bytes | str, file: str = FILE) -> ReplaySettings:
        """Raises `InvalidConfig`, which names what is wrong, and where."""
        try:
            text = data.decode() if isinstance(data, bytes) else data
            settings = msgspec.convert(tomllib.loads(text), cls)
        except UnicodeDecodeError:
            raise InvalidConfig("not UTF-8", file=file) from None
        except tomllib.TOMLDecodeError as problem:
            raise InvalidConfig(f"not TOML: {problem}", file=file) from None
        except msgspec.ValidationError as problem:
            raise InvalidConfig(str(problem), file=file) from None
        for index, rule in enumerate(settings.rule):
            _check(rule.pattern, file, f"rule[{index}]")
        for index, row in enumerate(settings.redact):
            _check(row.pattern, file, f"redact[{index}]")
        return settings

    @classmethod
    def read(cls, path: Path) -> ReplaySettings:
        try:
            data = path.read_bytes()
        except OSError as problem:
            raise Io(f"cannot read {path}: {problem.strerror}") from None
        return cls.decode(data, str(path))


def _check(pattern: str, file: str, place: str) -> re.Pattern[str]:
    try:
        return bounded_pattern(pattern)
    except ValueError as problem:
        raise InvalidConfig(f"{place}.pattern {pattern!r}: {problem}", file=file) from None


@functools.cache
def shipped_rules() -> tuple[MatchRule, ...]:
    """The rules of this package."""
    text = files("anaphora.replay").joinpath(FILE).read_text("utf-8")
    return ReplaySettings.decode(text, f"anaphora/replay/{FILE}").rule


def settings_of(folder: Path, rules: bytes | None, extra: Path | None = None) -> ReplaySettings:
    """The settings of a folder of recordings with this replay.toml, and of one more file. A rule of
    either applies; the shipped ones unless one of them says no."""
    read = [] if rules is None else [ReplaySettings.decode(rules, str(folder / FILE))]
    if extra is not None:
        read.append(ReplaySettings.read(extra))
    return ReplaySettings(
        shipped_rules=all(each.shipped_rules for each in read),
        rule=tuple(rule for each in read for rule in each.rule),
        redact=tuple(row for each in read for row in each.redact),
    )


class MatchRules:
    """Rules, ready to be applied. Safe to use from several threads. Takes time in proportion to the
    request."""

    def __init__(self, rules: Iterable[MatchRule] = (), *, shipped: bool = True) -> None:
        own = tuple(rules)
        self.rules = (*(shipped_rules() if shipped else ()), *own)
        self._compiled = [
            (rule, _check(rule.pattern, "", f"rule[{index}]"))
            for index, rule in enumerate(self.rules)
        ]
        self._known: dict[str, tuple[str, tuple[tuple[str, str], ...]]] = {}
        self._known_length = 0

    def __repr__(self) -> str:
        return f"<MatchRules: {len(self.rules)} rules>"

    def apply(
        self, value: Any, known: Mapping[str, str] | None = None
    ) -> tuple[Any, dict[str, str]]:
        """A JSON value with placeholders, and the texts that were replaced everywhere, with their
        placeholders. `known` are such texts of other requests."""
        if not self._compiled:
            return value, {}
        found: dict[str, str] = {}
        value = map_texts(value, functools.partial(self._replaced, found=found))
        found = dict(itertools.islice(found.items(), _MOST_VALUES))
        everywhere = {**dict(itertools.islice((known or {}).items(), _MOST_KNOWN)), **found}
        if everywhere:
            # The longest first: one directory may be inside another.
            ordered = sorted(everywhere, key=len, reverse=True)
            pattern = re.compile("|".join(map(re.escape, ordered)))
            value = map_texts(value, lambda text: pattern.sub(lambda m: everywhere[m[0]], text))
        return value, found

    def _replaced(self, text: str, found: dict[str, str]) -> str:
        known = self._known.get(text)
        if known is None:
            known = self._replace(text)
            self._known_length += len(text)
            if len(self._known) >= _REMEMBERED or self._known_length > _REMEMBERED_LENGTH:
                self._known, self._known_length = {}, len(text)
            self._known[text] = known
        found.update(known[1])
        return known[0]

    def _replace(self, text: str) -> tuple[str, tuple[tuple[str, str], ...]]:
        found: dict[str, str] = {}
        for rule, pattern in self._compiled:
            text = pattern.sub(functools.partial(_substitute, rule, found), text)
        return text, tuple(found.items())


def _substitute(rule: MatchRule, found: dict[str, str], match: re.Match[str]) -> str:
    group: str | int = "value" if "value" in match.re.groupindex else 0
    value, (begin, end) = match[group], match.span(group)
    if value is None:
        return match[0]
    if rule.everywhere and len(value) >= _SHORTEST_VALUE:
        found[value] = rule.placeholder
    whole = match[0]
    start = match.start()
    return whole[: begin - start] + rule.placeholder + whole[end - start :]


def map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """A JSON value with other texts. Names of members stay."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {name: map_texts(item, change) for name, item in value.items()}
    if isinstance(value, list):
        return [map_texts(item, change) for item in value]
    return value
