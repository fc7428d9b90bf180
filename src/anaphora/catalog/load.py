"""The catalog as a value: every provider by name, its rows read when somebody asks."""

from __future__ import annotations

import functools

import msgspec

from anaphora.errors import InvalidRequest

from . import files
from .cache_rules import CacheRules
from .entries import Entries
from .profiles import Profile
from .rows import Row, decode_rows


class Catalog(msgspec.Struct, frozen=True):
    """Profiles and cache rules of every known model. Made by `shipped`, `decode`, `with_rows`."""

    entries: dict[str, Entries]
    """By provider."""

    @property
    def providers(self) -> tuple[str, ...]:
        return tuple(self.entries)

    def profile(self, provider: str, model: str) -> Profile:
        """The model's profile; for an unknown one its provider's defaults, `known=False`."""
        entries = self._of(provider)
        found = entries.find(model)
        if found is None:
            return msgspec.structs.replace(entries.default.profile, id=model)
        return found.profile

    def rules(self, provider: str, model: str, wire: str | None = None) -> CacheRules:
        """The model's cache rules, on a wire where they differ by it; for an unknown model its
        provider's careful defaults."""
        entries = self._of(provider)
        found = entries.find(model)
        entry = entries.default if found is None else found
        rules = entry.rules if wire is None else entry.on_wire.get(wire, entry.rules)
        return msgspec.structs.replace(rules, model=model) if found is None else rules

    def models(self, provider: str | None = None) -> tuple[Profile, ...]:
        """Every known model, in the order the rows introduce them."""
        asked = self.entries.values() if provider is None else (self._of(provider),)
        return tuple(entry.profile for entries in asked for entry in entries.all())

    def with_rows(self, text: str, *, file: str = "<override>") -> Catalog:
        """This catalog with more rows laid over it: they win, figure by figure. A provider that is
        not here yet needs only what is known of it."""
        entries = dict(self.entries)
        for provider, rows in _by_provider(decode_rows(text, file=file)).items():
            before = entries.get(provider) or Entries(provider, files.careful)
            entries[provider] = before.under(rows)
        return Catalog(entries)

    def _of(self, provider: str) -> Entries:
        if provider in self.entries:
            return self.entries[provider]
        known = ", ".join(sorted(self.entries))
        raise InvalidRequest(f"unknown provider {provider!r}; known: {known}", path="provider")


def decode(text: str, *, file: str = "<text>") -> Catalog:
    """A catalog from one file's text, and of nobody else."""
    return Catalog({}).with_rows(text, file=file)


@functools.cache
def shipped() -> Catalog:
    """The catalog that comes with the package. Having it reads nothing."""
    return Catalog({provider: _shipped(provider) for provider in files.FILES})


def _shipped(provider: str) -> Entries:
    return Entries(provider, lambda: files.careful() + files.rows_of(provider))


def _by_provider(rows: tuple[Row, ...]) -> dict[str, tuple[Row, ...]]:
    names = dict.fromkeys(row.provider for row in rows)
    return {name: tuple(row for row in rows if row.provider == name) for name in names}
