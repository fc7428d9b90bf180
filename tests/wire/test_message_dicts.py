"""Messages as dictionaries: what the SDKs take is read, and what is wrong is named as written."""

from __future__ import annotations

from typing import Any

import pytest
from support.tables import each_row

from anaphora import Conversation, Message, PromptIR
from anaphora.errors import InvalidRequest
from anaphora.values import Bytes, Document, Image, Text, Thinking, ToolCall, ToolResult, Url
from anaphora.wire.message_dicts import read_message, read_part

PIXEL = "iVBORw0KGgo="
URL = "https://example.com/a.png"
PNG = Image(Bytes(b"\x89PNG\r\n\x1a\n", "image/png"))


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


CALL = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"a": 1}'}}

READ: dict[str, tuple[dict[str, Any], Message]] = {
    "a text": ({"role": "user", "content": "Hi"}, Message.user("Hi")),
    "system": ({"role": "system", "content": "Be terse."}, Message.system("Be terse.")),
    "a list": (user({"type": "text", "text": "Hi"}, "there"), Message.user("Hi", "there")),
    "an image": (
        user({"type": "image_url", "image_url": {"url": URL, "detail": "low"}}),
        Message.user(Image(Url(URL), "low")),
    ),
    "an image as a data URL": (
        user({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}),
        Message.user(PNG),
    ),
    "an image as a text": (
        user({"type": "image_url", "image_url": URL}),
        Message.user(Image(Url(URL))),
    ),
    "parts of the Responses API": (
        user({"type": "input_text", "text": "Look"}, {"type": "input_image", "image_url": URL}),
        Message.user("Look", Image(Url(URL))),
    ),
    "parts among dictionaries": (user("Look", PNG), Message.user("Look", PNG)),
    "an answer": ({"role": "assistant", "content": "Ok"}, Message.assistant("Ok")),
    "an answer of an SDK, written out": (
        {
            "role": "assistant",
            "content": "Ok",
            "refusal": None,
            "annotations": [],
            "audio": None,
            "function_call": None,
            "tool_calls": None,
        },
        Message.assistant("Ok"),
    ),
    "tool calls": (
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        Message.assistant(ToolCall("c1", "find", '{"a": 1}')),
    ),
    "a result": (
        {"role": "tool", "tool_call_id": "c1", "content": "found"},
        Message.tool("c1", "found"),
    ),
    "a result with parts": (
        {"role": "tool", "tool_call_id": "c1", "content": ["found", PNG]},
        Message.tool("c1", (Text("found"), PNG)),
    ),
    "Anthropic's tool call": (
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm", "signature": "s"},
                {"type": "text", "text": "Wait"},
                {"type": "tool_use", "id": "c1", "name": "find", "input": {"a": 1}},
            ],
        },
        Message.assistant(
            Thinking("Hm", "s", provider="anthropic"), "Wait", ToolCall("c1", "find", '{"a":1}')
        ),
    ),
    "Anthropic's result": (
        user({"type": "tool_result", "tool_use_id": "c1", "content": "found", "is_error": True}),
        Message.user(ToolResult("c1", "found", error=True)),
    ),
    "Anthropic's image": (
        user(
            {
                "type": "image",
                "source": {"type": "base64", "media_type": "image/png", "data": PIXEL},
            }
        ),
        Message.user(PNG),
    ),
    "Anthropic's document": (
        user({"type": "document", "source": {"type": "url", "url": "https://example.com/a.pdf"}}),
        Message.user(Document(Url("https://example.com/a.pdf"))),
    ),
}


@each_row("case", READ)
def test_dictionary_is_read(case: str) -> None:
    given, wanted = READ[case]
    assert read_message(given, "message") == wanted


class SdkMessage:
    """As the messages of the OpenAI SDK."""

    def model_dump(self, **options: Any) -> dict[str, Any]:
        assert options == {"exclude_none": True}
        return {"role": "assistant", "content": "Ok"}


def test_developer_message_keeps_its_role() -> None:
    message = read_message({"role": "developer", "content": "Be terse."}, "message")
    assert (message.role, message.text) == ("system", "Be terse.")
    assert message != Message.system("Be terse.")


def test_message_of_an_sdk_is_read() -> None:
    assert read_message(SdkMessage(), "message") == Message.assistant("Ok")


def test_conversations_and_prompts_take_dictionaries() -> None:
    given: list[Any] = [{"role": "user", "content": "Hi"}, Message.assistant("Hello")]
    wanted = (Message.user("Hi", id="m0"), Message.assistant("Hello", id="m1"))
    assert Conversation(given)[:] == wanted
    assert Conversation().append(*given)[:] == wanted
    assert PromptIR.chat(given).body_chat() == [*wanted]


def test_failed_append_changes_nothing() -> None:
    talk = Conversation([Message.user("Hi")])
    with pytest.raises(InvalidRequest, match=r"^messages\[2\]\.role: "):
        talk.append(Message.assistant("Hello"), {"role": "bot"})
    longer = talk.append(Message.assistant("Hello"))
    assert longer.shares(talk)
    assert [message.text for message in longer] == ["Hi", "Hello"]


WRONG: dict[str, tuple[Any, str, str]] = {
    "no role": ({"content": "Hi"}, "messages[2].role", "is missing; it is one of system,"),
    "a role of Gemini": ({"role": "model", "content": ""}, "messages[2].role", "not 'model'"),
    "a number for a role": ({"role": 5, "content": ""}, "messages[2].role", "not 5"),
    "a field with a typo": (
        {"role": "user", "contents": "Hi"},
        "messages[2].contents",
        "did you mean content?",
    ),
    "a field of another library": (
        {"role": "user", "text": "Hi"},
        "messages[2].text",
        "did you mean content?",
    ),
    "no such field": (
        {"role": "user", "content": "Hi", "zzz": 1},
        "messages[2].zzz",
        "known: content, name",
    ),
    "no content": ({"role": "user"}, "messages[2].content", "is missing"),
    "a number for content": (
        {"role": "user", "content": 5},
        "messages[2].content",
        "must be a text or a list of parts, not int",
    ),
    "a part outside a list": (
        {"role": "user", "content": {"type": "text", "text": "Hi"}},
        "messages[2].content",
        "must be a text or a list of parts, not dict",
    ),
    "a part without a type": (
        user({"text": "Hi"}),
        "messages[2].content[0].type",
        "is missing; known: text, image_url",
    ),
    "a part of an unknown type": (
        user("Hi", {"type": "image_ulr", "image_url": URL}),
        "messages[2].content[1].type",
        "unknown type 'image_ulr'; did you mean image_url?",
    ),
    "a text part without a text": (
        user({"type": "text", "content": "Hi"}),
        "messages[2].content[0].text",
        "is missing",
    ),
    "an image without a URL": (
        user({"type": "image_url", "image_url": {"uri": URL}}),
        "messages[2].content[0].image_url",
        'cannot be read; write {"url": ',
    ),
    "a document that Anthropic does not take": (
        user({"type": "document", "source": {"type": "zip"}}),
        "messages[2].content[0].source",
        'cannot be read; write {"type": "base64"',
    ),
    "a marker": (
        user({"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}),
        "messages[2].content[0].cache_control",
        "the client places the markers",
    ),
    "both forms": (
        user({"type": "image", "source": {}}, {"type": "image_url", "image_url": URL}),
        "messages[2].content",
        "image is Anthropic's and image_url is OpenAI's",
    ),
    "bytes": (user(b"Hi"), "messages[2].content[0]", "not bytes"),
    "a result without an id": (
        {"role": "tool", "content": "found"},
        "messages[2].tool_call_id",
        "is missing; it is the id of the tool call",
    ),
    "a call without an id": (
        {"role": "assistant", "tool_calls": [{"function": {"name": "find"}}]},
        "messages[2].tool_calls[0].id",
        "is missing",
    ),
    "a call without a name": (
        {"role": "assistant", "tool_calls": [{"id": "c1", "function": {}}]},
        "messages[2].tool_calls[0].function.name",
        "is missing",
    ),
    "a call that is a name": (
        {"role": "assistant", "tool_calls": ["find"]},
        "messages[2].tool_calls[0]",
        "must be a dict, not str",
    ),
    "a value without JSON": (
        {"role": "user", "content": "Hi", "name": object()},
        "messages[2].name",
        "",
    ),
    "a text": ("Hi", "messages[2]", "must be a Message or a dict, not str"),
}


@each_row("mistake", WRONG)
def test_what_is_wrong_is_named(mistake: str) -> None:
    given, path, reason = WRONG[mistake]
    with pytest.raises(InvalidRequest) as caught:
        read_message(given, "messages[2]")
    assert caught.value.path == path
    assert reason in caught.value.reason


def test_part_is_named_without_a_message() -> None:
    assert read_part({"type": "text", "text": "Hi"}, "content[0]") == Text("Hi")
    with pytest.raises(InvalidRequest, match=r"^content\[3\]\.image_url: cannot be read"):
        read_part({"type": "image_url", "image_url": {}}, "content[3]")
    with pytest.raises(InvalidRequest, match=r"^content\[3\]\.text: is missing"):
        read_part({"type": "text"}, "content[3]")
