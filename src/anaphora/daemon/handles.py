"""Ids of objects that providers keep for apps, as requests write them."""

from __future__ import annotations

import re

from anaphora.errors import NotFound

from .store import HandleKind

_GEMINI_FILE = re.compile(r"(?:https?://[^/]+)?/?(?:v1(?:beta|alpha)/)?files/([\w-]+)")
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


def not_found(kind: HandleKind, id: str, param: str | None = None) -> NotFound:
    """For an object of another app, and for one that is not known."""
    code = _NOT_FOUND_CODES.get(kind, "not_found_error") if param else "not_found_error"
    name = kind.replace("_", " ")
    return NotFound(f"no {name} {id[:100]!r}", status=404, code=code, param=param)
