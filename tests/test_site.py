"""The site of docs/: its navigation, the pages written from the code, the output that pages show."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.browser import Chromium, needs_chromium
from support.tables import each_row

from anaphora import emulator

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
#: All but the folder that mkdocs.yml excludes.
PAGES = sorted({*DOCS.glob("**/*.md")} - {*DOCS.glob("examples/**/*.md")})
LINK = re.compile(r"\]\(([^)#:\s]*)(#[^)]+)?\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: Pages whose blocks are one program, each block followed by its output.
BREAKS = pytest.mark.breaks_prefix(reason="the page changes a clock in the system prompt")
PROGRAMS = ["how-caches-break.md", "index.md", pytest.param("tutorial.md", marks=BREAKS)]


def name(page: Path) -> str:
    return str(page.relative_to(DOCS))


def script(file: str) -> ModuleType:
    """A module of scripts/, which is no package."""
    spec = importlib.util.spec_from_file_location(
        f"scripts_{file}", ROOT / "scripts" / f"{file}.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


site = script("site")


def nav_pages() -> list[str]:
    return [page for _, page in site.nav_pages(site.load_config()["nav"])]


# ── Sources ──────────────────────────────────────────────────────────────────────────────────────


def test_every_page_is_in_the_navigation_once() -> None:
    assert sorted(nav_pages()) == sorted(map(name, PAGES))


def test_the_configuration_loads_nothing_from_other_hosts() -> None:
    config = site.load_config()
    assert config["theme"]["font"] is False
    assert {"search", "offline"} <= set(config["plugins"])
    theme = ROOT / config["theme"]["custom_dir"]
    assert "iframe-worker.js" in (theme / "main.html").read_text()
    for path in config.get("extra_css", []):
        assert (theme / path).is_file()
    assert "site_url: https" not in (ROOT / "mkdocs.yml").read_text()


def test_the_pins_of_the_builders_are_hashed_and_name_no_registry() -> None:
    text = (ROOT / "requirements" / "docs.txt").read_text()
    assert "://" not in text
    pins = re.findall(r"^[a-z].*(?:\n .*)*", text, re.MULTILINE)
    assert {pin.partition("==")[0] for pin in pins} >= {"zensical", "mkdocs-material"}
    assert all("--hash=sha256:" in pin for pin in pins)


def anchors(text: str) -> set[str]:
    """The anchors of a page's titles as Python-Markdown makes them."""
    text = FENCE.sub("", text)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    plain = [re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", title) for title in titles]
    slugs = (re.sub(r"[^\w\s-]", "", title).strip().lower() for title in plain)
    return {re.sub(r"[-\s]+", "-", slug) for slug in slugs}


@each_row("page", PAGES, ids=name)
def test_links_lead_to_pages_of_the_site(page: Path) -> None:
    for target, anchor in LINK.findall(FENCE.sub("", page.read_text())):
        file = (page.parent / target).resolve() if target else page
        assert file.is_file(), f"{name(page)}: {target}"
        assert file.is_relative_to(DOCS), f"{name(page)}: {target} is not part of the site"
        if anchor:
            assert anchor[1:] in anchors(file.read_text()), f"{name(page)}: {target}{anchor}"


def test_every_page_begins_with_its_title_and_a_sentence() -> None:
    for page in PAGES:
        text = page.read_text()
        assert re.match(r"# \S", text), name(page)
        sentence = site.first_sentence(text)
        assert sentence, name(page)
        assert not sentence.startswith("```"), f"{name(page)} begins with code"


def test_the_list_of_pages_for_programs_has_all_of_them() -> None:
    text = "\n".join(site.llms_lines(site.load_config()))
    listed = re.findall(r"^- \[[^\]]+\]\((\S+\.md)\): \S", text, re.MULTILINE)
    assert listed == [site.built_name(page, ".md") for page in nav_pages()]
    assert "guides/index.md" in listed


@pytest.mark.long
def test_the_reference_is_up_to_date() -> None:
    command = [sys.executable, "scripts/reference.py", "--check"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_an_outdated_page_of_the_reference_is_named() -> None:
    reference = script("reference")
    written = {page.name: page.read_text() for page in reference.FOLDER.glob("*.md")}
    assert reference.outdated(written) == []
    assert reference.outdated({**written, "cli.md": "", "new.md": ""}) == ["cli.md", "new.md"]
    del written["errors.md"]
    assert reference.outdated(written) == ["errors.md"]


# ── Programs ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def emu() -> Iterator[emulator.Emulator]:
    with emulator.running() as running:
        yield running


@pytest.mark.parametrize("page", PROGRAMS)
def test_a_page_runs_and_prints_its_output(
    page: str,
    emu: emulator.Emulator,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """All but the figures: those follow the catalog."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "any")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", emu.url)
    module = ModuleType("page")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    emu.reset()
    ran, printed = 0, ""
    for tag, body in FENCE.findall((DOCS / page).read_text()):
        if tag == "python":
            exec(compile(body, page, "exec"), module.__dict__)
            printed, ran = capsys.readouterr().out, ran + 1
        elif tag == "text" and printed:
            assert without_figures(printed) == without_figures(body)
            printed = ""
    assert ran
    if page != "index.md":
        assert not printed, "a block whose output is not shown"


def without_figures(text: str) -> str:
    return re.sub(r" +", " ", re.sub(r"\d[\d,.]*", "0", text))


# ── The built site ───────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module", params=["zensical", "mkdocs"])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    command = ["sh", "scripts/site.sh", request.param]
    environment = {**os.environ, "OUTPUT": str(folder)}
    run = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return folder


@pytest.mark.soak  # installs and runs both builders
def test_the_built_site_has_every_page_and_its_markdown(built: Path) -> None:
    for page in nav_pages():
        html = built / site.built_name(page, ".html")
        assert html.is_file()
        assert html.with_suffix(".md").is_file()
    assert list(site.check(built)) == []
    text = (built / "llms.txt").read_text()
    for target in re.findall(r"\]\((\S+\.md)\)", text):
        assert (built / target).is_file()


def test_what_is_wrong_in_a_built_site_is_named(tmp_path: Path) -> None:
    page = (
        '<a href="b.html">b</a><a href="#no">c</a><a id="yes" href="#yes"></a>'
        '<script src="https://cdn.example/x.js"></script><link rel="next" href="a.html">'
    )
    (tmp_path / "a.html").write_text(page)
    (tmp_path / "a.css").write_text("@font-face { src: url(https://fonts.example/a.woff) }")
    assert list(site.check(tmp_path)) == [
        "a.html: loads https://cdn.example/x.js",
        "a.html: b.html leads nowhere",
        "a.html: #no: no such anchor",
        "a.css: loads https://fonts.example/a.woff",
    ]


@pytest.mark.soak
@needs_chromium
def test_pages_need_no_network_and_fit_a_phone(built: Path, chromium: Chromium) -> None:
    for page in ("index", "tutorial", "client", "reference/cache-rules", "reference/cli"):
        for width in (360, 1_280):
            with chromium.open((built / f"{page}.html").as_uri(), width=width) as tab:
                wide: Any = tab.page.evaluate("document.documentElement.scrollWidth")
                assert wide <= width, f"{page} at {width}"
            assert not tab.problems, page


@pytest.mark.soak
@needs_chromium
def test_search_finds_a_page_without_a_server(built: Path, chromium: Chromium) -> None:
    with chromium.open((built / "index.html").as_uri()) as tab:
        tab.page.keyboard.press("/")
        tab.page.keyboard.type("glossary")
        found = tab.page.get_by_text("Terms that Anaphora adds to the field's own").first
        found.wait_for()
