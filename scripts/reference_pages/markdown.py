"""Pieces of Markdown, and docstrings as Markdown."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence

_CODE = re.compile(r"(`[^`]*`)")


def page(title: str, intro: str, lines: Iterable[str]) -> str:
    return "\n".join([f"# {title}", "", intro, "", *lines]).rstrip() + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table with an empty line after it; empty without rows."""
    made = [_row(row) for row in rows]
    return [_row(head), "|" + "---|" * len(head), *made, ""] if made else []


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("\n", " ") for cell in cells) + " |"


def cell(text: str) -> str:
    """Text in a table."""
    return prose(" ".join(text.split())).replace("|", "\\|")


def code(text: str) -> str:
    """Code in a table, or in a line."""
    return f"`{text}`".replace("|", "\\|") if text else ""


def fence(language: str, text: str) -> list[str]:
    return [f"```{language}", text, "```", ""]


def prose(text: str) -> str:
    """Text whose `<`, `*` and `_` are no markup outside code."""
    parts = _CODE.split(text)
    for at in range(0, len(parts), 2):
        escaped = parts[at].replace("<", "&lt;").replace("*", "\\*")
        parts[at] = re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", escaped)
    return "".join(parts)


def docstring(text: str | None) -> list[str]:
    """A docstring as paragraphs; its indented blocks become blocks of code."""
    lines: list[str] = []
    for block in re.split(r"\n\s*\n", inspect.cleandoc(text or "")):
        if not block.strip():
            continue
        if all(line.startswith("    ") for line in block.splitlines()):
            lines += fence("text", inspect.cleandoc(block))
        elif "    " in block and "\n" in block:
            lines += _mixed(block)
        else:
            lines += [prose(block), ""]
    return lines


def _mixed(block: str) -> list[str]:
    """A block of text followed by indented code without an empty line between them."""
    text = [line for line in block.splitlines() if not line.startswith("    ")]
    indented = [line for line in block.splitlines() if line.startswith("    ")]
    if not indented:
        return [prose(block), ""]
    return [prose("\n".join(text)), "", *fence("text", inspect.cleandoc("\n".join(indented)))]
