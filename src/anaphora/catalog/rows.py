"""TOML text to rows, strictly: whatever is not of the promised form is an `InvalidCatalog`.

A file speaks of one provider, or of several that have most rows in common. It holds `[[rules]]` and
`[[profiles]]` rows, each with the figures that one source gives: for the `models` it names, or for
the whole provider when it names none. Rows are layers: a later one wins over an earlier one, figure
by figure. So a fact is written once, the way it was published, and an override is a row that comes
last.

    provider = "anthropic"

    [[rules]]
    source = "the caching page"
    date = 2026-08-22
    models = ["claude-opus-4-7"]
    minimum_tokens = 2048                                  # source and date of the row
    read_price = { value = 0.1, source = "the price page", date = 2026-11-14 }

A figure with a source of its own needs a date of its own: the row's would be the wrong one.

A provider that caches otherwise on another of its protocols says so in a rules row with `wires`: it
holds only for calls on those.

    [[rules]]
    wires = ["anthropic"]
    mechanism = "explicit"

A file of several providers begins with `providers = ["…", "…"]`, and a row that is not for all of
them has `providers` too.

What nobody knows of a provider need not be written: careful.toml lies under every one. A notion
that it does not have is taken away again:

    [[profiles]]
    without = ["max_tokens_field"]
"""

from __future__ import annotations

import datetime
import functools
from typing import Any, Literal, TypeAlias

import msgspec

from anaphora.errors import InvalidCatalog

from .cache_rules import CacheRules
from .profiles import Profile

Kind: TypeAlias = Literal["rules", "profiles"]

_STRUCTS: dict[Kind, type[msgspec.Struct]] = {"rules": CacheRules, "profiles": Profile}
_PROVENANCE = ("source", "date")


@functools.cache
def fields_of(kind: Kind) -> dict[str, msgspec.structs.FieldInfo]:
    """What a row of that kind may state. A model's identity is set by look-up, never by a row."""
    identity = {"provider", "model", "id", "known"}
    every = msgspec.structs.fields(_STRUCTS[kind])
    return {field.name: field for field in every if field.name not in identity}


class Row(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What one row states, for one provider; `models` is empty when it means all of its models,
    `wires` when it means every wire."""

    kind: Kind
    provider: str
    models: tuple[str, ...]
    wires: tuple[str, ...]
    stated: dict[str, Any]
    """By field, as it was written."""
    provenance: dict[str, Any]
    without: tuple[str, ...]
    """Figures of the rows below that do not hold; none of them one that must be there."""
    file: str
    name: str

    @functools.cached_property
    def figures(self) -> dict[str, Any]:
        """Decoded when a model is asked about that the row is for: of a large file, a tenth."""
        fields = fields_of(self.kind)
        figures: dict[str, Any] = {}
        for key, value in self.stated.items():
            if key not in fields:
                raise InvalidCatalog(f"unknown field {key!r}", file=self.file, row=self.name)
            figure = _spelled_out(value, self.provenance)
            figures[key] = _convert(figure, fields[key].type, key, self.file, self.name)
        return figures


def decode_rows(text: str, *, file: str) -> tuple[Row, ...]:
    """The rows of one file, in its order."""
    table = _table(text, file)
    return _rows(table, _providers(table, file), file)


def decode_careful(text: str, *, file: str) -> tuple[Row, ...]:
    """The rows of a file that speaks of nobody in particular, so of everybody."""
    return _rows(_table(text, file), ("",), file)


def _table(text: str, file: str) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise InvalidCatalog(f"not TOML: {problem}", file=file) from problem


def _rows(table: dict[str, Any], providers: tuple[str, ...], file: str) -> tuple[Row, ...]:
    rows: list[Row] = []
    for kind in _STRUCTS:
        tables = table.pop(kind, [])
        if not isinstance(tables, list) or not all(isinstance(row, dict) for row in tables):
            raise InvalidCatalog(f"write rows as [[{kind}]]", file=file, row=kind)
        for at, row in enumerate(tables):
            rows += _row(row, kind, providers, file, at)
    if table:
        raise InvalidCatalog(f"unknown field {min(table)!r}", file=file)
    return tuple(rows)


def _providers(table: dict[str, Any], file: str) -> tuple[str, ...]:
    """Whom the file speaks of."""
    if "provider" in table:
        one = table.pop("provider")
        named = (one,) if isinstance(one, str) else ()
    else:
        named = _convert(table.pop("providers", []), tuple[str, ...], "providers", file, "")
    if not named or not all(named):
        raise InvalidCatalog('a file starts with provider = "…"', file=file)
    return named


def _row(
    table: dict[str, Any], kind: Kind, providers: tuple[str, ...], file: str, at: int
) -> list[Row]:
    name = f"{kind}[{at}]"
    models = _named(table, "models", file, name)
    if models:
        name += f" ({', '.join(models)})"
    known = {"models", "without", *_PROVENANCE}
    if kind == "rules":
        known.add("wires")
    if len(providers) > 1:
        known.add("providers")
    wires = _named(table, "wires", file, name) if "wires" in known else ()
    own = _named(table, "providers", file, name) if "providers" in known else ()
    if foreign := [provider for provider in own if provider not in providers]:
        message = f"the file does not speak of {foreign[0]!r}"
        raise InvalidCatalog(message, file=file, row=name)
    without = _named(table, "without", file, name)
    fields = fields_of(kind)
    if stuck := [field for field in without if field not in fields or fields[field].required]:
        raise InvalidCatalog(f"cannot be without {stuck[0]!r}", file=file, row=name)
    stated = {key: value for key, value in table.items() if key not in known}
    provenance = {key: table[key] for key in _PROVENANCE if key in table}
    return [
        Row(
            kind=kind,
            provider=provider,
            models=models,
            wires=wires,
            stated=stated,
            provenance=provenance,
            without=without,
            file=file,
            name=name,
        )
        for provider in own or providers
    ]


def _named(table: dict[str, Any], key: str, file: str, row: str) -> tuple[str, ...]:
    """What a row is for: nothing where it says nothing, which means all."""
    names: tuple[str, ...] = _convert(table.get(key, []), tuple[str, ...], key, file, row)
    if key in table and not names:
        raise InvalidCatalog(f"{key} names none; leave it out", file=file, row=row)
    return names


def _spelled_out(value: Any, provenance: dict[str, Any]) -> Any:
    """A plain value as a figure of the row's source and date; a table of figures, one by one."""
    if not isinstance(value, dict):
        return {"value": value, **provenance}
    if "value" not in value:
        return {key: _spelled_out(item, provenance) for key, item in value.items()}
    return value if "source" in value else {**provenance, **value}


def _convert(value: Any, kind: Any, field: str, file: str, row: str) -> Any:
    try:
        # TOML has dates; one in quotes is a mistake.
        return msgspec.convert(value, kind, builtin_types=(datetime.date,))
    except msgspec.ValidationError as problem:
        raise InvalidCatalog(f"{field}: {problem}", file=file, row=row) from problem
