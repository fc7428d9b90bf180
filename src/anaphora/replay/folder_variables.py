"""The variables of a folder of recordings, and missing rules, found by comparing a second
recording.

    found = compare(FixtureStore.open("recordings"), FixtureStore.open("recorded-elsewhere"))
    found.rules

Two recordings of a program have different answers. Requests are therefore compared up to the first
answer in them: instructions, tools and the first messages.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from .comparison import rules_between
from .fixture import Fixture
from .keys import ComparedRequest, ReplayRequest, compared_request, with_placeholders
from .misses import NearestSearch
from .nearest import differences, differing_texts
from .rules import MatchRule, MatchRules, settings_of
from .store import FixtureStore
from .variable_index import VariableIndex
from .variables import (
    BoundVariable,
    differing_variables,
    named_in,
    placeholder,
    recorded_variables,
)

#: The lists of a body that hold a conversation.
_CONVERSATIONS = ("messages", "input", "contents")
_MOST_LEFT = 20


class RecordingComparison(msgspec.Struct, frozen=True, kw_only=True):
    compared: int
    """Requests of the second recording."""
    equal: int
    """How many of them were equal up to their first answer, except for known variables."""
    variables: tuple[BoundVariable, ...]
    """Known variables that differ."""
    rules: tuple[MatchRule, ...]
    """Rules for other texts that differ."""
    left: tuple[str, ...]
    """Differences that no rule expresses."""


def variables_of(store: FixtureStore) -> dict[tuple[str, str], int]:
    """In how many recordings each variable occurs, by name and value."""
    rules = _rules_of(store)
    found: Counter[tuple[str, str]] = Counter()
    for entry in store.entries:
        fixture = store.fixture(entry.path)
        named = named_in(recorded_variables(fixture), fixture.request)
        pairs = {(placeholder(name), value) for name, value in named.items()}
        pairs |= {(name, value) for value, name in rules.values_in(fixture.request).items()}
        found.update(pairs)
    return dict(sorted(found.items()))


def compare(store: FixtureStore, other: FixtureStore) -> RecordingComparison:
    """Compares two recordings of a program."""
    rules = _rules_of(store)
    fixtures = [other.fixture(entry.path) for entry in other.entries]
    present = {name: text for one in fixtures for name, text in recorded_variables(one).items()}
    index = VariableIndex(store, rules, present)
    search = NearestSearch(store, rules, index)
    pairs: list[tuple[Fixture, Fixture]] = []
    bound: dict[BoundVariable, None] = {}
    for fixture in fixtures:
        found = rules.values_in(fixture.request)
        index.values(found)
        near = search.find(ReplayRequest.of(fixture))
        if near is not None and near.servable:
            pairs.append((near.fixture, fixture))
            same = differing_variables(near.fixture, fixture.request, rules, found, present)
            bound |= dict.fromkeys(same)
    values = index.values()
    before = [_beginnings(pair, rules, values) for pair in pairs]
    new = rules_between(texts for pair in before for texts in differing_texts(*pair))
    rules = _rules_of(store, tuple(new))
    left = dict.fromkeys(
        str(each) for pair in pairs for each in differences(*_beginnings(pair, rules, values))
    )
    return RecordingComparison(
        compared=len(fixtures),
        equal=sum(next(differences(*pair), None) is None for pair in before),
        variables=tuple(bound),
        rules=tuple(new),
        left=tuple(left)[:_MOST_LEFT],
    )


def _rules_of(store: FixtureStore, more: tuple[MatchRule, ...] = ()) -> MatchRules:
    settings = settings_of(store.folder, store.rules)
    return MatchRules((*settings.rule, *more), shipped=settings.shipped_rules)


def _beginnings(
    pair: tuple[Fixture, Fixture], rules: MatchRules, values: dict[str, str]
) -> tuple[ComparedRequest, ComparedRequest]:
    """Two requests up to their first answer, with placeholders."""
    one, two = (
        with_placeholders(compared_request(ReplayRequest.of(each)), rules, values)[0]
        for each in pair
    )
    return _beginning(one), _beginning(two)


def _beginning(compared: ComparedRequest) -> ComparedRequest:
    if not isinstance(compared.body, dict):
        return compared
    body = dict(compared.body)
    for name in _CONVERSATIONS:
        items = body.get(name)
        if isinstance(items, list):
            body[name] = items[
                : next((at for at, one in enumerate(items) if _is_answer(one)), None)
            ]
    return msgspec.structs.replace(compared, body=body)


def _is_answer(item: Any) -> bool:
    """Whether a part of a conversation came from the model."""
    if not isinstance(item, dict):
        return False
    return item.get("role") in ("assistant", "model") or item.get("type", "message") != "message"
