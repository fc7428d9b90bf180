"""Match rules: texts that differ from run to run are replaced before a request is looked up.

Agents write dates, directories and ids into their prompts. A rule is a pattern and a placeholder;
the key is computed from the request with placeholders. Rules come from three files: the one of this
package, for programs it knows, `replay.toml` in the folder of the recordings, and a file that the
caller names.

    [[rule]]
    pattern = "Ticket (?P<value>[A-Z]+-[0-9]+)"
    placeholder = "<ticket>"

The group `value` is replaced, or the whole match without such a group. With `everywhere = true`,
all occurrences of the group's text in the request are replaced: a working directory also occurs in
the results of tools.

Patterns of users are searched with RE2, which takes time in proportion to the text and so has no
look-around and no references to groups.
"""

from __future__ import annotations

import functools
import itertools
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from anaphora.errors import InvalidConfig, Io, MissingExtra

from .index import RULES as FILE

#: Shorter values are replaced only at their match: `/` is in every path.
SHORTEST_VALUE = 4
#: Limits of texts that are replaced everywhere: from one request, and from others. Each costs time.
_MOST_VALUES, _MOST_KNOWN = 16, 64
#: Before and after a value that is replaced everywhere. The letter of an escape in JSON within JSON
#: (`\\n/work/a`) is no part of a path.
_LEFT, _RIGHT = r"(?:(?<![\w.~-])|(?<=\\[bfnrt]))", r"(?![\w-]|\.\w)"
#: Limits of the remembered texts: their number, and their total length.
_REMEMBERED, _REMEMBERED_LENGTH = 4096, 16 * 1024 * 1024


class MatchRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A text that differs from run to run, and its placeholder."""

    pattern: str
    placeholder: str
    everywhere: bool = False
    """All occurrences of the text are replaced in a request in which the pattern matches."""
    program: str = ""
    """The program whose prompts have it."""


class RedactedPattern(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A secret by its form: matches are replaced before a recording is written."""

    pattern: str


class ReplaySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a `replay.toml`."""

    shipped_rules: bool = True
    """Whether the rules of this package also apply."""
    rule: tuple[MatchRule, ...] = ()
    redact: tuple[RedactedPattern, ...] = ()

    @classmethod
    def decode(cls, data: bytes | str, file: str = FILE) -> ReplaySettings:
        """Raises `InvalidConfig` with the reason and the line."""
        try:
            text = data.decode() if isinstance(data, bytes) else data
            settings = msgspec.convert(tomllib.loads(text), cls)
        except UnicodeDecodeError:
            raise InvalidConfig("not UTF-8", file=file) from None
        except tomllib.TOMLDecodeError as problem:
            raise InvalidConfig(f"not TOML: {problem}", file=file) from None
        except msgspec.ValidationError as problem:
            raise InvalidConfig(str(problem), file=file) from None
        patterns = {
            "rule": [rule.pattern for rule in settings.rule],
            "redact": [row.pattern for row in settings.redact],
        }
        for table, index in ((name, at) for name in patterns for at in range(len(patterns[name]))):
            pattern = patterns[table][index]
            try:
                user_pattern(pattern)
            except ValueError as problem:
                reason = f"{table}[{index}].pattern {pattern!r}: {problem}"
                line = _line_of(text, table, index)
                raise InvalidConfig(reason, file=file, line=line) from None
        return settings

    @classmethod
    def read(cls, path: Path) -> ReplaySettings:
        try:
            data = path.read_bytes()
        except OSError as problem:
            raise Io(f"cannot read {path}: {problem.strerror}") from None
        return cls.decode(data, str(path))


def _line_of(text: str, table: str, index: int) -> int | None:
    """The line of the pattern in the table with this index; None if it is not found."""
    tables = -1
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("[["):
            tables += re.match(rf"\s*\[\[\s*{table}\s*\]\]", line) is not None
        elif tables == index and re.match(r"\s*\"?pattern\"?\s*=", line):
            return number
    return None


def shipped_rules() -> tuple[MatchRule, ...]:
    """The rules of this package."""
    text = files("anaphora.replay").joinpath(FILE).read_text("utf-8")
    return msgspec.convert(tomllib.loads(text), ReplaySettings).rule


def settings_of(folder: Path, rules: bytes | None, extra: Path | None = None) -> ReplaySettings:
    """The settings of a folder of recordings with this replay.toml, and of one more file. The rules
    of both apply, and the shipped ones unless one of the files turns them off."""
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
        ours = shipped_rules() if shipped else ()
        self.rules = (*ours, *own)
        self._compiled: list[tuple[MatchRule, Any]] = [
            (rule, re.compile(rule.pattern)) for rule in ours
        ]
        for index, rule in enumerate(own):
            try:
                self._compiled.append((rule, user_pattern(rule.pattern)))
            except ValueError as problem:
                reason = f"rule[{index}].pattern {rule.pattern!r}: {problem}"
                raise InvalidConfig(reason) from None
        self._known: dict[str, tuple[str, tuple[tuple[str, str], ...]]] = {}
        self._known_length = 0

    def __repr__(self) -> str:
        return f"<MatchRules: {len(self.rules)} rules>"

    def apply(
        self, value: Any, known: Mapping[str, str] | None = None
    ) -> tuple[Any, dict[str, str]]:
        """A JSON value with placeholders, and the texts that were replaced everywhere, with their
        placeholders. `known` are such texts of other requests."""
        found: dict[str, str] = {}
        if self._compiled:
            value = map_texts(value, functools.partial(self._replaced, found=found))
            found = dict(itertools.islice(found.items(), _MOST_VALUES))
        everywhere = {**dict(itertools.islice((known or {}).items(), _MOST_KNOWN)), **found}
        if everywhere:
            value = map_texts(value, _replacement(everywhere))
        return value, found

    def values_in(self, body: bytes) -> dict[str, str]:
        """The texts of a request that are replaced everywhere, with their placeholders."""
        try:
            return self.apply(msgspec.json.decode(body))[1]
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return {}

    def _replaced(self, text: str, found: dict[str, str]) -> str:
        known = self._known.get(text)
        if known is None:
            known = self._replace(text)
            self._known_length += len(text)
            if len(self._known) >= _REMEMBERED or self._known_length > _REMEMBERED_LENGTH:
                self._known, self._known_length = {}, len(text)
            self._known[text] = known
        for value, name in known[1]:
            found.setdefault(value, name)
        return known[0]

    def _replace(self, text: str) -> tuple[str, tuple[tuple[str, str], ...]]:
        found: dict[str, str] = {}
        searched = without_surrogates(text)
        for rule, pattern in self._compiled:
            group = pattern.groupindex.get("value", 0)
            pieces: list[str] = []
            at = 0
            for match in pattern.finditer(searched):
                begin, end = match.span(group)
                if begin < 0:
                    continue
                if rule.everywhere and end - begin >= SHORTEST_VALUE:
                    found.setdefault(text[begin:end], rule.placeholder)
                pieces += text[at:begin], rule.placeholder
                at = end
            if pieces:
                text = "".join(pieces) + text[at:]
                searched = without_surrogates(text)
        return text, tuple(found.items())


def _replacement(everywhere: Mapping[str, str]) -> Callable[[str], str]:
    """Replaces all these texts by their placeholders."""
    # The longest first: one directory may be inside another.
    ordered = sorted(everywhere, key=len, reverse=True)
    pattern = re.compile("|".join(map(bounded, ordered)))

    def replaced(text: str) -> str:
        # Most texts contain none of them; `in` is much faster than the pattern.
        if not any(value in text for value in ordered):
            return text
        return pattern.sub(lambda match: everywhere[match[0]], text)

    return replaced


def bounded(value: str, form: str | None = None) -> str:
    """A pattern for a value, written in this form, that is not a part of a longer path or word:
    `/work/a` is not in `/work/ab` and not in `/home/work/a`, but is in `/work/a/b`."""
    left = _LEFT if value[0].isalnum() or value[0] in "/_" else ""
    right = _RIGHT if value[-1].isalnum() or value[-1] == "_" else ""
    return f"{left}{re.escape(form or value)}{right}"


def map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """A JSON value with other texts, without parts whose text became empty."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {name: map_texts(item, change) for name, item in value.items()}
    if isinstance(value, list):
        pairs = ((item, map_texts(item, change)) for item in value)
        return [
            new
            for old, new in pairs
            if not isinstance(new, dict) or new.get("text") != "" or old["text"] == ""
        ]
    return value


# ── Patterns of users ────────────────────────────────────────────────────────────────────────────

_SPACES = (
    r" \t-\r\x1c-\x1f\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}"
)
_NO_SPACES = (
    r"\x00-\x08\x0e-\x1b!-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027}"
    r"\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff}"
)
_NO_WORD = (
    r"\pM\pS\pZ\pC\p{Pd}\p{Ps}\p{Pe}\p{Pi}\p{Pf}\p{Po}"
    r"\x{203f}\x{2040}\x{2054}\x{fe33}\x{fe34}\x{fe4d}-\x{fe4f}\x{ff3f}"
)
#: Classes of Python's `re` in RE2 syntax, within brackets: RE2's own are ASCII only.
_CLASSES = {
    r"\d": r"\p{Nd}",
    r"\D": r"\P{Nd}",
    r"\w": r"\pL\pN_",
    r"\W": _NO_WORD,
    r"\s": _SPACES,
    r"\S": _NO_SPACES,
}
_TOKEN = re.compile(
    r"\\u[0-9a-fA-F]{4}|\\U[0-9a-fA-F]{8}|\\.|\[\^?\]?|\{,(?=\d+\})|\(\?(?:<?[=!]|P=|\()?|.",
    re.DOTALL,
)
_SURROGATE = re.compile("[\ud800-\udfff]")


def user_pattern(text: str) -> Any:
    """The pattern, compiled by RE2; it has the methods of `re.Pattern`. Raises `ValueError` for one
    that is not valid or matches the empty text, and `MissingExtra`."""
    try:
        import re2
    except ModuleNotFoundError:
        raise MissingExtra(
            "patterns of replay.toml need google-re2; install it with: pip install"
            " 'anaphora[proxy]'",
            extra="proxy",
        ) from None
    options = re2.Options()
    options.log_errors = False
    try:
        compiled = re2.compile("".join(_translated(text)), options)
    except (re2.error, UnicodeEncodeError) as problem:
        reason = problem.args[0] if isinstance(problem, re2.error) else problem
        shown = reason.decode(errors="replace") if isinstance(reason, bytes) else reason
        raise ValueError(f"not a regular expression of RE2: {shown}") from None
    if compiled.match("") is not None:
        raise ValueError("matches the empty text")
    return compiled


def _translated(pattern: str) -> Iterator[str]:
    """A pattern of Python's `re` in the syntax of RE2. Raises `ValueError` for unsupported
    syntax."""
    in_class = False
    for match in _TOKEN.finditer(pattern):
        token = match[0]
        if token in _CLASSES:
            yield _CLASSES[token] if in_class else f"[{_CLASSES[token]}]"
        elif token[:2] in (r"\u", r"\U") and len(token) > 2:
            yield rf"\x{{{token[2:]}}}"
        elif token[0] == "[" and in_class:
            yield "".join(rf"\{char}" for char in token.removesuffix("]"))
            in_class = not token.endswith("]")
            yield "" if in_class else "]"
        elif in_class:
            in_class = token != "]"
            yield {r"\b": r"\x08"}.get(token, token)
        elif token[0] == "[":
            in_class = True
            yield token
        elif token in ("(?=", "(?!", "(?<=", "(?<!"):
            raise ValueError(f"look-around, {token}…), is not supported")
        elif token in ("(?P=", "(?(") or re.fullmatch(r"\\[1-9]", token):
            raise ValueError("a reference to a group is not supported")
        else:
            yield {r"\Z": r"\z", "{,": "{0,"}.get(token, token)


def without_surrogates(text: str) -> str:
    """Text of the same length for RE2, which searches UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return _SURROGATE.sub("\x1a", text)
    return text
