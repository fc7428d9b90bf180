"""A lookup reads the files of its provider only."""

from __future__ import annotations

import tomllib
from importlib import resources

import pytest

from anaphora import catalog
from anaphora.catalog import load
from anaphora.errors import InvalidCatalog, InvalidRequest

#: Files that speak of no models.
NO_MODELS = {
    load.DEFAULTS,
    "api_limits.toml",
    "billing_bounds.toml",
    "dialects.toml",
    "overflow.toml",
    "prices.toml",
    "request_errors.toml",
}
HERE = resources.files("anaphora.catalog")


def test_file_index_matches_the_files() -> None:
    files: dict[str, set[str]] = {}
    for file in HERE.iterdir():
        if not file.name.endswith(".toml") or file.name in NO_MODELS:
            continue
        table = tomllib.loads(file.read_text(encoding="utf-8"))
        for provider in table.get("providers", [table.get("provider")]):
            files.setdefault(provider, set()).add(file.name)
    assert files == {provider: set(named) for provider, named in load.FILES.items()}


class Tables(load.ShippedTables):
    """Notes the files that are read."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []

    def read(self, file: str) -> bytes:
        self.opened.append(file)
        return super().read(file)


@pytest.fixture
def tables() -> Tables:
    return Tables()


def test_creating_a_catalog_reads_nothing(tables: Tables) -> None:
    assert "anthropic" in tables.catalog.providers
    with pytest.raises(InvalidRequest, match="known: alibaba, anthropic"):
        tables.catalog.profile("acme", "m")
    assert tables.opened == []


def test_provider_reads_its_file_and_the_defaults(tables: Tables) -> None:
    known = tables.catalog
    known.profile("xai", "grok-4.7")
    known.rules("xai", "grok-4.7", "openai_chat")
    known.models("xai")
    assert tables.opened == ["defaults.toml", "xai.toml"]
    known.rules("together", "m")
    known.rules("crusoe", "m")
    assert tables.opened == ["defaults.toml", "xai.toml", "hosts.toml"]


def test_overlaid_rows_load_only_their_provider(tables: Tables) -> None:
    mine = tables.catalog.with_rows(
        'provider = "groq"\n[[rules]]\nsource = "me"\ndate = 2026-11-15\nslots = 1\n'
    )
    assert tables.opened == ["defaults.toml", "groq.toml"]
    assert mine.rules("vllm", "m").provider == "vllm"
    assert tables.opened == ["defaults.toml", "groq.toml", "vllm.toml"]


def test_all_models_are_in_all_files(tables: Tables) -> None:
    found = tables.catalog.models()
    assert sorted(tables.opened) == sorted({*sum(load.FILES.values(), ()), load.DEFAULTS})
    assert found == catalog.models()


def test_missing_file_is_named() -> None:
    with pytest.raises(InvalidCatalog, match="missing in this installation") as raised:
        load.SHIPPED.read("nowhere.toml")
    assert raised.value.file == "nowhere.toml"


def test_only_the_rows_of_the_model_are_decoded(tables: Tables) -> None:
    known = tables.catalog
    known.profile("openai", "gpt-5")
    known.rules("openai", "gpt-5")
    rows = known.entries["openai"].rows
    decoded = [row for row in rows if "figures" in vars(row)]
    assert decoded == [row for row in rows if not row.models or "gpt-5" in row.models]
    assert 5 < len(decoded) < len(rows) / 3
