"""Routers with several hosts: random routing, the host in the answer, and requests that ask for
hosts."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from anaphora.emulator import EmulatorOptions
from anaphora.emulator.engine import Engine
from anaphora.emulator.exchange import EmulatorRequest, EmulatorResponse
from anaphora.emulator.faults import Faults

HOSTS = ("Novita", "Google AI Studio", "Together")
PATHS = {
    "openrouter": "/openrouter/api/v1/chat/completions",
    "vercel": "/vercel/v1/chat/completions",
    "huggingface": "/huggingface/v1/chat/completions",
}
LONG = "A line of the manual. " * 1500


def engine(faults: str = "", hosts: tuple[str, ...] = HOSTS) -> Engine:
    rules = Faults.decode(f"faults: [{faults}]", "faults.yaml")
    return Engine(EmulatorOptions(router_hosts=hosts, faults=rules, any_model=True))


def ask(server: Engine, router: str = "openrouter", now: float = 0.0, **fields: Any) -> Any:
    response = respond(server, router, now, **fields)
    assert response.status == 200, response.body
    return json.loads(response.body)


def respond(server: Engine, router: str, now: float = 0.0, **fields: Any) -> EmulatorResponse:
    body = {
        "model": "deepseek/deepseek-v4-flash",
        "messages": [{"role": "user", "content": LONG}],
        **fields,
    }
    request = EmulatorRequest(
        method="POST",
        path=PATHS[router],
        headers={"authorization": "Bearer key"},
        body=json.dumps(body).encode(),
        now=now,
    )
    return server.respond(request)


def host_of(server: Engine) -> str:
    host: str = server.journal.entries()[0]["host"]
    return host


def test_requests_go_to_all_hosts_and_the_answer_names_them() -> None:
    server = engine()
    named = Counter(ask(server)["provider"] for _ in range(60))
    assert set(named) == set(HOSTS)
    assert min(named.values()) > 8


def test_the_same_seed_gives_the_same_hosts() -> None:
    one, two = engine(), engine()
    assert [ask(one)["provider"] for _ in range(9)] == [ask(two)["provider"] for _ in range(9)]


def test_each_router_names_the_host_in_its_own_place() -> None:
    server = engine()
    message = ask(server, "vercel")["choices"][0]["message"]
    routing = message["provider_metadata"]["gateway"]["routing"]
    assert routing["finalProvider"] == host_of(server)
    response = respond(server, "huggingface")
    assert response.headers["x-inference-provider"] == host_of(server)
    assert b"provider" not in response.body


def test_each_host_has_a_cache_of_its_own() -> None:
    server = engine()
    reads = {}
    for turn, host in enumerate((*HOSTS, *HOSTS)):
        answer = ask(server, now=10.0 * turn, provider={"only": [host]})
        reads[turn] = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert [bool(read) for read in reads.values()] == [False] * 3 + [True] * 3


@pytest.mark.parametrize(
    ("router", "fields"),
    [
        ("openrouter", {"provider": {"order": ["Google AI Studio"]}}),
        ("openrouter", {"provider": {"order": ["google-ai-studio", "novita"]}}),
        ("openrouter", {"provider": {"only": ["google-ai-studio"]}}),
        ("vercel", {"providerOptions": {"gateway": {"order": ["Google AI Studio"]}}}),
        ("vercel", {"providerOptions": {"gateway": {"only": ["google-ai-studio"]}}}),
        ("huggingface", {"model": "deepseek-ai/DeepSeek-V4-Flash:google-ai-studio"}),
    ],
)
def test_request_gets_the_host_that_it_asks_for(router: str, fields: dict[str, Any]) -> None:
    server = engine()
    for _ in range(6):
        ask(server, router, **fields)
        assert host_of(server) == "Google AI Studio"


def test_host_that_fails_is_left_unless_the_request_forbids_it() -> None:
    server = engine('{fault: "529", host: Novita}')
    answered = {ask(server, provider={"order": ["novita"]})["provider"] for _ in range(20)}
    assert answered == {"Google AI Studio", "Together"}
    strict = {"order": ["novita"], "allow_fallbacks": False}
    assert respond(server, "openrouter", provider=strict).status == 529
    assert respond(server, "huggingface", model="some/model:novita").status == 529
    assert host_of(server) == "Novita"


def test_unknown_host_of_a_model_is_a_404() -> None:
    response = respond(engine(), "huggingface", model="some/model:nowhere")
    assert response.status == 404
    assert b"nowhere" in response.body


def test_without_the_option_no_host_is_named() -> None:
    server = engine(hosts=())
    assert "provider" not in ask(server)
    assert host_of(server) == ""
