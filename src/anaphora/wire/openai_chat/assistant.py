"""The assistant's message: content, tool calls, and the fields that some hosts add beside them.

Its two arrays cannot be cut, so it is one chunk; nothing in it carries a breakpoint.
"""

from __future__ import annotations

import msgspec

from anaphora.canonical import string
from anaphora.errors import InvalidRequest
from anaphora.values import Message, Notice, Opaque, Part, Refusal, Text, Thinking, ToolCall
from anaphora.wire.fields import Fields
from anaphora.wire.reading import request_error
from anaphora.wire.reasoning import UNFINISHED_REASONING

from .parts import (
    OTHER_CALL,
    WIRE,
    Notices,
    extra_members,
    is_fields,
    message_fields,
    opaque,
    refusal,
    said_in,
    text,
    thinking,
)

#: Message fields in which hosts tell their reasoning.
REASONING_FIELDS = ("reasoning_content", "reasoning")
#: The field of reasoning that came as a content part of its own.
IN_CONTENT = "content"
_REASONING = frozenset((*REASONING_FIELDS, "reasoning_details"))


class Said(msgspec.Struct):
    """An assistant's parts, sorted by where in the message they go."""

    content: list[bytes] = []
    calls: list[bytes] = []
    fields: dict[str, str] = {}
    """Reasoning, by the field that it is told in."""
    rest: bytes = b""
    """Fields that came along, as members of an object."""
    thoughts: int = 0
    """How many of the content parts are reasoning."""

    @property
    def unfinished(self) -> bool:
        """Whether there is reasoning and nothing else."""
        if self.calls or len(self.content) > self.thoughts:
            return False
        beside = msgspec.json.decode(b"{" + self.rest + b"}", type=dict[str, msgspec.Raw])
        told = {name for name, raw in beside.items() if bytes(raw) not in (b"null", b"[]")}
        return told <= _REASONING and bool(self.thoughts or self.fields or told)


def sort_parts(
    message: Message, notices: Notices, back: str | None = None, host: str | None = None
) -> Said:
    """Each part in its place; a notice for each that has none. `back` is the field that reasoning
    goes to, when not the one it came in; `host` is who it goes to."""
    said = Said()
    for at, part in enumerate(message.parts):
        told: Notices = []
        try:
            _place(part, said, told, back, host)
        except InvalidRequest as problem:
            raise problem.within(f"parts[{at}]") from None
        notices += [_at(notice, at) for notice in told]
    said.rest = message_fields(message.parts)
    return said


def assistant_message(
    message: Message,
    notices: Notices,
    back: str | None = None,
    needed: bool = False,
    host: str | None = None,
) -> bytes | None:
    """The message in a request; None when nothing is left to say. `back` is where reasoning goes,
    `needed` says that calls are refused without it, `host` is who hears it."""
    said = sort_parts(message, notices, back, host)
    if said.unfinished:
        notices.append(UNFINISHED_REASONING)
        return None
    if needed and said.calls and not said.fields:
        said.fields[back or REASONING_FIELDS[0]] = ""
        notices.append(
            Notice("reasoning_missing", "calls need their reasoning here; an empty one is sent")
        )
    members = [said.rest] if said.rest else []
    members += [string(name) + b":" + string(text) for name, text in said.fields.items()]
    if said.content:
        members.append(b'"content":[' + b",".join(said.content) + b"]")
    if said.calls:
        members.append(b'"tool_calls":[' + b",".join(said.calls) + b"]")
    return b'{"role":"assistant",' + b",".join(members) + b"}" if members else None


def tool_call(part: ToolCall) -> bytes:
    """The arguments are the model's own text, whether or not they are JSON."""
    inner, outer = function_extras(part.extras)
    try:
        arguments = string(part.arguments)
    except InvalidRequest as problem:
        raise problem.within("arguments") from None
    return (
        b'{"id":'
        + string(part.id)
        + b',"type":"function","function":{"name":'
        + string(part.name)
        + b',"arguments":'
        + arguments
        + inner
        + b"}"
        + outer
        + b"}"
    )


def function_extras(extras: dict[str, str] | None) -> tuple[bytes, bytes]:
    """Fields that came along: inside `function`, and beside it; each with its comma."""
    members = extra_members(extras)
    if not members:
        return b"", b""
    fields = Fields(b"{" + members + b"}", f"extras.{WIRE}", request_error)
    inside = fields.nested("function")
    inner, outer = inside.rest() if inside is not None else b"", fields.rest()
    return b"," + inner if inner else b"", b"," + outer if outer else b""


def reasoning_field(part: Thinking, host: str | None = None) -> str | None:
    """The field that this wire told the reasoning in; None for anybody else's, and for that of
    another host than the one it would go to."""
    if part.provider != WIRE or part.extras is None or WIRE not in part.extras:
        return None
    fields = Fields(part.extras[WIRE], f"extras.{WIRE}", request_error)
    if host is not None and fields.maybe("host", str) not in (None, host):
        return None
    return fields.maybe("field", str)


def thinking_part(part: Thinking) -> bytes:
    """Reasoning as a content part."""
    assert part.extras is not None
    fields = Fields(part.extras[WIRE], f"extras.{WIRE}", request_error)
    fields.raw("field")
    fields.raw("host")
    said = fields.raw("thinking") or b'[{"type":"text","text":' + string(part.text) + b"}]"
    rest = fields.rest()
    return b'{"type":"thinking","thinking":' + said + (b"," + rest if rest else b"") + b"}"


def _place(part: Part, said: Said, notices: Notices, back: str | None, host: str | None) -> None:
    """Appends a part to where it goes."""
    block: bytes | None = None
    if isinstance(part, Text):
        block = text(part, notices)
    elif isinstance(part, ToolCall):
        said.calls.append(tool_call(part))
        return
    elif isinstance(part, Refusal):
        block = refusal(part, notices)
    elif isinstance(part, Thinking):
        field = reasoning_field(part, host)
        if field is None:
            thinking(part, notices)
        elif field == IN_CONTENT:
            block = thinking_part(part)
            said.thoughts += 1
        else:
            field = back or field
            said.fields[field] = said.fields.get(field, "") + part.text
    elif isinstance(part, Opaque):
        if is_fields(part):
            return
        block = opaque(part, notices)
        if block is not None and part.kind == OTHER_CALL:
            said.calls.append(block)
            return
    else:
        said_in("assistant", part)[2](part, notices)
    if block is not None:
        if said.calls:
            notices.append(Notice("parts_reordered", "content stands before tool calls here"))
        said.content.append(block)


def _at(notice: Notice, part: int) -> Notice:
    path = f"parts[{part}].{notice.path}" if notice.path else f"parts[{part}]"
    return msgspec.structs.replace(notice, path=path)
