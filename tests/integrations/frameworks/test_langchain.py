"""`ChatAnaphora`, as an application of LangChain uses it."""

from __future__ import annotations

import asyncio
import re
import sys
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("langchain_core", reason="runs where langchain-core is installed")

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from pydantic import BaseModel
from support.emulated_client import RecordingTransport
from support.framework_pages import fences
from support.unread_prefix import CALLS, assert_noticed, never_readable

import anaphora
from anaphora.emulator.server import Emulator
from anaphora.errors import AnaphoraError, InvalidRequest
from anaphora.integrations.langchain import ChatAnaphora

MODELS = {
    "anthropic": "claude-sonnet-4-5",
    "openai_chat": "gpt-5.2",
    "openai_responses": "gpt-5.2",
    "gemini": "gemini-2.5-flash",
}
GUIDE = "Answer in short sentences. " + "Look before you leap, and say what you saw. " * 400
CANARY = "sk-canary-5d1f"
every_wire = pytest.mark.parametrize("wire", MODELS)


def model_on(emu: Emulator, wire: str, **fields: Any) -> ChatAnaphora:
    own = {"provider": wire, "base_url": emu.url, "api_key": CANARY}
    return ChatAnaphora(**{"model": MODELS[wire], **own, **fields})


def ask(model: ChatAnaphora, how: str, messages: list[BaseMessage]) -> AIMessage:
    """The answer in one of the ways that LangChain calls a model."""

    async def streamed() -> Any:
        whole: Any = None
        async for chunk in model.astream(messages):
            whole = chunk if whole is None else whole + chunk
        return whole

    if how == "invoke":
        return model.invoke(messages)
    if how == "ainvoke":
        return asyncio.run(model.ainvoke(messages))
    if how == "astream":
        return asyncio.run(streamed())
    whole: Any = None
    for chunk in model.stream(messages):
        whole = chunk if whole is None else whole + chunk
    return whole


@every_wire
@pytest.mark.parametrize("how", ["invoke", "stream", "ainvoke", "astream"])
def test_usage_and_verdicts_of_a_conversation(emu: Emulator, wire: str, how: str) -> None:
    """`asyncio.run` makes a new loop for each call: the model serves them all."""
    model = model_on(emu, wire)
    messages: list[BaseMessage] = [SystemMessage(GUIDE), HumanMessage("What do you see?")]
    answers = []
    for _ in range(4):
        answers.append(ask(model, how, messages))
        messages += [answers[-1], HumanMessage("And then?")]
    results = [each.response_metadata["verdict"]["result"] for each in answers]
    assert results[0] == "first"
    assert results[2:] == ["hit", "hit"], [each.response_metadata["verdict"] for each in answers]
    usage: Any = answers[3].usage_metadata
    details = usage["input_token_details"]
    assert details["cache_read"] > 3000
    if wire == "anthropic":
        assert details["cache_creation"] > 0
    assert usage["input_tokens"] >= details["cache_read"] + details.get("cache_creation", 0)
    assert answers[3].response_metadata["cost_usd"] > 0
    assert answers[3].response_metadata["model_name"].startswith(MODELS[wire])


def test_models_without_options_share_what_is_known(
    emu: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", CANARY)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", emu.url)
    messages: list[BaseMessage] = [SystemMessage(GUIDE), HumanMessage("Hello?")]
    for number in range(3):
        answer = ChatAnaphora(model="claude-sonnet-4-5").invoke(messages)
        if number:
            assert answer.response_metadata["verdict"]["result"] != "first"
        messages += [answer, HumanMessage("And then?")]
    assert answer.response_metadata["verdict"]["result"] == "hit"


@every_wire
def test_replies_come_back_as_they_were_received(emu: Emulator, wire: str) -> None:
    """Reasoning, signatures and arguments: the next request begins with the bytes of the last."""
    names = {"anthropic": "claude-sonnet-4-5", "gemini": "gemini-3-flash-preview"}
    fields: dict[str, Any] = {"reasoning": "low"}
    if wire == "anthropic":
        fields = {"reasoning": {"mode": "enabled", "budget_tokens": 1024}, "max_tokens": 4000}
    model = model_on(emu, wire, model=names.get(wire, MODELS[wire]), **fields)

    def look(place: str) -> str:
        """Looks at a place."""
        return place

    # Claude refuses a forced choice while it thinks, and gets an instruction.
    with_tools = model.bind_tools([look], tool_choice="any")
    messages: list[BaseMessage] = [SystemMessage(GUIDE), HumanMessage("Look at the door, please.")]
    results = []
    for _ in range(4):
        answer = with_tools.invoke(messages)
        results.append(answer.response_metadata["verdict"])
        messages.append(answer)
        messages += [ToolMessage("A door.", tool_call_id=c["id"]) for c in answer.tool_calls]
        messages.append(HumanMessage("Look again."))
    assert [each["result"] for each in results[2:]] == ["hit", "hit"], results
    assert all(each["lost_tokens"] == 0 for each in results)
    assert {one["status"] for one in emu.requests()} == {200}


class City(BaseModel):
    name: str


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("claude-sonnet-5-5", {}),
        ("claude-opus-5-5", {}),
        (
            "claude-sonnet-4-5",
            {"reasoning": {"mode": "enabled", "budget_tokens": 1024}, "max_tokens": 4000},
        ),
    ],
)
def test_structured_output_of_models_that_refuse_a_forced_choice(
    emu: Emulator, name: str, fields: dict[str, Any]
) -> None:
    model = model_on(emu, "anthropic", model=name, **fields)
    with pytest.warns(UserWarning, match=f"{name} refuses a forced tool choice"):
        structured = model.with_structured_output(City, method="function_calling")
    assert isinstance(structured.invoke("A city, please."), City)
    assert isinstance(model.with_structured_output(City).invoke("A city, please."), City)
    called = model.bind_tools([City], tool_choice="any").invoke("A city, please.")
    assert [call["name"] for call in called.tool_calls] == ["City"]
    assert "an instruction at the end of the system prompt" in str(
        called.response_metadata["notices"]
    )


def test_structured_output_of_other_models_forces_the_tool(emu: Emulator) -> None:
    model = model_on(emu, "anthropic", model="claude-sonnet-4-5")
    structured = model.with_structured_output(City, method="function_calling")
    assert isinstance(structured.invoke("A city, please."), City)


def test_an_edited_reply_is_sent_as_edited(emu: Emulator) -> None:
    transport = RecordingTransport()
    provider = {"wire": "anthropic", "base_url": emu.url, "key": {"env": "KEY"}}
    config = {"providers": {"main": {**provider, "model": "claude-sonnet-4-5"}}}
    environ = {"KEY": CANARY}
    with anaphora.Client.from_config(config, environ=environ, transport=transport) as client:
        fields = {"reasoning": {"mode": "enabled", "budget_tokens": 1024}, "max_tokens": 4000}
        model = ChatAnaphora(client=client, **fields)
        answer = model.invoke("What do you see?")
        assert "anaphora_message" in answer.additional_kwargs, "signed reasoning is kept"
        edited = answer.model_copy(update={"content": "A cat."})
        for reply in (edited, answer):
            model.invoke([HumanMessage("What do you see?"), reply, HumanMessage("And then?")])
        client._background.call(transport.close)
    _, changed, unchanged = transport.bodies
    assert b"A cat." in changed
    assert b'"signature"' not in changed
    assert b'"signature"' in unchanged


class Sight(BaseModel):
    """What was seen."""

    name: str
    legs: int


@every_wire
@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output(emu: Emulator, wire: str, method: Any) -> None:
    form: Any = model_on(emu, wire).with_structured_output(Sight, method=method, include_raw=True)
    answer = form.invoke("What do you see?")
    assert isinstance(answer["parsed"], Sight)
    assert answer["raw"].response_metadata["verdict"]
    assert answer["parsing_error"] is None


@pytest.mark.parametrize("wire", ["openai_chat", "openai_responses", "gemini"])
def test_json_mode_needs_no_schema(emu: Emulator, wire: str) -> None:
    model = model_on(emu, wire)
    answer = model.with_structured_output(method="json_mode").invoke("What do you see? As JSON.")
    assert isinstance(answer, dict)
    with pytest.raises(InvalidRequest, match="schema: is required"):
        model.with_structured_output()


@pytest.mark.parametrize("wire", ["anthropic", "openai_responses", "gemini"])
@pytest.mark.parametrize("how", ["batch", "abatch", "chain.batch"])
def test_twenty_calls_of_a_batch_write_the_prefix_at_most_twice(
    emu: Emulator, wire: str, how: str
) -> None:
    names = {**MODELS, "openai_responses": "gpt-5.6"}
    model = model_on(emu, wire, model=names[wire], max_tokens=30)
    prompts = [[SystemMessage(GUIDE), HumanMessage(f"What is {each}?")] for each in range(20)]
    if how == "abatch":
        answers: Any = asyncio.run(model.abatch(prompts))
    else:
        chain: Any = model if how == "batch" else model | StrOutputParser()
        answers = chain.batch(prompts, config={"max_concurrency": 20})
    assert len(answers) == 20
    billed = [entry for entry in emu.requests() if "read" in entry]
    assert len(billed) == 20
    paid = [max(sum(each["written"].values()), each["uncached"]) > 1000 for each in billed]
    assert sum(paid) <= 2


def test_calls_that_did_not_read_the_prefix_say_so(
    emu: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_readable(monkeypatch)
    model = model_on(emu, "openai_responses", model="gpt-5.6")
    prompts = [[SystemMessage(GUIDE), HumanMessage(f"What is {each}?")] for each in range(CALLS)]
    answers = asyncio.run(model.abatch(prompts))
    assert_noticed(answer.response_metadata.get("notices", ()) for answer in answers)


def test_batch_from_threads(emu: Emulator) -> None:
    model = model_on(emu, "openai_chat")
    answers = model.batch([f"Question {number}" for number in range(12)])
    assert len({id(each) for each in answers}) == 12
    assert all(each.text for each in answers)


def test_a_stream_that_is_left_is_closed(emu: Emulator) -> None:
    model = model_on(emu, "anthropic")
    stream = model.stream("Tell me a long story.")
    assert next(stream) is not None
    stream.close()

    async def leave() -> None:
        chunks: Any = model.astream("Tell me a long story.")
        async for _ in chunks:
            break
        await chunks.aclose()

    asyncio.run(leave())
    assert model.invoke("Hello?").text


@pytest.mark.parametrize(
    "fields, reason",
    [
        ({"api_key": "k"}, "api_key needs the name of its provider"),
        ({"base_url": "http://127.0.0.1"}, "base_url needs the name of its provider"),
        ({"config": {}, "max_retries": 2}, "config and max_retries cannot be combined"),
        ({"config": {}, "api_key": "k"}, "config and api_key cannot be combined"),
        ({"temprature": 1}, "temprature"),
    ],
)
def test_wrong_fields_are_named(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        ChatAnaphora(model="claude-sonnet-4-5", **fields)


def test_wrong_arguments_of_a_call_are_named(emu: Emulator) -> None:
    model = model_on(emu, "anthropic")
    with pytest.raises(InvalidRequest, match="unknown keyword"):
        model.invoke("Hello?", max_tokns=3)
    with pytest.raises(InvalidRequest, match="extras"):
        model.invoke([HumanMessage([{"type": "image", "file_id": "file_1"}])])
    image: Any = {"type": "image", "base64": "~~", "mime_type": "image/png"}
    with pytest.raises(InvalidRequest, match="is not base64"):
        model.invoke([HumanMessage([image])])
    with pytest.raises(InvalidRequest, match=r"messages\[0\]\.content\[0\]\.type"):
        model.invoke([HumanMessage([{"type": "hologram", "data": "x"}])])


def test_the_key_is_shown_nowhere(emu: Emulator) -> None:
    model = model_on(emu, "anthropic")
    answer = model.invoke("Hello?")
    shown = [repr(model), str(model), repr(answer), model.model_dump_json()]
    assert not [text for text in shown if CANARY in text]


@pytest.mark.parametrize("own", [True, False], ids=["given in code", "from the environment"])
def test_max_retries_bounds_the_attempts(
    emu: Emulator, monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    """Nothing answers at the address: one attempt, and one retry."""
    address = "http://127.0.0.1:9"
    monkeypatch.setenv("ANTHROPIC_API_KEY", CANARY)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", address)
    fields = {"provider": "anthropic", "base_url": address, "api_key": CANARY} if own else {}
    for retries in (0, 1):
        model = ChatAnaphora(model="claude-sonnet-4-5", max_retries=retries, **fields)
        with pytest.raises(AnaphoraError) as failed:
            model.invoke("Hello?")
        assert len(failed.value.attempts) == retries + 1
        assert CANARY not in str(failed.value)
    with pytest.raises(ValueError, match="max_retries"):
        ChatAnaphora(model="claude-sonnet-4-5", max_retries=-1)


def test_a_client_of_the_app(emu: Emulator) -> None:
    records: list[Any] = []
    provider = {"wire": "anthropic", "base_url": emu.url, "key": {"env": "KEY"}}
    config = {"providers": {"main": {**provider, "model": "claude-sonnet-4-5"}}}
    environ = {"KEY": CANARY}
    with anaphora.Client.from_config(config, environ=environ, watchers=[records.append]) as client:
        assert ChatAnaphora(client=client).invoke("Hello?").text
        assert ChatAnaphora(client=client, provider="main").invoke("Hello?").text
    assert [record.provider for record in records] == ["main", "main"]


@pytest.fixture
def reader(emu: Emulator, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A reader's machine, whose calls go to the emulator."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "any")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", emu.url)
    module = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    return module


def test_the_page_runs_and_prints_its_output(
    reader: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    programs = fences("langchain.md", "python")
    assert programs[0].count("\n") <= 4, "the first screen shows the one line"
    exec(compile("\n".join(programs), "langchain.md", "exec"), reader.__dict__)
    (output,) = fences("langchain.md", "text")
    printed = capsys.readouterr().out
    assert re.sub(r"\d[\d,.]*", "0", printed) == re.sub(r"\d[\d,.]*", "0", output), printed
