"""A question about one provider opens that provider's file, and no other."""

from __future__ import annotations

import tomllib
from importlib import resources

import pytest

from anaphora import catalog
from anaphora.catalog import files, load
from anaphora.errors import InvalidCatalog, InvalidRequest

#: Files that speak of no models.
NO_MODELS = {files.CAREFUL, "dialects.toml", "overflow.toml", "prices.toml"}
HERE = resources.files("anaphora.catalog")


def test_the_index_says_what_the_files_say() -> None:
    said: dict[str, set[str]] = {}
    for file in HERE.iterdir():
        if not file.name.endswith(".toml") or file.name in NO_MODELS:
            continue
        table = tomllib.loads(file.read_text(encoding="utf-8"))
        for provider in table.get("providers", [table.get("provider")]):
            said.setdefault(provider, set()).add(file.name)
    assert said == {provider: set(named) for provider, named in files.FILES.items()}


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that are read from here on, by a catalog that has read none."""
    opened: list[str] = []
    read = files.read

    def noted(file: str) -> str:
        opened.append(file)
        return read(file)

    monkeypatch.setattr(files, "read", noted)
    for remembered in (files.careful, files.rows_of, files._rows_in):
        remembered.cache_clear()
    monkeypatch.setattr(load, "shipped", load.shipped.__wrapped__)
    return opened


def test_having_a_catalog_reads_nothing(opened: list[str]) -> None:
    assert "anthropic" in load.shipped().providers
    with pytest.raises(InvalidRequest, match="known: alibaba, anthropic"):
        load.shipped().profile("acme", "m")
    assert opened == []


def test_a_provider_is_one_file_and_what_is_assumed_of_all(opened: list[str]) -> None:
    known = load.shipped()
    known.profile("xai", "grok-4.7")
    known.rules("xai", "grok-4.7", "openai_chat")
    known.models("xai")
    assert opened == ["careful.toml", "xai.toml"]
    known.rules("together", "m")
    known.rules("crusoe", "m")
    assert opened == ["careful.toml", "xai.toml", "hosts.toml"]


def test_rows_laid_over_one_provider_leave_the_others_closed(opened: list[str]) -> None:
    mine = load.shipped().with_rows(
        'provider = "groq"\n[[rules]]\nsource = "me"\ndate = 2026-11-15\nslots = 1\n'
    )
    assert opened == ["careful.toml", "groq.toml"]
    assert mine.rules("vllm", "m").provider == "vllm"
    assert opened == ["careful.toml", "groq.toml", "vllm.toml"]


def test_all_models_are_in_all_files(opened: list[str]) -> None:
    found = load.shipped().models()
    assert sorted(opened) == sorted({*sum(files.FILES.values(), ()), files.CAREFUL})
    assert found == catalog.models()


def test_a_file_that_did_not_come_along_is_named() -> None:
    with pytest.raises(InvalidCatalog, match="installed without it") as raised:
        files.read("nowhere.toml")
    assert raised.value.file == "nowhere.toml"


def test_only_the_rows_of_the_model_are_decoded(opened: list[str]) -> None:
    known = load.shipped()
    known.profile("openai", "gpt-5")
    known.rules("openai", "gpt-5")
    rows = known.entries["openai"].rows
    decoded = [row for row in rows if "figures" in vars(row)]
    assert decoded == [row for row in rows if not row.models or "gpt-5" in row.models]
    assert 5 < len(decoded) < len(rows) / 3
