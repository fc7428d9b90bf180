"""Whose model a name is, and which model a misspelled name may mean."""

from __future__ import annotations

import datetime

from support.tables import each_row

from anaphora import catalog
from anaphora.catalog.names import MAKERS


@each_row("maker", MAKERS)
def test_every_model_of_a_maker_is_found_by_its_name(maker: str) -> None:
    """Also in lower case, and in Google's own spelling."""
    for profile in catalog.models(maker):
        for name in (profile.id, profile.id.lower(), f"models/{profile.id}"):
            assert catalog.maker_of(name) == maker


@each_row(
    "model, maker",
    [
        ("claude-opus-9", "anthropic"),
        ("gpt-7", "openai"),
        ("o7-mini", "openai"),
        ("ft:gpt-4o-mini-2024-07-18:acme::1", "openai"),
        ("gemini-9-pro", "google"),
        ("grok-9", "xai"),
        ("open-mixtral-8x22b", "mistral"),
        # Names of hosts.
        ("gpt-oss-120b", None),
        ("gemma-4-31b", None),
        ("llama-3.3-70b-versatile", None),
        ("deepseek-r1:8b", None),
        ("deepseek-ai/DeepSeek-R1", None),
        ("anthropic/claude-opus-5.5", None),
        ("anthropic.claude-opus-5-5", None),
        ("octopus-1", None),
        ("", None),
    ],
)
def test_maker_of(model: str, maker: str | None) -> None:
    assert catalog.maker_of(model) == maker


@each_row(
    "provider, model, near",
    [
        ("anthropic", "claude-sonet-5-5", "claude-sonnet-5-5"),
        ("anthropic", "claude-sonnet-5.5", "claude-sonnet-5-5"),
        ("anthropic", "claude-5-5-sonnet", "claude-sonnet-5-5"),
        ("anthropic", "sonnet-5-5", "claude-sonnet-5-5"),
        ("openai", "gpt-4o-minii", "gpt-4o-mini"),
        ("openai", "gpt5.2", "gpt-5.2"),
        ("google", "models/gemini-3.8-flsh", "gemini-3.8-flash"),
        ("minimax", "minimax-m3", "MiniMax-M3"),
        # Another number is another version: the catalog may be older than the model.
        ("anthropic", "claude-sonnet-5-6", ""),
        ("openai", "gpt-7", ""),
        ("openai", "gpt-oss-120b", ""),
        ("openai", "ft:gpt-4o:acme::1", ""),
        ("deepseek", "octopus-1", ""),
    ],
)
def test_similar_model(provider: str, model: str, near: str) -> None:
    assert catalog.similar_model(provider, model) == near


@each_row("maker", MAKERS)
def test_no_model_is_similar_to_a_known_one_with_other_numbers(maker: str) -> None:
    for profile in catalog.models(maker):
        assert catalog.similar_model(maker, profile.id) == profile.id


def test_the_date_of_models() -> None:
    assert catalog.models_date("anthropic") >= datetime.date(2026, 11, 1)


def test_google_spells_models_with_their_collection() -> None:
    when = datetime.datetime(2026, 11, 16, tzinfo=datetime.UTC)
    plain, whole = "gemini-3.8-flash", "models/gemini-3.8-flash"
    assert catalog.profile("google", whole) == catalog.profile("google", plain)
    assert catalog.rules("google", whole) == catalog.rules("google", plain)
    price = catalog.price("google", whole, when)
    assert price is not None
    assert price == catalog.price("google", plain, when)
