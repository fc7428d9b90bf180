"""Bedrock through the client: Converse and InvokeModel, streams, the cache at turn two, and the
model behind an opaque ARN."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from support.bedrock_server import BedrockServer, bedrock_server
from support.local_server import local_server

from anaphora import CachePolicy, Call, Client, Message, PromptBlock, PromptIR
from anaphora.client.config import ClientConfig
from anaphora.emulator.server import Emulator
from anaphora.errors import InvalidRequest, RequestRejected
from anaphora.values import ReplyEnd, TextDelta

MODEL = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
ARN = "arn:aws:bedrock:us-east-1:000000000000:application-inference-profile/abc"
LONG = "You are a helpful assistant, and you never guess. " * 400


@pytest.fixture
def bedrock(emu: Emulator) -> Iterator[BedrockServer]:
    with bedrock_server(emu.url) as server:
        yield server


def configured(server: BedrockServer, monkeypatch: pytest.MonkeyPatch, **entry: Any) -> Client:
    monkeypatch.setenv("BEDROCK_TEST_KEY", "ABSK-canary")
    entry = {"base_url": server.url, "key": {"env": "BEDROCK_TEST_KEY"}, "region": "r", **entry}
    return Client.from_config(ClientConfig.from_mapping({"providers": {"aws": entry}}))


@pytest.mark.parametrize("dialect", ["bedrock", "bedrock/anthropic/invoke"])
@pytest.mark.parametrize("streams", [False, True])
def test_the_cache_is_read_at_turn_two(
    bedrock: BedrockServer, monkeypatch: pytest.MonkeyPatch, dialect: str, streams: bool
) -> None:
    system = f"{LONG} {dialect} {streams}"
    with configured(bedrock, monkeypatch, dialect=dialect, model=MODEL) as client:
        chat = client.session("aws", system=system)
        usages = []
        for text in ("Hello", "And now?"):
            if streams:
                *events, end = chat.send(text)
                assert any(isinstance(event, TextDelta) for event in events)
                assert isinstance(end, ReplyEnd)
                usages.append(end.reply.usage)
            else:
                usages.append(chat.send(text).result().usage)
    path, headers, _ = bedrock.requests[-1]
    method = {"bedrock": "converse"}.get(dialect, "invoke")
    assert path.startswith(f"/model/us.anthropic.claude-sonnet-4-5-20250929-v1%3A0/{method}")
    sent = {name.lower(): value for name, value in headers.items()}
    assert sent["authorization"] == "Bearer ABSK-canary"
    assert usages[0].written_total
    assert usages[1].read
    assert usages[1].read >= usages[0].written_total


def test_an_opaque_arn_needs_its_model(
    bedrock: BedrockServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with configured(bedrock, monkeypatch, dialect="bedrock", model=ARN) as client:
        with pytest.raises(
            InvalidRequest, match=r"providers\.aws\.models, under the ARN"
        ) as raised:
            client.complete("Hello", "aws")
        assert ARN in str(raised.value)
    models = {ARN: {"model": "anthropic.claude-opus-5-5"}}
    named = configured(bedrock, monkeypatch, dialect="bedrock", model=ARN, models=models)
    with named as client:
        assert client.session("aws", system=LONG).send("Hello").result().text
    assert bedrock.requests[-1][0] == "/model/" + quote(ARN, safe="") + "/converse"
    assert b"cachePoint" in bedrock.requests[-1][2]


def test_a_refusal_names_the_block_that_was_meant() -> None:
    """Cache points are blocks of the request, and not of the prompt."""
    pointer = "#/system/2: extraneous key [x] is not permitted"
    message = f"The model returned the following errors: Malformed input request: {pointer}"
    headers = {"x-amzn-errortype": "ValidationException:http://internal.amazon.com/coral/"}
    blocks = [PromptBlock("a", LONG, CachePolicy.EPHEMERAL_5M), PromptBlock("b", "Be terse.")]
    call = Call(ir=PromptIR.chat([Message.user("Hi")], system=blocks), model=MODEL)
    with local_server(lambda _: (400, headers, {"message": message})) as server:
        entry = {"dialect": "bedrock", "region": "r", "key": {"env": "KEY"}, "model": MODEL}
        config = {"providers": {"aws": {**entry, "base_url": server.url}}}
        with (
            Client.from_config(config, environ={"KEY": "k"}) as client,
            pytest.raises(RequestRejected) as raised,
        ):
            client.complete(call, "aws")
    system = json.loads(server.requests[0].body)["system"]
    assert [next(iter(block)) for block in system][:3] == ["text", "cachePoint", "text"]
    assert raised.value.param == "system[1]"
