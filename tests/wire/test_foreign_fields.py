"""Fields that another wire left in the parts give notices, with their paths, in the order of the messages."""

from __future__ import annotations

from typing import Any

from support.tables import each_row

from anaphora import catalog, wire
from anaphora.prompt import Call, Params, PromptBlock, PromptIR
from anaphora.rendered import Rendered
from anaphora.values import Conversation, Message, Text, Tool, ToolCall, ToolResult

MODELS = {
    "anthropic": "claude-sonnet-4-5",
    "openai_chat": "gpt-5.6",
    "openai_responses": "gpt-5.6",
    "gemini": "gemini-2.5-flash",
}
every_wire = each_row("name", sorted(MODELS))

CITED = {"elsewhere": '{"citations":[{"cited":"a"}]}'}

#: The second message says nothing, and the others come with fields.
TALK = (
    Message.user(Text("hi", CITED)),
    Message(role="user", parts=()),
    Message.assistant(Text("said"), ToolCall("c", "f", "{}", extras=CITED)),
    Message(role="tool", parts=(ToolResult("c", (Text("r", CITED),)),)),
)
TOLD = (
    ("foreign_fields", "conversation[0].parts[0].extras.elsewhere"),
    ("empty_message", "conversation[1]"),
    ("foreign_fields", "conversation[2].parts[1].extras.elsewhere"),
    ("foreign_fields", "conversation[3].parts[0].content[0].extras.elsewhere"),
)


def render(name: str, ir: PromptIR, previous: Rendered | None = None, **fields: Any) -> Rendered:
    call = Call(ir=ir, model=MODELS[name], params=Params(max_tokens=9), **fields)
    profile = catalog.profile(wire.PROVIDERS[name], call.model)
    return wire.get(name).render(call, profile, previous)


def reported(rendered: Rendered) -> tuple[tuple[str, str], ...]:
    codes = ("foreign_fields", "empty_message")
    return tuple((each.code, each.path) for each in rendered.notices if each.code in codes)


@every_wire
def test_notices_follow_the_conversation(name: str) -> None:
    assert reported(render(name, PromptIR.chat(TALK))) == TOLD


@every_wire
def test_incremental_and_full_rendering_give_same_notices(name: str) -> None:
    conversation = Conversation(TALK[:1])
    rendered = render(name, PromptIR.chat(conversation))
    for message in TALK[1:]:
        conversation = conversation.append(message)
        rendered = render(name, PromptIR.chat(conversation), rendered)
    assert reported(rendered) == TOLD


@every_wire
def test_section_notices_name_their_wire_position(name: str) -> None:
    """A blank block is not sent, so it is not counted."""
    blocks = (PromptBlock("blank", " "), PromptBlock("rules", "Be terse.", extras=CITED))
    tools = (Tool("f"), Tool("g", extras=CITED))
    rendered = render(name, PromptIR.chat([Message.user("hi")], system=blocks), tools=tools)
    assert reported(rendered) == (
        ("foreign_fields", "tools[1].extras.elsewhere"),
        ("foreign_fields", "system[0].extras.elsewhere"),
    )
