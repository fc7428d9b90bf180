"""Decoding TOML files into rows, and layering a provider's rows into profiles and cache rules.

A file is for one provider, or for several that have most rows in common. It holds `[[rules]]` and
`[[profiles]]` rows, each with the figures of one source: for the `models` it names, or for the
whole provider if it names none. Rows are layers: a later one wins over an earlier one, figure by
figure. So a fact is written once, the way it was published, and an override is a row that comes
last. Other content raises `InvalidCatalog`.

    provider = "anthropic"

    [[rules]]
    source = "the caching page"
    date = 2026-08-22
    models = ["claude-opus-4-7"]
    minimum_tokens = 2048                                  # source and date of the row
    read_price = { value = 0.1, source = "the price page", date = 2026-11-14 }

A figure with its own source needs its own date.

A rules row with `wires` holds only for calls on those, for a provider whose protocols cache
differently.

    [[rules]]
    wires = ["anthropic"]
    mechanism = "explicit"

A file of several providers begins with `providers = ["…", "…"]`, and a row that is not for all of
them has `providers` too.

Unknown facts are not written: defaults.toml is the lowest layer of every provider. A row removes a
field that the provider does not have:

    [[profiles]]
    without = ["max_tokens_field"]

A name that ends with `*` stands for the models that begin so: such a row applies to all of them,
and to models that no other row names.

A gateway's models are cached by the provider that serves them, so the cache rules of that one lie
between the gateway's stand-ins for every model and all else that its file states. Limits, routing
and isolation are the gateway's own; so are prices, if its file states any. For a cloud that hosts
a maker's models (names.HOSTED), the maker's profiles lie there as well.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Container, Mapping
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from anaphora.errors import InvalidCatalog

from .cache_rules import CacheRules
from .names import HOSTED, base_model, hosted_model, is_among, model_in_arn, spelling, vendor_of
from .values import (
    Profile,
    as_figure,
    convert,
    decoded_once,
    derived,
    read_toml,
    tables_of,
    verified_part,
)

T = TypeVar("T")
RowKind: TypeAlias = Literal["rules", "profiles"]

_STRUCTS: dict[RowKind, type[msgspec.Struct]] = {"rules": CacheRules, "profiles": Profile}
_PROVENANCE = ("source", "date")

#: Suffixes of an id: a release date (Google Cloud writes it with @, OpenAI with hyphens), or
#: -latest.
_SUFFIX = re.compile(r"(?:[-@][0-9]{8}|-[0-9]{4}-[0-9]{2}-[0-9]{2}|-latest)\Z")

#: Figures of the gateway itself, regardless of the provider that serves the model.
_GATEWAY_FIGURES = ("isolation", "key_requests", "route_seconds", "reads_limited")
#: Figures of a maker's own API, which a cloud that hosts its models does not have.
_MAKER_FIGURES = ("api_version", "version_refusals")
_PRICES = ("read_price", "automatic_read_price", "write_price", "storage_price")

#: Prefixes that some APIs put before a model's id.
_COLLECTIONS = {"google": "models/"}

#: The fields of each kind of row; a model's identity is not one.
FIELDS = {
    kind: {
        field.name: field
        for field in msgspec.structs.fields(struct)
        if field.name not in ("provider", "model", "id", "known")
    }
    for kind, struct in _STRUCTS.items()
}


class CatalogRow(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A row for one provider; empty `models` mean all of its models, empty `wires` every wire."""

    kind: RowKind
    provider: str
    models: tuple[str, ...]
    wires: tuple[str, ...]
    stated: dict[str, Any]
    """By field, as written."""
    provenance: dict[str, Any]
    without: tuple[str, ...]
    """Figures of lower layers that do not apply; required ones cannot be removed."""
    file: str
    name: str

    @decoded_once
    def figures(self) -> dict[str, Any]:
        """Decoded on first use: programs use a tenth of a large file."""
        fields = FIELDS[self.kind]
        figures: dict[str, Any] = {}
        for key, value in self.stated.items():
            if key not in fields:
                raise InvalidCatalog(f"unknown field {key!r}", file=self.file, row=self.name)
            figure = as_figure(value, self.provenance)
            figures[key] = convert(figure, fields[key].type, self.file, self.name, key)
        return figures


def decode_rows(text: str, *, file: str) -> tuple[CatalogRow, ...]:
    """The rows of one file, in its order."""
    content = read_toml(text, file)
    named = content.pop("providers", [])
    if "provider" in content:
        named = [content.pop("provider")] if isinstance(content["provider"], str) else []
    providers = convert(named, tuple[str, ...], file, "", "providers")
    if not providers or not all(providers):
        raise InvalidCatalog('a file starts with provider = "…"', file=file)
    return _rows(content, providers, file)


def decode_defaults(text: str, *, file: str) -> tuple[CatalogRow, ...]:
    """The rows of a file for all providers."""
    return _rows(read_toml(text, file), ("",), file)


def _rows(content: dict[str, Any], providers: tuple[str, ...], file: str) -> tuple[CatalogRow, ...]:
    if unknown := content.keys() - _STRUCTS:
        raise InvalidCatalog(f"unknown field {min(unknown)!r}", file=file)
    return tuple(
        row
        for kind in _STRUCTS
        for index, table in enumerate(tables_of(content, kind, file))
        for row in _row(table, kind, providers, file, f"{kind}[{index}]")
    )


def _row(
    table: dict[str, Any], kind: RowKind, providers: tuple[str, ...], file: str, name: str
) -> list[CatalogRow]:
    names: dict[str, tuple[str, ...]] = {"models": (), "without": ()}
    if kind == "rules":
        names["wires"] = ()
    if len(providers) > 1:
        names["providers"] = ()
    for key in tuple(names):
        values = names[key] = convert(table.get(key, []), tuple[str, ...], file, name, key)
        if key in table and not values:
            raise InvalidCatalog(f"{key} is empty; leave it out", file=file, row=name)
        if key == "models" and values:
            name += f" ({', '.join(values)})"
    own, fields = names.get("providers", ()), FIELDS[kind]
    if foreign := [provider for provider in own if provider not in providers]:
        raise InvalidCatalog(f"the file is not for {foreign[0]!r}", file=file, row=name)
    without = names["without"]
    if stuck := [field for field in without if field not in fields or fields[field].required]:
        raise InvalidCatalog(f"cannot be without {stuck[0]!r}", file=file, row=name)
    return [
        CatalogRow(
            kind=kind,
            provider=provider,
            models=names["models"],
            wires=names.get("wires", ()),
            stated={key: table[key] for key in table if key not in (*names, *_PROVENANCE)},
            provenance={key: table[key] for key in _PROVENANCE if key in table},
            without=without,
            file=file,
            name=name,
        )
        for provider in own or providers
    ]


def _verified(row: CatalogRow) -> CatalogRow:
    """A row without its stand-ins."""
    parts = {name: verified_part(value, row.provenance) for name, value in row.stated.items()}
    stated = {field: part for field, part in parts.items() if part is not None}
    return msgspec.structs.replace(row, stated=stated, without=())


def _for_gateway(row: CatalogRow, left_out: tuple[str, ...]) -> CatalogRow:
    """A row of the provider that serves a gateway's model, as a layer of the gateway."""
    stated = {
        field: derived(value, row.provenance, row.file)
        for field, value in row.stated.items()
        if field not in left_out
    }
    return msgspec.structs.replace(row, models=(), stated=stated)


#: How many names of models a provider's entries remember, and the longest name they do.
_FOUND, _LONGEST = 512, 256


class ModelEntry(msgspec.Struct, frozen=True):
    """All rows of one model, merged."""

    profile: Profile
    rules: CacheRules
    on_wire: dict[str, CacheRules]
    """The rules on wires that differ."""


class ProviderEntries:
    """The rows of one provider. They are read on first use, and merged for a model at its first
    lookup: most programs use one or two."""

    def __init__(
        self,
        provider: str,
        read: Callable[[], tuple[CatalogRow, ...]],
        vendors: Mapping[str, ProviderEntries] | None = None,
    ) -> None:
        """`vendors` are the providers that serve the models of a gateway."""
        self.provider = provider
        self._read = read
        self._vendors = vendors
        self._merged: dict[tuple[str, tuple[str, str] | None], ModelEntry] = {}
        self._found = functools.lru_cache(maxsize=_FOUND)(self._find)

    @decoded_once
    def rows(self) -> tuple[CatalogRow, ...]:
        """Lowest layer first."""
        return self._read()

    @decoded_once
    def ids(self) -> dict[str, None]:
        """The known models, in the order the rows introduce them."""
        named = (id for row in self.rows if row.kind == "profiles" for id in row.models)
        ids = dict.fromkeys(id for id in named if not id.endswith("*"))
        for row in self.rows:
            # Only a profile row introduces a model; an id that only a rules row has is a
            # misspelling.
            unknown = [id for id in row.models if id not in ids and not id.endswith("*")]
            if unknown:
                message = f"no profile names {unknown[0]!r}"
                raise InvalidCatalog(message, file=row.file, row=row.name)
        return ids

    @decoded_once
    def _beginnings(self) -> tuple[str, ...]:
        """The names that end with `*`, the longest first."""
        found = {id for row in self.rows for id in row.models if id.endswith("*")}
        return tuple(sorted(found, key=lambda id: (-len(id), id)))

    @property
    def default(self) -> ModelEntry:
        """The entry of a model without rows."""
        return self._entry("", None)

    def find(self, model: str) -> ModelEntry:
        """The entry of a model; its profile is not `known` if the model has no row."""
        return self._found(model) if len(model) <= _LONGEST else self._find(model)

    def _find(self, model: str) -> ModelEntry:
        return self._entry(self._id(model), self._vendor(model))

    def all(self) -> tuple[ModelEntry, ...]:
        return tuple(self._entry(id, self._vendor(id)) for id in self.ids)

    def with_rows(self, rows: tuple[CatalogRow, ...]) -> ProviderEntries:
        """These with more rows on top, merged immediately so that an invalid row raises here."""
        together = ProviderEntries(self.provider, lambda: self.rows + rows, self._vendors)
        _ = together.default, together.all()
        return together

    def beside(self, entries: Mapping[str, ProviderEntries]) -> ProviderEntries:
        """The same in another catalog: a gateway's models have the rules of its providers."""
        if self._vendors is None:
            return self
        return ProviderEntries(self.provider, lambda: self.rows, entries)

    def _id(self, model: str) -> str:
        """The known model, or the beginning that a row has of it; empty if there is neither."""
        name = base_model(self.provider, without_prefix(self.provider, model))
        found = match(name, self.ids)
        if found is None and self._beginnings:
            found = next((each for each in self._beginnings if name.startswith(each[:-1])), None)
        return found or ""

    def _vendor(self, model: str) -> tuple[str, str] | None:
        """The provider of a gateway's model, and the model's id there; empty: unknown."""
        if self._vendors is None:
            return None
        if self.provider in HOSTED:
            served = hosted_model(self.provider, without_prefix(self.provider, model))
        else:
            served = vendor_of(model, self._vendors)
        if served is None:
            return None
        return served[0], self._vendors[served[0]].spelled(served[1])

    def spelled(self, model: str) -> str:
        """The known model with another provider's spelling; empty if there is none."""
        alike = match(spelling(model), self._spellings)
        return match(model, self.ids) or self._spellings.get(alike or "", "")

    @decoded_once
    def _has_prices(self) -> bool:
        return any(row.provider and "read_price" in row.stated for row in self.rows)

    @decoded_once
    def _spellings(self) -> dict[str, str]:
        return {spelling(id): id for id in self.ids}

    def _layers(self, id: str, served: tuple[str, str] | None) -> list[CatalogRow]:
        """The rows that apply to a model, lowest first."""
        rows = [row for row in self.rows if not row.models or is_among(id, row.models)]
        if self._vendors is None or served is None:
            return rows
        vendor, known_as = served
        hosted = self.provider in HOSTED
        kinds = ("rules", "profiles") if hosted else ("rules",)
        left_out = (*_GATEWAY_FIGURES, *(_PRICES if self._has_prices else ()))
        left_out += _MAKER_FIGURES if hosted else ()
        theirs = [
            _for_gateway(row, left_out)
            for row in self._vendors[vendor].rows
            if row.provider and row.kind in kinds and (not row.models or known_as in row.models)
        ]
        common = [row for row in rows if not row.models and row.kind in kinds]
        return [
            *common,
            *theirs,
            *map(_verified, common),
            *(row for row in rows if row.models or row.kind not in kinds),
        ]

    def _entry(self, id: str, served: tuple[str, str] | None) -> ModelEntry:
        if (id, served) not in self._merged:
            rows = self._layers(id, served)
            wires = dict.fromkeys(wire for row in rows for wire in row.wires)
            figures = _merged(rows, "profiles")
            name = "" if id.endswith("*") else id
            resold = served is not None
            self._merged[id, served] = ModelEntry(
                Profile(provider=self.provider, id=name, known=bool(name), **figures),
                self._rules(rows, name, None, resold),
                {wire: self._rules(rows, name, wire, resold) for wire in wires},
            )
        return self._merged[id, served]

    def _rules(self, rows: list[CatalogRow], id: str, wire: str | None, resold: bool) -> CacheRules:
        applying = [row for row in rows if not row.wires or wire in row.wires]
        try:
            figures = _merged(applying, "rules")
            if resold and self._has_prices:
                own = [row for row in applying if row.provider in ("", self.provider)]
                _keep_prices(figures, _merged(own, "rules"))
            return CacheRules(provider=self.provider, model=id, **figures)
        except InvalidCatalog as error:
            # Each row is valid alone; the last one conflicts with those below.
            last = [row for row in applying if row.kind == "rules"][-1]
            raise InvalidCatalog(str(error), file=last.file, row=last.name) from error


def without_prefix(provider: str, model: str) -> str:
    """The model's id without a prefix: the provider's name, which gateways add, the name of a
    collection, or the beginning of an ARN."""
    name = model.removeprefix(f"{provider}/").removeprefix(_COLLECTIONS.get(provider, ""))
    return model_in_arn(name) if provider in HOSTED else name


def match(model: str, known: Container[str]) -> str | None:
    """The known id that equals `model`, or of which `model` is a dated or -latest form."""
    if model in known:
        return model
    undated = _SUFFIX.sub("", model)
    return undated if undated in known else None


def _keep_prices(figures: dict[str, Any], own: dict[str, Any]) -> None:
    """A gateway bills writes by its own rules, regardless of how long the provider behind it keeps
    them: at its highest price if it states none for the TTL."""
    prices = own.get("write_price", {})
    dearest = max(prices.values(), key=lambda price: price.value, default=None)
    kept = {ttl: prices.get(ttl, dearest) for ttl in figures["ttls"].value}
    figures["write_price"] = {ttl: price for ttl, price in kept.items() if price is not None}


def _merged(rows: list[CatalogRow], kind: RowKind) -> dict[str, Any]:
    """The figures of all rows of a kind, later over earlier, tables of figures key by key."""
    merged: dict[str, Any] = {}
    for row in rows:
        if row.kind != kind:
            continue
        for field in row.without:
            merged.pop(field, None)
        if "ttls" in row.figures and "write_price" in merged:
            # A row that lists new TTLs removes the prices of those that it drops.
            kept = row.figures["ttls"].value
            prices = merged["write_price"].items()
            merged["write_price"] = {ttl: price for ttl, price in prices if ttl in kept}
        for field, figure in row.figures.items():
            if isinstance(figure, dict):
                figure = {**merged.get(field, {}), **figure}
            merged[field] = figure
    return merged
