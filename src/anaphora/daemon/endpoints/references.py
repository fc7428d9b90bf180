"""The stored objects that a request refers to: each must be the app's own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from anaphora.canonical import dumps
from anaphora.daemon.calls.filling import with_members
from anaphora.daemon.faces import face_of
from anaphora.daemon.facts.handles import is_stored_reasoning, not_found, own_rows, stored_id
from anaphora.daemon.store import HandleKind, HandleRow, Store
from anaphora.errors import NotGranted, RequestRejected
from anaphora.values import Notice

from .body import JsonBody

#: Members of any object that hold the id of a stored one, or a list of them.
_IDS: dict[str, HandleKind] = {
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
#: Members that name objects of the account which no app owns.
_SHARED = frozenset(
    "vector_store_ids vector_store_id connector_id skill_id vertexRagStore vertex_rag_store"
    " vertexAiSearch vertex_ai_search".split()
)
_NAMES = frozenset(_IDS) | _SHARED
#: Members whose content is the app's own text or JSON.
_OPAQUE = frozenset(
    "metadata arguments input_schema parameters schema labels args response json_schema".split()
)
#: Blocks of Anthropic whose `input` is the arguments of a tool.
_TOOL_USES = ("tool_use", "server_tool_use", "mcp_tool_use")
#: By the type of a block or item: the member with the sources that an answer named. An app sends
#: them back as they are, and the provider does not open them again.
_CITED = {"text": "citations", "output_text": "annotations", "file_search_call": "results"}
#: Items of OpenAI that may be sent as an id alone.
_ITEMS = ("reasoning", "image_generation_call")
_ITEM_REFERENCE = "item_reference"


class Reference(msgspec.Struct, frozen=True):
    kind: HandleKind
    id: str
    param: str


def references(value: dict[str, Any]) -> Iterator[Reference]:
    """The stored objects that a decoded request names."""
    yield from _untyped(value)
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
                elif name == "type" and (inner in _ITEMS or inner == _ITEM_REFERENCE):
                    yield from _item(one, inner)


def _item(fields: dict[str, Any], kind: str) -> Iterator[Reference]:
    """An item of an earlier response, where the request holds its id and not its content."""
    id = fields.get("id")
    if kind == _ITEM_REFERENCE and not (isinstance(id, str) and id):
        reason = "an item of the input needs a type, a role, or the id of a stored item"
        raise RequestRejected(reason, status=400, param="input")
    if kind == "reasoning" and not is_stored_reasoning(fields):
        return
    if kind == "image_generation_call" and fields.get("result"):
        return
    if isinstance(id, str) and id:
        yield Reference("item", id, "input")


def _untyped(value: dict[str, Any]) -> Iterator[Reference]:
    """An item of Responses without a type and a role is a reference as well."""
    for name in ("input", "items"):
        listed = value.get(name)
        for one in listed if isinstance(listed, list) else ():
            if isinstance(one, dict) and not one.get("type") and not one.get("role"):
                yield from _item(one, _ITEM_REFERENCE)


def _is_opaque(fields: dict[str, Any], name: str) -> bool:
    """Whether a member is text or JSON of the app's own, or names sources of an answer."""
    if name in _OPAQUE:
        return True
    kind = fields.get("type")
    if not isinstance(kind, str):
        return name == "annotations" and fields.get("role") == "assistant"
    return (name == "input" and kind in _TOOL_USES) or _CITED.get(kind) == name


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
        found = stored_id(kind, id)
        if found is not None:
            yield Reference(kind, found, name)


def without_comparison(wire: str, body: JsonBody) -> tuple[bytes, Notice] | None:
    """The body without the response that the provider is to compare it with, for a diagnosis alone;
    None where it names none. SDKs send it unasked, also for apps that may store nothing."""
    name, member = face_of(wire).comparison
    options = body.value.get(name)
    if not isinstance(options, dict) or not options.get(member):
        return None
    changed = {name: dumps({**options, member: None})}
    reason = f"{name}.{member} was left out: stored_responses is not in allow of the grant"
    notice = Notice("comparison_left_out", reason, f"{name}.{member}")
    return with_members(body.data, body.members, changed), notice


async def check_references(
    store: Store, app: str, found: Iterable[Reference]
) -> tuple[HandleRow, ...]:
    """The rows of the objects that a request names. Raises `NotFound` for an object of another app,
    or of none, and `RequestRejected` where two are at different providers."""
    named = {(one.kind, one.id): one.param for one in found}
    rows = await own_rows(store, app, named)
    for (kind, id), param in named.items():
        if (kind, id) not in rows:
            raise not_found(kind, id, param)
    if len({row.provider for row in rows.values()}) > 1:
        reason = "the request names stored objects of different providers"
        raise RequestRejected(reason, status=400)
    return tuple(rows.values())
