"""Items as OpenAI says them, read into parts. Requests and answers share it.

What has no name here stays with the part it came with: fields of a part under the wire's name,
fields of a message item beside them in its first part, and items we cannot read whole.
"""

from __future__ import annotations

import base64
import binascii

import msgspec

from anaphora.values import (
    Bytes,
    Document,
    Extras,
    FileId,
    Image,
    Opaque,
    Part,
    Refusal,
    ResultPart,
    Role,
    Source,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Ttl,
    Url,
)
from anaphora.wire.fields import Fields
from anaphora.wire.markers import PlacedMark
from anaphora.wire.openai_cache import Breakpoint, breakpoint_ttl, take_breakpoint
from anaphora.wire.openai_system import Place, keep_place
from anaphora.wire.reading import DECODE_ERRORS, ErrorFactory

from .content import ITEM, WIRE, is_content

UNSET = msgspec.UNSET
Maybe = str | msgspec.UnsetType


class TextPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Text as it nearly always comes."""

    type: str
    text: str
    prompt_cache_breakpoint: Breakpoint | None = None


class UsualItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The items that make up nearly all traffic, with all their usual fields and no others. Which
    fields belong to which type is for `read_usual` to see: a message need not have a type."""

    type: str = "message"
    role: Maybe = UNSET
    content: str | list[TextPart] | msgspec.UnsetType = UNSET
    call_id: Maybe = UNSET
    name: Maybe = UNSET
    arguments: Maybe = UNSET
    output: str | list[TextPart] | msgspec.UnsetType = UNSET
    id: Maybe = UNSET
    status: Maybe = UNSET
    phase: Maybe = UNSET
    namespace: Maybe = UNSET


usual_item = msgspec.json.Decoder(UsualItem).decode
some_raw = msgspec.json.Decoder(list[msgspec.Raw]).decode

#: The breakpoints of an item.
Marks = list[PlacedMark[Ttl | None]]

ROLES: dict[str, Role] = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "developer": "system",
}

#: Items that no model makes: the app's own. Every other item we only carry along is an answer's.
APP_ITEMS = frozenset(
    {
        "additional_tools",
        "apply_patch_call_output",
        "compaction_trigger",
        "computer_call_output",
        "configuration_update",
        "custom_tool_call_output",
        "item_reference",
        "local_shell_call_output",
        "mcp_approval_response",
        "shell_call_output",
    }
)


#: Who says an item, and its parts.
Item = tuple[Role, tuple[Part, ...]]


def read_item(raw: msgspec.Raw, path: str, fail: ErrorFactory, marks: Marks) -> Item:
    """An item of any kind."""
    try:
        usual = read_usual(usual_item(raw), path, fail, marks)
    except DECODE_ERRORS:
        usual = None
    return usual or _read_any(raw, path, fail, marks)


def read_usual(item: UsualItem, path: str | int, fail: ErrorFactory, marks: Marks) -> Item | None:
    """An item with nothing unusual about it; None when there is. `path` may be its index in the
    input: a path is made of it when something needs one."""
    kind = item.type
    if kind == "message":
        return _usual_message(item, path, fail, marks)
    if kind == "function_call":
        return _usual_call(item)
    return _usual_output(item, path, fail, marks) if kind == "function_call_output" else None


def _usual_message(
    item: UsualItem, path: str | int, fail: ErrorFactory, marks: Marks
) -> Item | None:
    content, role = item.content, ROLES.get(item.role or "")
    if role is None or content is UNSET or item.namespace is not UNSET:
        return None
    if not (item.call_id is item.name is item.arguments is item.output is UNSET):
        return None
    extras = None
    if item.id is not UNSET or item.status is not UNSET or item.phase is not UNSET:
        extras = _extras(ITEM, id=item.id, status=item.status, phase=item.phase)
    if role == "system":
        extras = keep_place(extras, _place(item.role))
    if isinstance(content, str):
        return role, (Text(content, extras),)
    if role == "assistant" or not content:
        return None  # the long form of what a model said has more to it
    parts = _texts(content, path, fail, (), marks)
    if parts is None:
        return None
    return role, parts if extras is None else (Text(parts[0].text, extras), *parts[1:])


def _place(role: object) -> Place:
    return Place("developer" if role == "developer" else "system", "message")


def _usual_call(item: UsualItem) -> Item | None:
    call_id, name, arguments = item.call_id, item.name, item.arguments
    if call_id is UNSET or name is UNSET or arguments is UNSET:
        return None
    if not (item.role is item.content is item.output is item.phase is UNSET):
        return None
    extras = None
    if item.id is not UNSET or item.status is not UNSET or item.namespace is not UNSET:
        extras = _extras(WIRE, id=item.id, status=item.status, namespace=item.namespace)
    return "assistant", (ToolCall(call_id, name, arguments, extras),)


def _usual_output(
    item: UsualItem, path: str | int, fail: ErrorFactory, marks: Marks
) -> Item | None:
    call_id, content = item.call_id, item.output
    if call_id is UNSET or content is UNSET:
        return None
    if not (item.role is item.content is item.name is item.arguments is UNSET):
        return None
    if item.phase is not UNSET or item.namespace is not UNSET:
        return None
    extras = None
    if item.id is not UNSET or item.status is not UNSET:
        extras = _extras(WIRE, id=item.id, status=item.status)
    if isinstance(content, str):
        return "tool", (ToolResult(call_id, content, extras=extras),)
    texts = _texts(content, path, fail, (0,), marks)
    return None if texts is None else ("tool", (ToolResult(call_id, texts, extras=extras),))


def _texts(
    parts: list[TextPart], path: str | int, fail: ErrorFactory, at: tuple[int, ...], marks: Marks
) -> tuple[Text, ...] | None:
    for index, part in enumerate(parts):
        if part.type != "input_text":
            return None
        if part.prompt_cache_breakpoint is not None:
            item = path if isinstance(path, str) else f"$.input[{path}]"
            here = f"{item}.{'output' if at else 'content'}[{index}].prompt_cache_breakpoint"
            ttl = breakpoint_ttl(part.prompt_cache_breakpoint, here, fail)
            marks.append(((*at, index), ttl, None))
    return tuple([Text(part.text) for part in parts])


def _extras(
    key: str, *, id: Maybe, status: Maybe, phase: Maybe = UNSET, namespace: Maybe = UNSET
) -> Extras:
    fields = {"id": id, "status": status, "phase": phase, "namespace": namespace}
    said = {name: value for name, value in fields.items() if value is not UNSET}
    return {key: msgspec.json.encode(said).decode()}


def _read_any(raw: msgspec.Raw, path: str, fail: ErrorFactory, marks: Marks) -> Item:
    """Any item: known fields by name, unknown ones as extras, unknown types whole."""
    fields = Fields(raw, path, fail)
    kind = fields.maybe("type", str)
    if kind is None:
        # Only messages and references may go without.
        kind = "item_reference" if "id" in fields and "role" not in fields else "message"
    if kind == "message":
        return _message(raw, fields, path, fail, marks)
    if kind == "function_call" and {"call_id", "name", "arguments"} <= _names(fields):
        call_id, name = fields.take("call_id", str), fields.take("name", str)
        arguments = fields.take("arguments", str)
        return "assistant", (ToolCall(call_id, name, arguments, fields.rest_for(WIRE)),)
    if kind == "function_call_output":
        return _tool_output(raw, fields, path, fail, marks)
    if kind == "reasoning":
        return "assistant", (_reasoning(fields),)
    role: Role = "user" if kind in APP_ITEMS else "assistant"
    return role, (Opaque(WIRE, kind, bytes(raw).decode()),)


def _message(raw: msgspec.Raw, fields: Fields, path: str, fail: ErrorFactory, marks: Marks) -> Item:
    said = fields.take("role", str)
    content = fields.raw("content")
    if content is None:
        raise fields.fail("is missing", "content")
    role = ROLES.get(said)
    if role is None:
        return "user", (Opaque(WIRE, "message", bytes(raw).decode()),)
    if content[:1] == b'"':
        text, extras = msgspec.json.decode(content, type=str), _item_extras(fields, role)
        return role, (Text(text, keep_place(extras, _place(said)) if role == "system" else extras),)
    placed: Marks = []
    parts = read_content(content, role, f"{path}.content", fail, placed)
    if not parts:
        return role, (Opaque(WIRE, "message", bytes(raw).decode()),)
    extras = _item_extras(fields, role)
    if role == "system":
        extras = keep_place(extras, _place(said))
    first = _with(parts[0], extras)
    if first is None:
        return role, (Opaque(WIRE, "message", bytes(raw).decode()),)
    marks += placed
    return role, (first, *parts[1:])


def _item_extras(fields: Fields, role: Role) -> Extras | None:
    """The fields of a message item. An assistant's item has them even when there are none: that
    keeps it apart from its neighbours."""
    rest = fields.rest_for(ITEM)
    return {ITEM: "{}"} if rest is None and role == "assistant" else rest


def _with(part: Part, extras: Extras | None) -> Part | None:
    """The part with the item's fields beside its own; None when it has no place for them."""
    if extras is None:
        return part
    if isinstance(part, Opaque):
        return None
    return msgspec.structs.replace(part, extras={**(part.extras or {}), **extras})


def read_content(
    raw: bytes, role: Role, path: str, fail: ErrorFactory, marks: Marks
) -> tuple[Part, ...] | None:
    """The parts of a message's content; None when one of them cannot be told from an item."""
    parts = []
    for index, part in enumerate(raw_list(raw, path, fail)):
        read = _content_part(part, role, f"{path}[{index}]", fail, (index,), marks)
        if read is None:
            return None
        parts.append(read)
    return tuple(parts)


def _content_part(
    raw: msgspec.Raw, role: Role, path: str, fail: ErrorFactory, at: tuple[int, ...], marks: Marks
) -> Part | None:
    fields = Fields(raw, path, fail)
    kind = fields.take("type", str)
    marker = take_breakpoint(fields, WIRE)
    if marker is not None:
        marks.append((at, *marker))
    said_by_model = role == "assistant"
    part: Part | None = None
    if kind == "input_text" or (kind == "output_text" and said_by_model):
        part = Text(fields.take("text", str), fields.rest_for(WIRE))
    elif kind == "refusal" and said_by_model:
        part = Refusal(fields.take("refusal", str), fields.rest_for(WIRE))
    elif kind == "input_image" and not said_by_model:
        part = _image(fields)
    elif kind == "input_file" and not said_by_model:
        part = _file(fields)
    if part is not None:
        return part
    return _whole(raw, kind, path, fail) if is_content(kind) else None


def _whole(raw: msgspec.Raw, kind: str, path: str, fail: ErrorFactory) -> Opaque:
    """Known or not, it goes back the way it came, less the breakpoint."""
    fields = Fields(raw, path, fail)
    fields.raw("prompt_cache_breakpoint")
    return Opaque(WIRE, kind, (b"{" + fields.rest() + b"}").decode())


def _tool_output(
    raw: msgspec.Raw, fields: Fields, path: str, fail: ErrorFactory, marks: Marks
) -> Item:
    call_id, output = fields.known("call_id", str), fields.raw("output")
    if output is None:
        raise fields.fail("is missing", "output")
    if call_id is None:
        return "user", (Opaque(WIRE, "function_call_output", bytes(raw).decode()),)
    content: str | tuple[ResultPart, ...]
    if output[:1] == b'"':
        content = msgspec.json.decode(output, type=str)
    else:
        inner = []
        for index, part in enumerate(raw_list(output, f"{path}.output", fail)):
            here = f"{path}.output[{index}]"
            read = _content_part(part, "tool", here, fail, (0, index), marks)
            if read is None:
                read = _whole(part, Fields(part, here, fail).take("type", str), here, fail)
            assert isinstance(read, Text | Image | Document | Opaque)
            inner.append(read)
        content = tuple(inner)
    return "tool", (ToolResult(call_id, content, extras=fields.rest_for(WIRE)),)


class _Said(msgspec.Struct, frozen=True):
    text: str = ""


class _Reasoned(msgspec.Struct, frozen=True):
    summary: list[_Said] | None = None
    content: list[_Said] | None = None


def _reasoning(fields: Fields) -> Thinking:
    """Reasoning, its fields kept exactly; the text is what it tells of itself."""
    data = fields.known("encrypted_content", str)
    rest = fields.rest()
    try:
        told = msgspec.json.decode(b"{" + rest + b"}", type=_Reasoned)
    except msgspec.ValidationError as problem:
        raise fields.fail(str(problem)) from None
    text = "\n\n".join(said.text for said in (*(told.summary or ()), *(told.content or ())))
    return Thinking(text, data=data, provider=WIRE, extras=fields.rest_for(WIRE))


def _image(fields: Fields) -> Image | None:
    url = fields.known("image_url", str)
    file_id = None if url is not None else fields.known("file_id", str)
    if url is None and file_id is None:
        return None
    source = _at(url) if url is not None else FileId("openai", file_id or "")
    detail = fields.known("detail", str)
    return Image(source, detail, fields.rest_for(WIRE))


def _file(fields: Fields) -> Document | None:
    names = [n for n in ("file_data", "file_url", "file_id") if n in fields]
    source: Source | None = None
    if names == ["file_data"]:
        found = _at(fields.known("file_data", str) or "")
        source = found if isinstance(found, Bytes) else None
    elif names == ["file_url"] and (url := fields.known("file_url", str)) is not None:
        source = Url(url)
    elif names == ["file_id"] and (file_id := fields.known("file_id", str)) is not None:
        source = FileId("openai", file_id)
    if source is None:
        return None
    title = fields.known("filename", str)
    return Document(source, title, extras=fields.rest_for(WIRE))


def _at(url: str) -> Source:
    """A data URL as the bytes in it, where they would be written the same again."""
    head, comma, encoded = url.partition(";base64,")
    if comma and head.startswith("data:"):
        try:
            data = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            return Url(url)
        if base64.b64encode(data).decode() == encoded and head.isascii():
            return Bytes(data, head.removeprefix("data:"))
    return Url(url)


def raw_list(raw: bytes, path: str, fail: ErrorFactory) -> list[msgspec.Raw]:
    try:
        return some_raw(raw)
    except DECODE_ERRORS as problem:
        raise fail(f"expected text or a list: {problem}", path) from None


def _names(fields: Fields) -> set[str]:
    return {name for name in ("call_id", "name", "arguments") if name in fields}
