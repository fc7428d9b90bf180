"""Variables: the place and the day of a run, which differ between a recording and other runs.

    {{cwd}}   the working directory            {{date}}   today, in the usual spellings
    {{home}}  the home directory               {{month}}  November 2026
    {{tmp}}   the folder for temporary files   {{user}}   the user's name

A fixture keeps the values of the recorded run (`Fixture.variables`); its request and response stay
as they were. Before two requests are compared, the values of each are replaced by the names. In the
served response, directories and the texts that match rules replace everywhere get the values of the
request. Values of dates and users are only compared.
"""

from __future__ import annotations

import contextlib
import datetime
import getpass
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import quote

import msgspec

from anaphora.canonical import string

from .fixture import Fixture, FixturePiece, joined_pieces
from .redact import Edit, edited
from .rules import MatchRules, bounded, without_surrogates
from .secret_forms import edited_body, spread_edits, strings_by_index, strings_by_name

#: Shorter values occur in ordinary text; `/` is in every path.
_SHORTEST = 4
#: How programs write a date.
_DATES = {
    "date": "%Y-%m-%d",
    "date_slashes": "%Y/%m/%d",
    "date_string": "%a %b %d %Y",
    "date_words": "%B {day}, %Y",
    "date_weekday": "%A, %B {day}, %Y",
    "date_us": "{month}/{day}/%Y",
    "month": "%B %Y",
}
_UTC, _USER = "_utc", "user"
#: Levels of JSON within JSON in which a value is found: a tool's arguments, and a document in them.
_LEVELS = 3


class BoundVariable(msgspec.Struct, frozen=True, kw_only=True):
    """A variable that differs between a recording and a request."""

    name: str
    """The placeholder: `{{cwd}}`."""
    recorded: str
    now: str


def present_variables() -> dict[str, str]:
    """The variables of this process, by name."""
    found = {}
    with contextlib.suppress(OSError):  # the working directory was removed
        found["cwd"] = os.getcwd()
        logical = os.environ.get("PWD", "")
        if logical not in ("", found["cwd"]) and os.path.samefile(logical, found["cwd"]):
            found["pwd"] = logical
    found |= {"home": os.path.expanduser("~"), "tmp": tempfile.gettempdir()}
    with contextlib.suppress(OSError, KeyError, ImportError):  # a user without a name
        found[_USER] = getpass.getuser()
    found |= date_variables(datetime.datetime.now(datetime.UTC).timestamp())
    return {
        name: value
        for name, value in found.items()
        if len(value) >= _SHORTEST and without_surrogates(value) == value
    }


def date_variables(seconds: float) -> dict[str, str]:
    """The day of this time, here and in UTC, in each spelling."""
    now = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    found: dict[str, str] = {}
    for name, day in (("", now.astimezone()), (_UTC, now)):
        for spelling, form in _DATES.items():
            text = day.strftime(form.format(day=day.day, month=day.month))
            if name == "" or found[spelling] != text:
                found[spelling + name] = text
    return found


def placeholder(name: str) -> str:
    return f"{{{{{name.removesuffix(_UTC)}}}}}"


def placeholders(variables: Mapping[str, str], *, words: bool = False) -> dict[str, str]:
    """The values of variables with their placeholders, as `MatchRules.apply` takes them; with
    `words` also values that may be ordinary words: `root` is not always a user."""
    found: dict[str, str] = {}
    for name, value in variables.items():
        if words or name != _USER:
            found.setdefault(value, placeholder(name))
    return found


def named_in(variables: Mapping[str, str], *bodies: bytes) -> dict[str, str]:
    """The variables whose values are in one of these bodies."""
    return {
        name: value
        for name, value in variables.items()
        if any(form in body for form in _forms(value) for body in bodies)
    }


def differing_variables(
    fixture: Fixture,
    request: bytes,
    rules: MatchRules,
    found: Mapping[str, str],
    present: Mapping[str, str],
) -> tuple[BoundVariable, ...]:
    """The variables whose values differ between a recorded request and a request that matches it.
    `found` are the values that rules found in the latter."""
    recorded = named_in(fixture.variables, fixture.request)
    now = named_in({name: present[name] for name in recorded if name in present}, request)
    bound = {
        recorded[name]: BoundVariable(name=placeholder(name), recorded=recorded[name], now=value)
        for name, value in now.items()
    }
    if found:
        old, new = _by_placeholder(rules.values_in(fixture.request)), _by_placeholder(found)
        for name, values in old.items():
            for one, two in zip(values, new.get(name, ()), strict=False):
                bound[one] = BoundVariable(name=name, recorded=one, now=two)
    return tuple(each for each in bound.values() if each.recorded != each.now)


def _by_placeholder(values: Mapping[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for value, name in values.items():
        found.setdefault(name, []).append(value)
    return found


# ── Responses ────────────────────────────────────────────────────────────────────────────────────

_COMPARED_ONLY = frozenset(placeholder(name) for name in (_USER, *_DATES))


def with_values(fixture: Fixture, bound: Sequence[BoundVariable]) -> Fixture:
    """The fixture with the directories of the request in its response instead of the recorded ones:
    in texts, tool calls, and across deltas. All other bytes stay."""
    values = {each.recorded: each.now for each in bound if each.name not in _COMPARED_ONLY}
    if not values:
        return fixture
    insertion = _Insertion(values)
    pieces = edited_body(fixture.headers, fixture.pieces, insertion.inserted)
    if pieces is fixture.pieces:
        return fixture
    return msgspec.structs.replace(fixture, pieces=tuple(pieces), raw_hash="")


class _Insertion:
    """Replaces values in bytes: plain, JSON-escaped and percent-encoded."""

    def inserted(self, pieces: Sequence[FixturePiece]) -> Sequence[FixturePiece]:
        pieces = edited(pieces, self.edits(joined_pieces(pieces)))
        for groups in (strings_by_index, strings_by_name):
            data = joined_pieces(pieces)
            pieces = edited(pieces, spread_edits(data, groups(data), self.spread))
        return pieces

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values: dict[bytes, str] = {}
        patterns: dict[str, str] = {}
        for value in sorted(values, key=len, reverse=True):
            for form in _forms(value):
                self._values.setdefault(form, values[value])
                patterns.setdefault(form.decode(), bounded(value, form.decode()))
        ordered = sorted(patterns, key=len, reverse=True)
        # Bytes, so that offsets stay the same; `\w` is ASCII only.
        self._pattern = re.compile("|".join(patterns[each] for each in ordered).encode())
        self._done = re.compile(b"|".join(re.escape(one.encode()) for one in values.values()))

    def edits(self, data: bytes) -> list[Edit]:
        return [
            (*match.span(), _written(self._values[match[0]], data, match))
            for match in self._pattern.finditer(data)
        ]

    def spread(self, data: bytes) -> list[Edit]:
        """Like `edits`, but for values that were put in already: one may contain another."""
        done = [match.span() for match in self._done.finditer(data)]
        return [
            edit
            for edit in self.edits(data)
            if not any(begin <= edit[0] < end for begin, end in done)
        ]


def _forms(value: str) -> Iterator[bytes]:
    """How a value is written in a body."""
    forms = [value.encode(), quote(value, safe="/:\\").encode(), json.dumps(value)[1:-1].encode()]
    for _ in range(_LEVELS):
        forms.append(string(value)[1:-1])
        value = forms[-1].decode()
    return iter(dict.fromkeys(forms))


def _written(value: str, data: bytes, place: re.Match[bytes]) -> bytes:
    """A value as it is written at this place."""
    if b"%" in place[0] and "%" not in value:
        return quote(value, safe="/:\\").encode()
    # The quote before it shows the level: `"` of JSON, `\"` of JSON within JSON.
    before, quoted, _ = data[: place.start()].rpartition(b'"')
    backslashes = len(before) - len(before.rstrip(b"\\"))
    for _ in range((backslashes + 1).bit_length() if quoted else 0):
        value = string(value)[1:-1].decode()
    return value.encode()
