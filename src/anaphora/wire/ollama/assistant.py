"""The assistant's message: reasoning, pictures, one text and tool calls, each a field of its own.

Requests and answers share it. The fields say nothing of the order their parts had.
"""

from __future__ import annotations

import msgspec

from anaphora.canonical import is_object, string
from anaphora.errors import InvalidRequest
from anaphora.values import Message, Notice, Part, Refusal, Text, Thinking, ToolCall
from anaphora.wire.reasoning import UNFINISHED_REASONING

from .carried import (
    WIRE,
    Notices,
    how_put,
    inner_and_outer,
    is_fields,
    message_fields,
    no_place,
)
from .images import image, is_image
from .parts import at_part, left_out

#: The order in which the fields are read back.
_ORDER = ("thinking", "images", "texts", "calls")


class Said(msgspec.Struct):
    """An assistant's parts, sorted by the field they go to."""

    thinking: list[str] = []
    images: list[bytes] = []
    texts: list[str] = []
    calls: list[bytes] = []
    fields: bytes = b""
    """Fields that came along, as members of an object."""

    @property
    def anything(self) -> bool:
        return bool(self.images or self.texts or self.calls or any(self.thinking))

    @property
    def unfinished(self) -> bool:
        """Whether there is reasoning and nothing else."""
        return any(self.thinking) and not (self.images or any(self.texts) or self.calls)


def assistant_message(message: Message, notices: Notices, *, answer: bool = False) -> bytes | None:
    """The whole message; None when nothing is left to say. In an answer all reasoning is told,
    whoever thought it; a request says only what Ollama itself had told."""
    said = sort_parts(message, notices, answer=answer)
    if said.unfinished and not answer:
        notices.append(UNFINISHED_REASONING)
        return None
    if not said.anything and not answer:
        if said.fields:
            notices.append(Notice("fields_left_out", "fields of a message that says nothing"))
        return None
    return b'{"role":"assistant",' + members(said) + b"}"


def members(said: Said) -> bytes:
    """The message's fields but for the role."""
    found = [said.fields] if said.fields else []
    found.append(b'"content":' + string("".join(said.texts)))
    if thought := "".join(said.thinking):
        found.append(b'"thinking":' + string(thought))
    if said.images:
        found.append(b'"images":[' + b",".join(said.images) + b"]")
    if said.calls:
        found.append(b'"tool_calls":[' + b",".join(said.calls) + b"]")
    return b",".join(found)


def sort_parts(message: Message, notices: Notices, *, answer: bool) -> Said:
    """Each part in its place; a notice for each that has none, or changes its place."""
    said = Said()
    last = 0
    for at, part in enumerate(message.parts):
        told: Notices = []
        try:
            field = _place(part, said, told, answer)
        except InvalidRequest as problem:
            raise problem.within(f"parts[{at}]") from None
        if field is not None:
            rank = _ORDER.index(field)
            if rank < last:
                why = "reasoning, images, text and calls stand in this order here"
                told.append(Notice("parts_reordered", why))
            last = max(last, rank)
        notices += at_part(told, at)
    for texts in (said.thinking, said.texts):
        if len(texts) > 1:
            notices.append(
                Notice("texts_joined", f"{len(texts)} texts of one message become one, as they are")
            )
    said.fields = message_fields(message.parts)
    return said


def tool_call(part: ToolCall, notices: Notices) -> bytes:
    put = how_put(part.extras)
    inner, outer = inner_and_outer(part.extras)
    called = b"" if "id" in put.unsaid else b'"id":' + string(part.id) + b","
    number = b"" if put.index is None else b'"index":%d,' % put.index
    return (
        b"{"
        + called
        + b'"function":{'
        + number
        + b'"name":'
        + string(part.name)
        + b',"arguments":'
        + _arguments(part, notices)
        + inner
        + b"}"
        + outer
        + b"}"
    )


def _arguments(part: ToolCall, notices: Notices) -> bytes:
    if is_object(part.arguments):
        return part.arguments.encode()
    if not part.arguments.strip():
        return b"{}"
    # The model wrote something that is no object; nothing of it may be lost.
    notices.append(
        Notice(
            "arguments_not_an_object",
            "the call's arguments are not a JSON object; sent as text in invalid_arguments",
            "arguments",
        )
    )
    try:
        return b'{"invalid_arguments":' + string(part.arguments) + b"}"
    except InvalidRequest as problem:
        raise problem.within("arguments") from None


def _place(part: Part, said: Said, notices: Notices, answer: bool) -> str | None:
    """Appends a part to its field, and names the field; None for what is not said."""
    if isinstance(part, Text):
        no_place(part.extras, notices)
        said.texts.append(part.text)
        return "texts"
    if isinstance(part, ToolCall):
        said.calls.append(tool_call(part, notices))
        return "calls"
    if isinstance(part, Thinking):
        return _think(part, said, notices, answer)
    if isinstance(part, Refusal):
        notices.append(Notice("refusal_as_text", "Ollama has no refusal; sent as text"))
        no_place(part.extras, notices)
        said.texts.append(part.text)
        return "texts"
    if is_image(part):
        picture = image(part, notices)  # type: ignore[arg-type]
        if picture is not None:
            said.images.append(picture)
            return "images"
    elif not is_fields(part):
        left_out(part, notices)
    return None


def _think(part: Thinking, said: Said, notices: Notices, answer: bool) -> str | None:
    if part.provider != WIRE and not answer:
        whose = part.provider or "nobody in particular"
        notices.append(
            Notice("foreign_thinking", f"reasoning of {whose} means nothing to Ollama; left out")
        )
        return None
    if part.signature is not None or part.data is not None:
        why = "reasoning is a text here: its signature and encrypted form are left out"
        notices.append(Notice("signature_left_out", why))
    no_place(part.extras, notices)
    said.thinking.append(part.text)
    return "thinking"
