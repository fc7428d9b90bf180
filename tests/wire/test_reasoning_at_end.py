"""Reasoning that an answer was cut off in, on every wire: left out, unless the assistant goes on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.roundtrip import RecordedExchange
from support.roundtrip.rules import check
from support.tables import each_row

from anaphora import catalog, wire
from anaphora.errors import InvalidRequest
from anaphora.prompt import Call, Params, PartMark, PromptCachePlan, PromptIR
from anaphora.rendered import Plan, Rendered
from anaphora.values import Conversation, Message, Opaque, Part, Text, Thinking, ToolCall

MODELS = {
    "anthropic": "claude-sonnet-4-5",
    "openai_chat": "deepseek-v4-flash",
    "openai_responses": "gpt-5.6",
    "gemini": "gemini-2.5-flash",
}
PROVIDERS = {**wire.PROVIDERS, "openai_chat": "deepseek"}
CODE = "unfinished_thinking"
#: Wires on which an assistant's messages in a row are one turn.
JOINED = ("anthropic", "openai_responses")

every = each_row("name", MODELS)


def thinking(name: str, text: str = "Hm.", **more: Any) -> Thinking:
    extras = {"openai_chat": '{"field":"reasoning_content"}', "openai_responses": '{"id":"rs_1"}'}
    own = {name: extras[name]} if name in extras else None
    signature = "sig" if name == "anthropic" else None
    return Thinking(text, **{"signature": signature, **more}, provider=name, extras=own)


def render(
    name: str, history: Conversation, previous: Rendered | None = None, **plan: Any
) -> Rendered:
    model = MODELS[name]
    ir = PromptIR.chat(history, cache=PromptCachePlan(**plan))
    return wire.get(name).render(
        Call(ir=ir, model=model, params=Params(max_tokens=9)),
        catalog.profile(PROVIDERS[name], model),
        previous,
    )


def body(name: str, rendered: Rendered) -> bytes:
    return wire.get(name).assemble(rendered, Plan()).body.join()


def codes(rendered: Rendered) -> list[str]:
    return [notice.code for notice in rendered.notices]


@every
def test_reasoning_alone_is_left_out_and_stays_left_out(name: str) -> None:
    requested = Conversation([Message.user("one")])
    cut = requested.append(Message.assistant(thinking(name)), Message.user("two"))
    later = cut.append(Message.assistant("three"), Message.user("four"))
    previous, before = None, b""
    for history in (requested, cut, later):
        rendered = render(name, history, previous)
        assert body(name, rendered) == body(name, render(name, history))
        assert (CODE in codes(rendered)) == (history is not requested)
        cacheable = b"".join(chunk.data for chunk in list(rendered)[: rendered.cacheable])
        assert cacheable.startswith(before)
        previous, before = rendered, cacheable
    without = Conversation(message for message in later if message.parts[0] != thinking(name))
    assert body(name, render(name, later)) == body(name, render(name, without))


@every
def test_assistant_continues_in_next_message(name: str) -> None:
    """Reasoning that was left out at the end is sent when something follows it after all."""
    cut = Conversation([Message.user("one"), Message.assistant(thinking(name))])
    first = render(name, cut)
    assert CODE in codes(first)
    for encoded in (Text("two"), ToolCall("c1", "look", "{}")):
        history = cut.append(Message.assistant(encoded), Message.user("three"))
        continued = render(name, history, first)
        assert body(name, continued) == body(name, render(name, history))
        assert (CODE not in codes(continued)) == (name in JOINED)
        assert (b"Hm." in body(name, continued) or b"rs_1" in body(name, continued)) == (
            name in JOINED
        )
        kept = b"".join(chunk.data for chunk in list(first)[: first.cacheable])
        assert b"".join(chunk.data for chunk in continued).startswith(kept)


@pytest.mark.parametrize("name", JOINED)
def test_reasoning_behind_a_text_is_left_out_alone(name: str) -> None:
    parts: tuple[Part, ...] = (Text("two"), thinking(name), thinking(name, "Hm, hm."))
    history = Conversation([Message.user("one"), Message.assistant(*parts), Message.user("three")])
    rendered = render(name, history)
    assert codes(rendered).count(CODE) == 2
    without = Conversation([history[0], Message.assistant("two"), history[2]])
    assert body(name, rendered) == body(name, render(name, without))


@pytest.mark.parametrize("name", JOINED)
def test_mark_on_dropped_reasoning_gives_notice(name: str) -> None:
    encoded = Message.assistant("two", thinking(name), id="a1")
    history = Conversation([Message.user("one"), encoded, Message.user("three")])
    rendered = render(name, history, marks=(PartMark("a1", (1,), "5m"),))
    assert not rendered.marks
    assert any("is left out of the request" in str(notice) for notice in rendered.notices)


def test_an_empty_signature_is_left_out_for_anthropic_only() -> None:
    encoded = Message.assistant(thinking("anthropic", signature=""), "two", id="a1")
    history = Conversation([Message.user("one"), encoded, Message.user("three")])
    rendered = render("anthropic", history, marks=(PartMark("a1", (1,), "5m"),))
    assert "unsigned_thinking" in codes(rendered)
    assert b"Hm." not in body("anthropic", rendered)
    (mark,) = rendered.marks
    assert b'"two"' in list(rendered)[mark.chunk].data
    # A host that only speaks this wire gives no signature, and may want its reasoning back.
    codec = wire.codec_for(catalog.dialects().find("llamacpp", "anthropic"))
    call = Call(ir=PromptIR.chat(history), model="any", params=Params(max_tokens=9))
    assert (
        b"Hm."
        in codec.assemble(
            codec.render(call, catalog.profile("llamacpp", "any")), Plan()
        ).body.join()
    )


@each_row("encoded", ["", "Rome."])
@each_row(
    "provider, fields",
    [
        ("openrouter", {"reasoning": "Hm.", "reasoning_details": [{"type": "reasoning.text"}]}),
        ("deepseek", {"reasoning_content": "Hm."}),
        ("zai", {"reasoning_content": "Hm."}),
        (
            "mistral",
            {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}]},
        ),
    ],
)
def test_hosts_with_own_reasoning_fields(
    provider: str, fields: dict[str, Any], encoded: str
) -> None:
    """From the host's own answer to the next request, with and without a text behind it."""
    codec = wire.codec_for(catalog.dialects().find(provider, "openai_chat"))
    message: dict[str, Any] = {"role": "assistant", "content": None, **fields}
    if encoded:
        message["content"] = [*(fields.get("content") or []), {"type": "text", "text": encoded}]
    answer = {
        "id": "1",
        "object": "chat.completion",
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": "length"}],
    }
    reply = codec.read_reply(json.dumps(answer).encode())
    history = Conversation([Message.user("one"), reply.message, Message.user("two")])
    profile = catalog.profile(provider, "m")
    rendered = codec.render(Call(ir=PromptIR.chat(history), model="m"), profile)
    sent = json.loads(codec.assemble(rendered, Plan()).body.join())["messages"]
    assert len(sent) == (3 if encoded else 2)
    assert (CODE in codes(rendered)) == (not encoded)


REQUESTS: dict[str, dict[str, Any]] = {
    "anthropic": {
        "model": "claude-sonnet-4-5",
        "max_tokens": 9,
        "messages": [
            {"role": "user", "content": "one"},
            {
                "role": "assistant",
                "content": [{"type": "thinking", "thinking": "Hm.", "signature": "s"}],
            },
            {"role": "user", "content": "two"},
        ],
    },
    "openai_chat": {
        "model": "deepseek-v4-flash",
        "messages": [
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": None, "reasoning_content": "Hm."},
            {"role": "user", "content": "two"},
        ],
    },
    "openai_responses": {
        "model": "gpt-5.6",
        "input": [
            {"role": "user", "content": "one"},
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {"role": "user", "content": "two"},
        ],
    },
    "gemini": {
        "contents": [
            {"role": "user", "parts": [{"text": "one"}]},
            {"role": "model", "parts": [{"text": "Hm.", "thought": True}]},
            {"role": "user", "parts": [{"text": "two"}]},
        ]
    },
}


@every
def test_recorded_request_differs_only_by_dropped_reasoning(name: str) -> None:
    """Law 11: `parse` keeps it, and the difference that `render` makes is listed by name."""
    data, path = json.dumps(REQUESTS[name]), ""
    if name == "gemini":
        path = "/v1beta/models/gemini-2.5-flash:generateContent"
    host = "api.deepseek.com" if name == "openai_chat" else ""
    codec = wire.get(name)
    parts = [
        part
        for message in codec.parse(data.encode(), path).ir.body_chat()
        for part in message.parts
    ]
    assert any(isinstance(part, Thinking) for part in parts)
    exchange = RecordedExchange(
        id="1", wire=name, request=data, response="{}", status=400, path=path, host=host
    )
    outcome = check(exchange)
    assert (outcome.unparsed, outcome.changed) == ("", "")
    assert any("reasoning that nothing follows" in rule for rule in outcome.overlooked)
    assert CODE in [notice.code for notice in outcome.notices]


@pytest.mark.parametrize("name", JOINED)
def test_invalid_part_after_reasoning_names_its_path(name: str) -> None:
    history = Conversation([Message.user("one"), Message.assistant(thinking(name), Text("\ud800"))])
    with pytest.raises(InvalidRequest) as caught:
        render(name, history)
    assert "[1].parts[1]" in caught.value.path
    broken = Opaque(name, "web_search_call", "not an object")
    history = Conversation([Message.user("one"), Message.assistant(thinking(name), broken)])
    with pytest.raises(InvalidRequest) as caught:
        render(name, history)
    assert "[1].parts[1]" in caught.value.path


@pytest.mark.parametrize("name", JOINED)
def test_consecutive_cut_off_replies_take_linear_time(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work grows with the messages, and not with their square."""
    looked = 0
    says = Message.__getattribute__

    def counting(self: Message, field: str) -> Any:
        nonlocal looked
        looked += field == "parts"
        return says(self, field)

    def count(length: int) -> int:
        nonlocal looked
        thought = Message(role="assistant", parts=(thinking(name),))
        row = [thought] * length
        requested, again = Message.user("Why?"), Message.user("So?")
        history = Conversation(
            [requested, *row, again, *row, Message.assistant("Because."), requested]
        )
        looked = 0
        with monkeypatch.context() as patch:
            patch.setattr(Message, "__getattribute__", counting)
            rendered = render(name, history)
        assert [notice.code for notice in rendered.notices].count(CODE) == length
        return looked

    assert count(200) < 2.5 * count(100)


def test_empty_message_does_not_settle_reasoning() -> None:
    """The assistant may still go on behind it: a warm render equals a cold one."""
    thought = Thinking("Hm.", signature="sig", provider="anthropic")
    history = Conversation(
        [Message.user("u"), Message.assistant("so", thought), Message(role="user", parts=())]
    )
    codec, profile = wire.get("anthropic"), catalog.profile("anthropic", "claude-sonnet-4-5")

    def rendered(conversation: Conversation, previous: Rendered | None = None) -> Rendered:
        ir = PromptIR.chat(conversation)
        call = Call(ir=ir, model="claude-sonnet-4-5", params=Params(max_tokens=9))
        return codec.render(call, profile, previous)

    before = rendered(history)
    grown = history.append(Message.assistant("it goes on"))
    assert rendered(grown, before).data() == rendered(Conversation(grown[:])).data()
    assert b"Hm." in rendered(grown, before).data()
