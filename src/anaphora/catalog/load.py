"""The catalog as a value, and the tables of the package, each read on first use.

    error_kind("prompt is too long: 208310 tokens > 200000 maximum")
    overflow_of("mistral", "openai_chat").write(tokens=300_000, limit=262_144)

A prompt that exceeds the context window is the only kind of error recognised by its message,
because most providers have no code for it. A row is the whole message: text that only mentions
tokens or a context does not match.
"""

from __future__ import annotations

import datetime
import functools
import re
from collections.abc import Callable, Iterator
from typing import Annotated, Any, TypeVar

import msgspec

from anaphora.errors import InvalidCatalog, InvalidRequest

from .cache_rules import CacheRules
from .dialect_rows import FILE as DIALECTS_FILE
from .dialect_rows import Dialects, ErrorKind, decode_dialects
from .names import GATEWAYS, HOSTED
from .price_data import ROWS_FILE, TABLE_FILE, PriceRows, PriceTable, decode_prices, decode_table
from .rows import CatalogRow, ProviderEntries, decode_defaults, decode_rows
from .values import Profile, decode_structs, decoded_once, read_toml

OVERFLOWS = "overflow.toml"
_NUMBERS = ("tokens", "limit", "output", "total", "over")
#: A field of a message that is no number: a key, an account, a model.
_NAME = "name"
_FIELD = re.compile(r"\{(\w+)\}")
#: Matches a number. Bounded, so that matching takes linear time.
_NUMBER, _TEXT = "[0-9][0-9,]{0,19}", r"[^\n]{1,200}?"
#: The end of a message that may continue.
_OPEN = "…"


class Overflow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One provider's message for a prompt that is too long, or for another error that neither code
    nor status tells."""

    provider: str
    kind: ErrorKind = "context_overflow"
    wire: str = ""
    """Empty: every wire of the provider."""
    message: Annotated[str, msgspec.Meta(min_length=1)]
    code: str | None = None
    """The error code; None: the one of any bad request."""
    source: Annotated[str, msgspec.Meta(min_length=1)]
    date: datetime.date

    def __post_init__(self) -> None:
        for name in _FIELD.findall(self.message):
            if name not in (*_NUMBERS, _NAME):
                raise ValueError(f"{{{name}}} is none of {', '.join((*_NUMBERS, _NAME))}")

    def write(self, tokens: int, limit: int, output: int = 0) -> str:
        """The message with these numbers."""
        numbers = {
            "tokens": tokens,
            "limit": limit,
            "output": output,
            "total": tokens + output,
            "over": max(0, tokens - limit),
            _NAME: "some-name",
        }
        filled = _FIELD.sub(lambda field: str(numbers[field[1]]), self.message)
        return filled.removesuffix(_OPEN)

    @property
    def pattern(self) -> str:
        """The message as a regular expression, anchored at its end unless it may continue."""
        is_open = self.message.endswith(_OPEN)
        texts = _FIELD.split(self.message.removesuffix(_OPEN))
        texts[::2] = map(re.escape, texts[::2])
        texts[1::2] = [_TEXT if name == _NAME else _NUMBER for name in texts[1::2]]
        pattern = "".join(texts)
        return pattern if is_open else pattern.removesuffix(r"\.") + r"\.?\s*\Z"


def decode_overflows(text: str, *, file: str = "<text>") -> tuple[Overflow, ...]:
    (rows,) = decode_structs(read_toml(text, file), file, overflow=Overflow)
    return rows


T = TypeVar("T")

#: The lowest layer of every provider.
DEFAULTS = "defaults.toml"

#: The files of each provider, lowest layer first. Hosts with few rows share one.
FILES: dict[str, tuple[str, ...]] = {
    **{
        name: (f"{name}.toml",)
        for name in (
            "anthropic openai google ollama azure bedrock minimax deepseek xai mistral moonshot"
            " alibaba zai groq cerebras openrouter vllm llamacpp"
        ).split()
    },
    "openai": ("openai.toml", "openai_models.toml"),
    **dict.fromkeys(("vercel", "litellm", "opencode", "copilot"), ("gateways.toml",)),
    **dict.fromkeys(("huggingface", "snowflake", "crusoe", "together"), ("hosts.toml",)),
}


class Catalog(msgspec.Struct, frozen=True):
    """Profiles and cache rules of every known model."""

    entries: dict[str, ProviderEntries]
    """By provider."""

    @property
    def providers(self) -> tuple[str, ...]:
        return tuple(self.entries)

    def profile(self, provider: str, model: str) -> Profile:
        """The model's profile; for an unknown one its provider's defaults, `known=False`."""
        profile = self._of(provider).find(model).profile
        return profile if profile.known else msgspec.structs.replace(profile, id=model)

    def rules(self, provider: str, model: str, wire: str | None = None) -> CacheRules:
        """The model's cache rules, for a wire if they differ by wire; for an unknown model its
        provider's conservative defaults."""
        entry = self._of(provider).find(model)
        rules = entry.rules if wire is None else entry.on_wire.get(wire, entry.rules)
        return rules if rules.model else msgspec.structs.replace(rules, model=model)

    @property
    def granularities(self) -> tuple[tuple[int, int], ...]:
        """All granules in the rows, with their offsets: the largest first, 1 last."""
        rows = {row for entries in self.entries.values() for row in _stating_granules(entries)}
        return tuple(sorted({(1, 0), *rows}, reverse=True))

    def models(self, provider: str | None = None) -> tuple[Profile, ...]:
        """Every known model, in the order of the rows."""
        selected = self.entries.values() if provider is None else (self._of(provider),)
        return tuple(entry.profile for entries in selected for entry in entries.all())

    def with_rows(self, text: str, *, file: str = "<override>") -> Catalog:
        """This catalog with more rows on top, which win figure by figure. A new provider gets the
        conservative defaults below them."""
        entries = dict(self.entries)
        rows = decode_rows(text, file=file)
        for provider in dict.fromkeys(row.provider for row in rows):
            below = entries.get(provider) or ProviderEntries(provider, lambda: SHIPPED.defaults)
            own = tuple(row for row in rows if row.provider == provider)
            entries[provider] = below.with_rows(own)
        together: dict[str, ProviderEntries] = {}
        together |= {name: one.beside(together) for name, one in entries.items()}
        return Catalog(together)

    def _of(self, provider: str) -> ProviderEntries:
        if provider in self.entries:
            return self.entries[provider]
        known = ", ".join(sorted(self.entries))
        raise InvalidRequest(f"unknown provider {provider!r}; known: {known}", path="provider")


def _stating_granules(entries: ProviderEntries) -> Iterator[tuple[int, int]]:
    for row in entries.rows:
        if row.kind == "rules" and "granule_tokens" in row.stated:
            figures = row.figures
            granule, less = figures["granule_tokens"], figures.get("granule_offset")
            yield granule.value, 0 if less is None else less.value
            yield from ((other.value, 0) for other in granule.disputed)


def decode(text: str, *, file: str = "<text>") -> Catalog:
    """A catalog with only the rows of one file's text."""
    return Catalog({}).with_rows(text, file=file)


class ShippedTables:
    """All tables of the package."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[CatalogRow, ...]] = {}
        self._others: dict[str, Any] = {}

    @decoded_once
    def catalog(self) -> Catalog:
        read = functools.partial
        entries: dict[str, ProviderEntries] = {}
        for name in FILES:
            vendors = entries if name in GATEWAYS or name in HOSTED else None
            entries[name] = ProviderEntries(name, read(self._rows_of, name), vendors)
        return Catalog(entries)

    @decoded_once
    def defaults(self) -> tuple[CatalogRow, ...]:
        return decode_defaults(self.read(DEFAULTS).decode(), file=DEFAULTS)

    @decoded_once
    def dialects(self) -> Dialects:
        return decode_dialects(self.read(DIALECTS_FILE).decode(), file=DIALECTS_FILE)

    @decoded_once
    def overflows(self) -> tuple[Overflow, ...]:
        return decode_overflows(self.read(OVERFLOWS).decode(), file=OVERFLOWS)

    @decoded_once
    def error_patterns(self) -> dict[ErrorKind, re.Pattern[str]]:
        patterns: dict[ErrorKind, list[str]] = {}
        for row in self.overflows:
            patterns.setdefault(row.kind, []).append(f"(?:{row.pattern})")
        return {kind: re.compile("|".join(each)) for kind, each in patterns.items()}

    @decoded_once
    def prices(self) -> PriceRows:
        return decode_prices(self.read(ROWS_FILE).decode(), file=ROWS_FILE)

    @decoded_once
    def price_table(self) -> PriceTable:
        return decode_table(self.read(TABLE_FILE))

    def table(self, file: str, decode: Callable[[str], T]) -> T:
        """The result of `decode` for another file's text; read once."""
        if file not in self._others:
            self._others[file] = decode(self.read(file).decode())
        known: T = self._others[file]
        return known

    def read(self, file: str) -> bytes:
        import pkgutil

        try:
            data = pkgutil.get_data(__package__, file)
        except OSError:
            data = None
        if data is None:
            raise InvalidCatalog("missing in this installation", file=file)
        return data

    def _rows_of(self, provider: str) -> tuple[CatalogRow, ...]:
        rows = list(self.defaults)
        for file in FILES[provider]:
            if file not in self._rows:
                self._rows[file] = decode_rows(self.read(file).decode(), file=file)
            rows += [row for row in self._rows[file] if row.provider == provider]
        return tuple(rows)


SHIPPED = ShippedTables()


def error_kind(message: str) -> ErrorKind | None:
    """The kind of an error that only the provider's message tells; None for other messages."""
    patterns = SHIPPED.error_patterns.items()
    return next((kind for kind, pattern in patterns if pattern.match(message)), None)


def overflow_of(provider: str, wire: str) -> Overflow | None:
    """The row of a provider's message on a wire; None if there is none."""
    for row in SHIPPED.overflows:
        if row.provider == provider and row.wire in ("", wire) and row.kind == "context_overflow":
            return row
    return None
