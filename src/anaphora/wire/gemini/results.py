"""What a tool answered, said and read.

Gemini wants an object: `{"output": …}` when the tool answered with a text, `{"error": …}` when it
failed, and an object that the tool gave as it is. Pictures and files stand beside it.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import UNSET, UnsetType

from anaphora.canonical import is_object, string
from anaphora.errors import InvalidRequest
from anaphora.values import Extras, Notice, ResultPart, Text, ToolCall, ToolResult
from anaphora.wire.fields import Fields
from anaphora.wire.reading import DECODE_ERRORS, request_error

from .naming import FORM
from .parts import Notices, around, has_made_id, said_as

#: Finds the call that a result answers, by its id.
FindCall = Callable[[str], ToolCall | None]

_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
#: What a member that is called `output` or `error` begins with; the last one begins an escape.
MAY_BE_NAMED = "oe\\"


class _Usual(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """What tools mostly answer with: one of the two."""

    output: str | UnsetType = UNSET
    error: str | UnsetType = UNSET


_usual = msgspec.json.Decoder(_Usual).decode


def tool_result(part: ToolResult, notices: Notices, find: FindCall) -> bytes:
    """A `functionResponse`, with the name of the function, which only its call tells."""
    form = _form(part.extras)
    call = find(part.call_id)
    made = form.raw("id") is not None or (call is not None and has_made_id(call))
    known = b"" if made or not part.call_id else b'"id":' + string(part.call_id) + b","
    inner, outer = around(part.extras, "functionResponse")
    text, media = _content(part, notices)
    return (
        b'{"functionResponse":{'
        + known
        + b'"name":'
        + string(_name(part, call, notices))
        + b',"response":'
        + _response(text, part.error, bool(media), form.raw("response"))
        + (b',"parts":[' + b",".join(media) + b"]" if media else b"")
        + inner
        + b"}"
        + outer
        + b"}"
    )


def answer(text: str, error: bool) -> bytes:
    """The object that says what a tool answered. An object stays one, unless it would then be
    read as something else."""
    if error:
        return b'{"error":' + string(text) + b"}"
    if text[:1] == "{" and text[-1:] == "}" and is_object(text):
        data = text.encode()
        if read_answer(data) == (text, False):
            return data
    return b'{"output":' + string(text) + b"}"


def read_answer(raw: bytes) -> tuple[str, bool]:
    """What the tool answered, and whether it failed."""
    try:
        fields = _object(raw)
    except DECODE_ERRORS:
        return raw.decode(), False
    if len(fields) == 1:
        ((name, value),) = fields.items()
        inner = bytes(value)
        if name == "output" and inner[:1] == b'"':
            return msgspec.json.decode(inner, type=str), False
        if name == "error":
            is_text = inner[:1] == b'"'
            return msgspec.json.decode(inner, type=str) if is_text else inner.decode(), True
    return raw.decode(), False


#: What an answer is: its text, whether the tool failed, and the form it came in where we would not
#: put it that way.
Answer = tuple[str, bool, Extras | None]


def read_response(came: str) -> Answer:
    """The value of `response`, whatever it is."""
    if came[0] == "{" and came[1] == '"' and came[2] not in MAY_BE_NAMED:
        return came, False, None  # an object that the tool gave as it is
    return read_named(came)


def read_named(came: str) -> Answer:
    """The same where it may be an object with one of the two names."""
    try:
        said = _usual(came)
    except DECODE_ERRORS:
        return ("", False, None) if came == "null" else _read_any(came)
    output, error = said.output, said.error
    if output is UNSET and error is not UNSET:
        return error, True, None
    if output is UNSET or error is not UNSET or output[:1] == "{":
        return _read_any(came)
    return output, False, None


def _read_any(came: str) -> Answer:
    raw = came.encode()
    text, error = read_answer(raw)
    form = None if same_answer(raw, text, error) else {FORM: '{"response":' + came + "}"}
    return text, error, form


def same_answer(raw: bytes, text: str, error: bool) -> bool:
    """Whether saying it our way gives what came."""
    ours = answer(text, error)
    return ours == raw or bool(msgspec.json.decode(ours) == msgspec.json.decode(raw))


def _form(extras: Extras | None) -> Fields:
    """How the result had come: without an id, or in an object of a form of its own."""
    return Fields((extras or {}).get(FORM, "{}"), f"extras.{FORM}", request_error)


def _name(part: ToolResult, call: ToolCall | None, notices: Notices) -> str:
    if part.name is not None:
        return part.name
    if call is not None:
        return call.name
    notices.append(
        Notice(
            "result_without_call",
            "no call before it has this id, so the id is sent as the name of the function",
            "call_id",
        )
    )
    return part.call_id


def _response(text: str | None, error: bool, media: bool, came: bytes | None) -> bytes:
    if came is not None and read_answer(came) == (text, error):
        return came
    if media and not error and text in (None, "{}"):
        # Beside media an empty object says nothing; a text that looks like one has to say so.
        return b"{}" if text is None else b'{"output":"{}"}'
    return answer(text or "", error)


def _content(part: ToolResult, notices: Notices) -> tuple[str | None, list[bytes]]:
    """The texts as one, and everything else as it goes beside them."""
    if isinstance(part.content, str):
        return part.content, []
    texts: list[str] = []
    media: list[bytes] = []
    for index, inner in enumerate(part.content):
        place = f"content[{index}]"
        if isinstance(inner, Text):
            if media:
                notices.append(Notice("parts_reordered", "texts come first here", place))
            texts.append(inner.text)
            continue
        said = _medium(inner, place, notices)
        if said is not None:
            media.append(said)
    if len(texts) > 1:
        notices.append(Notice("texts_joined", "a result has one text here; joined", "content"))
    return "\n\n".join(texts) if texts else None, media


def _medium(part: ResultPart, place: str, notices: Notices) -> bytes | None:
    told: Notices = []
    try:
        said = said_as(part)[1](part, told)
    except InvalidRequest as problem:
        raise problem.within(place) from None
    for notice in told:
        path = f"{place}.{notice.path}" if notice.path else place
        notices.append(msgspec.structs.replace(notice, path=path))
    return said
