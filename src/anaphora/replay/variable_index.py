"""Finds recordings that differ from a request only in variables.

The stored key of a recording is that of its own run. When a request is first not found by its
stored key, the keys of all recordings are computed again with the present rules and variables, so
that recordings of earlier versions and rules that were added later count. Two keys are tried:

    own   each request with the values of its own run
    all   each with the values of all runs: a text that is a variable's value by accident,
          such as `/tmp` in a fixed instruction, is the same in both requests
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from .fixture import Fixture
from .keys import ComparedRequest, ReplayRequest, compared_request, key_of_compared
from .rules import MatchRules
from .store import FixtureStore
from .variables import placeholders, recorded_variables

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
            variables = recorded_variables(fixture) if self._words else {}
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
