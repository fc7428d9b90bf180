"""Verdicts of the journal agree with the bill. Without faults, no loss is the provider's."""

from __future__ import annotations

import json
import random
from typing import Any

import httpx
import openai
import pytest
from support.tables import each_row

from anaphora.emulator.engine import Engine
from anaphora.emulator.exchange import EmulatorRequest
from anaphora.emulator.server import Emulator

LONG = "A beginning that stays the same. " * 400


def test_long_turn_after_a_short_one_is_not_called_short(emu: Emulator) -> None:
    with openai.OpenAI(base_url=f"{emu.url}/v1", api_key="k", max_retries=0) as client:
        messages: list[Any] = [{"role": "user", "content": "Hello"}]
        client.responses.create(model="gpt-6.1-sol", input=messages)
        messages += [{"role": "assistant", "content": "Hi."}, {"role": "user", "content": LONG}]
        client.responses.create(model="gpt-6.1-sol", input=messages)
    last, first = emu.requests()
    assert last["written"]["30m"] > 1024
    before = (
        f"the previous prompt was below the minimum of 1,024 tokens (about {first['uncached']})"
    )
    assert last["verdict"]["sentence"] == f"Not cached: {before}."


def test_explicit_mode_without_a_marker_caches_nothing(emu: Emulator) -> None:
    with openai.OpenAI(base_url=f"{emu.url}/v1", api_key="k", max_retries=0) as client:
        messages: list[Any] = [{"role": "user", "content": LONG}]
        explicit = {"prompt_cache_options": {"mode": "explicit"}}
        client.responses.create(model="gpt-6.1-sol", input=messages, extra_body=explicit)
        messages += [{"role": "assistant", "content": "Hi."}, {"role": "user", "content": "More?"}]
        client.responses.create(model="gpt-6.1-sol", input=messages)
    last, first = emu.requests()
    assert (first["written"], last["read"]) == ({}, 0)
    assert last["verdict"]["cause"] == "no_marker"
    assert last["verdict"]["sentence"].startswith(
        "Not cached: the previous call had no cache marker, and its explicit mode caches nothing"
        f" without one. {first['uncached']:,} tokens could have been read: $"
    )


def test_other_conversation_reads_no_breakpoint_behind_its_beginning(emu: Emulator) -> None:
    """OpenAI's own breakpoint is on the last message, which the other one does not have."""
    with openai.OpenAI(base_url=f"{emu.url}/v1", api_key="k", max_retries=0) as client:
        for text in ("Hello", "Good morning"):
            client.responses.create(model="gpt-6.1-sol", instructions=LONG, input=text)
    last, first = emu.requests()
    assert (first["automatic"], last["read"]) == ("30m", 0)
    assert last["verdict"]["sentence"] == "First call: nothing cached yet."


def test_slot_with_little_of_a_prompt_is_not_taken_by_another(emu: Emulator) -> None:
    short = [{"role": "user", "content": "Hello"}]
    long = [*short, {"role": "assistant", "content": "Hi."}, {"role": "user", "content": LONG}]
    for messages in (short, long):
        request = {"model": "llama3.2", "messages": messages, "stream": False}
        httpx.post(f"{emu.url}/ollama/v1/chat/completions", json=request).raise_for_status()
    sentence = emu.requests()[0]["verdict"]["sentence"]
    assert "because a slot is reused only if it holds more than 10% of the prompt" in sentence


MARK = {"prompt_cache_breakpoint": {"mode": "explicit"}}
EXPLICIT = {"prompt_cache_options": {"mode": "explicit"}}
CONTROL = {"cache_control": {"type": "ephemeral"}}
QWEN = "/alibaba/compatible-mode/v1/chat/completions"


def chat(system: Any, *texts: Any, **fields: Any) -> dict[str, Any]:
    parts = [{"type": "text", "text": one} if isinstance(one, str) else one for one in texts]
    messages: list[Any] = [{"role": "system", "content": [system]}]
    for at, part in enumerate(parts):
        messages.append({"role": "assistant" if at % 2 else "user", "content": [part]})
    return {"model": "gpt-6.1-sol", "messages": messages, **fields}


def text(content: str, **mark: Any) -> dict[str, Any]:
    return {"type": "text", "text": content, **mark}


TOOL = {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}
#: A path, two requests, and what the verdict on the second one begins with.
PAIRS = [
    (  # the only marker is on too short a prefix, and the mode is explicit
        "/v1/chat/completions",
        chat(text("Be brief.", **MARK), LONG, **EXPLICIT),
        chat(text("Be brief.", **MARK), LONG, "Hi.", "More?", **EXPLICIT),
        "Not cached: the previous prompt was below the minimum of 1,024 tokens (about ",
    ),
    (  # its own breakpoint was behind the only one that the next call has
        "/v1/chat/completions",
        chat(text(LONG, **MARK), LONG),
        chat(text(LONG, **MARK), LONG, "Hi.", "More?", **EXPLICIT),
        "Partial hit: ",
    ),
    (  # another conversation with other tools, without a breakpoint on what they share
        "/v1/chat/completions",
        chat(text(LONG, **MARK), LONG, **EXPLICIT),
        chat(text(LONG), "Hello", tools=[TOOL]),
        "Miss: none of ",
    ),
    (
        QWEN,
        chat(text("Be brief.", **CONTROL), LONG, model="qwen3-max"),
        chat(text("Be brief.", **CONTROL), LONG, "Hi.", "More?", model="qwen3-max"),
        "Not cached: the previous prompt was below the minimum of ",
    ),
    (
        QWEN,
        chat(text(LONG), "Hello", model="qwen3-max"),
        chat(text(LONG, **CONTROL), "Hello", "Hi.", "More?", model="qwen3-max"),
        "Miss: none of ",
    ),
]
CAUSES = [
    "below_minimum",
    "lookback_exceeded",
    "lookback_exceeded",
    "below_minimum",
    "parameter_changed",
]


@each_row(
    "path, first, second, begins, cause", [(*p, c) for p, c in zip(PAIRS, CAUSES, strict=True)]
)
def test_loss_by_the_rules_is_not_the_provider_s(
    path: str, first: Any, second: Any, begins: str, cause: str
) -> None:
    engine = Engine()
    for number, request in enumerate((first, second)):
        ask(engine, path, request, 20.0 * number)
    verdict = engine.journal.entries(1)[0]["verdict"]
    assert verdict["cause"] == cause
    assert verdict["sentence"].startswith(begins)


def ask(engine: Engine, path: str, request: Any, at: float) -> None:
    headers = {"authorization": "Bearer k"}
    data = json.dumps(request).encode()
    engine.respond(EmulatorRequest(method="POST", path=path, headers=headers, body=data, now=at))


@pytest.mark.parametrize("path", ["/v1/chat/completions", QWEN])
@pytest.mark.parametrize("seed", range(6))
def test_no_verdict_blames_an_emulator_without_faults(path: str, seed: int) -> None:
    draw, engine, at = random.Random(seed), Engine(), 0.0
    own = {"model": "qwen3-max"} if path == QWEN else {}
    mark = CONTROL if path == QWEN else MARK
    texts = [LONG]
    for _ in range(8):
        system = text(draw.choice(["Be brief.", LONG]), **draw.choice([{}, mark]))
        last = text(texts[-1], **draw.choice([{}, mark]))
        mode = draw.choice([{}, EXPLICIT]) if path != QWEN else {}
        at += draw.choice([1, 20, 400, 4000])
        ask(engine, path, chat(system, *texts[:-1], last, **mode, **own), at)
        entry = engine.journal.entries(1)[0]
        assert entry["status"] == 200, entry["error"]
        assert entry["verdict"]["cause"] not in ("provider_side", "unexplained")
        if entry["verdict"]["result"] in ("miss", "not_cacheable"):
            assert entry["read"] == 0
        texts += ["Hi.", f"More {draw.choice(['tea', LONG])}"]
