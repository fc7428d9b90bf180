"""The programs of docs/frameworks.md, and what each needs."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).parent.parent.parent / "docs"
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Framework(NamedTuple):
    module: str
    packages: tuple[str, ...]


FRAMEWORKS = {
    "OpenAI Agents": Framework("agents", ("openai-agents",)),
    "LlamaIndex": Framework(
        "llama_index.llms.openai", ("llama-index-core", "llama-index-llms-openai")
    ),
    "smolagents": Framework("smolagents", ("smolagents[openai]",)),
    "LiteLLM": Framework("litellm", ("litellm",)),
}


def fences(page: str, language: str) -> list[str]:
    found = _FENCE.findall((DOCS / page).read_text())
    return [body for tag, body in found if tag == language]


def program_of(framework: str) -> str:
    """The program below a framework's title."""
    text = (DOCS / "frameworks.md").read_text()
    section = text.split(f"\n## {framework}\n")[1].split("\n## ")[0]
    ((_, program),) = _FENCE.findall(section)
    return str(program)


def installed_path(folder: Path) -> str:
    """A PYTHONPATH with the examples, as in an installed program that names the adapter for
    inspect_ai among its entry points."""
    root = DOCS.parent
    made = folder / "site" / "program-0.dist-info"
    made.mkdir(parents=True)
    (made / "METADATA").write_text("Metadata-Version: 2.1\nName: program\nVersion: 0\n")
    (made / "entry_points.txt").write_text("[inspect_ai]\nanaphora = inspect_ai_adapter\n")
    folders = (root / "src", root / "examples", folder / "site")
    path = [*map(str, folders), os.environ.get("PYTHONPATH", "")]
    return os.pathsep.join(path)
