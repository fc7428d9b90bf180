"""`cachedContents`: what is made, what is sent behind a handle, and when a handle does not fit."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace
from support import strategies as some
from support.byte_server import byte_server
from support.tables import each_row

from anaphora import catalog, wire
from anaphora.cache.plan import plan_once
from anaphora.errors import InvalidRequest, Parse
from anaphora.prompt import Call, Params, PromptBlock, PromptIR, ToolChoice
from anaphora.rendered import CacheHandle, CreateHandle, DeleteHandle, ExtendHandle, Plan, Rendered
from anaphora.rendered.held import held_digest, misfit
from anaphora.values import Conversation, Message, ProviderTool, Tool, ToolCall
from anaphora.wire import gemini
from anaphora.wire.cutting import cut
from anaphora.wire.gemini.render import render as render_unguarded

MODEL = "gemini-2.5-flash"
HANDLE = "cachedContents/abc-123"
TALK = Conversation(
    [
        Message.user("a long document", "and a question"),
        Message.assistant("an answer", ToolCall("c1", "look", "{}")),
        Message.tool("c1", "found"),
        Message.assistant("so it is"),
        Message.user("and now?"),
    ]
)
CALL = Call(
    ir=PromptIR.chat(TALK, system=[PromptBlock("a", "You are terse."), PromptBlock("b", "Facts.")]),
    model=MODEL,
    tools=(Tool("look"), ProviderTool("gemini", "urlContext", '{"urlContext":{}}')),
    params=Params(max_tokens=9, tool_choice=ToolChoice("auto"), stream=True),
)


def render(call: Call = CALL, previous: Rendered | None = None) -> Rendered:
    return gemini.render(call, catalog.profile("google", call.model), previous)


def body_of(sent: Any) -> Any:
    return json.loads(sent.body.join())


def behind(rendered: Rendered, chunks: int) -> Plan:
    return Plan(held=CacheHandle(HANDLE, chunks, held_digest(rendered, chunks)))


def boundaries(rendered: Rendered) -> list[int]:
    """Where a handle may end, from the wire's own bytes: before a content that is not the first
    chunk of all."""
    return [chunk.index for chunk in rendered if b'{"role":' in chunk.data and chunk.index]


# ── Making one, and sending what follows ─────────────────────────────────────────────────────────


def test_a_handle_is_created_with_all_that_it_freezes() -> None:
    made = gemini.prelude(render(), CreateHandle(chunks=6, seconds=300))
    assert (made.method, made.path) == ("POST", "/v1beta/cachedContents")
    assert body_of(made) == {
        "model": "models/gemini-2.5-flash",
        "toolConfig": {"functionCallingConfig": {"mode": "AUTO"}},
        "systemInstruction": {"parts": [{"text": "You are terse."}, {"text": "Facts."}]},
        "tools": [
            {
                "functionDeclarations": [
                    {"name": "look", "parametersJsonSchema": {"properties": {}, "type": "object"}}
                ]
            },
            {"urlContext": {}},
        ],
        "contents": [
            {"role": "user", "parts": [{"text": "a long document"}, {"text": "and a question"}]}
        ],
        "ttl": "300s",
    }


def test_behind_a_handle_only_the_rest_is_sent() -> None:
    rendered = render()
    sent = gemini.assemble(rendered, behind(rendered, 9))
    assert sent.path == "/v1beta/models/gemini-2.5-flash:streamGenerateContent?alt=sse"
    assert body_of(sent) == {
        "cachedContent": HANDLE,
        "contents": [
            {"role": "model", "parts": [{"text": "so it is"}]},
            {"role": "user", "parts": [{"text": "and now?"}]},
        ],
        "generationConfig": {"maxOutputTokens": 9},
    }


def test_a_handle_may_hold_system_and_tools_alone() -> None:
    rendered = render()
    made = body_of(gemini.prelude(rendered, CreateHandle(chunks=4, seconds=60)))
    assert "contents" not in made
    sent = body_of(gemini.assemble(rendered, behind(rendered, 4)))
    assert sent["contents"] == body_of(gemini.assemble(rendered, Plan()))["contents"]


def test_a_handle_is_extended_and_deleted() -> None:
    longer = gemini.prelude(render(), ExtendHandle(HANDLE, 600))
    assert (longer.method, longer.path) == ("PATCH", f"/v1beta/{HANDLE}?updateMask=ttl")
    assert body_of(longer) == {"ttl": "600s"}
    gone = gemini.prelude(render(), DeleteHandle(HANDLE))
    assert (gone.method, gone.path, len(gone.body)) == ("DELETE", f"/v1beta/{HANDLE}", 0)


def test_the_response_names_the_handle() -> None:
    body = {
        "name": HANDLE,
        "model": "models/gemini-2.5-flash",
        "expireTime": "2026-11-15T06:00:00.123Z",
        "usageMetadata": {"totalTokenCount": 4200},
    }
    kept = gemini.read_held(json.dumps(body).encode())
    assert (kept.handle, kept.expires, kept.tokens) == (HANDLE, "2026-11-15T06:00:00.123Z", 4200)
    with pytest.raises(Parse, match="name"):
        gemini.read_held(b"{}")


def test_the_next_turns_begin_with_the_same_handle() -> None:
    first = render()
    plan = behind(first, 8)
    later = render(
        replace(
            CALL,
            ir=PromptIR.chat(TALK.append(Message.assistant("now")), system=CALL.ir.system_blocks),
        ),
        first,
    )
    sent = body_of(gemini.assemble(later, plan))
    assert sent["contents"][-1] == {"role": "model", "parts": [{"text": "now"}]}
    assert plan.held is not None
    assert misfit(later, plan.held) is None


@given(some.frames(), st.lists(some.messages, max_size=6), st.data())
def test_held_and_sent_chunks_are_the_whole_prompt(
    frame: some.Frame, messages: list[Message], data: st.DataObject
) -> None:
    conversation = Conversation([Message.user("hello"), *messages, Message.user("go on")])
    rendered = render(replace(frame.call(conversation, "now"), model=MODEL))
    whole = body_of(gemini.assemble(rendered, Plan()))
    chunks = data.draw(st.sampled_from(boundaries(rendered) or [0]))
    assume(chunks)
    made = body_of(gemini.prelude(rendered, CreateHandle(chunks, 300)))
    sent = body_of(gemini.assemble(rendered, behind(rendered, chunks)))
    assert made.get("contents", []) + sent["contents"] == whole["contents"]
    for name in ("systemInstruction", "tools", "toolConfig"):
        assert made.get(name) == whole.get(name)
        assert name not in sent


# ── When it does not fit ─────────────────────────────────────────────────────────────────────────


def with_params(**changed: Any) -> Call:
    return replace(CALL, params=replace(CALL.params, **changed))


MISFITS: dict[str, tuple[Call, int, str]] = {
    "another model": (replace(CALL, model="gemini-2.5-pro"), 6, "held_settings_changed"),
    "another tool choice": (
        with_params(tool_choice=ToolChoice("required")),
        6,
        "held_settings_changed",
    ),
    "no tool choice": (with_params(tool_choice=None), 6, "held_settings_changed"),
    "other tools": (
        replace(CALL, tools=(Tool("look", "Looks."), CALL.tools[1])),
        6,
        "held_prefix_changed",
    ),
    "another system prompt": (
        replace(
            CALL, ir=PromptIR.chat(TALK, system=[PromptBlock("a", "x"), PromptBlock("b", "y")])
        ),
        6,
        "held_prefix_changed",
    ),
    "another beginning": (
        replace(
            CALL,
            ir=PromptIR.chat([Message.user("x", "y"), *TALK[1:]], system=CALL.ir.system_blocks),
        ),
        6,
        "held_prefix_changed",
    ),
    "nothing left to send": (
        replace(CALL, ir=PromptIR.chat(TALK[:1], system=CALL.ir.system_blocks)),
        6,
        "held_too_much",
    ),
    "inside a message": (CALL, 5, "held_inside_message"),
    "not even the tools": (CALL, 2, "held_too_little"),
}


@each_row("name", MISFITS)
def test_a_handle_that_does_not_fit_is_rejected(name: str) -> None:
    call, chunks, code = MISFITS[name]
    first = render()
    plan = behind(first, chunks)
    assert plan.held is not None
    # The beginning changes on purpose, so this goes past the guard of prefixes.
    rendered = render_unguarded(call, catalog.profile("google", call.model))
    notice = misfit(rendered, plan.held)
    assert notice is not None
    assert notice.code == code
    with pytest.raises(InvalidRequest) as caught:
        gemini.assemble(rendered, plan)
    assert caught.value.path == "plan.held"


def test_what_a_handle_does_not_freeze_may_change() -> None:
    first = render()
    later = render(with_params(max_tokens=77, temperature=0.5, stream=False))
    assert misfit(later, CacheHandle(HANDLE, 6, held_digest(first, 6))) is None


def test_a_split_request_fits_the_handle_of_its_rendering() -> None:
    rendered = render()
    body = gemini.assemble(rendered, Plan()).body.join()
    made = cut(gemini, body, rendered.envelope.path)
    assert held_digest(made, 6) == held_digest(rendered, 6)
    sent = gemini.assemble(made, behind(rendered, 6)).body.join()
    assert json.loads(sent) == body_of(gemini.assemble(rendered, behind(rendered, 6)))


def test_other_wires_have_no_handles() -> None:
    for name, model in (("anthropic", "claude-sonnet-4-5"), ("openai_chat", "gpt-5.6")):
        profile = catalog.profile(wire.PROVIDERS[name], model)
        rendered = wire.get(name).render(
            Call(ir=PromptIR.chat([Message.user("hi")]), model=model, params=Params(max_tokens=9)),
            profile,
        )
        assert rendered.frozen_with is None
        held = CacheHandle(HANDLE, 1, "x")
        notice = misfit(rendered, held)
        assert notice is not None
        assert notice.code == "held_unsupported"
        with pytest.raises(InvalidRequest, match="has no cache handles"):
            wire.get(name).assemble(rendered, Plan(held=held))


@each_row(
    "wanted, path",
    [
        (DeleteHandle("models/x"), "plan.held.handle"),
        (DeleteHandle("cachedContents/x?y=1"), "plan.held.handle"),
        (DeleteHandle("cachedContents/../x"), "plan.held.handle"),
        (ExtendHandle(HANDLE, 0), "seconds"),
        (CreateHandle(5, 300), "plan.preludes"),
        (CreateHandle(99, 300), "plan.preludes"),
    ],
)
def test_invalid_handles_are_rejected(wanted: Any, path: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        gemini.prelude(render(), wanted)
    assert caught.value.path == path


def test_a_handle_of_the_caller_is_not_replaced() -> None:
    call = Call(
        ir=PromptIR.chat(TALK),
        model=MODEL,
        extras={"gemini": '{"cachedContent":"cachedContents/y"}'},
    )
    rendered = render(call)
    with pytest.raises(InvalidRequest, match="of its own"):
        gemini.assemble(rendered, behind(rendered, 2))


# ── The SDK sends the same ───────────────────────────────────────────────────────────────────────

genai = pytest.importorskip("google.genai")


def sdk_asks(do: Any) -> tuple[str, str, Any]:
    from google.genai import types

    answer = json.dumps({"name": HANDLE, "expireTime": "2026-11-15T06:00:00Z"}).encode()
    seen: list[tuple[str, str, bytes]] = []
    with byte_server(answer, "application/json", seen=seen) as address:
        options = types.HttpOptions(base_url=address, api_version="v1beta")
        with genai.Client(api_key="not-a-key", http_options=options) as client:
            do(client)
    method, path, body = seen[0]
    # One name the SDK leaves in snake_case, which Gemini takes as well.
    body = body.replace(b"parameters_json_schema", b"parametersJsonSchema")
    return method, path, json.loads(body) if body else None


def test_the_sdk_creates_extends_and_deletes_alike() -> None:
    rendered = render()
    ours = gemini.prelude(rendered, CreateHandle(6, 300))
    body = body_of(ours)

    def create(client: Any) -> None:
        from google.genai import types

        config = types.CreateCachedContentConfig.model_validate(
            {
                "contents": [types.Content.model_validate(c) for c in body["contents"]],
                "systemInstruction": types.Content.model_validate(body["systemInstruction"]),
                "tools": [types.Tool.model_validate(t) for t in body["tools"]],
                "toolConfig": body["toolConfig"],
                "ttl": body["ttl"],
            }
        )
        client.caches.create(model=MODEL, config=config)

    assert sdk_asks(create) == (ours.method, ours.path, body)

    def extend(client: Any) -> None:
        client.caches.update(name=HANDLE, config={"ttl": "600s"})

    longer = gemini.prelude(rendered, ExtendHandle(HANDLE, 600))
    method, path, requested = sdk_asks(extend)
    assert (method, path.partition("?")[0], requested) == (
        longer.method,
        longer.path.partition("?")[0],
        body_of(longer),
    )

    def delete(client: Any) -> None:
        client.caches.delete(name=HANDLE)

    gone = gemini.prelude(rendered, DeleteHandle(HANDLE))
    assert sdk_asks(delete)[:2] == (gone.method, gone.path)


def test_the_sdk_uses_a_handle_the_same_way() -> None:
    rendered = render(with_params(stream=False))
    ours = gemini.assemble(rendered, behind(rendered, 9))
    body = body_of(ours)

    def ask(client: Any) -> None:
        from google.genai import types

        contents = [types.Content.model_validate(c) for c in body["contents"]]
        config = types.GenerateContentConfig(cached_content=HANDLE, max_output_tokens=9)
        client.models.generate_content(model=MODEL, contents=contents, config=config)

    assert sdk_asks(ask) == (ours.method, ours.path, body)


def test_the_planner_leaves_handles_to_the_caller() -> None:
    plan = plan_once(render(), catalog.rules("google", MODEL), reuse_expected=True)
    assert (plan.held, plan.preludes) == (None, ())
