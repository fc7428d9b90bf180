"""Single calls with `conversation=True`: the app sends the whole history each time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import anaphora
from anaphora.emulator.server import Emulator
from anaphora.errors import InvalidRequest

MODELS = {
    "anthropic": "claude-sonnet-4-5",
    "openai_chat": "gpt-5.2",
    "openai_responses": "gpt-5.2",
    "gemini": "gemini-2.5-flash",
}
SYSTEM = "Answer in short sentences. " + "Look before you leap, and say what you saw. " * 400


def client_for(emu: Emulator, wire: str) -> anaphora.Client:
    provider = {"wire": wire, "base_url": emu.url, "key": {"env": "KEY"}, "model": MODELS[wire]}
    return anaphora.Client.from_config({"providers": {"main": provider}}, environ={"KEY": "k"})


@pytest.mark.parametrize("wire", MODELS)
def test_each_call_after_the_first_is_judged_against_the_one_before(
    emu: Emulator, wire: str
) -> None:
    history: list[Any] = ["What do you see?"]
    verdicts = []
    with client_for(emu, wire) as client:
        for _ in range(4):
            answer = client.complete(history, "main", system=SYSTEM, conversation=True)
            verdicts.append(answer.verdict)
            history = [
                *(
                    anaphora.Message.user(each) if isinstance(each, str) else each
                    for each in history
                ),
                answer.reply.message,
                anaphora.Message.user("And then?"),
            ]
    assert all(verdicts)
    results = [verdict.result for verdict in verdicts if verdict is not None]
    assert results[0] == "first"
    assert results[2:] == ["hit", "hit"], [str(each) for each in verdicts]


def test_a_changed_beginning_is_named(emu: Emulator) -> None:
    with client_for(emu, "anthropic") as client:
        for day in ("Monday", "Tuesday", "Wednesday"):
            messages: list[Any] = [
                "What do you see?",
                anaphora.Message.assistant("A dog."),
                "And then?",
            ]
            system = f"Today is {day}. {SYSTEM}"
            answer = client.complete(messages, "main", system=system, conversation=True)
    assert answer.verdict is not None
    assert answer.verdict.result != "hit"
    assert answer.verdict.change is not None
    assert "system" in str(answer.verdict)


def test_without_it_there_is_no_verdict(emu: Emulator) -> None:
    with client_for(emu, "anthropic") as client:
        assert client.complete("Hello?", "main").verdict is None


def test_a_session_has_no_such_keyword(emu: Emulator) -> None:
    options: Any = {"conversation": True}
    with client_for(emu, "anthropic") as client:
        with pytest.raises(InvalidRequest, match="unknown keyword"):
            client.session("main", **options)
        options = {"conversation": "yes"}
        with pytest.raises(InvalidRequest, match="conversation: must be True or False"):
            client.complete("Hello?", "main", **options)


def test_a_stream_is_iterated_over_from_any_event_loop(emu: Emulator) -> None:
    """As adapters of frameworks do: the client has a loop of its own."""
    with client_for(emu, "anthropic") as client:

        async def streamed(most: int | None = None) -> tuple[int, Any]:
            turn, count = client._client.send("Hello?", "main", conversation=True), 0
            events = client._background.iterate_from_loop(turn.__aiter__)
            async for _ in events:
                count += 1
                if count == most:
                    break
            await events.aclose()
            return count, turn.response

        for _ in range(2):
            count, response = asyncio.run(streamed())
            assert count > 3
            assert response is not None
            assert response.verdict is not None
        count, response = asyncio.run(streamed(most=1))
        assert (count, response) == (1, None)
        assert client.complete("Hello?", "main").text
