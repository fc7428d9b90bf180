"""`count_tokens`: the provider's own count where it has one, an estimate with a notice elsewhere."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from support.clouds import Json, needs_clouds, records
from support.emulated_client import settings
from support.local_server import LocalServer, local_server
from support.tables import each_row

from anaphora import Client, Tool, catalog
from anaphora.client.config import ClientConfig
from anaphora.emulator.server import Emulator
from anaphora.errors import Unauthenticated
from anaphora.wire.counting import count_request

SONNET = "us.anthropic.claude-sonnet-4-20250514-v1:0"
ARN = "arn:aws:bedrock:us-east-1:000000000000:application-inference-profile/abc"
PROJECT = "/v1/projects/p/locations/global/publishers"
TOOL = Tool("look", "Looks.", schema='{"type":"object"}')


def client_at(server: LocalServer, **entry: Any) -> Client:
    entry = {"base_url": server.url + entry.pop("path", ""), "key": {"env": "KEY"}, **entry}
    config = ClientConfig.from_mapping({"providers": {"cloud": entry}})
    return Client.from_config(config, environ={"KEY": "k"})


@each_row(
    ("entry", "path", "answer", "asked"),
    [
        (
            {"dialect": "bedrock", "region": "r", "model": SONNET},
            "/model/anthropic.claude-sonnet-4-20250514-v1%3A0/count-tokens",
            {"inputTokens": 21},
            {"input.converse.messages", "input.converse.system", "input.converse.toolConfig"},
        ),
        (
            {"dialect": "bedrock/anthropic/invoke", "region": "r", "model": SONNET},
            "/model/anthropic.claude-sonnet-4-20250514-v1%3A0/count-tokens",
            {"inputTokens": 21},
            {"input.invokeModel.body"},
        ),
        (
            {
                "dialect": "bedrock",
                "region": "r",
                "model": ARN,
                "models": {ARN: {"model": "global.anthropic.claude-opus-5-5"}},
            },
            "/model/anthropic.claude-opus-5-5/count-tokens",
            {"inputTokens": 21},
            {"input.converse.messages", "input.converse.system", "input.converse.toolConfig"},
        ),
        (
            {"dialect": "bedrock/anthropic", "region": "r", "model": "anthropic.claude-opus-5-5"},
            "/anthropic/v1/messages/count_tokens",
            {"input_tokens": 21},
            {"model", "messages", "system", "tools"},
        ),
        (
            {"dialect": "vertex/anthropic", "path": f"{PROJECT}/anthropic", "model": "claude-opus-5-5"},
            f"{PROJECT}/anthropic/models/count-tokens:rawPredict",
            {"input_tokens": 21},
            {"model", "messages", "system", "tools", "anthropic_version"},
        ),
        (
            {"dialect": "vertex", "path": f"{PROJECT}/google", "model": "gemini-2.5-flash"},
            f"{PROJECT}/google/models/gemini-2.5-flash:countTokens",
            {"totalTokens": 21},
            {"contents", "systemInstruction", "tools"},
        ),
        (
            {"dialect": "anthropic/anthropic/foundry", "model": "my-claude"},
            "/anthropic/v1/messages/count_tokens",
            {"input_tokens": 21},
            {"model", "messages", "system", "tools"},
        ),
    ],
)  # fmt: skip
def test_clouds_count(entry: Json, path: str, answer: Json, asked: set[str]) -> None:
    with local_server(lambda _: (200, {}, answer)) as server, client_at(server, **entry) as client:
        counted = client.count_tokens("Hello", "cloud", system="Be short.", tools=[TOOL])
    assert (counted.tokens, counted.exact) == (21, True)
    (request,) = server.requests
    assert request.path == path
    sent = json.loads(request.body)
    assert {place for place in asked if _at(sent, place)} == asked
    assert b"cachePoint" not in request.body
    if "input.invokeModel.body" in asked:
        body = json.loads(base64.b64decode(sent["input"]["invokeModel"]["body"]))
        assert body["anthropic_version"] == "bedrock-2023-05-31"
        assert "model" not in body


def _at(value: Any, place: str) -> Any:
    for name in place.split("."):
        value = value.get(name, {})
    return value


@each_row(
    ("status", "message"),
    [(400, "The provided model doesn't support counting tokens."), (403, "not authorized"), (500, "")],
)  # fmt: skip
def test_refused_count_is_estimated(status: int, message: str) -> None:
    """With the provider's words."""
    errortype = {400: "ValidationException", 403: "AccessDeniedException"}.get(status, "Internal")
    headers = {"x-amzn-errortype": errortype}
    entry = {"dialect": "bedrock", "region": "r", "model": SONNET}
    with (
        local_server(lambda _: (status, headers, {"message": message})) as server,
        client_at(server, **entry) as client,
    ):
        counted = client.count_tokens("Hello, world!", "cloud")
    assert not counted.exact
    assert 1 < counted.tokens < 30
    (notice,) = counted.notices
    assert notice.code == "estimated"
    assert message in notice.message


def test_invalid_key_is_an_error() -> None:
    headers = {"x-amzn-errortype": "UnrecognizedClientException"}
    entry = {"dialect": "bedrock", "region": "r", "model": SONNET}
    with (
        local_server(lambda _: (403, headers, {"message": "The security token is invalid."})) as it,
        client_at(it, **entry) as client,
        pytest.raises(Unauthenticated),
    ):
        client.count_tokens("Hello", "cloud")


@pytest.mark.parametrize("name", ["anthropic", "openai_responses", "gemini", "openai_chat"])
def test_providers_without_a_cloud_count(emu: Emulator, name: str) -> None:
    config = {"providers": settings(emu.url, [name])}
    with Client.from_config(config, environ={"KEY": "k"}) as client:
        counted = client.count_tokens("Hello, world!", system="Be short.")
    assert 1 < counted.tokens < 60
    assert counted.exact == (name != "openai_chat")
    assert [notice.code for notice in counted.notices] == ["estimated"] * (not counted.exact)


@needs_clouds
def test_recorded_counts_are_asked_alike() -> None:
    """The body of each recorded count, made from the request that it is about."""
    row = catalog.dialects().find("bedrock")
    found = list(records("bedrock", "bedrock_count_tokens"))
    for record in found:
        inner = json.loads(record["request"])["input"]["converse"]
        model = record["path"].split("/")[2].replace("%3A", ":")
        sent = json.dumps({**inner, "inferenceConfig": {"maxTokens": 9}}).encode()
        made = count_request("bedrock", row, f"us.{model}", "/model/x/converse", sent)
        assert made is not None
        assert made.path == record["path"]
        assert json.loads(made.body) == {"input": {"converse": inner}}
    assert len(found) == 4
