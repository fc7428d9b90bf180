"""DSPy's own modules on `AnaphoraLM`, against the emulator."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dspy")

import dspy
from support.emulated_client import KEY, LONG, MODELS, settings
from support.unread_prefix import CALLS, assert_noticed, never_readable

import anaphora
from anaphora import emulator
from anaphora.emulator import EmulatorOptions, Latency, Script
from anaphora.emulator.server import Emulator
from anaphora.errors import InvalidRequest
from dspy_adapter import AnaphoraLM

WIRES = ("anthropic", "openai_chat", "openai_responses", "gemini")

#: DSPy 3.4 announces another interface for 3.5.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


#: Each question but one has the right answer, in DSPy's JSON.
SCRIPT = """
replies:
  - match: {text: "What is 7?"}
    reply: {text: '{"answer": "wrong"}'}
  - match: {text: "What is "}
    reply: {text: '{"answer": "right"}'}
"""


def scripted() -> AbstractContextManager[Emulator]:
    options = EmulatorOptions(latency=Latency(first=0.0), script=Script.decode(SCRIPT, "test"))
    return emulator.running(options)


def client_of(emu: Emulator) -> anaphora.Client:
    config = {"providers": settings(emu.url, WIRES)}
    return anaphora.Client.from_config(config, environ={"KEY": KEY})


@pytest.fixture
def client(emu: Emulator) -> Iterator[anaphora.Client]:
    with client_of(emu) as client:
        yield client


def lm_of(client: anaphora.Client, provider: str = "anthropic", **options: Any) -> AnaphoraLM:
    return AnaphoraLM(MODELS[provider], provider=provider, client=client, **options)


def billed(emu: Emulator) -> list[dict[str, Any]]:
    return [entry for entry in emu.requests() if "read" in entry]


def paid_for_the_prefix(emu: Emulator) -> int:
    calls = billed(emu)
    return sum(max(sum(e["written"].values()), e["uncached"]) > 1000 for e in calls)


def is_right(*args: Any) -> bool:
    return bool(args[1].answer == "right")


@pytest.mark.parametrize("provider", ["anthropic", "openai_responses", "gemini"])
def test_twenty_examples_write_the_prefix_at_most_twice(provider: str) -> None:
    examples = [
        dspy.Example(question=f"What is {number}?", answer="?").with_inputs("question")
        for number in range(20)
    ]
    program = dspy.Predict(dspy.Signature("question -> answer", LONG))
    evaluate = dspy.Evaluate(devset=examples, metric=is_right, num_threads=20)
    with scripted() as emu, client_of(emu) as client:
        with dspy.context(lm=lm_of(client, provider), adapter=dspy.JSONAdapter()):
            result = evaluate(program)
        assert result.score == 95.0  # all but the seventh
        assert len(billed(emu)) == 20
        assert paid_for_the_prefix(emu) <= 2


def test_calls_that_did_not_read_the_prefix_say_so(
    client: anaphora.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_readable(monkeypatch)
    lm = lm_of(client, "openai_responses")
    system = {"role": "system", "content": LONG}

    async def main() -> list[Any]:
        questions = [[system, {"role": "user", "content": f"{i}?"}] for i in range(CALLS)]
        return await asyncio.gather(*(lm.aforward(messages=each) for each in questions))

    assert_noticed(each.notices for each in asyncio.run(main()))


@pytest.mark.skipif(
    not hasattr(dspy.BaseLM, "supports_response_schema"),
    reason="this version asks LiteLLM, not the LM, whether there are schemas",
)
@pytest.mark.parametrize("provider", WIRES)
def test_a_signature_is_answered_by_the_schema(client: anaphora.Client, provider: str) -> None:
    with dspy.context(lm=lm_of(client, provider), adapter=dspy.JSONAdapter()):
        prediction = dspy.Predict("question -> answer: str, days: int")(question="Rome?")
    assert isinstance(prediction.answer, str)
    assert isinstance(prediction.days, int)


@pytest.mark.parametrize("provider", WIRES)
def test_calls_return_texts_and_keep_usage_and_cost(
    client: anaphora.Client, emu: Emulator, provider: str
) -> None:
    lm = lm_of(client, provider, max_tokens=30)
    (text,) = lm("Hello?")
    assert (text if isinstance(text, str) else text["text"]) is not None
    entry = lm.history[-1]
    (call,) = billed(emu)
    assert entry["cost"] == pytest.approx(float(call["cost_usd"]))
    usage = entry["usage"]
    assert usage["prompt_tokens"] == call["read"] + call["uncached"] + sum(call["written"].values())
    assert usage["prompt_tokens_details"]["cached_tokens"] == call["read"]
    assert len(lm("Hello?", n=3, temperature=1.0)) == 3


def test_async_calls_pass_the_same_gate(client: anaphora.Client, emu: Emulator) -> None:
    lm = lm_of(client, max_tokens=30)
    system = {"role": "system", "content": LONG}

    async def main() -> list[Any]:
        questions = [[system, {"role": "user", "content": f"{i}?"}] for i in range(8)]
        return await asyncio.gather(*(lm.acall(messages=each) for each in questions))

    assert len(asyncio.run(main())) == 8
    assert paid_for_the_prefix(emu) == 1


def test_tools_are_offered_and_called(client: anaphora.Client) -> None:
    tool = {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
    (output,) = lm_of(client)("Weather in Rome?", tools=[tool], tool_choice="required")
    (call,) = output["tool_calls"]
    assert call.function.name == "weather"


def test_copies_share_the_client_and_state_is_saved(
    client: anaphora.Client, emu: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = lm_of(client, max_tokens=30)
    assert copy.deepcopy(lm)("Hello?")
    assert lm.copy(temperature=0.5)("Hello?")
    state = AnaphoraLM(MODELS["anthropic"], client=client, provider="anthropic").dump_state()
    assert state["provider"] == "anthropic"
    assert KEY not in repr(state)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "any")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", emu.url)
    own = AnaphoraLM("claude-sonnet-5-5", max_tokens=30)
    program = dspy.Predict("question -> answer")
    program.lm = own
    program.save(tmp_path / "program.json")
    assert "claude-sonnet-5-5" in (tmp_path / "program.json").read_text()


def test_wrong_arguments_are_named(client: anaphora.Client) -> None:
    with pytest.raises(InvalidRequest, match="model"):
        AnaphoraLM("no-such-model", client=client)
    with pytest.raises(InvalidRequest, match="api_key"):
        lm_of(client, api_key="sk-canary")("Hello?")
    with pytest.raises(InvalidRequest, match="response_format"):
        lm_of(client)("Hello?", response_format=3)
