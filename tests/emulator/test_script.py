"""Scripted replies: matching, replying, and errors in a file."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables import each_row

from anaphora import catalog, wire
from anaphora.emulator.hosts import HOSTS
from anaphora.emulator.journal import Billing
from anaphora.emulator.replies import GeneratedReply
from anaphora.emulator.replies.script import Script, ScriptInput
from anaphora.emulator.replies.text import IdGenerator
from anaphora.errors import InvalidConfig
from anaphora.prompt import Call, Params, PromptIR
from anaphora.values import Message, Refusal, Reply, Text, Thinking, Tool, ToolCall, Usage

LOOKUP = Tool(name="lookup", description="", schema='{"type":"object"}')
QUESTION = Message.user("Where is my refund for order 17?")
CALLED = Message.assistant(ToolCall("c1", "lookup", '{"order":17}'))
ANSWERED = Message.tool("c1", "sent on Monday")
MODELS = {
    "anthropic": "claude-opus-4-8",
    "openai_chat": "gpt-4o",
    "openai_responses": "gpt-5",
    "gemini": "gemini-2.5-flash",
}
every_wire = each_row("name", list(MODELS))


def script_input(
    *messages: Message, name: str = "anthropic", system: str = "", params: Params | None = None
) -> ScriptInput:
    ir = PromptIR.chat(messages, system=system)
    model = MODELS[name]
    provider = wire.PROVIDERS[name]
    return ScriptInput(
        call=Call(ir=ir, model=model, tools=(LOOKUP,), params=params or Params()),
        host=HOSTS[name](Billing(), IdGenerator(0)),
        provider=provider,
        profile=catalog.profile(provider, model),
        path="/v1/messages",
        seed=b"1",
    )


def play(text: str, *requests: ScriptInput) -> list[GeneratedReply | None]:
    player = Script.decode(text, "script.yaml").player()
    return [player.next(request) for request in requests]


def reply_for(text: str, request: ScriptInput) -> GeneratedReply:
    [found] = play(text, request)
    assert found is not None
    return found


# ── Matching ─────────────────────────────────────────────────────────────────────────────────────

MATCHES = [
    ("{}", True),
    ("provider: anthropic", True),
    ("provider: openai", False),
    ("wire: anthropic", True),
    ("wire: openai_*", False),
    ("model: claude-*", True),
    ("model: claude", False),
    ("path: /v1/*", True),
    ("path: /v2/*", False),
    ("text: refund", True),
    ("text: Refund", False),
    ("regex: order \\d+", True),
    ("regex: ^order", False),
    ("system: brief", True),
    ("system: verbose", False),
    ("tool: lookup", True),
    ("tool: search", False),
    ("result: Monday", False),
    ("result_of: lookup", False),
    ("{text: refund, model: gpt-*}", False),
]


@each_row("match, expected", MATCHES)
def test_match_fields(match: str, expected: bool) -> None:
    match = match if match.startswith("{") else f"{{{match}}}"
    text = f"replies:\n- match: {match}\n  reply: {{text: ok}}\n"
    [found] = play(text, script_input(QUESTION, system="Be brief."))
    assert (found is not None) is expected


@each_row(
    "match, expected",
    [
        ("result: Monday", True),
        ("result: Tuesday", False),
        ("result_of: lookup", True),
        ("result_of: x", False),
        ("text: refund", False),
    ],
)
def test_match_of_tool_results(match: str, expected: bool) -> None:
    """The user's earlier question already has a reply."""
    text = f"replies:\n- match: {{{match}}}\n  reply: {{text: ok}}\n"
    [found] = play(text, script_input(QUESTION, CALLED, ANSWERED))
    assert (found is not None) is expected


def test_system_messages_are_system_text() -> None:
    text = "replies:\n- match: {system: brief}\n  reply: {text: ok}\n"
    [found] = play(text, script_input(Message.system("Be brief."), QUESTION))
    assert found is not None


def test_first_matching_rule_answers() -> None:
    text = """
replies:
- match: {text: refund, nth: [1, 3]}
  reply: {text: first or third}
- match: {text: refund}
  reply: {text: any other}
"""
    other = script_input(Message.user("Hello"))
    found = play(
        text,
        script_input(QUESTION),
        other,
        script_input(QUESTION),
        script_input(QUESTION),
        script_input(QUESTION),
    )
    assert [each and each.parts[0] for each in found] == [
        Text("first or third"),
        None,
        Text("any other"),
        Text("first or third"),
        Text("any other"),
    ]


# ── Replies ──────────────────────────────────────────────────────────────────────────────────────

EVERYTHING = """
replies:
- reply:
    thinking: Let me see.
    text: Looking it up.
    tool_calls:
    - {name: lookup, arguments: {order: 17, tags: [a, null, 1.5]}}
    - {name: lookup, id: my_id}
    pace: 20ms
"""


@every_wire
def test_scripted_parts_on_every_wire(name: str) -> None:
    answer = reply_for(EVERYTHING, script_input(QUESTION, name=name))
    assert (answer.stop_reason, answer.pace) == ("tool_calls", 0.02)
    reply = Reply(
        id="r1",
        model="m",
        message=Message(role="assistant", parts=answer.parts),
        stop_reason=answer.stop_reason,
        usage=Usage(uncached=1, output=1),
    )
    codec = wire.get(name)
    back = codec.read_reply(codec.write_reply(reply))
    assert (back.text, back.stop_reason) == ("Looking it up.", "tool_calls")
    first, second = back.tool_calls
    assert json.loads(first.arguments) == {"order": 17, "tags": ["a", None, 1.5]}
    assert (second.id, second.arguments) == ("my_id", "{}")
    thoughts = [part.text for part in back.message.parts if isinstance(part, Thinking)]
    if name == "openai_chat":
        # Not shown there, but billed.
        assert (thoughts, answer.hidden > 0) == ([], True)
    else:
        assert (thoughts, answer.hidden) == (["Let me see."], 0)


@every_wire
def test_same_request_gets_the_same_ids(name: str) -> None:
    assert reply_for(EVERYTHING, script_input(QUESTION, name=name)) == reply_for(
        EVERYTHING, script_input(QUESTION, name=name)
    )


@pytest.mark.parametrize(
    "name, stop",
    [
        ("anthropic", "refusal"),
        ("gemini", "refusal"),
        ("openai_chat", "end"),
        ("openai_responses", "end"),
    ],
)
def test_refusal_stop_reason(name: str, stop: str) -> None:
    answer = reply_for("replies: [{reply: {refusal: No.}}]", script_input(QUESTION, name=name))
    assert (answer.parts, answer.stop_reason) == ((Refusal("No."),), stop)


@each_row(
    "written, params, expected",
    [
        ("text: Hello there", Params(), ("Hello there", "end", None)),
        ("text: Hello there", Params(stop=("the",)), ("Hello ", "stop_sequence", "the")),
        (
            "{text: Hello there, stop: length}",
            Params(stop=("the",)),
            ("Hello there", "length", None),
        ),
        ("{text: Hello, stop: pause}", Params(), ("Hello", "pause", None)),
        ("{text: Hello, stop_sequence: x}", Params(), ("Hello", "stop_sequence", "x")),
    ],
)
def test_stop_reason(written: str, params: Params, expected: tuple[str, str, str | None]) -> None:
    """The request's own limits hold, unless the script gives a stop reason."""
    written = written if written.startswith("{") else f"{{{written}}}"
    answer = reply_for(f"replies: [{{reply: {written}}}]", script_input(QUESTION, params=params))
    assert isinstance(answer.parts[0], Text)
    assert (answer.parts[0].text, answer.stop_reason, answer.stop_sequence) == expected


def test_max_tokens_cuts_the_reply() -> None:
    text = f"replies: [{{reply: {{text: {'word ' * 200}}}}}]"
    answer = reply_for(text, script_input(QUESTION, params=Params(max_tokens=5)))
    assert answer.stop_reason == "length"
    assert isinstance(answer.parts[0], Text)
    assert 0 < len(answer.parts[0].text) < 50


# ── Checked when loaded ──────────────────────────────────────────────────────────────────────────


def test_empty_file_has_no_rules() -> None:
    assert Script.decode("", "s") == Script()


@each_row(
    "text, line, reason",
    [
        ("replies:\n- match: {}\n", 2, "reply is missing"),
        ("replies:\n- reply: {}\n", 2, "the reply is empty"),
        ("replies:\n- reply: {pace: 1}\n", 2, "the reply is empty"),
        ("replies:\n- reply: Hello\n", 2, "expected a mapping, found a text"),
        ("replies:\n- reply:\n    txt: Hello\n", 3, "unknown field 'txt'"),
        ("replies:\n- reply:\n    text: 17\n", 3, "expected a text, found a number"),
        ("replies:\n- reply:\n    text: no\n", 3, "expected a text, found true or false"),
        (
            "replies:\n- reply:\n    text: a\n    stop: tired\n",
            4,
            "'tired' is none of context_overflow, end",
        ),
        (
            "replies:\n- reply:\n    text: a\n    stop: end\n    stop_sequence: b\n",
            5,
            "needs the stop",
        ),
        ("replies:\n- reply:\n    text: a\n    pace: fast\n", 4, "'fast' is not a time"),
        ("replies:\n- reply:\n    tool_calls:\n    - arguments: {}\n", 4, "name is missing"),
        (
            "replies:\n- reply:\n    tool_calls:\n    - {name: f, arguments: [1]}\n",
            4,
            "expected a mapping, found a list",
        ),
        (
            "replies:\n- reply:\n    tool_calls:\n    - name: f\n      arguments:\n        a: 2026-01-01\n",
            6,
            "a date is not a JSON value",
        ),
        (
            "replies:\n- reply:\n    tool_calls:\n    - name: f\n      arguments:\n        a: .nan\n",
            6,
            "nan has no JSON form",
        ),
        (
            "replies:\n- reply:\n    tool_calls:\n    - name: f\n      arguments: {a: 1, a: 2}\n",
            5,
            "a is given twice",
        ),
        (
            "replies:\n- reply:\n    tool_calls:\n    - name: f\n      arguments: &a {b: *a}\n",
            5,
            "contains itself",
        ),
        ("replies:\n- match:\n    regex: '('\n  reply: {text: a}\n", 3, "not a regular expression"),
        ("replies:\n- match:\n    wire: opneai\n  reply: {text: a}\n", 3, "none of the wires"),
        (
            "replies:\n- match:\n    provider: opneai\n  reply: {text: a}\n",
            3,
            "none of the providers",
        ),
        (
            "replies:\n- match:\n    nth: first\n  reply: {text: a}\n",
            3,
            "expected a whole number or a list",
        ),
        ("answers: []\n", 1, "unknown field 'answers'"),
        ("replies:\n- reply: {text: 'a}\n", 3, "not YAML"),
    ],
)
def test_errors_in_a_script_name_the_line(text: str, line: int, reason: str) -> None:
    with pytest.raises(InvalidConfig, match=rf"^script\.yaml:{line}: .*") as caught:
        Script.decode(text, "script.yaml")
    assert reason in str(caught.value)


_YAML: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["replies", "match", "reply", "text", "nth"]), inner)
    ),
    max_leaves=10,
)


@given(_YAML)
def test_no_value_breaks_the_decoder(value: Any) -> None:
    """JSON is YAML. Whatever it is: a script, or our own error."""
    with suppress(InvalidConfig):
        assert isinstance(Script.decode(json.dumps({"replies": value}), "s"), Script)


def test_documented_script_is_valid() -> None:
    from anaphora.emulator.replies import script

    assert script.__doc__ is not None
    example = script.__doc__[script.__doc__.index("    replies:") :]
    example = example[: example.index("A rule without")]
    rules = Script.decode(example, "doc").rules
    assert [rule.match.nth for rule in rules] == [None, None, None, 2]
    assert rules[0].reply.tool_calls[0].arguments == {"order": 17}
