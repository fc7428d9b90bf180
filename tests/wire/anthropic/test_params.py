"""The envelope: everything of a request that is not prompt, as it goes over the wire."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.tables import each_row

from anaphora import catalog
from anaphora.errors import InvalidRequest
from anaphora.prompt import Call, OutputSchema, Params, PromptIR, Reasoning, ToolChoice
from anaphora.rendered import Plan, Rendered
from anaphora.values import Extras, Message, Tool
from anaphora.wire import anthropic

MODEL = "claude-sonnet-4-5"
PROFILE = catalog.profile("anthropic", MODEL)

HEAD = b'{"model":"claude-sonnet-4-5","max_tokens":16,'
MESSAGES = b'"messages":[{"role":"user","content":[{"type":"text","text":"u"}]}]'


def render(params: Params, extras: Extras | None = None) -> Rendered:
    ir = PromptIR.chat([Message.user("u")])
    return anthropic.render(Call(ir=ir, model=MODEL, params=params, extras=extras), PROFILE)


def body_of(params: Params, extras: Extras | None = None) -> bytes:
    return anthropic.assemble(render(params, extras), Plan()).body.join()


TAILS: list[tuple[dict[str, Any], bytes]] = [
    ({}, b""),
    # tool choice
    ({"tool_choice": ToolChoice()}, b',"tool_choice":{"type":"auto"}'),
    ({"tool_choice": ToolChoice("required")}, b',"tool_choice":{"type":"any"}'),
    ({"tool_choice": ToolChoice("none")}, b',"tool_choice":{"type":"none"}'),
    ({"tool_choice": ToolChoice("tool", "f")}, b',"tool_choice":{"type":"tool","name":"f"}'),
    (
        {"tool_choice": ToolChoice(parallel=False)},
        b',"tool_choice":{"type":"auto","disable_parallel_tool_use":true}',
    ),
    (
        {"tool_choice": ToolChoice("tool", "f", True)},
        b',"tool_choice":{"type":"tool","name":"f","disable_parallel_tool_use":false}',
    ),
    # reasoning
    ({"reasoning": Reasoning()}, b""),
    ({"reasoning": Reasoning("adaptive")}, b',"thinking":{"type":"adaptive"}'),
    ({"reasoning": Reasoning("disabled")}, b',"thinking":{"type":"disabled"}'),
    ({"reasoning": Reasoning("between_tools")}, b',"thinking":{"type":"between_tools"}'),
    (
        {"reasoning": Reasoning("enabled", None, 1024, "summarized")},
        b',"thinking":{"type":"enabled","budget_tokens":1024,"display":"summarized"}',
    ),
    ({"reasoning": Reasoning(effort="low")}, b',"output_config":{"effort":"low"}'),
    # output: the schema's own bytes
    (
        {"output": OutputSchema('{"b":1, "a":2}')},
        b',"output_config":{"format":{"type":"json_schema","schema":{"b":1, "a":2}}}',
    ),
    (
        {"output": OutputSchema("{}"), "reasoning": Reasoning(effort="max")},
        b',"output_config":{"effort":"max","format":{"type":"json_schema","schema":{}}}',
    ),
    # the rest
    ({"stop": ("a", 'b"')}, b',"stop_sequences":["a","b\\""]'),
    ({"temperature": 0.0}, b',"temperature":0.0'),
    ({"temperature": 1}, b',"temperature":1'),
    ({"top_p": 0.95, "top_k": 0}, b',"top_p":0.95,"top_k":0'),
    ({"metadata": {}}, b""),
    ({"metadata": {"user_id": "m"}}, b',"metadata":{"user_id":"m"}'),
    ({"metadata": {"user_id": "m"}, "user": "u"}, b',"metadata":{"user_id":"u"}'),
    ({"service_tier": "auto"}, b',"service_tier":"auto"'),
    ({"stream": True}, b',"stream":true'),
    ({"stream": False}, b""),
]


@each_row("given, tail", TAILS)
def test_a_parameter_becomes_these_bytes(given: dict[str, Any], tail: bytes) -> None:
    assert body_of(Params(max_tokens=16, **given)) == HEAD + MESSAGES + tail + b"}"


def test_fields_stand_in_one_order() -> None:
    body = body_of(
        Params(
            stream=True,
            service_tier="auto",
            user="u",
            top_k=1,
            top_p=0.5,
            temperature=0.5,
            stop=("x",),
            output=OutputSchema("{}"),
            reasoning=Reasoning("adaptive"),
            tool_choice=ToolChoice(),
            max_tokens=16,
        ),
        {"anthropic": '{"speed":"fast"}'},
    )
    assert list(json.loads(body)) == [
        "model",
        "max_tokens",
        "messages",
        "tool_choice",
        "thinking",
        "output_config",
        "stop_sequences",
        "temperature",
        "top_p",
        "top_k",
        "metadata",
        "service_tier",
        "stream",
        "speed",
    ]


@pytest.mark.parametrize(
    "extras, end",
    [
        (None, b"]}]}"),
        ({"anthropic": "{}"}, b"]}]}"),
        ({"openai": '{"seed":1}'}, b"]}]}"),
        ({"anthropic": '{"speed" : "fast"}'}, b']}],"speed":"fast"}'),
    ],
)
def test_extras_of_this_wire_are_sent(extras: Extras | None, end: bytes) -> None:
    assert body_of(Params(max_tokens=16), extras).endswith(end)


def test_max_tokens_may_be_zero() -> None:
    """Zero asks Anthropic to fill the cache and answer nothing."""
    assert b'"max_tokens":0,' in body_of(Params(max_tokens=0))
    assert b'"max_tokens":0,' in body_of(Params(max_tokens=0, output="json"))


@each_row(
    "given, path",
    [
        ({}, "params.max_tokens"),
        ({"max_tokens": -1}, "params.max_tokens"),
        ({"max_tokens": True}, "Params.max_tokens"),
        ({"max_tokens": 1.5}, "Params.max_tokens"),
        ({"max_tokens": 1, "temperature": float("nan")}, "params.temperature"),
        ({"max_tokens": 1, "top_p": float("inf")}, "params.top_p"),
        ({"max_tokens": 1, "stop": ("fine", "\ud800")}, "params.stop[1]"),
        ({"max_tokens": 1, "tool_choice": ToolChoice("tool")}, "params.tool_choice.name"),
        ({"max_tokens": 1, "tool_choice": ToolChoice("auto", "f")}, "params.tool_choice.name"),
        ({"max_tokens": 1, "output": OutputSchema("[]")}, "params.output.schema"),
        ({"max_tokens": 1, "user": "\ud800"}, "params.user"),
    ],
)
def test_invalid_parameter_names_its_field(given: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        render(Params(**given))
    assert caught.value.path == path


def test_a_broken_schema_names_its_tool() -> None:
    call = Call(
        ir=PromptIR.chat([Message.user("u")]),
        model=MODEL,
        tools=(Tool("good"), Tool("bad", schema="nonsense")),
        params=Params(max_tokens=1),
    )
    with pytest.raises(InvalidRequest) as caught:
        anthropic.render(call, PROFILE)
    assert caught.value.path == "tools[1].schema"


@each_row(
    "given",
    [
        {"metadata": {"session": "7"}},  # Anthropic's metadata holds a user_id and nothing else
        {"reasoning": Reasoning(budget_tokens=2048)},  # a budget needs a mode
        {"reasoning": Reasoning(display="omitted")},
        {"tool_choice": ToolChoice("none", parallel=False)},
        {"output": OutputSchema("{}", description="what it is")},
        {"output": "json"},
    ],
)
def test_unsupported_parameters_give_notices(given: dict[str, Any]) -> None:
    """Law 11: a notice or a clear error, never a silent loss or a field that will be refused."""
    try:
        reported = [notice.path for notice in render(Params(max_tokens=16, **given)).notices]
    except InvalidRequest as problem:
        reported = [problem.path]
    (path,) = reported
    assert path.startswith("params.")


def test_cache_params_are_the_sent_bytes() -> None:
    """What voids a cache without being a chunk, named as the rules table names it."""
    params = Params(
        max_tokens=16,
        temperature=0.5,
        tool_choice=ToolChoice("none"),
        reasoning=Reasoning("adaptive", "high"),
        output=OutputSchema("{}"),
    )
    rendered = render(params)
    assert dict(rendered.envelope.cache_params) == {
        "model": b'"claude-sonnet-4-5"',
        "tool_choice": b'{"type":"none"}',
        "thinking": b'{"type":"adaptive"}',
        "effort": b'"high"',
        "output_format": b'{"type":"json_schema","schema":{}}',
    }
    assert set(dict(rendered.envelope.cache_params)) <= set(
        catalog.rules("anthropic", MODEL).invalidates
    )


def test_request_path_and_headers() -> None:
    request = anthropic.assemble(render(Params(max_tokens=16)), Plan())
    assert (request.method, request.path) == ("POST", "/v1/messages")
    assert dict(request.headers) == {
        "content-type": "application/json",
        "anthropic-version": "2023-06-01",
    }
