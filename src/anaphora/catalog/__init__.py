"""Model profiles, cache rules, dialects and prices, as dated data with sources.

    catalog.profile("anthropic", "claude-opus-5-5").mid_conversation_system.value
    catalog.rules("anthropic", "claude-opus-5-5").minimum_tokens.value
    catalog.rules("minimax", "MiniMax-M2.7", wire="anthropic").slots.value

    catalog.price("anthropic", "claude-opus-5-5", when).of(usage)

The rows are TOML files next to this module; a provider's files are read on first use.
`Catalog.with_rows` adds rows on top of them.
"""

from __future__ import annotations

import datetime

from anaphora.errors import InvalidRequest

from .dialects import Dialect, Dialects, ParamPlace, decode_dialects, otel_provider, tool_overhead
from .load import SHIPPED, Catalog, Overflow, decode, is_overflow, overflow_of
from .makers import (
    is_maker,
    is_self_named,
    maker_of,
    may_serve,
    models_date,
    serves_own_only,
    similar_model,
)
from .price_data import PRICE_SLOT, PriceRows, decode_prices
from .prices import Price, Rates
from .pricing import price
from .values import (
    CacheParam,
    CacheRules,
    Capability,
    Effort,
    Feature,
    Figure,
    Lifetime,
    LookbackUnit,
    Mechanism,
    Moment,
    Profile,
)


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
    """The model's cache rules on a wire; for an unknown one its provider's defaults."""
    return SHIPPED.catalog.rules(provider, model, wire)


def models(provider: str | None = None) -> tuple[Profile, ...]:
    """Every known model, of one provider or of all."""
    return SHIPPED.catalog.models(provider)


def provider_named(name: str) -> str | None:
    """The catalog's name of a provider, which may be given by an alias or by its host."""
    return SHIPPED.dialects.provider_named(name, SHIPPED.catalog.providers)


def known_model(text: str) -> tuple[str, str]:
    """Provider and model of `provider/model`. Raises `InvalidRequest` for one that is not known; a
    provider without a list of models serves any."""
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
    """The first model of a provider that has not retired."""
    for profile in models(provider):
        if profile.retires is None or profile.retires.value > today:
            return profile.id
    return None


__all__ = [
    "PRICE_SLOT",
    "CacheParam",
    "CacheRules",
    "Capability",
    "Catalog",
    "Dialect",
    "Dialects",
    "Effort",
    "Feature",
    "Figure",
    "Lifetime",
    "LookbackUnit",
    "Mechanism",
    "Moment",
    "Overflow",
    "ParamPlace",
    "Price",
    "PriceRows",
    "Profile",
    "Rates",
    "decode",
    "decode_dialects",
    "decode_prices",
    "default_model",
    "dialects",
    "is_maker",
    "is_overflow",
    "is_self_named",
    "known_model",
    "maker_of",
    "may_serve",
    "models",
    "models_date",
    "otel_provider",
    "overflow_of",
    "price",
    "price_table_date",
    "profile",
    "provider_named",
    "rules",
    "serves_own_only",
    "shipped",
    "similar_model",
    "tool_overhead",
]
