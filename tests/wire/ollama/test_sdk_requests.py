"""Requests of Ollama's SDK round trip, and its asynchronous client reads our streams."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import ollama as sdk
import pytest
from support.byte_server import byte_server
from support.roundtrip import RecordedExchange
from support.roundtrip.rules import check
from support.sdk.case import PNG
from support.sdk.ollama import ASK, CASE


def add(a: int, b: int) -> int:
    """Adds.

    Args:
      a: one number
      b: another
    """
    return a + b


SENT: list[dict[str, Any]] = [
    {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    {"model": "m", "messages": [{"role": "user", "content": "hi", "images": [PNG.data]}]},
    {
        "model": "m",
        "messages": [
            {
                "role": "assistant",
                "tool_calls": [{"function": {"name": "add", "arguments": {"a": 1}}}],
            },
            {"role": "tool", "content": "3", "tool_name": "add"},
        ],
        "tools": [add],
        "think": "low",
        "format": {"type": "object"},
        "options": {"temperature": 0, "num_ctx": 10},
        "keep_alive": 3.5,
        "stream": True,
    },
]


@pytest.mark.parametrize("requested", SENT)
def test_requests_of_the_sdk_round_trip(
    requested: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[dict[str, Any]] = []

    class Stop(Exception):
        pass

    def catch(*_: Any, **fields: Any) -> Any:
        sent.append(fields["json"])
        raise Stop

    with sdk.Client() as client:
        monkeypatch.setattr(client, "_request", catch)
        with pytest.raises(Stop):
            client.chat(**requested)
    request = json.dumps(sent[0])
    outcome = check(RecordedExchange(id="", wire="ollama", request=request, response="{}"))
    assert (outcome.unparsed, outcome.changed, outcome.notices) == ("", "", ())


@pytest.mark.parametrize("name", CASE.replies)
def test_the_asynchronous_sdk_reads_a_stream(name: str) -> None:
    async def ask(address: str) -> list[Any]:
        async with sdk.AsyncClient(address) as client:
            return [part async for part in await client.chat(**ASK, stream=True)]

    reply = CASE.replies[name]
    with byte_server(CASE.stream(reply), CASE.content_type) as address:
        CASE.check_stream(asyncio.run(ask(address)), reply)
