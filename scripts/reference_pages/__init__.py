"""The pages of docs/reference, each a name and its Markdown."""

from __future__ import annotations

from . import catalog_rows, commands, configuration, error_codes, library, protocols
from .markdown import page

INTRO = """\
These pages are written from the code by `scripts/reference.py`; a test fails when they differ
from it. They list names, fields and figures. What to do with them is in the
[guides](../guides/README.md)."""


def all_pages() -> dict[str, str]:
    pages: dict[str, str] = {}
    for module in (library, commands, configuration, protocols, catalog_rows, error_codes):
        pages |= module.pages()
    return {"README.md": page("Reference", INTRO, [*_index(pages)]), **pages}


def _index(pages: dict[str, str]) -> list[str]:
    rows = ["| page | |", "|---|---|"]
    for name, text in pages.items():
        title, _, rest = text.partition("\n")
        what = " ".join(rest.strip().partition("\n\n")[0].split())
        rows.append(f"| [{title.removeprefix('# ')}]({name}) | {what} |")
    return rows
