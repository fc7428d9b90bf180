"""Costs beyond the counts of a usage: Anthropic's iterations (compaction, advisors, and models that
declined), and Gemini's tokens of audio, which have a price of their own."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from support.raw_server import answering, raw_server, reply

from anaphora import AsyncClient, catalog, wire
from anaphora.values import Message, Reply
from anaphora.wire.replies import reply_events

MODEL, ADVISOR = "claude-sonnet-4-5", "claude-opus-4-5"
COUNTS = {"input_tokens": 1000, "output_tokens": 500}
OWN_USD, ADVISOR_USD = Decimal("0.0105"), Decimal("0.0175")
OWN = {"type": "message", **COUNTS}
COMPACTION = {"type": "compaction", **COUNTS}
ADVICE = {"type": "advisor_message", "model": ADVISOR, **COUNTS}
DECLINED = {"type": "message", "model": ADVISOR, **COUNTS}
SERVED = {"type": "fallback_message", "model": MODEL, **COUNTS}


async def cost_of(iterations: list[object], *, streamed: bool, session: bool) -> Decimal | None:
    codec = wire.get("anthropic")
    usage = codec.read_reply(
        json.dumps({"content": [], "usage": {**COUNTS, "iterations": iterations}}).encode()
    ).usage
    answer = Reply(
        id="r", model=MODEL, message=Message.assistant("Hi."), stop_reason="end", usage=usage
    )
    writer = codec.writer()
    body, kind = codec.write_reply(answer), "application/json"
    if streamed:
        body, kind = b"".join(map(writer.write, reply_events(answer))), "text/event-stream"
    assert b'"iterations"' in body
    async with raw_server(answering(reply(body, "200 OK", f"Content-Type: {kind}"))) as server:
        provider = {"wire": "anthropic", "base_url": server.url, "key": {"env": "KEY"}}
        settings = {"providers": {"anthropic": provider}}
        async with AsyncClient.from_config(settings, environ={"KEY": "k"}) as client:
            if not session:
                return (await client.complete("Hello.", "anthropic", model=MODEL)).cost_usd
            chat = client.session("anthropic", model=MODEL)
            turn = chat.send("Hello.")
            if streamed:
                async for _ in turn:
                    pass
            response = await turn
            assert chat.cost_usd == response.cost_usd
            return response.cost_usd


@pytest.mark.parametrize(("streamed", "session"), [(False, False), (False, True), (True, True)])
def test_iterations_are_part_of_the_cost(streamed: bool, session: bool) -> None:
    rows: list[tuple[list[object], Decimal]] = [
        ([OWN], OWN_USD),
        ([OWN, COMPACTION], 2 * OWN_USD),
        ([OWN, COMPACTION, ADVICE], 2 * OWN_USD + ADVISOR_USD),
        ([DECLINED, SERVED], OWN_USD + ADVISOR_USD),
        ([{"type": "message", "input_tokens": "many"}], OWN_USD),
        ([], OWN_USD),
    ]
    for iterations, usd in rows:
        cost = asyncio.run(cost_of(iterations, streamed=streamed, session=session))
        assert cost == usd, iterations


def test_audio_has_its_own_price() -> None:
    """For Flash-Lite three times that of text."""

    async def cost(*modalities: dict[str, object]) -> Decimal:
        usage = {
            "promptTokenCount": 1000,
            "candidatesTokenCount": 10,
            "promptTokensDetails": modalities,
        }
        candidate = {"content": {"role": "model", "parts": [{"text": "It sings."}]}}
        body = json.dumps({"candidates": [candidate], "usageMetadata": usage}).encode()
        kind = "Content-Type: application/json"
        async with raw_server(answering(reply(body, "200 OK", kind))) as server:
            provider = {"wire": "gemini", "base_url": server.url, "key": {"env": "KEY"}}
            settings = {"providers": {"gemini": provider}}
            async with AsyncClient.from_config(settings, environ={"KEY": "k"}) as client:
                response = await client.complete("Hi", "gemini", model="gemini-2.5-flash-lite")
                assert response.cost_usd is not None
                return response.cost_usd

    text = asyncio.run(cost({"modality": "TEXT", "tokenCount": 1000}))
    mixed = asyncio.run(
        cost({"modality": "TEXT", "tokenCount": 200}, {"modality": "AUDIO", "tokenCount": 800})
    )
    price = catalog.price("google", "gemini-2.5-flash-lite", datetime.now(UTC))
    assert price is not None
    assert price.input
    assert mixed - text == 2 * 800 * price.input / 1_000_000
