"""boto3 at a local Bedrock, observed: InvokeModel and Converse of Claude, whole and streamed. And
Google's credentials on httplib2."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("boto3")

pytest.importorskip("google_auth_httplib2")

import boto3
import botocore.exceptions
import google_auth_httplib2
from botocore.config import Config
from google.oauth2.credentials import Credentials
from support.bedrock_server import BedrockServer, bedrock_server
from support.framework_pages import fences

import anaphora
from anaphora.emulator.server import Emulator
from anaphora.integrations.observation import shared
from anaphora.traffic.sums import JudgedCall

GUIDE = "Answer in short sentences. " + "Look before you leap, and say what you saw. " * 200
MODEL = "us.anthropic.claude-opus-5-5-v1:0"
TOOL = {
    "name": "look",
    "description": "Looks at a place.",
    "inputSchema": {"json": {"type": "object", "properties": {"place": {"type": "string"}}}},
}


@pytest.fixture(autouse=True)
def own_judge() -> Iterator[None]:
    shared.cache_clear()
    hooked = ("putrequest", "send", "getresponse")
    before = [getattr(http.client.HTTPConnection, name) for name in hooked]
    yield
    assert [getattr(http.client.HTTPConnection, name) for name in hooked] == before
    shared.cache_clear()


@pytest.fixture
def bedrock(emu: Emulator) -> Iterator[BedrockServer]:
    with bedrock_server(emu.url) as server:
        yield server


def client_of(bedrock: BedrockServer, **options: Any) -> Any:
    return boto3.client(
        "bedrock-runtime",
        region_name="us-east-1",
        endpoint_url=bedrock.url,
        aws_access_key_id="AKIACANARY9AF3XLQ8ZP",
        aws_secret_access_key="canary-9aF3xLq8ZpQ7",
        config=Config(**options),
    )


def turns(count: int) -> list[Any]:
    messages = [{"role": "user", "content": [{"text": "Hello"}]}]
    for turn in range(1, count):
        use = {"toolUseId": f"t{turn}", "name": "look", "input": {"place": f"door {turn}"}}
        result = {"toolUseId": f"t{turn}", "content": [{"text": f"number {turn}"}]}
        messages.append({"role": "assistant", "content": [{"toolUse": use}]})
        messages.append({"role": "user", "content": [{"toolResult": result}]})
    return messages


def converse(guide: str, count: int) -> dict[str, Any]:
    return {
        "modelId": MODEL,
        "system": [{"text": guide}, {"cachePoint": {"type": "default"}}],
        "messages": turns(count),
        "inferenceConfig": {"maxTokens": 40},
        "toolConfig": {"tools": [{"toolSpec": TOOL}]},
    }


def invocation(guide: str, count: int) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Hello"}]
    for turn in range(1, count):
        messages.append({"role": "assistant", "content": f"Answer {turn}."})
        messages.append({"role": "user", "content": f"And then, number {turn}?"})
    body = {
        "anthropic_version": "bedrock-2023-05-31",
        "max_tokens": 40,
        "system": [{"type": "text", "text": guide, "cache_control": {"type": "ephemeral"}}],
        "messages": messages,
    }
    return {"modelId": MODEL, "body": json.dumps(body)}


def ask_converse(client: Any, guide: str = GUIDE, count: int = 1) -> Any:
    return client.converse(**converse(guide, count))["output"]["message"]["content"]


def stream_converse(client: Any, guide: str = GUIDE, count: int = 1) -> Any:
    events = list(client.converse_stream(**converse(guide, count))["stream"])
    assert "metadata" in events[-1]
    return events


def ask_invoke(client: Any, guide: str = GUIDE, count: int = 1) -> Any:
    return json.loads(client.invoke_model(**invocation(guide, count))["body"].read())["content"]


def stream_invoke(client: Any, guide: str = GUIDE, count: int = 1) -> Any:
    answer = client.invoke_model_with_response_stream(**invocation(guide, count))
    return [json.loads(event["chunk"]["bytes"]) for event in answer["body"]]


ASK: list[Callable[..., Any]] = [ask_converse, stream_converse, ask_invoke, stream_invoke]


@pytest.mark.parametrize("ask", ASK)
def test_every_operation_is_judged_by_its_bill(
    emu: Emulator, bedrock: BedrockServer, ask: Callable[..., Any]
) -> None:
    client = client_of(bedrock)
    with anaphora.observing(addresses={bedrock.url: "bedrock"}) as seen:
        for turn in (1, 2, 3):
            assert ask(client, count=turn)
        assert ask(client, guide=f"Today. {GUIDE}")
    ask(client)
    assert [(call.provider, call.model) for call in seen.calls] == ([("bedrock", MODEL)] * 4)
    assert [call.turn for call in seen.calls][:3] == [1, 2, 3]
    billed = [each["read"] for each in emu.requests()][:0:-1]
    assert [call.usage and call.usage.read for call in seen.calls] == billed
    assert billed[1] > 1000
    results = [call.verdict.result for call in seen.calls if call.verdict]
    assert results[:3] == ["first", "hit", "hit"]
    assert results[3] != "hit"


@pytest.mark.parametrize("ask", ASK)
def test_client_is_observed(bedrock: BedrockServer, ask: Callable[..., Any]) -> None:
    calls: list[JudgedCall] = []
    client, other = client_of(bedrock), client_of(bedrock)
    plain = ask(other)
    assert anaphora.observe(client, on_verdict=calls.append, provider="bedrock") is client
    observed = ask(client)
    ask(other)
    assert len(calls) == 1
    assert len(str(observed)) == pytest.approx(len(str(plain)), rel=0.5)


def test_address_of_the_environment_is_known(
    bedrock: BedrockServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", bedrock.url)
    with anaphora.observing() as seen:
        ask_converse(client_of(bedrock))
    assert [call.kind for call in seen.calls] == ["judged"]


def test_retried_answers_are_seen_and_the_last_is_judged(bedrock: BedrockServer) -> None:
    bedrock.failures = [429]
    client = client_of(bedrock, retries={"max_attempts": 2, "mode": "standard"})
    with anaphora.observing(addresses={bedrock.url: "bedrock"}) as seen:
        ask_converse(client)
    assert [(call.kind, call.status) for call in seen.calls] == [("error", 429), ("judged", 200)]


def test_signed_request_is_sent_unchanged_with_markers_on(bedrock: BedrockServer) -> None:
    client = client_of(bedrock)
    ask_invoke(client)
    anaphora.observe(client, provider="bedrock", mark=True)
    for _ in range(2):
        ask_invoke(client)
    bodies = {body for _, _, body in bedrock.requests}
    assert len(bodies) == 1


def test_error_of_the_service_reaches_the_program(bedrock: BedrockServer) -> None:
    client = client_of(bedrock, retries={"total_max_attempts": 1, "mode": "standard"})
    wrong = converse(GUIDE, 1)
    wrong["messages"] = [{"role": "assistant", "content": [{"text": ""}]}]
    with (
        anaphora.observing(addresses={bedrock.url: "bedrock"}) as seen,
        pytest.raises(botocore.exceptions.ClientError),
    ):
        client.converse(**wrong)
    assert [call.kind for call in seen.calls] == ["error"]


def test_stream_that_is_left_is_cancelled(bedrock: BedrockServer) -> None:
    client = client_of(bedrock)
    with anaphora.observing(addresses={bedrock.url: "bedrock"}) as seen:
        stream = client.converse_stream(**converse(GUIDE, 1))["stream"]
        next(iter(stream))
        stream.close()
    assert [call.kind for call in seen.calls] == ["cancelled"]


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_the_page_runs(
    bedrock: BedrockServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {
        "AWS_ENDPOINT_URL_BEDROCK_RUNTIME": bedrock.url,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any",
    }.items():
        monkeypatch.setenv(name, value)
    exec(compile(fences("clouds.md", "python")[0], "clouds.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 3
    assert "tokens read" in printed[1]


def _credentials() -> Any:
    return Credentials(token="canary")  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("observed", ["client", "block"])
def test_google_credentials_on_httplib2(emu: Emulator, observed: str) -> None:
    http: Any = google_auth_httplib2.AuthorizedHttp(_credentials())
    url = f"{emu.url}/google/v1beta/models/gemini-3-flash-preview:generateContent"
    body = json.dumps({"contents": [{"role": "user", "parts": [{"text": GUIDE}]}]})
    where = {f"{emu.url}/google": "google"}
    calls: list[JudgedCall] = []
    if observed == "client":
        anaphora.observe(http, on_verdict=calls.append, addresses=where)
        answer, _ = http.request(url, "POST", body=body)
    else:
        with anaphora.observing(on_verdict=calls.append, addresses=where):
            answer, _ = http.request(url, "POST", body=body)
    assert answer.status == 200
    assert [(call.kind, call.provider) for call in calls] == [("judged", "google")]
    http.close()
