"""Finds the recording that differs from a request only in variables, or else the most similar one
and their first difference.

    differs in messages[3].content[0].text at character 812:
      recorded  "…the file has 40 lines…"
      asked     "…the file has 41 lines…"

Requests are compared like their keys: without markers and identifiers, and with placeholders.
Recordings hold no secrets, so those of the request are removed before it is compared.

The stored key of a recording is that of its own run. When a request is first not found by its
stored key, the keys of all recordings are computed again with the present rules and variables, so
that rules that were added later count. Two keys are tried:

    own   each request with the values of its own run
    all   each with the values of all runs: a text that is a variable's value by accident,
          such as `/tmp` in a fixed instruction, is the same in both requests
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from blake3 import blake3

from .fixture import Fixture
from .keys import (
    ComparedRequest,
    ReplayRequest,
    compared_request,
    key_of_compared,
    with_placeholders,
)
from .rules import MatchRules
from .store import FixtureStore
from .variables import placeholders

#: How much of a text is shown before and after the first difference.
_BEFORE, _AFTER = 24, 40
#: How many of the most similar recordings are compared text by text.
_CLOSEST = 8
_MISSING = msgspec.UNSET


class RequestDifference(msgspec.Struct, frozen=True, kw_only=True):
    """The first place where a request differs from a recorded one."""

    path: str
    """Of the field: `messages[3].content[0].text`, `model`; `body` if it is not JSON."""
    offset: int | None = None
    """The first character that differs, if both are texts."""
    recorded: str
    asked: str
    """An excerpt of each, or `nothing`."""

    def __str__(self) -> str:
        place = "" if self.offset is None else f" at character {self.offset:,}"
        return f"recorded {self.recorded}, asked {self.asked}, differs in {self.path}{place}"


class RequestOutline(msgspec.Struct, frozen=True, gc=False):
    """Digests of the fields of a request, to find similar ones."""

    operation: tuple[str, str, bool]
    fields: frozenset[bytes]

    @classmethod
    def of(cls, compared: ComparedRequest) -> RequestOutline:
        return cls(
            compared.operation,
            frozenset(
                blake3(f"{path}\0{value!r}".encode("utf-8", "surrogatepass")).digest(8)
                for path, value in _leaves(_parts(compared), "")
            ),
        )


def nearest(asked: RequestOutline, recorded: Iterable[tuple[str, RequestOutline]]) -> list[str]:
    """The names of the recordings with the largest share of fields in common, those of the same
    operation first; of several, the last few."""
    best, names = (False, -1.0), list[str]()
    for name, outline in recorded:
        common = len(asked.fields & outline.fields)
        total = len(asked.fields) + len(outline.fields) - common
        share = outline.operation == asked.operation, common / total if total else 1.0
        if share > best:
            best, names = share, []
        if share == best:
            names.append(name)
    return names[-_CLOSEST:]


def first_difference(recorded: ComparedRequest, asked: ComparedRequest) -> RequestDifference | None:
    """The first one, in the order of the new request."""
    found = next(_differing(_parts(recorded), _parts(asked), ""), None)
    if found is None:
        return None
    path, one, two = found
    if isinstance(one, str) and isinstance(two, str):
        offset = _first_difference(one, two)
        excerpts = _excerpt(one, offset), _excerpt(two, offset)
    else:
        offset, excerpts = None, (_shown(one), _shown(two))
    return RequestDifference(path=path, offset=offset, recorded=excerpts[0], asked=excerpts[1])


class NearestSearch:
    """Thread-safe. Reads all recordings the first time."""

    def __init__(self, store: FixtureStore, rules: MatchRules, index: VariableIndex) -> None:
        self._store, self._rules, self._index = store, rules, index
        self._lock = threading.Lock()
        self._outlines: dict[str, RequestOutline] | None = None

    def find(self, request: ReplayRequest) -> tuple[Fixture, RequestDifference | None] | None:
        """The recording most similar to a request without secrets, and how they differ."""
        asked = self._compared(request)
        best: tuple[int, Fixture, RequestDifference | None] | None = None
        for name in nearest(RequestOutline.of(asked), self._recorded().items()):
            fixture = self._store.fixture(name)
            first = first_difference(self._compared(ReplayRequest.of(fixture)), asked)
            alike = -1 if first is None or first.offset is None else first.offset
            if best is None or alike >= best[0]:
                best = alike, fixture, first
        return None if best is None else best[1:]

    def _compared(self, request: ReplayRequest) -> ComparedRequest:
        return with_placeholders(compared_request(request), self._rules, self._index.values())[0]

    def _recorded(self) -> dict[str, RequestOutline]:
        with self._lock:
            if self._outlines is None:
                self._outlines = {
                    entry.path: RequestOutline.of(
                        self._compared(ReplayRequest.of(self._store.fixture(entry.path)))
                    )
                    for entry in self._store.entries
                }
            return self._outlines


def _parts(compared: ComparedRequest) -> dict[str, Any]:
    """A request as one object: its address and model, the members of its body, and its query."""
    parts: dict[str, Any] = {
        "method": compared.method,
        "provider": compared.provider,
        "path": compared.path,
        "model": compared.model,
    }
    if isinstance(compared.body, dict):
        parts |= compared.body
    elif compared.body is not None:
        parts["body"] = compared.body
    elif compared.digest:
        parts["body"] = f"bytes with digest {compared.digest}"
    for (name, value), count in Counter(compared.query).items():
        parts[f"query.{name}"] = value if count == 1 else [value] * count
    return parts


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _leaves(item, f"{path}.{name}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path}[{index}]")
    else:
        yield path, value


def _differing(recorded: Any, asked: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """The values that differ, and their paths."""
    if isinstance(recorded, dict) and isinstance(asked, dict):
        for name in {**asked, **recorded}:
            inner = f"{path}.{name}" if path else name
            yield from _differing(recorded.get(name, _MISSING), asked.get(name, _MISSING), inner)
    elif isinstance(recorded, list) and isinstance(asked, list):
        for index in range(max(len(recorded), len(asked))):
            one = recorded[index] if index < len(recorded) else _MISSING
            two = asked[index] if index < len(asked) else _MISSING
            yield from _differing(one, two, f"{path}[{index}]")
    elif type(recorded) is not type(asked) or recorded != asked:
        yield path, recorded, asked


def _first_difference(one: str, two: str) -> int:
    """Binary search: comparing slices is faster than single characters."""
    low, high = 0, min(len(one), len(two))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == two[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _excerpt(text: str, offset: int) -> str:
    begin, end = max(0, offset - _BEFORE), offset + _AFTER
    shown = msgspec.json.encode(text[begin:end].encode("utf-8", "replace").decode()).decode()[1:-1]
    return f'"{"…" if begin else ""}{shown}{"…" if end < len(text) else ""}"'


def _shown(value: Any) -> str:
    if value is _MISSING:
        return "nothing"
    if isinstance(value, str):
        return _excerpt(value, 0)
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _BEFORE + _AFTER else f"{text[: _BEFORE + _AFTER]}…"


#: How many values of requests are added to those of the recordings; each costs a pass over the
#: folder.
_MOST_ADDED = 32


class RecordedPlace(msgspec.Struct, frozen=True):
    """A fixture, and its position among those with the same stored key."""

    path: str
    key: str
    position: int


class VariableIndex:
    """Thread-safe."""

    def __init__(self, store: FixtureStore, rules: MatchRules, present: Mapping[str, str]) -> None:
        self._store, self._rules = store, rules
        self.present = placeholders(present)
        """The values of this run with their placeholders."""
        self._words = placeholders(present, words=True)
        self._lock = threading.RLock()
        self._values: dict[str, str] | None = None
        self._added = 0
        self._own: dict[str, list[RecordedPlace]] = {}
        self._all: dict[str, list[RecordedPlace]] | None = None

    def find(self, request: ReplayRequest) -> Sequence[RecordedPlace]:
        """The recordings of a request, in the order they were recorded. The request is without
        secrets, as recordings are."""
        compared = compared_request(request)
        own = key_of_compared(compared, self._rules, self.present)
        with self._lock:
            values = self.values(own.replaced)
            if own.key in self._own:
                return self._own[own.key]
            if self._all is None:
                self._all = {}
                for place, recorded, _ in self._recorded():
                    key = key_of_compared(recorded, self._rules, values).key
                    self._all.setdefault(key, []).append(place)
            return self._all.get(key_of_compared(compared, self._rules, values).key, ())

    def values(self, found: Mapping[str, str] | None = None) -> dict[str, str]:
        """The values of all runs with their placeholders; `found` are more of this run."""
        with self._lock:
            if self._values is None:
                self._values = self._read()
            new = {text: name for text, name in (found or {}).items() if text not in self._values}
            if new and self._added < _MOST_ADDED:
                self._added += len(new)
                self._values = {**new, **self._values}
                self._all = None
            return self._values

    def _read(self) -> dict[str, str]:
        """The values of all recordings and of this run. Computes the own keys."""
        values = dict(self._words)
        for place, recorded, fixture in self._recorded():
            variables = fixture.variables if self._words else {}
            key = key_of_compared(recorded, self._rules, placeholders(variables))
            self._own.setdefault(key.key, []).append(place)
            for text, name in {**key.replaced, **placeholders(variables, words=True)}.items():
                values.setdefault(text, name)
        return values

    def _recorded(self) -> Iterator[tuple[RecordedPlace, ComparedRequest, Fixture]]:
        positions: dict[str, int] = {}
        order = {entry.path: at for at, entry in enumerate(self._store.entries)}
        entries = sorted(self._store.entries, key=lambda entry: (entry.number, order[entry.path]))
        places = {}
        for entry in entries:
            position = positions[entry.key] = positions.get(entry.key, -1) + 1
            places[entry.path] = RecordedPlace(entry.path, entry.key, position)
        for path in order:
            fixture = self._store.fixture(path)
            yield places[path], compared_request(ReplayRequest.of(fixture)), fixture
