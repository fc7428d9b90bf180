"""Ids of objects that providers store: where requests name them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

from anaphora import wire as wires
from anaphora.wire.tables import request_table

StoredKind: TypeAlias = Literal[
    "response", "item", "conversation", "file", "cached_content", "container"
]
"""`item`: of a stored response."""

#: A file of Google's file store, by its address or name.
GEMINI_FILE = re.compile(r"(?:https?://[^/]+)?/?(?:v1(?:beta|alpha)/)?files/([\w-]+)")
#: Ids that the daemon writes into replies of other wires: no provider knows them.
_WRITTEN_HERE = re.compile(r"rs_.*_\d+", re.DOTALL)
#: Members of any object that hold the id of a stored one, or a list of them.
_IDS: dict[str, StoredKind] = {
    "file_id": "file",
    "file_ids": "file",
    "fileUri": "file",
    "file_uri": "file",
    "previous_response_id": "response",
    "previous_message_id": "response",
    "comparison_response_id": "response",
    "compare_response_id": "response",
    "cachedContent": "cached_content",
    "cached_content": "cached_content",
    "container": "container",
    "container_id": "container",
    "conversation": "conversation",
    "input_file_id": "file",
}
#: Members that name objects of the account that no app owns.
_SHARED = frozenset(
    "vector_store_ids vector_store_id connector_id skill_id vertexRagStore vertex_rag_store"
    " vertexAiSearch vertex_ai_search".split()
)
ID_NAMES = frozenset(_IDS) | _SHARED
#: Members whose content is the app's own text or JSON.
_OPAQUE = frozenset(
    "metadata arguments input_schema parameters schema labels args response json_schema"
    " json".split()
)
#: By type of block or item: members with tool arguments or an answer's sources. Apps send them back
#: unchanged, and the provider does not open them again.
_OPAQUE_MEMBERS = {
    kind: row.opaque
    for name in wires.WIRES
    for kind, row in request_table(name).blocks.items()
    if row.opaque
}
#: Items of OpenAI that may be sent as only an id.
_ITEMS = ("reasoning", "image_generation_call", "item_reference")
_ITEM_REFERENCE = "item_reference"
#: The lists of a body that hold items.
_ITEM_LISTS = ("input", "items")


class StoredObject(NamedTuple):
    """An object at a provider that a request names."""

    kind: StoredKind
    id: str
    name: str
    """The member that names it, or `input` for an item."""
    path: str
    """The path of that member."""
    shared: bool = False
    """No app owns it."""
    problem: str = ""
    """Why the reference is invalid; empty if it is valid."""

    @property
    def is_owned(self) -> bool:
        """Whether it may be an app's own."""
        return not self.shared and not self.problem


def stored_id(kind: StoredKind, text: str) -> str | None:
    """The id in a value; None for the address of a file that no provider stores."""
    if kind == "cached_content":
        return text.removeprefix("cachedContents/")
    if kind == "file" and "/" in text:
        match = GEMINI_FILE.fullmatch(text)
        if match is not None:
            return match[1]
        return text if "files/" in text or "googleapis" in text.lower() else None
    return text


def is_stored_reasoning(item: Mapping[str, Any]) -> bool:
    """Whether a reasoning item refers to one stored at OpenAI: it has an id and no encrypted
    content. Open models send reasoning as text, with ids of another form."""
    id = item.get("id")
    if not id or item.get("encrypted_content"):
        return False
    if not isinstance(id, str):
        return True
    return _WRITTEN_HERE.fullmatch(id) is None and (id.startswith("rs_") or not item.get("content"))


def stored_objects(value: Any, path: str = "") -> Iterator[StoredObject]:
    """The stored objects named in a decoded value, at all levels."""
    stack: list[tuple[str, Any]] = [(path, value)]
    while stack:
        where, one = stack.pop()
        if type(one) is list:
            stack += [(f"{where}[{at}]", each) for at, each in enumerate(one)]
        elif type(one) is dict:
            for name, inner in one.items():
                below = f"{where}.{name}" if where else name
                if name in ID_NAMES:
                    yield from _named(one, name, inner, below)
                kind = type(inner)
                if (kind is list or kind is dict) and not _is_opaque(one, name):
                    stack.append((below, inner))
                    if name == "audio" and kind is dict:  # the audio of an earlier answer
                        yield from _named(inner, "id", inner.get("id"), f"{below}.id")
                elif name == "type" and inner in _ITEMS:
                    yield from stored_item(one, inner, where)


def items_without_type(fields: Mapping[str, Any]) -> Iterator[StoredObject]:
    """The items of Responses in these fields that have neither type nor role: they are references
    as well."""
    for name in _ITEM_LISTS:
        listed = fields.get(name)
        for at, one in enumerate(listed if isinstance(listed, list) else ()):
            if isinstance(one, dict) and not one.get("type") and not one.get("role"):
                yield from stored_item(one, _ITEM_REFERENCE, f"{name}[{at}]")


def stored_item(item: dict[str, Any], kind: str, path: str) -> Iterator[StoredObject]:
    """An item of an earlier response, if the request holds its id and not its content."""
    id = item.get("id")
    if kind == _ITEM_REFERENCE and not (isinstance(id, str) and id):
        reason = "an item of the input needs a type, a role, or the id of a stored item"
        yield StoredObject("item", "", "input", path, problem=reason)
        return
    if kind == "reasoning" and not is_stored_reasoning(item):
        return
    if kind == "image_generation_call" and item.get("result"):
        return
    if isinstance(id, str) and id:
        yield StoredObject("item", id, "input", f"{path}.id")


def _is_opaque(fields: dict[str, Any], name: str) -> bool:
    """Whether a member is the app's own text or JSON, or holds sources of an answer."""
    if name in _OPAQUE:
        return True
    kind = fields.get("type")
    if name == "input" and "toolUseId" in fields and type(fields[name]) is dict:
        return True  # arguments of a call, on Converse
    if not isinstance(kind, str):
        return name == "annotations" and fields.get("role") == "assistant"
    return name in _OPAQUE_MEMBERS.get(kind, ())


def _named(fields: dict[str, Any], name: str, inner: Any, path: str) -> Iterator[StoredObject]:
    if name in _SHARED:
        if inner and fields.get("type") != "anthropic":
            for each in inner if isinstance(inner, list) else (inner,):
                own = each if isinstance(each, str) else ""
                yield StoredObject("file", own, name, path, shared=True)
        return
    kind = _IDS.get(name, "response")
    for each in inner if isinstance(inner, list) else (inner,):
        id = each.get("id") if isinstance(each, dict) else each
        if id in (None, ""):
            continue
        if not isinstance(id, str):
            yield StoredObject(kind, "", name, path, problem=f"{name} must be an id")
            continue
        found = stored_id(kind, id)
        if found is not None:
            yield StoredObject(kind, found, name, path)
