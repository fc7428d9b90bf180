"""Builds the site of docs/ from mkdocs.yml, and checks what was built: every link and anchor, and
that no page loads anything from another host.

    sh scripts/site.sh [zensical|mkdocs]

Beside each page `NAME.html` it writes the page's source as `NAME.md`, and `llms.txt`, the list of
all pages with their first sentences. The addresses of the site and of the repository come from
`[project.urls]` of pyproject.toml (`Documentation`, `Repository`), if they are there.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
#: Tags whose address the browser loads with the page, and the attributes that hold it.
_LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
#: `rel` of links in a page's head that are not loaded.
_NOT_LOADED = {"canonical", "next", "prev", "alternate", "edit"}
_IN_CSS = re.compile(r"""url\(\s*["']?([^)"']+)|@import\s+["']([^"']+)""")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("builder", choices=("zensical", "mkdocs"))
    parser.add_argument("--output", type=Path, default=ROOT / "site")
    options = parser.parse_args()
    site = options.output.resolve()
    build(options.builder, site)
    write_sources(site)
    (site / "llms.txt").write_text("\n".join(llms_lines(load_config())))
    problems = [*check(site)]
    for problem in problems:
        print(f"docs: {problem}", file=sys.stderr)
    pages = len([*site.rglob("*.html")])
    if not problems:
        print(f"docs: {pages} pages in {options.output}, all links and anchors lead somewhere")
    return 1 if problems else 0


# ── Building ─────────────────────────────────────────────────────────────────────────────────────


def build(builder: str, site: Path) -> None:
    """Runs the builder in the environment of this interpreter; its warnings are errors."""
    made = ROOT / ".docs" / f"site-{builder}"  # Zensical builds only below the project
    command = [str(Path(sys.executable).parent / builder), "build", "--strict", "--clean"]
    with tempfile.NamedTemporaryFile(
        "w", dir=ROOT, prefix=".mkdocs-", suffix=".yml", encoding="utf-8"
    ) as config:
        # A config of the same folder, since Zensical has no option for the output.
        text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
        config.write(re.sub(r"^site_dir: .*$", f"site_dir: {made}", text, flags=re.MULTILINE))
        config.flush()
        subprocess.run(
            [*command, "--config-file", config.name],
            cwd=ROOT,
            env={**os.environ, **addresses(), "NO_MKDOCS_2_WARNING": "1"},
            check=True,
        )
    shutil.rmtree(site, ignore_errors=True)
    shutil.move(made, site)


def addresses() -> dict[str, str]:
    """The variables of mkdocs.yml, for the addresses that pyproject.toml has."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    urls = {name.lower(): url for name, url in project.get("urls", {}).items()}
    names = {"ANAPHORA_SITE_URL": "documentation", "ANAPHORA_REPO_URL": "repository"}
    return {variable: urls[name] for variable, name in names.items() if name in urls}


class _Loader(yaml.SafeLoader):
    """Reads mkdocs.yml, whose `!ENV` tags are left out."""


_Loader.add_constructor("!ENV", lambda *_: None)


def load_config() -> dict[str, Any]:
    config: dict[str, Any] = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader=_Loader)
    return config


# ── Markdown beside the pages ────────────────────────────────────────────────────────────────────


def built_name(page: str, suffix: str) -> str:
    """`guides/README.md` is built as `guides/index.html`."""
    return re.sub(r"(^|/)README\.md$", r"\1index.md", page).removesuffix(".md") + suffix


def write_sources(site: Path) -> None:
    for source in DOCS.rglob("*.md"):
        page = source.relative_to(DOCS).as_posix()
        target = site / built_name(page, ".md")
        if target.with_suffix(".html").exists():
            text = re.sub(r"(\]\([^)#:\s]*)\bREADME\.md", r"\1index.md", source.read_text())
            target.write_text(text)


def nav_pages(entries: list[Any], *sections: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """The sections above each page of the navigation, and its path."""
    for entry in entries:
        if isinstance(entry, str):
            yield sections, entry
        else:
            for title, below in entry.items():
                if isinstance(below, str):
                    yield sections, below
                else:
                    yield from nav_pages(below, *sections, title)


def llms_lines(config: dict[str, Any]) -> Iterator[str]:
    yield f"# {config['site_name']}"
    yield ""
    yield f"> {config['site_description']}"
    shown: tuple[str, ...] | None = None
    for sections, page in nav_pages(config["nav"]):
        if sections != shown:
            shown = sections
            yield ""
            yield f"## {': '.join(sections) or 'Start'}"
            yield ""
        text = (DOCS / page).read_text()
        yield f"- [{title_of(text)}]({built_name(page, '.md')}): {first_sentence(text)}"
    yield ""


def title_of(text: str) -> str:
    return re.sub(r"`", "", text.partition("\n")[0].removeprefix("# "))


def first_sentence(text: str) -> str:
    """The first sentence of a page, without links."""
    blocks = (block.removeprefix("- ").lstrip() for block in text.split("\n\n")[1:])
    first = next((each for each in blocks if each[0].isalnum() or each[0] in "`*["), "")
    line = " ".join(first.split())
    line = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", line).replace("**", "")
    return re.split(r"(?<=[.:])\s", line, maxsplit=1)[0].rstrip(":")


# ── Checks of what was built ─────────────────────────────────────────────────────────────────────


class _Page(HTMLParser):
    """The ids, links and loaded addresses of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if "id" in values:
            self.ids.add(values["id"])
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag in _LOADED and _LOADED[tag] in values:
            if not _NOT_LOADED.isdisjoint(values.get("rel", "").split()):
                return
            self.loaded.append(values[_LOADED[tag]])


def check(site: Path) -> Iterator[str]:
    """Links and anchors that lead nowhere, and what is loaded from another host."""
    pages = {path: _Page(path.read_text()) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        name = path.relative_to(site)
        if name.name == "404.html":
            continue  # its links begin at the root of a server
        for address in page.loaded:
            if urlsplit(address).netloc:
                yield f"{name}: loads {address}"
        for address in (*page.links, *page.loaded):
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            if not target.is_file():
                yield f"{name}: {address} leads nowhere"
            elif (
                parts.fragment
                and target in pages
                and unquote(parts.fragment) not in pages[target].ids
            ):
                yield f"{name}: {address}: no such anchor"
    for sheet in sorted(site.rglob("*.css")):
        for found in _IN_CSS.finditer(sheet.read_text()):
            if urlsplit(found[1] or found[2]).netloc:
                yield f"{sheet.relative_to(site)}: loads {found[1] or found[2]}"


if __name__ == "__main__":
    sys.exit(main())
