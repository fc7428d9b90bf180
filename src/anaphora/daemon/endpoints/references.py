"""The stored objects that a request refers to: each must be the app's own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from anaphora.daemon.store import HandleKind, HandleRow, Store
from anaphora.errors import NotFound, NotGranted, RequestRejected

#: Members of any object that hold the id of a stored one, or a list of them.
_IDS: dict[str, HandleKind] = {
    "file_id": "file",
    "file_ids": "file",
    "fileUri": "file",
    "file_uri": "file",
    "previous_response_id": "response",
    "comparison_response_id": "response",
    "compare_response_id": "response",
    "cachedContent": "cached_content",
    "cached_content": "cached_content",
    "container": "container",
    "container_id": "container",
    "conversation": "conversation",
    "input_file_id": "file",
}
#: Members that name objects of the account which no app owns.
_SHARED = frozenset(("vector_store_ids", "vector_store_id", "connector_id", "skill_id"))
_NAMES = frozenset(_IDS) | _SHARED
#: Members whose content is the app's own text or JSON.
_OPAQUE = frozenset(
    "metadata arguments input_schema parameters schema labels args response json_schema".split()
)
#: Blocks of Anthropic whose `input` is the arguments of a tool.
_TOOL_USES = ("tool_use", "server_tool_use", "mcp_tool_use")
_GEMINI_FILE = re.compile(r"(?:https?://[^/]+)?/?(?:v1(?:beta|alpha)/)?files/([\w-]+)")


class Reference(msgspec.Struct, frozen=True):
    kind: HandleKind
    id: str
    param: str


def references(value: dict[str, Any]) -> Iterator[Reference]:
    """The stored objects that a decoded request names."""
    stack: list[Any] = [value]
    while stack:
        one = stack.pop()
        if type(one) is list:
            for each in one:
                # Most elements are messages, and blocks of text.
                if type(each) is dict and len(each) == 2:
                    if "text" in each and "type" in each:
                        continue
                    if "role" in each and "content" in each:
                        each = each["content"]
                if type(each) is not str:
                    stack.append(each)
        elif type(one) is dict:
            for name, inner in one.items():
                if name in _NAMES:
                    yield from _named(one, name, inner)
                kind = type(inner)
                if (kind is list or kind is dict) and not _is_opaque(one, name):
                    stack.append(inner)
                elif inner == "item_reference" and name == "type":
                    raise NotFound(
                        "references to single items of stored responses are not supported; use"
                        " previous_response_id",
                        status=404,
                        code="not_found_error",
                        param="input",
                    )


def _is_opaque(fields: dict[str, Any], name: str) -> bool:
    """Whether a member is text or JSON of the app's own."""
    return name in _OPAQUE or (name == "input" and fields.get("type") in _TOOL_USES)


def _named(fields: dict[str, Any], name: str, inner: Any) -> Iterator[Reference]:
    if name in _SHARED:
        if inner and fields.get("type") != "anthropic":
            raise NotGranted(f"{name} names an object that belongs to no app", param=name)
        return
    kind = _IDS[name]
    for each in inner if isinstance(inner, list) else (inner,):
        id = each.get("id") if isinstance(each, dict) else each
        if id in (None, "", "auto"):
            continue
        if not isinstance(id, str):
            raise RequestRejected(f"{name} must be an id", status=400, param=name)
        found = _stored_id(kind, id)
        if found is not None:
            yield Reference(kind, found, name)


def _stored_id(kind: HandleKind, text: str) -> str | None:
    """The id in a value; None for the address of a file that no provider stores."""
    if kind == "cached_content":
        return text.removeprefix("cachedContents/")
    if kind == "file" and "/" in text:
        match = _GEMINI_FILE.fullmatch(text)
        if match is not None:
            return match[1]
        return text if "files/" in text or "googleapis" in text.lower() else None
    return text


async def check_references(store: Store, app: str, value: dict[str, Any]) -> tuple[HandleRow, ...]:
    """The rows of the objects that a request names. Raises `NotFound` for an object of another app,
    or of none, and `RequestRejected` where two are at different providers."""
    rows: dict[tuple[str, str], HandleRow] = {}
    for one in references(value):
        if (one.kind, one.id) in rows:
            continue
        row = await store.handle(one.kind, one.id, app)
        if row is None:
            raise not_found(one.kind, one.id, one.param)
        rows[one.kind, one.id] = row
    if len({row.provider for row in rows.values()}) > 1:
        reason = "the request names stored objects of different providers"
        raise RequestRejected(reason, status=400)
    return tuple(rows.values())


_NOT_FOUND_CODES: dict[str, str] = {"response": "previous_response_not_found"}


def not_found(kind: HandleKind, id: str, param: str | None = None) -> NotFound:
    code = _NOT_FOUND_CODES.get(kind, "not_found_error") if param else "not_found_error"
    name = kind.replace("_", " ")
    return NotFound(f"no {name} {id[:100]!r}", status=404, code=code, param=param)
