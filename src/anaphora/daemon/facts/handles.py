"""Ids of objects that providers keep for apps, as requests write them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from anaphora.daemon.store import HandleKind, HandleRow, Store
from anaphora.errors import NotFound

_GEMINI_FILE = re.compile(r"(?:https?://[^/]+)?/?(?:v1(?:beta|alpha)/)?files/([\w-]+)")
#: Ids that we write into replies of other wires: no provider knows them.
_WRITTEN_HERE = re.compile(r"rs_.*_\d+", re.DOTALL)
_NOT_FOUND_CODES: dict[str, str] = {"response": "previous_response_not_found"}


def stored_id(kind: HandleKind, text: str) -> str | None:
    """The id in a value; None for the address of a file that no provider stores."""
    if kind == "cached_content":
        return text.removeprefix("cachedContents/")
    if kind == "file" and "/" in text:
        match = _GEMINI_FILE.fullmatch(text)
        if match is not None:
            return match[1]
        return text if "files/" in text or "googleapis" in text.lower() else None
    return text


def is_stored_reasoning(item: Mapping[str, Any]) -> bool:
    """Whether an item of reasoning stands for one that OpenAI keeps: an id, and nothing encrypted.
    Open models send theirs as text, under ids of another form."""
    id = item.get("id")
    if not id or item.get("encrypted_content"):
        return False
    if not isinstance(id, str):
        return True
    return _WRITTEN_HERE.fullmatch(id) is None and (id.startswith("rs_") or not item.get("content"))


async def own_rows(
    store: Store, app: str, named: Iterable[tuple[HandleKind, str]]
) -> dict[tuple[HandleKind, str], HandleRow]:
    """The rows of those objects that belong to an app."""
    ids: dict[HandleKind, list[str]] = {}
    for kind, id in named:
        ids.setdefault(kind, []).append(id)
    rows: dict[tuple[HandleKind, str], HandleRow] = {}
    for kind, some in ids.items():
        found = await store.own_handles(kind, some, app)
        if kind == "item" and (rest := [id for id in some if id not in found]):
            # Earlier versions stored items of reasoning as responses.
            found |= await store.own_handles("response", rest, app)
        rows.update(((kind, id), row) for id, row in found.items())
    return rows


def not_found(kind: HandleKind, id: str, param: str | None = None) -> NotFound:
    """For an object of another app, and for one that is not known."""
    code = _NOT_FOUND_CODES.get(kind, "not_found_error") if param else "not_found_error"
    name = kind.replace("_", " ")
    return NotFound(f"no {name} {id[:100]!r}", status=404, code=code, param=param)
