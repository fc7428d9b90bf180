"""Tools and system prompts that came before are cut once, with the same result."""

from __future__ import annotations

import functools
import gc
import json
from collections.abc import Callable
from typing import Any
from weakref import ref

import pytest
from support.tables import each_row

from anaphora import wire
from anaphora.errors import InvalidRequest
from anaphora.rendered import Rendered

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
MARK = {"cache_control": {"type": "ephemeral"}}


def body(name: str, text: str, tools: Any = ...) -> bytes:
    encoded: dict[str, Any]
    tool: dict[str, Any]
    if name == "anthropic":
        tool = {"name": "f", "input_schema": SCHEMA, **MARK}
        system = [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Be.", **MARK}]
        message = {"role": "user", "content": text}
        encoded = {"model": "m", "max_tokens": 1, "system": system, "messages": [message]}
    elif name == "openai_chat":
        tool = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
        encoded = {
            "model": "m",
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": text},
            ],
        }
    elif name == "openai_responses":
        tool = {"type": "function", "name": "f", "parameters": SCHEMA}
        encoded = {"model": "m", "instructions": "Be brief.", "input": text}
    else:
        tool = {"functionDeclarations": [{"name": "f", "parameters": SCHEMA}]}
        encoded = {
            "systemInstruction": {"parts": [{"text": "Be brief."}]},
            "contents": [{"role": "user", "parts": [{"text": text}]}],
        }
    return json.dumps({**encoded, "tools": [tool] if tools is ... else tools}).encode()


NAMES = ("anthropic", "openai_chat", "openai_responses", "gemini")
PATH = "/v1beta/models/g:generateContent"


def split(name: str, data: bytes) -> Rendered:
    return wire.get(name).split(data, (), PATH)


def looks(rendered: Rendered) -> Any:
    """Everything that the sections bring."""
    runs = [(run.lead, run.close, run.count, run.place, run.paths) for run in rendered.runs]
    return list(rendered), rendered.marks, runs


@pytest.mark.parametrize("name", NAMES)
def test_the_second_request_shares_the_sections_of_the_first(name: str) -> None:
    one, two = split(name, body(name, "one")), split(name, body(name, "two"))
    shared = [run for run in one.runs if run.section != "messages"]
    assert len(shared) == 2
    assert all(mine.log is theirs.log for mine, theirs in zip(shared, two.runs, strict=False))
    assert one.runs[-1].log is not two.runs[-1].log


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.long
def test_shared_section_equals_new_split(name: str) -> None:
    data = body(name, "the same")
    first = split(name, data)
    cut, held = looks(first), ref(first.runs[0].log)
    assert looks(split(name, data)) == cut
    del first
    gc.collect()
    assert held() is None, "let go with the last that used it"
    assert looks(split(name, data)) == cut


@pytest.mark.parametrize("name", NAMES)
def test_repeated_tools_are_read_once(name: str) -> None:
    codec = wire.get(name)
    one, two = codec.parse(body(name, "one"), PATH), codec.parse(body(name, "two"), PATH)
    assert one.tools == two.tools
    assert one.tools is two.tools
    assert one.tools[0].name == "f"
    assert one.ir.cache.marks == two.ir.cache.marks


@each_row("name", NAMES)
@each_row("read", ["split", "parse"])
def test_tools_that_are_no_list_are_rejected_each_time(name: str, read: str) -> None:
    codec, data = wire.get(name), body(name, "x", tools=7)
    reading: Callable[[], object] = functools.partial(codec.parse, data, PATH)
    if read == "split":
        reading = functools.partial(split, name, data)
    for _ in range(2):
        with pytest.raises(InvalidRequest) as caught:
            reading()
        assert caught.value.path == "$.tools"


def test_labels_are_short() -> None:
    """They are remembered over calls, and a name may be as long as the body."""
    tools = [{"name": "f" * 100_000, "input_schema": SCHEMA}]
    run = split("anthropic", body("anthropic", "x", tools=tools)).runs[0]
    assert run.label(0).startswith("tool fff")
    assert len(run.label(0)) <= 1000
