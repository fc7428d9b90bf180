"""Model profiles, cache rules, dialects and prices, as dated data with sources.

    catalog.profile("anthropic", "claude-opus-5-5").mid_conversation_system.value
    catalog.rules("anthropic", "claude-opus-5-5").minimum_tokens.value
    catalog.rules("minimax", "MiniMax-M2.7", wire="anthropic").slots.value

    catalog.price("anthropic", "claude-opus-5-5", when).of(usage)

    catalog.maker_of("claude-sonnet-9")                        "anthropic"
    catalog.similar_model("anthropic", "claude-sonet-5-5")     "claude-sonnet-5-5"

The rows are TOML files next to this module; a provider's files are read on first use.
`Catalog.with_rows` adds rows on top of them. Each maker's models have similar names, so `maker_of`
also recognises new models.
"""

from __future__ import annotations

import datetime
import re

from anaphora.errors import InvalidRequest
from anaphora.yaml_values import nearest

from .cache_rules import CacheRules
from .dialect_rows import Dialect, Dialects
from .load import SHIPPED, Catalog
from .load import decode as decode
from .names import MAKERS
from .names import maker_of as maker_of
from .prices import Price
from .pricing import price
from .values import Effort as Effort
from .values import Feature as Feature
from .values import Figure as Figure
from .values import Profile


def shipped() -> Catalog:
    return SHIPPED.catalog


def dialects() -> Dialects:
    return SHIPPED.dialects


def price_table_date() -> datetime.date:
    """The day the shipped price table was generated."""
    return SHIPPED.price_table.date


def profile(provider: str, model: str) -> Profile:
    """The model's profile; for an unknown one its provider's defaults, `known=False`."""
    return SHIPPED.catalog.profile(provider, model)


def rules(provider: str, model: str, wire: str | None = None) -> CacheRules:
    """The model's cache rules on a wire; for an unknown model its provider's defaults."""
    return SHIPPED.catalog.rules(provider, model, wire)


def models(provider: str | None = None) -> tuple[Profile, ...]:
    """Every known model, of one provider or of all."""
    return SHIPPED.catalog.models(provider)


def provider_named(name: str) -> str | None:
    """The catalog's name of a provider, given by name, alias or host."""
    return SHIPPED.dialects.provider_named(name, SHIPPED.catalog.providers)


def known_model(text: str) -> tuple[str, str]:
    """Provider and model of `provider/model`. Raises `InvalidRequest` for an unknown one; a
    provider without a list of models accepts any model."""
    name, _, model = text.partition("/")
    if not model:
        raise InvalidRequest(f"{text[:100]!r} is not of the form provider/model", path="model")
    provider = provider_named(name)
    if provider is None:
        raise InvalidRequest(f"unknown provider {name[:100]!r}", path="model")
    if models(provider) and not profile(provider, model).known:
        raise InvalidRequest(f"unknown model {model[:100]!r} of {provider}", path="model")
    return provider, model


def default_model(provider: str, today: datetime.date) -> str | None:
    """The `default_model` of a provider; without one, or once it has retired, the first model that
    is not retired."""
    row = default_model_row(provider)
    known = models(provider)
    if row is not None:
        known = (profile(provider, row.value), *known)
    for one in known:
        if one.retires is None or one.retires.value > today:
            return one.id
    return None


def default_model_row(provider: str) -> Figure[str] | None:
    """The row that states a provider's `default_model`, with its date."""
    return dialects().find(provider).default_model


# ── Names of models ───────────────────────────────────────────────────────────────────────────────

#: Makers whose own endpoint serves only their models. Alibaba's also serves others.
_OWN_ONLY = frozenset(MAKERS) - {"alibaba"}

#: Open weights that a maker's own endpoint also serves.
_OPEN_WEIGHTS = {"google": re.compile(r"gemma-")}

#: Models whose names begin with the provider's own name, which is not a prefix to remove.
_SELF_NAMED = {"groq": re.compile(r"compound"), "openrouter": re.compile(r"[^/]+\Z")}

#: A snapshot's date or number at the end of a name; fewer digits are a version.
_SNAPSHOT = re.compile(r"[-@]([0-9]{3,}(-[0-9]{2}){0,2}|[0-9]{2}-([0-9]{2}){1,2})")
#: Minimum similarity of a name that is suggested, and of a misspelling.
_ALIKE, _ALMOST = 0.7, 0.9
_WORDS = re.compile(r"[^a-z0-9]+")
_NUMBERS = re.compile(r"[0-9]+")


def answering_model(provider: str, asked: str, answered: str) -> str:
    """The model that a call is billed for: the one that answered, if it is another known model. A
    snapshot counts as the requested model."""
    if not answered or answered == asked or provider not in SHIPPED.catalog.entries:
        return asked
    name = asked.removesuffix("-0")  # `claude-opus-4-0` is `claude-opus-4-20250514`
    if answered.startswith(name) and _SNAPSHOT.fullmatch(answered, len(name)):
        return asked
    other = profile(provider, answered)
    return other.id if other.known and other.id != profile(provider, asked).id else asked


def is_maker(provider: str) -> bool:
    """Whether the provider has models of its own."""
    return provider in MAKERS


def serves_own_only(provider: str) -> bool:
    """Whether the provider's own endpoint serves only its own models."""
    return provider in _OWN_ONLY


def may_serve(provider: str, model: str) -> bool:
    """Whether the provider may have a model: a listed one, or a name that is not a misspelling of
    one. If it serves only its own models, the name must look like a version of them."""
    if SHIPPED.catalog.profile(provider, model).known:
        return True
    name = model.lower().removeprefix("models/")
    if serves_own_only(provider):
        if provider in _OPEN_WEIGHTS and _OPEN_WEIGHTS[provider].match(name):
            return True
        if maker_of(name) != provider or _NUMBERS.search(name) is None:
            return False
    near = similar_model(provider, name, alike=_ALMOST)
    return not near or len(_WORDS.split(name)) < len(_WORDS.split(near))


def is_self_named(provider: str, name: str) -> bool:
    """Whether `provider/name` is the full name of one of the provider's models."""
    pattern = _SELF_NAMED.get(provider)
    if pattern is not None and pattern.match(name):
        return True
    return f"{provider}/{name}" in SHIPPED.catalog.entries[provider].ids


def similar_model(provider: str, model: str, *, alike: float = _ALIKE) -> str:
    """The known model that an unknown name may be a misspelling of; empty if there is none. Another
    number is another version, which may be newer than the catalog."""
    name = model.lower().removeprefix("models/")
    known = {id.lower(): id for id in SHIPPED.catalog.entries[provider].ids}
    words = sorted(_WORDS.split(name))
    for low, id in known.items():
        if sorted(_WORDS.split(low)) == words:
            return id
    near = nearest(name, known, alike=alike)
    same = near and "".join(_NUMBERS.findall(near)) == "".join(_NUMBERS.findall(name))
    return known[near] if same else ""


def models_date(provider: str) -> datetime.date:
    """The date of the newest row of the provider's models."""
    rows = SHIPPED.catalog.entries[provider].rows
    dates: list[datetime.date] = [
        row.provenance["date"] for row in rows if "date" in row.provenance
    ]
    return max(dates)


__all__ = [
    "CacheRules",
    "Catalog",
    "Dialect",
    "Price",
    "Profile",
    "default_model",
    "dialects",
    "models",
    "price",
    "profile",
    "rules",
    "shipped",
]
