"""From chunks and marks to a request: what is refused, and a body that stays a few slices."""

from __future__ import annotations

import json

import pytest
from support.tables import each_row

from anaphora import catalog
from anaphora.cache.plan import plan_once
from anaphora.errors import InvalidRequest
from anaphora.prompt import Call, Params, PromptBlock, PromptIR
from anaphora.rendered import Mark, Plan, Rendered
from anaphora.values import Conversation, Message, Text, Thinking, Tool, ToolCall, ToolResult
from anaphora.wire import anthropic

MODEL = "claude-sonnet-4-5"
PROFILE = catalog.profile("anthropic", MODEL)
RULES = catalog.rules("anthropic", MODEL)

#: Chunks 0 and 1 are tools, 2 is the system prompt, 3 the question, 4 to 6 the answer, 7 the result.
TALK = (
    Message.user("u"),
    Message.assistant(Thinking("hm", "sig"), "so", ToolCall("c", "f")),
    Message.user(ToolResult("c", (Text("one"), Text("two")))),
)
THINKING = 4


def render(conversation: Conversation, previous: Rendered | None = None) -> Rendered:
    call = Call(
        ir=PromptIR.chat(
            conversation, system=[PromptBlock.cached_long("identity", "You are terse.")]
        ),
        model=MODEL,
        tools=(Tool("f"), Tool("g")),
        params=Params(max_tokens=16, stop=("END",)),
    )
    return anthropic.render(call, PROFILE, previous)


def assemble(*marks: Mark) -> bytes:
    return anthropic.assemble(render(Conversation(TALK)), Plan(marks=marks)).body.join()


def marked_paths(body: bytes) -> list[str]:
    whole = json.loads(body)
    found = [
        f"{section}[{at}]"
        for section in ("tools", "system")
        for at, block in enumerate(whole[section])
        if "cache_control" in block
    ]
    for at, message in enumerate(whole["messages"]):
        for index, block in enumerate(message["content"]):
            if "cache_control" in block:
                found.append(f"messages[{at}].content[{index}]")
    return found


# ── Marks ────────────────────────────────────────────────────────────────────────────────────────


@each_row("chunk", [chunk for chunk in range(8) if chunk != THINKING])
def test_a_mark_lands_on_its_chunk_and_changes_nothing_else(chunk: int) -> None:
    rendered = render(Conversation(TALK))
    for ttl, marker in rendered.markers.items():
        body = anthropic.assemble(rendered, Plan(marks=(Mark(chunk, ttl),))).body.join()
        assert marked_paths(body) == [rendered.chunk(chunk).path]
        assert body.replace(marker, b"") == assemble()


def test_every_mark_at_once() -> None:
    chunks = [chunk for chunk in range(8) if chunk != THINKING]
    assert len(marked_paths(assemble(*(Mark(chunk, "5m") for chunk in chunks)))) == len(chunks)


def test_a_mark_inside_a_chunk_stands_before_the_chunks_own() -> None:
    rendered = render(Conversation(TALK))
    data = rendered.chunk(7).data
    first = data.index(b'"one"') + len(b'"one"')
    body = json.loads(assemble(Mark(7, "1h", first), Mark(7, "5m")))
    result = body["messages"][2]["content"][0]
    assert result["content"][0]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
    assert result["cache_control"] == {"type": "ephemeral"}


@pytest.mark.parametrize(
    "marks, encoded",
    [
        ([Mark(3, "5m"), Mark(2, "5m")], "hash order"),
        ([Mark(3, "5m"), Mark(3, "5m")], "one per block"),
        ([Mark(3, "1h"), Mark(3, "5m")], "one per block"),
        ([Mark(7, "5m"), Mark(7, "5m", 70)], "hash order"),
        ([Mark(7, "5m", 70), Mark(7, "5m", 70)], "one per block"),
        ([Mark(THINKING, "5m")], r"messages\[1\]\.content\[0\] takes no marker"),
        ([Mark(3, "12h")], "no TTL of 12h; use 5m or 1h"),
        ([Mark(7, "30m", 70)], "no TTL of 30m"),
        ([Mark(8, "5m")], "no chunk 8"),
        ([Mark(0, "5m"), Mark(99, "5m")], "no chunk 99"),
        ([Mark(-1, "5m")], "no chunk -1"),
    ],
)
def test_invalid_plan_is_rejected(marks: list[Mark], encoded: str) -> None:
    with pytest.raises(InvalidRequest, match=encoded) as caught:
        assemble(*marks)
    assert caught.value.path == "plan.marks"


# ── The body ─────────────────────────────────────────────────────────────────────────────────────


def test_the_size_is_known_without_joining() -> None:
    rendered = render(Conversation(TALK))
    for planned in (Plan(), plan_once(rendered, RULES, reuse_expected=True)):
        body = anthropic.assemble(rendered, planned).body
        assert len(body) == len(body.join()) == len(b"".join(body))
        assert bytes(body) == body.join()
        assert str(len(body)) in repr(body)


def test_body_is_a_few_slices_for_any_conversation_length() -> None:
    conversation = Conversation(
        Message.assistant(f"a{at}") if at % 2 else Message.user(f"u{at}") for at in range(501)
    )
    rendered = render(conversation)
    body = anthropic.assemble(rendered, plan_once(rendered, RULES, reuse_expected=True)).body
    assert len(list(body)) < 30
    assert json.loads(body.join())["messages"][-1]["content"][0]["text"] == "u500"


def test_body_can_be_read_twice() -> None:
    """A retry sends the same bytes, also after the conversation has gone on."""
    conversation = Conversation(TALK)
    rendered = render(conversation)
    body = anthropic.assemble(rendered, plan_once(rendered, RULES, reuse_expected=True)).body
    first = body.join()
    render(conversation.append(Message.assistant("so it is"), Message.user("more")), rendered)
    assert body.join() == first
    assert len(body) == len(first)


def test_slice_in_use_does_not_block_next_turn() -> None:
    """A live view pins its buffer; the next turn then writes into a buffer of its own."""
    conversation = Conversation(TALK)
    rendered = render(conversation)
    body = anthropic.assemble(rendered, plan_once(rendered, RULES, reuse_expected=True)).body
    slices = list(body)
    assert any(isinstance(piece, memoryview) and len(piece) for piece in slices)
    before = b"".join(slices)

    conversation = conversation.append(Message.assistant("so it is"), Message.user("more"))
    later = render(conversation, rendered)

    assert b"".join(slices) == before == body.join()
    assert later.cacheable_data().startswith(rendered.cacheable_data())
    after = anthropic.assemble(later, plan_once(later, RULES, reuse_expected=True)).body.join()
    assert json.loads(after)["messages"][-1]["content"][0]["text"] == "more"
    for piece in slices:
        if isinstance(piece, memoryview):
            piece.release()
    render(conversation.append(Message.assistant("a")), later)


def test_slice_in_use_does_not_affect_other_branches() -> None:
    conversation = Conversation(TALK)
    rendered = render(conversation)
    held = list(anthropic.assemble(rendered, Plan()).body)
    branches = [
        render(conversation.append(Message.assistant(name)), rendered) for name in ("l", "r")
    ]
    texts = [
        json.loads(anthropic.assemble(branch, Plan()).body.join())["messages"][-1]["content"]
        for branch in branches
    ]
    assert [content[-1]["text"] for content in texts] == ["l", "r"]
    assert b"".join(held) == anthropic.assemble(rendered, Plan()).body.join()
