"""Calls of apps through the daemon's service, against the emulator."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.delegation import app_of, delegating
from support.emulated_client import MODELS
from support.meaning import meaning

from anaphora.client.costs.settling import nano_usd_up
from anaphora.emulator.server import Emulator
from anaphora.errors import InvalidRequest, NotGranted
from anaphora.prompt import Call, PromptIR, Segment
from anaphora.values import Message, SegmentRole

QUESTION: dict[str, dict[str, Any]] = {
    "anthropic": {"max_tokens": 64, "messages": [{"role": "user", "content": "Hello?"}]},
    "openai_chat": {
        "max_completion_tokens": 64,
        "messages": [{"role": "user", "content": "Hello?"}],
    },
    "openai_responses": {"max_output_tokens": 64, "store": False, "input": "Hello?"},
    "gemini": {
        "generationConfig": {"maxOutputTokens": 64},
        "contents": [{"role": "user", "parts": [{"text": "Hello?"}]}],
    },
}


def _nano(amount: Decimal | None) -> int:
    return 0 if amount is None else nano_usd_up(amount)


def question(wire: str, **fields: Any) -> dict[str, Any]:
    model = {} if wire == "gemini" else {"model": MODELS[wire]}
    return {**model, **QUESTION[wire], **fields}


@pytest.mark.parametrize("wire", QUESTION)
def test_requests_go_through_on_the_same_wire(wire: str, emu: Emulator, tmp_path: Path) -> None:
    body = msgspec.json.encode(question(wire)).replace(b'":', b'" :')

    async def main() -> None:
        async with delegating(emu, tmp_path) as daemon:
            call = daemon.request(wire, body, model=MODELS[wire])
            reply = await daemon.service.complete(call)
            (sent,) = daemon.transport.bodies
            assert meaning(wire, sent) == meaning(wire, body)
            assert reply.body == bytes(daemon.transport.received[0])
            assert (reply.wire, reply.provider, reply.reply.text != "") == (wire, wire, True)
            spent = await daemon.spent()
            assert spent.held == 0
            assert spent.today == _nano(reply.cost_usd)

    asyncio.run(main())


@pytest.mark.parametrize("wire", QUESTION)
def test_stream_passes_the_providers_bytes(wire: str, emu: Emulator, tmp_path: Path) -> None:
    body = question(wire) if wire == "gemini" else question(wire, stream=True)

    async def main() -> None:
        async with delegating(emu, tmp_path) as daemon:
            call = daemon.request(wire, body, model=MODELS[wire], stream=True)
            pieces, reply = await daemon.stream(call)
            data = b"".join(piece.data or b"" for piece in pieces)
            received = bytes(daemon.transport.received[0])
            if wire == "openai_chat":
                assert b'"choices":[]' in received
                assert b'"choices":[]' not in data
                assert data.endswith(b"data: [DONE]\n\n")
            else:
                assert data == received
            assert reply.usage.output
            assert reply.cost_usd is not None

    asyncio.run(main())


PAIRS = [("anthropic", "gemini"), ("openai_chat", "anthropic"), ("gemini", "openai_responses")]


@pytest.mark.parametrize(("asked", "answering"), PAIRS)
@pytest.mark.parametrize("streamed", [False, True])
def test_request_is_translated_for_another_wire(
    asked: str, answering: str, streamed: bool, emu: Emulator, tmp_path: Path
) -> None:
    async def main() -> None:
        async with delegating(emu, tmp_path) as daemon:
            body = {"model": MODELS[answering], **QUESTION[asked]}
            call = daemon.request(asked, body, model=MODELS[answering], provider=answering)
            if streamed:
                call = msgspec.structs.replace(call, stream=True)
                pieces, reply = await daemon.stream(call)
                assert all(piece.data is None for piece in pieces)
            else:
                reply = await daemon.service.complete(call)
                assert reply.body is None
            assert (reply.wire, reply.reply.text != "") == (answering, True)
            assert (await daemon.spent()).today == _nano(reply.cost_usd)

    asyncio.run(main())


def test_call_of_json_rpc(emu: Emulator, tmp_path: Path) -> None:
    """The provider's default of max_tokens is sent (D10), at most the grant's largest."""
    words = Segment.of(SegmentRole.CONVERSATION, Message.user("Hello?"))
    ir = PromptIR(system_text="Be brief.", segments=(words,))
    call = Call(ir=ir, model=MODELS["anthropic"])

    async def main() -> None:
        async with delegating(emu, tmp_path) as daemon:
            reply = await daemon.service.complete(daemon.call(call, "anthropic"))
            (sent,) = daemon.sent
            assert (sent["max_tokens"], sent["system"][0]["text"]) == (256, "Be brief.")
            assert reply.reply.text

    asyncio.run(main())


def test_provider_that_is_not_granted(emu: Emulator, tmp_path: Path) -> None:
    app = app_of(providers=["openai_chat"], models=["gpt-*"])

    async def main() -> None:
        async with delegating(emu, tmp_path, app=app) as daemon:
            call = daemon.request("anthropic", question("anthropic"), provider="anthropic")
            with pytest.raises(NotGranted, match="anthropic"):
                await daemon.service.complete(call)
            call = daemon.request("anthropic", question("anthropic"))
            with pytest.raises(NotGranted, match="claude"):
                await daemon.service.complete(call)
            assert daemon.transport.sent == []

    asyncio.run(main())


@pytest.mark.parametrize("wire", QUESTION)
def test_tokens_are_counted_by_the_provider_where_it_can(
    wire: str, emu: Emulator, tmp_path: Path
) -> None:
    """A count is not billed, and costs the app nothing."""

    async def main() -> None:
        async with delegating(emu, tmp_path) as daemon:
            call = daemon.request(wire, question(wire), model=MODELS[wire], provider=wire)
            tokens, exact = await daemon.service.count_tokens(call)
            assert exact == (wire in ("anthropic", "openai_responses", "gemini"))
            assert 1 <= tokens < 40
            assert await daemon.store.spend([]) == []

    asyncio.run(main())


def test_models_are_those_that_are_granted(emu: Emulator, tmp_path: Path) -> None:
    """D8: neither other providers nor other models are named."""
    routes = {"safe": [{"provider": "openai_chat", "model": "gpt-5.2"}]}
    app = app_of(providers=["anthropic", "safe"], models=["claude-haiku-*", "gpt-5.2"])

    async def main() -> None:
        async with delegating(emu, tmp_path, app=app, routes=routes) as daemon:
            models = daemon.service.models(app)
            assert {model.provider for model in models} == {"anthropic", "safe"}
            assert all(
                model.model.startswith("claude-haiku-") or model.model == "gpt-5.2"
                for model in models
                if not model.is_route
            )
            assert [model.model for model in models if model.is_route] == ["safe"]
            assert any(model.context and model.max_output for model in models)

    asyncio.run(main())


def test_changed_key_is_used_by_the_next_call(emu: Emulator, tmp_path: Path) -> None:
    """And limits, breakers and memory last (D6)."""

    async def main() -> None:
        async with delegating(emu, tmp_path, ["anthropic"]) as daemon:
            for key in ("sk-first-0001", "sk-second-0002"):
                daemon.reload(key)
                await daemon.service.complete(daemon.request("anthropic", question("anthropic")))
            keys = [dict(sent.headers)["x-api-key"] for sent in daemon.transport.sent]
            assert keys == ["sk-first-0001", "sk-second-0002"]
            targets = [daemon.service.tools.pool.endpoint(daemon.providers["anthropic"])]
            assert list(targets[0]._targets) == [MODELS["anthropic"]]

    asyncio.run(main())


def test_tokens_are_counted_only_of_what_the_grant_allows(emu: Emulator, tmp_path: Path) -> None:
    """D11: a count reads the same files and tools as the call would."""
    search = {"type": "web_search_20260209", "name": "web_search", "max_uses": 1}
    body = {
        "model": MODELS["anthropic"],
        "messages": [{"role": "user", "content": "Hello"}],
        "tools": [search],
    }

    async def main() -> None:
        async with delegating(emu, tmp_path, ["anthropic"]) as daemon:
            with pytest.raises(NotGranted, match="web_search"):
                await daemon.service.count_tokens(daemon.request("anthropic", body))
            assert daemon.transport.sent == []

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("wire", "target", "fields"),
    [
        ("openai_chat", "gemini", {"messages": [{"role": "user", "content": "Hello"}], "n": 2}),
        (
            "gemini",
            "openai_chat",
            {
                "contents": [{"parts": [{"text": "Hello"}]}],
                "generationConfig": {"candidateCount": 2},
            },
        ),
    ],
)
def test_several_answers_that_cannot_be_written_are_refused(
    wire: str, target: str, fields: dict[str, Any], stream: bool, emu: Emulator, tmp_path: Path
) -> None:
    """They would be paid for, and lost."""
    app = app_of(providers=[target], n=2)

    async def main() -> None:
        async with delegating(emu, tmp_path, [target], app=app) as daemon:
            named = {} if wire == "gemini" else {"model": MODELS[target], "stream": stream}
            call = daemon.request(wire, {**named, **fields}, model=MODELS[target], stream=stream)
            with pytest.raises(InvalidRequest, match="one choice per call") as refused:
                await (daemon.stream(call) if stream else daemon.service.complete(call))
            place = "generationConfig.candidateCount" if wire == "gemini" else "n"
            assert refused.value.path == place
            assert daemon.sent == []

    asyncio.run(main())


@pytest.mark.parametrize(
    ("model", "thinking", "notice"),
    [("claude-sonnet-4-5", {"type": "disabled"}, ""), ("claude-opus-5-5", None, "always thinks")],
)
def test_thinking_that_another_wire_switches_off(
    model: str, thinking: dict[str, Any] | None, notice: str, emu: Emulator, tmp_path: Path
) -> None:
    """Some Claude models always think."""
    app = app_of(providers=["anthropic"], max_tokens=4096)
    config = {"maxOutputTokens": 64, "thinkingConfig": {"thinkingBudget": 0}}
    body = question("gemini", generationConfig=config)

    async def main() -> None:
        async with delegating(emu, tmp_path, ["anthropic"], app=app) as daemon:
            reply = await daemon.service.complete(daemon.request("gemini", body, model=model))
            assert daemon.sent[0].get("thinking") == thinking
            assert notice in "".join(each.message for each in reply.notices)

    asyncio.run(main())


def test_limit_that_is_filled_in_for_another_wire_is_a_notice(
    emu: Emulator, tmp_path: Path
) -> None:
    body = {"model": MODELS["anthropic"], "messages": [{"role": "user", "content": "Hello?"}]}

    async def main() -> None:
        async with delegating(emu, tmp_path, ["anthropic"]) as daemon:
            reply = await daemon.service.complete(daemon.request("openai_chat", body))
            assert daemon.sent[0]["max_tokens"] == 256
            assert "max_tokens_set" in {notice.code for notice in reply.notices}

    asyncio.run(main())


def test_limit_of_zero_is_refused_on_another_wire(emu: Emulator, tmp_path: Path) -> None:
    """A request that warms Anthropic's cache would have no limit at Ollama."""
    app = app_of(providers=["ollama"], usd_per_day=None)
    body = {**question("anthropic"), "model": MODELS["ollama"], "max_tokens": 0}

    async def main() -> None:
        async with delegating(emu, tmp_path, ["ollama"], app=app) as daemon:
            with pytest.raises(InvalidRequest, match="at least 1"):
                await daemon.service.complete(daemon.request("anthropic", body))
            assert daemon.sent == []

    asyncio.run(main())


@pytest.mark.parametrize("providers", [["openai_chat"], ["anthropic"]])
def test_error_names_no_model_that_the_app_may_not_call(
    providers: list[str], emu: Emulator, tmp_path: Path
) -> None:
    """Of a provider that the app may use, and of another."""
    known = [MODELS["openai_chat"], MODELS["anthropic"], "secret-model"]
    app = app_of(providers=providers, models=[MODELS["openai_chat"]])
    body = question("openai_chat", model="secret-modem")

    async def main() -> None:
        names = ["openai_chat", "anthropic"]
        async with delegating(emu, tmp_path, names, app=app, known_models=known) as daemon:
            call = daemon.request("openai_chat", body, provider="openai_chat")
            with pytest.raises(InvalidRequest, match="not among the known_models") as refused:
                await daemon.service.complete(call)
            assert "secret-model" not in str(refused.value)
            assert MODELS["anthropic"] not in str(refused.value)

    asyncio.run(main())
