"""TOML text to rows, strictly: whatever is not of the promised form is an `InvalidCatalog`.

A file speaks of one provider. It holds `[[rules]]` and `[[profiles]]` rows, each with the figures
that one source gives: for the `models` it names, or for the whole provider when it names none.
Rows are layers: a later one wins over an earlier one, figure by figure. So a fact is written once,
the way it was published, and an override is a row that comes last.

    provider = "anthropic"

    [[rules]]
    source = "the caching page"
    date = 2026-08-22
    models = ["claude-opus-4-7"]
    minimum_tokens = 2048                                  # source and date of the row
    read_price = { value = 0.1, source = "the price page", date = 2026-11-14 }

A figure with a source of its own needs a date of its own: the row's would be the wrong one.
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


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """The figures one row states, decoded; `models` is empty when it means the whole provider."""

    kind: Kind
    provider: str
    models: tuple[str, ...]
    figures: dict[str, Any]
    file: str
    name: str


def decode_rows(text: str, *, file: str) -> tuple[Row, ...]:
    """The rows of one file, in its order."""
    import tomllib

    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise InvalidCatalog(f"not TOML: {problem}", file=file) from problem
    provider = table.pop("provider", None)
    if not isinstance(provider, str) or not provider:
        raise InvalidCatalog('a file starts with provider = "…"', file=file)
    rows: list[Row] = []
    for kind in _STRUCTS:
        tables = table.pop(kind, [])
        if not isinstance(tables, list) or not all(isinstance(row, dict) for row in tables):
            raise InvalidCatalog(f"write rows as [[{kind}]]", file=file, row=kind)
        rows += (_row(row, kind, provider, file, at) for at, row in enumerate(tables))
    if table:
        raise InvalidCatalog(f"unknown field {min(table)!r}", file=file)
    return tuple(rows)


def _row(table: dict[str, Any], kind: Kind, provider: str, file: str, at: int) -> Row:
    name = f"{kind}[{at}]"
    models = _convert(table.get("models", []), tuple[str, ...], "models", file, name)
    if models:
        name += f" ({', '.join(models)})"
    elif "models" in table:
        raise InvalidCatalog("models names none; leave it out", file=file, row=name)
    provenance = {key: table[key] for key in _PROVENANCE if key in table}
    fields = fields_of(kind)
    figures: dict[str, Any] = {}
    for key, value in table.items():
        if key == "models" or key in _PROVENANCE:
            continue
        if key not in fields:
            raise InvalidCatalog(f"unknown field {key!r}", file=file, row=name)
        figures[key] = _convert(_spelled_out(value, provenance), fields[key].type, key, file, name)
    return Row(kind=kind, provider=provider, models=models, figures=figures, file=file, name=name)


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
