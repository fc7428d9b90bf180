"""Explains why a request has no recording: the nearest one, their differences, and rules that would
make them equal."""

from __future__ import annotations

import itertools
import threading

import msgspec

from .comparison import rules_between
from .fixture import Fixture
from .keys import ComparedRequest, ReplayRequest, compared_request, with_placeholders
from .nearest import (
    RequestDifference,
    RequestOutline,
    differences,
    differing_texts,
    nearest,
)
from .rules import MatchRule, MatchRules
from .store import FixtureStore
from .variable_index import VariableIndex

#: How many differences an explanation has.
_MOST_SHOWN = 12


class NearestRecording(msgspec.Struct, frozen=True, kw_only=True):
    fixture: Fixture
    path: str
    """Its file."""
    differences: tuple[RequestDifference, ...]
    """The first ones."""
    servable: bool
    """Its answer has the form that the request expects, so it may be served."""
    rules: tuple[MatchRule, ...] = ()
    """Rules that would make the differing texts equal."""


class MissExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """A request without a recording."""

    request: str
    reason: str
    nearest: str = ""
    """The file of the nearest recording; empty without one."""
    differences: tuple[RequestDifference, ...] = ()
    rules: tuple[MatchRule, ...] = ()


class NearestSearch:
    """Thread-safe. Reads all recordings the first time."""

    def __init__(self, store: FixtureStore, rules: MatchRules, index: VariableIndex) -> None:
        self._store, self._rules, self._index = store, rules, index
        self._lock = threading.Lock()
        self._outlines: dict[str, RequestOutline] | None = None

    def find(self, request: ReplayRequest) -> NearestRecording | None:
        """The recording most similar to a request without secrets."""
        asked = self._compared(request)
        best: tuple[int, str, Fixture, ComparedRequest] | None = None
        for name in nearest(RequestOutline.of(asked), self._recorded().items()):
            fixture = self._store.fixture(name)
            compared = self._compared(ReplayRequest.of(fixture))
            first = next(differences(compared, asked), None)
            alike = -1 if first is None or first.offset is None else first.offset
            if best is None or alike >= best[0]:
                best = alike, name, fixture, compared
        if best is None:
            return None
        _, path, fixture, compared = best
        return NearestRecording(
            fixture=fixture,
            path=path,
            differences=tuple(itertools.islice(differences(compared, asked), _MOST_SHOWN)),
            servable=compared.operation == asked.operation,
            rules=tuple(rules_between(differing_texts(compared, asked))),
        )

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
