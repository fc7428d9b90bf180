"""Law 6, and what must survive a translation: call → wire A → call → wire B → call keeps what both
can express, names what is lost, and nothing of A leaks into B's request. The same for every dialect."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support import feature_calls
from support import strategies as some
from support.features import FEATURES
from support.journeys import check, leaks, supports, travel
from support.outcomes import Target, fields, outcome, send
from support.tables import check_rows, each_row

from anaphora import catalog, wire
from anaphora.cache.plan import plan_once
from anaphora.catalog import Profile
from anaphora.prompt import (
    Call,
    OutputSchema,
    Params,
    PartMark,
    PromptBlock,
    PromptCachePlan,
    PromptIR,
    Reasoning,
    ToolChoice,
)
from anaphora.values import (
    Conversation,
    Document,
    Image,
    Message,
    Part,
    Text,
    Thinking,
    Tool,
    ToolCall,
    Url,
    from_json,
    to_json,
)

MODELS = {
    "anthropic": "claude-sonnet-4-5",
    "openai_chat": "gpt-5.6",
    "openai_responses": "gpt-5.6",
    "gemini": "gemini-2.5-flash",
    "bedrock": "us.anthropic.claude-sonnet-4-5-20250929-v1:0",
}
WIRES = {name: Target(name, wire.PROVIDERS[name], model) for name, model in MODELS.items()}
PAIRS = list(itertools.permutations(sorted(MODELS), 2))
ROWS = catalog.dialects().rows

# ── Calls ────────────────────────────────────────────────────────────────────────────────────────

nonblank = some.texts.filter(lambda text: bool(text.strip()))
json_objects = st.sampled_from(["{}", '{"a":1}', '{"b": [1, 2], "a": "é"}'])
#: With all that a wire would make up for want of it: a detail, a title.
user_parts: st.SearchStrategy[Part] = st.one_of(
    st.builds(Text, nonblank),
    st.just(Image(Url("https://example.invalid/a.png"), "low")),
    st.just(Image(feature_calls.PNG, "low")),
    st.just(Document(feature_calls.PDF, "a.pdf")),
)
#: Another provider's reasoning, wherever it goes: no wire but one takes it.
thoughts = st.just(Thinking("hm", "c2ln", provider="anthropic"))


@st.composite
def conversations(draw: st.DrawFn, failures: bool = True) -> Conversation:
    """Texts, media, reasoning, calls and their results, some of them failures."""
    messages: list[Message] = []
    for turn in range(draw(st.integers(1, 3))):
        requested = draw(st.lists(user_parts, max_size=2))
        messages.append(Message.user(draw(nonblank), *requested))
        if draw(st.booleans()):
            first = draw(st.lists(thoughts, max_size=1))
            call = ToolCall(f"call_{turn}", "look", draw(json_objects))
            messages.append(Message.assistant(*first, Text(draw(nonblank)), call))
            messages.append(
                Message.tool(call.id, draw(nonblank), error=failures and draw(st.booleans()))
            )
        messages.append(Message.assistant(draw(nonblank)))
    messages.append(Message.user(draw(nonblank)))
    return Conversation(messages)


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


shares = st.sampled_from([0.25, 0.5, 1.0])
words = some.words
modes = st.sampled_from(
    [ToolChoice("auto"), ToolChoice("none"), ToolChoice("required"), ToolChoice("tool", "look")]
)
parameters = st.builds(
    Params,
    max_tokens=st.integers(1, 4000),
    temperature=maybe(shares),
    top_p=maybe(shares),
    top_k=maybe(st.integers(1, 99)),
    stop=st.lists(words, max_size=2).map(tuple),
    tool_choice=maybe(modes | st.just(ToolChoice("auto", parallel=False))),
    reasoning=maybe(
        st.builds(Reasoning, effort=st.sampled_from(["low", "high"]))
        | st.just(Reasoning("disabled"))
    ),
    output=maybe(
        st.builds(
            OutputSchema, st.just(feature_calls.SCHEMA), st.sampled_from(["answer", "weather"])
        )
    ),
    metadata=maybe(st.dictionaries(words.filter(str.isalpha), words, min_size=1, max_size=2)),
    user=maybe(words),
    seed=maybe(st.integers(0, 99)),
    n=maybe(st.integers(2, 4)),
    frequency_penalty=maybe(shares),
    presence_penalty=maybe(shares),
    verbosity=maybe(st.just("low")),
    store=maybe(st.booleans()),
    stream=st.booleans(),
)


def calls_with(histories: st.SearchStrategy[Conversation]) -> st.SearchStrategy[Call]:
    return st.builds(
        lambda conversation, system, params, key: Call(
            ir=PromptIR.chat(
                conversation,
                system=[PromptBlock("identity", system)],
                cache=PromptCachePlan(key=key),
            ),
            model="any",
            tools=(Tool("look", "Looks.", '{"properties":{"a":{}},"type":"object"}'),),
            params=params,
        ),
        histories,
        nonblank.map(str.strip).filter(bool),
        parameters,
        maybe(words),
    )


calls = calls_with(conversations())
#: A failed result that a wire cannot express is a plain result on the next, in another field.
calls_without_failures = calls_with(conversations(failures=False))


# ── What both can say ────────────────────────────────────────────────────────────────────────────


# A call takes longer to draw than to check: each goes through all pairs, or all dialects.


@given(call=calls)
def test_common_features_survive_and_the_rest_gives_notices(call: Call) -> None:
    check_rows(
        (
            (f"{first} → {second}", (call, [(WIRES[first], first), (WIRES[second], second)]))
            for first, second in PAIRS
        ),
        check,
    )


@given(call=calls_without_failures)
@pytest.mark.long
def test_law_6_a_request_has_no_field_of_the_wire_before(call: Call) -> None:
    check_rows(
        ((f"{first} → {second}", (call, WIRES[first], WIRES[second])) for first, second in PAIRS),
        check_leaks,
    )


def check_leaks(call: Call, first: Target, second: Target) -> None:
    assert not leaks(call, [first], second)


def spoken_by(row: catalog.Dialect) -> Target:
    if row.wire == "bedrock" or row.envelope:
        return Target(row.name, row.provider, MODELS["bedrock"])
    known = [profile.id for profile in catalog.models(row.provider)[:1]]
    return Target(row.name, row.provider, (*known, "unheard-of")[0])


def elsewhere(row: catalog.Dialect) -> str:
    """A wire that the dialect is not like."""
    return "gemini" if row.wire == "anthropic" else "anthropic"


def copied(call: Call) -> Call:
    """A call with a conversation of its own: two dialects may render one model differently, and
    renderings of one conversation are compared in every test (tests/conftest.py)."""
    return from_json(to_json(call), Call)


#: Each dialect beside its own wire, and beside one that it is not like.
DIALECT_PAIRS = [(row, name) for row in ROWS for name in (row.wire, elsewhere(row))]


@settings(max_examples=3)
@given(call=calls)
@pytest.mark.long
def test_there_and_back_again_through_a_dialect(call: Call) -> None:
    def check_journeys(row: catalog.Dialect, name: str) -> None:
        here, there = (spoken_by(row), row.wire), (WIRES[name], name)
        for stops in ([there, here, there], [here, there, here]):
            check(copied(call), stops)

    check_rows(
        ((f"{row.name}, {name}", (row, name)) for row, name in DIALECT_PAIRS), check_journeys
    )


@settings(max_examples=4)
@given(call=calls_without_failures)
@pytest.mark.long
def test_law_6_dialect_values_stay_in_their_dialect(call: Call) -> None:
    def check_both_ways(row: catalog.Dialect, name: str) -> None:
        check_leaks(copied(call), spoken_by(row), WIRES[name])
        check_leaks(copied(call), WIRES[name], spoken_by(row))

    check_rows(
        ((f"{row.name}, {name}", (row, name)) for row, name in DIALECT_PAIRS), check_both_ways
    )


def test_loss_without_a_notice_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    from anaphora.wire.openai_chat import params, types

    call = feature_calls.base(params={"top_k": 5, "seed": 7})
    stops = [(WIRES[name], name) for name in ("gemini", "openai_chat")]
    check(call, stops)
    types.MEMO.clear()
    monkeypatch.setattr(params, "_notices", lambda call, traits: [])
    with pytest.raises(AssertionError, match="top_k: lost in silence"):
        check(call, stops)


def test_loss_of_a_supported_feature_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """A notice does not excuse a loss where both wires have the field, as the matrix shows."""
    from anaphora.values import Notice
    from anaphora.wire.gemini import params, types

    call = feature_calls.base(params={"seed": 7})
    stops = [(WIRES[name], name) for name in ("gemini", "openai_chat")]
    assert all(supports(stop, wire_name, "seed") for stop, wire_name in stops)
    fields = params._fields

    def fields_without_seed(call: Call, profile: Profile) -> dict[str, bytes]:
        return fields(replace(call, params=replace(call.params, seed=None)), profile)

    types.MEMO.clear()
    monkeypatch.setattr(params, "_fields", fields_without_seed)
    notices = [Notice("param_left_out", "left out", "params.seed")]
    monkeypatch.setattr(params, "_notices", lambda call: notices)
    with pytest.raises(AssertionError, match="seed: all support it"):
        check(call, stops)


def test_a_leak_would_be_seen() -> None:
    """Fields with no name go on where they came from: on the same wire that is right, and seen."""
    call = feature_calls.unknown_field("openai_chat")
    assert not leaks(call, [WIRES["openai_chat"]], WIRES["gemini"])
    bare = replace(call, extras=None)
    through = wire.get("openai_chat").parse(send(WIRES["openai_chat"], call).body)
    there = {*fields(send(WIRES["openai_chat"], through).body)}
    assert there - {*fields(send(WIRES["openai_chat"], bare).body)} == {"xUnheardOf"}


# ── Provider-specific fields ───────────────────────────────────────────────────────────────────

FOREIGN = {
    "anthropic": ["cache_control", "input_schema", "tool_use"],
    "openai_chat": ["prompt_cache_breakpoint", "tool_calls", "max_completion_tokens"],
    "openai_responses": ["prompt_cache_breakpoint", "function_call", "max_output_tokens"],
    "gemini": ["contents", "functionCall", "maxOutputTokens"],
    "bedrock": ["cachePoint", "toolUse", "inferenceConfig"],
}


def planned(name: str, call: Call) -> bytes:
    """The request with the planner's markers."""
    codec, target = wire.get(name), WIRES[name]
    profile = catalog.profile(target.provider, target.model)
    rendered = codec.render(replace(call, model=target.model), profile)
    plan = plan_once(rendered, catalog.rules(target.provider, target.model), reuse_expected=True)
    return codec.assemble(rendered, plan).body.join()


@each_row("first, second", PAIRS)
def test_law_6_a_fallback_is_rendered_anew_and_nothing_leaks(first: str, second: str) -> None:
    """langchain#33709: a marker leaked into the fallback provider's request."""
    conversation = Conversation(
        [
            Message.user("hello", id="u1"),
            Message.assistant(
                Thinking("hm", "sig", provider="anthropic"), ToolCall("c1", "look", "{}")
            ),
            Message.tool("c1", "found", id="r1"),
        ]
    )
    plan = PromptCachePlan(marks=(PartMark("u1"), PartMark("r1")))
    call = Call(
        ir=PromptIR.chat(
            conversation, system=[PromptBlock.cached_long("identity", "x")], cache=plan
        ),
        model="any",
        tools=(Tool("look"),),
        params=Params(max_tokens=10),
    )
    parsed = wire.get(first).parse(planned(first, call))
    other = send(WIRES[second], parsed).body.decode()
    if second not in ("gemini", "bedrock"):  # which name the model in the path
        assert json.loads(other)["model"] == MODELS[second]
    for word in set(FOREIGN[first]) - set(FOREIGN[second]):
        assert f'"{word}"' not in other
    assert "found" in other


#: What tells that something of another provider's went along: fields, signatures, tools, ids.
MARKS_OF_OWNERS = (
    "xUnheardOf",
    "xCited",
    "c2ln",
    "web_search",
    "googleSearch",
    "grep",
    "r_1",
    '"x":1',
)


@pytest.mark.parametrize("first, second", PAIRS)
def test_law_6_provider_specific_fields_stay_with_their_provider(first: str, second: str) -> None:
    tried = 0
    for feature in FEATURES:
        if not feature.owned:
            continue
        own = feature.make(first)
        there = travel(own, [WIRES[first]])
        if outcome(WIRES[second], feature, there.call).fate == "sent":
            continue  # two wires of one provider may understand each other
        tried += 1
        body = send(WIRES[second], there.call).body.decode()
        assert not [word for word in MARKS_OF_OWNERS if word in body], feature.name
    assert tried > 2


@each_row("row", ROWS, ids=lambda row: row.name)
def test_law_6_an_anthropic_service_tier_goes_only_where_it_is_known(row: catalog.Dialect) -> None:
    call = feature_calls.base(params={"service_tier": "standard_only"})
    known = row.wire == "anthropic" or row.name == "mistral/openai_chat"
    assert ("standard_only" in send(spoken_by(row), call).body.decode()) == known


def test_law_6_dialect_values_are_translated() -> None:
    """What Mistral calls random_seed is a seed to everybody else."""
    requested = (
        b'{"model":"m","messages":[{"role":"user","content":"hi"}],"random_seed":7,"top_k":5}'
    )
    call = wire.get("mistral").parse(requested)
    chat, gemini = (json.loads(send(WIRES[name], call).body) for name in ("openai_chat", "gemini"))
    assert chat["seed"] == 7
    assert not {"random_seed", "top_k"} & {*chat}
    assert gemini["generationConfig"] == {"seed": 7, "topK": 5}


def test_law_6_reasoning_of_one_host_is_not_sent_to_another() -> None:
    """A fallback from DeepSeek to OpenAI: both speak Chat Completions."""
    deepseek = wire.get("deepseek")
    answer = {
        "id": "r",
        "model": "deepseek-chat",
        "choices": [
            {
                "index": 0,
                "finish_reason": "tool_calls",
                "message": {
                    "role": "assistant",
                    "reasoning_content": "hm",
                    "tool_calls": [
                        {
                            "id": "c1",
                            "type": "function",
                            "function": {"name": "look", "arguments": "{}"},
                        }
                    ],
                },
            }
        ],
    }
    message = deepseek.read_reply(json.dumps(answer).encode()).message
    conversation = [Message.user("hello"), message, Message.tool("c1", "found")]
    sent = send(
        WIRES["openai_chat"], feature_calls.base(messages=conversation, tools=(feature_calls.LOOK,))
    )
    assert b"reasoning_content" not in sent.body
