"""Every provider of the catalog, below its name and in its own format."""

from __future__ import annotations

import json
import re
from typing import Any

import openai
from mistralai.client import Mistral
from support.tables import each_row

from anaphora import catalog, wire
from anaphora.catalog import Dialect
from anaphora.emulator import EmulatorOptions
from anaphora.emulator.engine import Engine
from anaphora.emulator.exchange import EmulatorRequest
from anaphora.emulator.faults import HEADER
from anaphora.emulator.server import Emulator
from anaphora.values import ReplyEnd

LONG = "A beginning that stays the same. " * 600
ROWS = {row.name: row for row in catalog.dialects().rows}
TAILS = {
    "anthropic": "/v1/messages",
    "openai_chat": "/v1/chat/completions",
    "openai_responses": "/v1/responses",
    "gemini": "/v1beta/models/{model}:{method}",
    "bedrock": "/model/{model}/{method}",
}
KEYED = {"authorization": "Bearer k", "x-goog-api-key": "k", "anthropic-version": "2023-06-01"}


METHODS = {
    "gemini": {"once": "generateContent", "stream": "streamGenerateContent"},
    "bedrock": {"once": "converse", "stream": "converse-stream"},
    "anthropic": {"once": "invoke", "stream": "invoke-with-response-stream"},
}


def path_of(row: Dialect, stream: bool = False) -> str:
    base = row.base_url.partition("//")[2].partition("/")[2]
    path = ("/" + base if base else "") + (row.path.partition("?")[0] or TAILS[row.wire])
    if row.envelope:
        path += "/{model}/{method}"
    methods = row.methods or METHODS.get(row.wire, {})
    method = methods.get("stream" if stream else "once", "")
    path = path.replace("{model}", "a-model").replace("{method}", method)
    return f"/{row.provider}" + re.sub(r"\{(\w+)\}", "x", path)


def body_of(row: Dialect, stream: bool = False) -> dict[str, Any]:
    if row.wire == "gemini":
        return {"contents": [{"role": "user", "parts": [{"text": LONG}]}]}
    if row.wire == "bedrock":
        return {"messages": [{"role": "user", "content": [{"text": LONG}]}]}
    if row.wire == "openai_responses":
        return {"model": "a-model", "input": LONG, "stream": stream}
    limit = {"max_tokens": 400} if row.wire == "anthropic" else {}
    messages = [{"role": "user", "content": LONG}]
    named = {} if row.constants else {"model": "a-model", "stream": stream}
    return {**named, "messages": messages, **limit, **row.constants}


def ask(engine: Engine, path: str, body: dict[str, Any], at: float = 0.0, **query: str) -> Any:
    return engine.respond(
        EmulatorRequest(
            method="POST",
            path=path,
            query=query,
            headers=KEYED,
            body=json.dumps(body).encode(),
            now=at,
        )
    )


@each_row("name", ROWS)
def test_every_dialect_answers_in_its_own_format(name: str) -> None:
    row, engine = ROWS[name], Engine(EmulatorOptions(any_model=True))
    codec = wire.codec_for(row)
    answers = [ask(engine, path_of(row), body_of(row), at) for at in (0.0, 60.0)]
    assert [answer.status for answer in answers] == [200, 200]
    first, second = (codec.read_reply(answer.body) for answer in answers)
    assert first.text
    assert first.usage.input == second.usage.input
    streamed = ask(engine, path_of(row, True), body_of(row, True), 120.0, alt="sse")
    assert streamed.stream
    reader = codec.reader()
    last = [*reader.feed(streamed.body), *reader.close()][-1]
    assert isinstance(last, ReplyEnd)
    assert last.reply.text == first.text


@each_row("name", ROWS)
def test_every_dialect_has_its_own_path(name: str) -> None:
    row = ROWS[name]
    route = Engine().routes.find("POST", path_of(row), KEYED)
    assert route is not None
    assert (route.provider, route.host.wire) == (row.provider, row.wire)


def test_only_selected_providers_answer() -> None:
    engine = Engine(EmulatorOptions(providers=("deepseek",), any_model=True))
    request = {
        name: ask(engine, path_of(ROWS[name]), body_of(ROWS[name])).status
        for name in ("deepseek/openai_chat", "openai/openai_chat")
    }
    assert request == {"deepseek/openai_chat": 200, "openai/openai_chat": 404}


def test_deepseek_counts_hits_and_misses(emu: Emulator) -> None:
    with openai.OpenAI(base_url=f"{emu.url}/deepseek", api_key="k", max_retries=0) as client:
        messages: Any = [{"role": "user", "content": LONG}]
        for _ in range(2):
            answer = client.chat.completions.create(model="deepseek-v4-flash", messages=messages)
    assert answer.usage is not None
    usage = answer.usage.model_dump()
    assert usage["prompt_cache_hit_tokens"] % 128 == 0
    assert usage["prompt_cache_hit_tokens"] > 0
    assert (
        usage["prompt_cache_hit_tokens"] + usage["prompt_cache_miss_tokens"]
        == usage["prompt_tokens"]
    )


def test_mistral_client_reads_the_reply(emu: Emulator) -> None:
    with Mistral(api_key="k", server_url=f"{emu.url}/mistral") as client:
        messages: Any = [{"role": "user", "content": "Hello"}]
        single = client.chat.complete(model="mistral-large-latest", messages=messages)
        chunks = list(client.chat.stream(model="mistral-large-latest", messages=messages))
    pieces = [chunk.data.choices[0].delta.content for chunk in chunks if chunk.data.choices]
    streamed = "".join(str(piece or "") for piece in pieces)
    assert streamed == single.choices[0].message.content
    assert chunks[-1].data.usage == single.usage


#: A fault has the error format of the dialect's row, or else the wire's.
FAULTS: dict[tuple[str, str], dict[str, Any]] = {
    ("minimax", "rate-limit"): {"base_resp": {"status_code": 1002}},
    ("minimax", "spend-cap"): {"base_resp": {"status_code": 1008}},
    ("minimax", "500"): {"error": {"type": "server_error"}},
    ("moonshot", "529"): {"error": {"type": "engine_overloaded_error"}},
    ("zai", "rate-limit"): {"error": {"code": "1302"}},
    ("deepseek", "rate-limit"): {"error": {"code": "rate_limit_exceeded"}},
}


@each_row(("provider", "fault"), FAULTS)
def test_fault_has_the_format_of_the_dialect(provider: str, fault: str) -> None:
    row = ROWS[f"{provider}/openai_chat"]
    headers = {"authorization": "Bearer k", HEADER: fault}
    body = json.dumps(body_of(row)).encode()
    request = EmulatorRequest(method="POST", path=path_of(row), headers=headers, body=body)
    sent = json.loads(Engine(EmulatorOptions()).respond(request).body)
    for place, expected in FAULTS[provider, fault].items():
        assert expected.items() <= sent[place].items()
