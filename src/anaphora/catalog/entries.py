"""One provider's rows, layered into one profile and one set of rules for each model."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Container
from typing import Any

import msgspec

from anaphora.errors import InvalidCatalog

from .cache_rules import CacheRules
from .profiles import Profile
from .rows import Kind, Row

#: All that may follow an id: a release date (Google Cloud writes it with @, OpenAI with hyphens),
#: or -latest.
_SUFFIX = re.compile(r"(?:[-@][0-9]{8}|-[0-9]{4}-[0-9]{2}-[0-9]{2}|-latest)\Z")


class Entry(msgspec.Struct, frozen=True):
    """What the rows say of one model, taken together."""

    profile: Profile
    rules: CacheRules
    on_wire: dict[str, CacheRules]
    """The rules on those wires that have any of their own."""


class Entries:
    """What is known of one provider. Rows are read at the first question, and a model's are layered
    at the first about it: most programs ask about one or two."""

    def __init__(self, provider: str, read: Callable[[], tuple[Row, ...]]) -> None:
        self.provider = provider
        self._read = read
        self._layered: dict[str, Entry] = {}

    @functools.cached_property
    def rows(self) -> tuple[Row, ...]:
        """Lowest layer first."""
        return self._read()

    @functools.cached_property
    def ids(self) -> dict[str, None]:
        """The known models, in the order the rows introduce them."""
        ids = dict.fromkeys(id for row in self.rows if row.kind == "profiles" for id in row.models)
        for row in self.rows:
            # A profile row introduces a model; a rules row that does is a misspelling.
            if unknown := [id for id in row.models if id not in ids]:
                message = f"no profile names {unknown[0]!r}"
                raise InvalidCatalog(message, file=row.file, row=row.name)
        return ids

    @functools.cached_property
    def default(self) -> Entry:
        """What holds for a model that no row names."""
        return _entry(self.rows, self.provider, "", known=False)

    def find(self, model: str) -> Entry | None:
        # Gateways put the provider's name before a model's.
        id = match(model.removeprefix(f"{self.provider}/"), self.ids)
        return None if id is None else self[id]

    def __getitem__(self, id: str) -> Entry:
        if id not in self._layered:
            if id not in self.ids:
                raise KeyError(id)
            self._layered[id] = _entry(self.rows, self.provider, id, known=True)
        return self._layered[id]

    def all(self) -> tuple[Entry, ...]:
        return tuple(self[id] for id in self.ids)

    def under(self, rows: tuple[Row, ...]) -> Entries:
        """These with more rows on top, layered at once: whoever brings a row hears what is wrong
        with it."""
        together = Entries(self.provider, lambda: self.rows + rows)
        _ = together.default, together.all()
        return together


def match(model: str, known: Container[str]) -> str | None:
    """The known id that `model` is, or is a dated or -latest form of. Nothing else is guessed."""
    if model in known:
        return model
    undated = _SUFFIX.sub("", model)
    return undated if undated in known else None


def _entry(rows: tuple[Row, ...], provider: str, id: str, *, known: bool) -> Entry:
    applying = [row for row in rows if not row.models or id in row.models]
    wires = dict.fromkeys(wire for row in applying for wire in row.wires)
    return Entry(
        profile=Profile(provider=provider, id=id, known=known, **_merged(applying, "profiles")),
        rules=_rules(applying, provider, id, None),
        on_wire={wire: _rules(applying, provider, id, wire) for wire in wires},
    )


def _rules(rows: list[Row], provider: str, id: str, wire: str | None) -> CacheRules:
    applying = [row for row in rows if not row.wires or wire in row.wires]
    try:
        return CacheRules(provider=provider, model=id, **_merged(applying, "rules"))
    except InvalidCatalog as problem:
        # Each row is right by itself; the last one laid is the one that does not fit.
        last = [row for row in applying if row.kind == "rules"][-1]
        raise InvalidCatalog(str(problem), file=last.file, row=last.name) from problem


def _merged(rows: list[Row], kind: Kind) -> dict[str, Any]:
    """The figures of all rows of a kind, later over earlier, tables of figures key by key."""
    merged: dict[str, Any] = {}
    for row in rows:
        if row.kind != kind:
            continue
        for field in row.without:
            merged.pop(field, None)
        if "ttls" in row.figures and "write_price" in merged:
            # A row that lists the TTLs anew leaves no price behind for one that is gone.
            kept = row.figures["ttls"].value
            prices = merged["write_price"].items()
            merged["write_price"] = {ttl: price for ttl, price in prices if ttl in kept}
        for field, figure in row.figures.items():
            if isinstance(figure, dict):
                figure = {**merged.get(field, {}), **figure}
            merged[field] = figure
    return merged
