"""Names as numbers. The sums hold numbers; each name is stored once, and the number of names is
bounded."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

import msgspec

from anaphora.bounded import BoundedMap
from anaphora.client.observe.export import OTHER

from .schema import ALL_CALLS, MINUTE, WEEK

NameKind: TypeAlias = Literal[
    "app",
    "app_group",
    "provider",
    "model",
    "label",
    "outcome",
    "cause",
    "change",
    "changed",
    "tag",
]

#: Maximum number of names of one kind; all further ones become `other`.
MOST_NAMES = 1_000
#: The same for apps: no app of a daemon can have this name, so that none sees these sums.
OTHER_APPS = "(other)"
#: Maximum number of labels and models of one app, so that one app cannot use up those of the
#: others: a refused call costs nothing, and may name any model.
MOST_OF_APP = 200
#: Maximum number of label sets; calls with further sets are not found by a label.
_MOST_SETS = 10_000


class KnownNames:
    """The names in a file, and those that the next transaction adds. After a failed transaction,
    they are read again."""

    def __init__(self, database: sqlite3.Connection, most_of_app: int = MOST_OF_APP) -> None:
        self._most_of_app = most_of_app
        self._ids: dict[tuple[str, str], int] = {}
        self._counts: Counter[str] = Counter()
        for id, kind, text in database.execute("SELECT id, kind, text FROM names"):
            self._ids[kind, text] = id
            self._counts[kind] += 1
        self._next = 1 + max(self._ids.values(), default=0)
        self._app_labels: dict[int, dict[str, int]] = {}
        for app, label, text in database.execute(
            "SELECT a.app, a.label, n.text FROM app_labels a JOIN names n ON n.id = a.label"
        ):
            self._app_labels.setdefault(app, {})[text] = label
        self._app_models: dict[int, set[str]] = {}
        for app, text in database.execute(
            "SELECT DISTINCT s.app, n.text FROM sums s JOIN names n ON n.id = s.model"
            " WHERE s.step IN (?, ?) AND s.label_set = ?",
            (MINUTE, WEEK, ALL_CALLS),
        ):
            self._app_models.setdefault(app, set()).add(text)
        self._sets: dict[tuple[int, ...], int] = {(): 0}
        self._orders = BoundedMap[tuple[int, ...], int](_MOST_SETS)
        """By the labels of a prompt in their order."""
        self.members: dict[int, tuple[int, ...]] = {0: ()}
        """The labels of each set."""
        for id, labels in database.execute("SELECT id, labels FROM label_sets"):
            members = tuple(msgspec.json.decode(labels, type=list[int]))
            self._sets[members], self.members[id] = id, members
        self._new_names: list[tuple[int, str, str]] = []
        self._new_sets: list[int] = []

    def id(self, kind: NameKind, text: str) -> int:
        found = self._ids.get((kind, text))
        if found is not None:
            return found
        stored = text.encode(errors="replace").decode()  # SQLite stores no lone surrogates
        if stored != text:
            return self.id(kind, stored)
        other = OTHER_APPS if kind == "app" else OTHER
        if self._counts[kind] >= MOST_NAMES and text != other:
            return self.id(kind, other)
        id, self._next = self._next, self._next + 1
        self._ids[kind, text] = id
        self._counts[kind] += 1
        self._new_names.append((id, kind, text))
        return id

    def model(self, app: int, text: str) -> int:
        known = self._app_models.setdefault(app, set())
        if text not in known:
            if len(known) >= self._most_of_app and text != OTHER:
                return self.model(app, OTHER)
            known.add(text)
        return self.id("model", text)

    def labels(self, app: int) -> Mapping[str, int]:
        """Known labels of an app."""
        return self._app_labels.setdefault(app, {})

    def label(self, app: int, text: str) -> int:
        known = self._app_labels.setdefault(app, {})
        found = known.get(text)
        if found is not None:
            return found
        if len(known) >= self._most_of_app and text != OTHER:
            return self.label(app, OTHER)
        found = known[text] = self.id("label", text)
        return found

    def label_set(self, labels: Iterable[int]) -> int:
        """The number of a set; `labels` in any order."""
        order = tuple(labels)
        found = self._orders.get(order)
        if found is None:
            found = self._orders[order] = self._set(tuple(sorted(set(order))))
        return found

    def _set(self, members: tuple[int, ...]) -> int:
        found = self._sets.get(members)
        if found is not None:
            return found
        if len(self._sets) > _MOST_SETS:
            return 0
        id = len(self._sets)
        self._sets[members], self.members[id] = id, members
        self._new_sets.append(id)
        return id

    def write(self, database: sqlite3.Connection) -> None:
        database.executemany("INSERT INTO names VALUES (?, ?, ?)", self._new_names)
        for id in self._new_sets:
            members = self.members[id]
            text = msgspec.json.encode(members).decode()
            database.execute("INSERT INTO label_sets VALUES (?, ?)", (id, text))
            rows = [(label, id) for label in members]
            database.executemany("INSERT INTO set_labels VALUES (?, ?)", rows)
        self._new_names, self._new_sets = [], []
