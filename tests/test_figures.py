"""Figures in texts are those of the results of cachebench."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest
from support.tables import each_row

ROOT = Path(__file__).parent.parent


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    yield import_module("figures")
    for name in ("figures", "figure_tables", "figure_charts"):
        sys.modules.pop(name, None)


@pytest.fixture
def results(figures: ModuleType) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(figures.RESULTS.read_text())
    return found


def test_texts_have_the_figures_of_the_results_file(
    figures: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    status = figures.main(["--check"])
    assert (status, capsys.readouterr().out) == (0, "")


def test_a_figure_that_differs_is_found(
    figures: ModuleType,
    results: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    results["parts"]["picture"]["dollars"]["ours"] *= 2
    changed = tmp_path / "results.json"
    changed.write_text(json.dumps(results))
    assert figures.main(["--check", "--results", str(changed)]) == 1
    differing = capsys.readouterr().out
    for name in ("docs/benchmarks/README.md", "report.html", "conversation-dark.svg"):
        assert name in differing


@each_row(
    ("text", "written"),
    [
        ("<!-- figures: one --><!-- /figures -->.", "<!-- figures: one -->12 ms<!-- /figures -->."),
        (
            "<!-- figures: one -->\n<!-- /figures -->",
            "<!-- figures: one -->\n\n12 ms\n\n<!-- /figures -->",
        ),
        (
            "<!-- figures: rows -->old<!-- /figures -->",
            "<!-- figures: rows -->\n\n| a |\n|---|\n\n<!-- /figures -->",
        ),
    ],
    ids=["inline", "paragraph", "table"],
)
def test_figures_are_written_between_markers(figures: ModuleType, text: str, written: str) -> None:
    found = {"one": "12 ms", "rows": "| a |\n|---|"}
    assert figures.with_figures(text, found, "page") == written
    assert figures.with_figures(written, found, "page") == written


def test_an_unknown_figure_is_named(figures: ModuleType) -> None:
    with pytest.raises(SystemExit, match=r"page: unknown figure 'speed'; known: one"):
        figures.with_figures("<!-- figures: speed --><!-- /figures -->", {"one": "1"}, "page")


def test_a_part_that_was_skipped_has_its_reason(
    figures: ModuleType, results: dict[str, Any]
) -> None:
    results["parts"] = {name: {"skipped": "no peers here"} for name in results["parts"]}
    found = figures.figures(results)
    for name in ("results", "gateways", "engine", "calls"):
        assert found[name] == "Not measured: no peers here."
    assert "no peers here" in figures.report(results)
    assert figures.pictures(results) == {}


def test_what_a_peer_does_better_is_said(figures: ModuleType, results: dict[str, Any]) -> None:
    peers = results["parts"]["peers"]
    by = {(row["peer"], row["provider"]): row for row in peers["rows"] if "layouts" in row}
    theirs = by["litellm", "anthropic"]["layouts"]["stable"]
    ours = by["anaphora", "anthropic"]["layouts"]["stable"]
    for bill in (theirs, ours):
        bill |= {"refused": 0, "errors": [], "dollars": 1.0}
    theirs["dollars"] = 0.9
    line = "Anthropic, stable layout: LiteLLM pays 10.0% less than Anaphora's client"
    assert line in figures.figures(results)["ahead"]


def test_shares_are_of_the_plain_bill_of_the_same_layout(figures: ModuleType) -> None:
    def row(peer: str, stable: float, careless: float) -> dict[str, Any]:
        bill: dict[str, Any] = {"refused": 0, "errors": [], "tokens": 1000}
        layouts = {"stable": {**bill, "dollars": stable}, "careless": {**bill, "dollars": careless}}
        return {"peer": peer, "provider": "anthropic", "layouts": layouts}

    tables = import_module("figure_tables")
    peers = {
        "providers": {"anthropic": {"title": "Anthropic"}},
        "peers": {name: {"title": name} for name in ("sdk", "anaphora", "anaphora-state")},
        "rows": [row("sdk", 1, 2), row("anaphora", 0.6, 1.8), row("anaphora-state", 0.6, 0.7)],
        "foresight": {"anthropic": {"stable": 0.5, "careless": 1.5}},
    }
    results = tables.Results({"parts": {"peers": peers}})
    stable, careless = (tables.results_table(results, each) for each in ("stable", "careless"))
    assert stable.splitlines()[2:] == [
        "| sdk | 100% |",
        "| anaphora | **60%** |",
        "| perfect foresight | 50% |",
    ]
    assert careless.splitlines()[2:] == [
        "| sdk | 100% |",
        "| anaphora | 90% |",
        "| anaphora-state | **35%** |",
        "| perfect foresight | 75% |",
    ]


def test_the_picture_shows_each_token(figures: ModuleType, results: dict[str, Any]) -> None:
    part = results["parts"]["picture"]
    drawn = figures.pictures(results)
    assert set(drawn) == {"light", "dark"}
    for text in drawn.values():
        picture = ElementTree.fromstring(text)
        panels = picture.findall("{*}svg")
        for panel, turns in zip(panels, (part["usual"], part["ours"]), strict=True):
            for at, kind in enumerate(("read", "written", "fresh")):
                bars = [each for each in panel if each.get("class") == kind]
                assert len(bars) == sum(turn[at] > 0 for turn in turns)
