"""The catalog as a value: rows layered into one profile and one set of rules for each model."""

from __future__ import annotations

import functools
import re
from collections.abc import Container
from typing import Any

import msgspec

from anaphora.errors import InvalidCatalog, InvalidRequest

from .cache_rules import CacheRules
from .profiles import Profile
from .rows import Kind, Row, decode_rows, fields_of

#: Package data. A provider has one file; hosts with little to say of their caches share one.
FILES = (
    "anthropic.toml",
    "openai.toml",
    "google.toml",
    "ollama.toml",
    "azure.toml",
    "bedrock.toml",
    "minimax.toml",
    "deepseek.toml",
    "xai.toml",
    "mistral.toml",
    "moonshot.toml",
    "alibaba.toml",
    "zai.toml",
    "groq.toml",
    "cerebras.toml",
    "openrouter.toml",
    "vllm.toml",
    "llamacpp.toml",
    "hosts.toml",
)

#: All that may follow an id: a release date (Google Cloud writes it with @, OpenAI with hyphens),
#: or -latest.
_SUFFIX = re.compile(r"(?:[-@][0-9]{8}|-[0-9]{4}-[0-9]{2}-[0-9]{2}|-latest)\Z")


class Entry(msgspec.Struct, frozen=True):
    """What the rows say of one model, taken together."""

    profile: Profile
    rules: CacheRules
    on_wire: dict[str, CacheRules]
    """The rules on those wires that have any of their own."""


class Catalog(msgspec.Struct, frozen=True):
    """Profiles and cache rules of every known model. Made by `decode` and `with_rows`."""

    rows: tuple[Row, ...]
    defaults: dict[str, Entry]
    """By provider: what holds for a model that no row names."""
    entries: dict[str, dict[str, Entry]]
    """By provider, then by id."""

    def profile(self, provider: str, model: str) -> Profile:
        """The model's profile; for an unknown one its provider's defaults, `known=False`."""
        found = self._find(provider, model)
        if found is None:
            return msgspec.structs.replace(self.defaults[provider].profile, id=model)
        return found.profile

    def rules(self, provider: str, model: str, wire: str | None = None) -> CacheRules:
        """The model's cache rules, on a wire where they differ by it; for an unknown model its
        provider's careful defaults."""
        found = self._find(provider, model)
        entry = self.defaults[provider] if found is None else found
        rules = entry.rules if wire is None else entry.on_wire.get(wire, entry.rules)
        return msgspec.structs.replace(rules, model=model) if found is None else rules

    def models(self, provider: str | None = None) -> tuple[Profile, ...]:
        """Every known model, in the order the rows introduce them."""
        providers = self.entries if provider is None else (self._provider(provider),)
        return tuple(entry.profile for name in providers for entry in self.entries[name].values())

    def with_rows(self, text: str, *, file: str = "<override>") -> Catalog:
        """This catalog with more rows laid over it: they win, figure by figure."""
        return _layered(self.rows + decode_rows(text, file=file))

    def _find(self, provider: str, model: str) -> Entry | None:
        known = self.entries[self._provider(provider)]
        # Gateways put the provider's name before a model's.
        matched = match(model.removeprefix(f"{provider}/"), known)
        return None if matched is None else known[matched]

    def _provider(self, name: str) -> str:
        if name in self.entries:
            return name
        known = ", ".join(sorted(self.entries))
        raise InvalidRequest(f"unknown provider {name!r}; known: {known}", path="provider")


def decode(text: str, *, file: str = "<text>") -> Catalog:
    """A catalog from one file's text, complete by itself."""
    return _layered(decode_rows(text, file=file))


@functools.cache
def shipped() -> Catalog:
    """The catalog that comes with the package, read on first use."""
    import pkgutil

    rows: tuple[Row, ...] = ()
    for file in FILES:
        data = pkgutil.get_data(__package__, file)
        if data is None:
            raise InvalidCatalog("the package was installed without it", file=file)
        rows += decode_rows(data.decode(), file=file)
    return _layered(rows)


def match(model: str, known: Container[str]) -> str | None:
    """The known id that `model` is, or is a dated or -latest form of. Nothing else is guessed."""
    if model in known:
        return model
    undated = _SUFFIX.sub("", model)
    return undated if undated in known else None


def _layered(rows: tuple[Row, ...]) -> Catalog:
    defaults: dict[str, Entry] = {}
    entries: dict[str, dict[str, Entry]] = {}
    for provider in dict.fromkeys(row.provider for row in rows):
        own = [row for row in rows if row.provider == provider]
        ids = dict.fromkeys(id for row in own if row.kind == "profiles" for id in row.models)
        for row in own:
            # A profile row introduces a model; a rules row that does is a misspelling.
            if unknown := [id for id in row.models if id not in ids]:
                message = f"no profile names {unknown[0]!r}"
                raise InvalidCatalog(message, file=row.file, row=row.name)
        defaults[provider] = _entry(own, provider, "", known=False)
        entries[provider] = {id: _entry(own, provider, id, known=True) for id in ids}
    return Catalog(rows=rows, defaults=defaults, entries=entries)


def _entry(rows: list[Row], provider: str, id: str, *, known: bool) -> Entry:
    applying = [row for row in rows if not row.models or id in row.models]
    profile = _merged(applying, "profiles", provider)
    wires = dict.fromkeys(wire for row in applying for wire in row.wires)
    return Entry(
        profile=Profile(provider=provider, id=id, known=known, **profile),
        rules=_rules(applying, provider, id, None),
        on_wire={wire: _rules(applying, provider, id, wire) for wire in wires},
    )


def _rules(rows: list[Row], provider: str, id: str, wire: str | None) -> CacheRules:
    applying = [row for row in rows if not row.wires or wire in row.wires]
    rules = _merged(applying, "rules", provider)
    try:
        return CacheRules(provider=provider, model=id, **rules)
    except InvalidCatalog as problem:
        # Each row is right by itself; the last one laid is the one that does not fit.
        last = [row for row in applying if row.kind == "rules"][-1]
        raise InvalidCatalog(str(problem), file=last.file, row=last.name) from problem


def _merged(rows: list[Row], kind: Kind, provider: str) -> dict[str, Any]:
    """The figures of all rows of a kind, later over earlier, tables of figures key by key."""
    merged: dict[str, Any] = {}
    for row in rows:
        if row.kind != kind:
            continue
        if "ttls" in row.figures and "write_price" in merged:
            # A row that lists the TTLs anew leaves no price behind for one that is gone.
            kept = row.figures["ttls"].value
            prices = merged["write_price"].items()
            merged["write_price"] = {ttl: price for ttl, price in prices if ttl in kept}
        for field, figure in row.figures.items():
            if isinstance(figure, dict):
                figure = {**merged.get(field, {}), **figure}
            merged[field] = figure
    needed = {name for name, field in fields_of(kind).items() if field.required}
    if missing := needed - merged.keys():
        message = f"no row for all of {provider} gives {min(missing)!r}"
        raise InvalidCatalog(message, file=rows[0].file if rows else "", row=kind)
    return merged
