"""The README as package indexes show it: links into the repository lead there, or are text.

Run by hatchling for every wheel and sdist (`[tool.hatch.metadata.hooks.custom]`). An index shows
the README alone, where a relative link leads nowhere. With `Repository` in `[project.urls]` links
and pictures become addresses below it; without it links become the path that they name, and
pictures are left out.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_PICTURE = re.compile(r"<picture>.*?</picture>\n+", re.DOTALL)
_IMAGE = re.compile(r'\b(src|srcset)="(?!https?://)([^"]+)"')
_LINK = re.compile(r"\[([^\]]+)\]\((?!https?://|#)([^)]+)\)")


class ReadmeHook(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        repository = metadata.get("urls", {}).get("Repository")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": with_absolute_links(text, repository),
        }


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
