"""The README as package indexes show it: links into the repository lead there, or are text.

Run by hatchling for every wheel and sdist (`[tool.hatch.metadata.hooks.custom]`). An index shows
the README alone, where a relative link leads nowhere. With `Repository` in `[project.urls]` links
and pictures become addresses below it; without it links become the path that they name, and
pictures are left out.

`published` in `[tool.anaphora]` of pyproject.toml decides how the pages say to get Anaphora: from a
package index or from a checkout. `python scripts/package_readme.py` rewrites them.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_PICTURE = re.compile(r"<picture>.*?</picture>\n+", re.DOTALL)
_IMAGE = re.compile(r'\b(src|srcset)="(?!https?://)([^"]+)"')
_LINK = re.compile(r"\[([^\]]+)\]\((?!https?://|#)([^)]+)\)")
#: How to get Anaphora from a checkout, and from a package index.
_WAYS = (
    ("uvx --from . anaphora", "uvx anaphora"),
    ('uvx --from ".[all]"', 'uvx --from "anaphora[all]"'),
    ('pip install ".[all]"', 'pip install "anaphora[all]"'),
)
PAGES = ("README.md", "docs/index.md", "docs/why-is-my-bill-high.md")


class ReadmeHook(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        repository = metadata.get("urls", {}).get("Repository")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": with_absolute_links(text, repository),
        }


def is_published(root: Path) -> bool:
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    return bool(settings["tool"]["anaphora"]["published"])


def with_ways(text: str, *, published: bool) -> str:
    """The text with the commands for a package index, or for a checkout."""
    for checkout, index in _WAYS:
        text = text.replace(checkout, index) if published else text.replace(index, checkout)
    return text


def with_absolute_links(text: str, repository: str | None) -> str:
    def link(match: re.Match[str]) -> str:
        label, path = match.groups()
        if repository is not None:
            return f"[{label}]({repository.rstrip('/')}/blob/main/{path})"
        return label if label in (path, f"`{path}`") else f"{label} (`{path}`)"

    if repository is None:
        text = _PICTURE.sub("", text)
    else:
        raw = f"{repository.rstrip('/')}/raw/main"
        text = _IMAGE.sub(lambda match: f'{match[1]}="{raw}/{match[2]}"', text)
    return _LINK.sub(link, text)


if __name__ == "__main__":
    ROOT = Path(__file__).resolve().parent.parent
    for page in PAGES:
        file = ROOT / page
        text = with_ways(file.read_text(encoding="utf-8"), published=is_published(ROOT))
        file.write_text(text, encoding="utf-8")
