"""One token estimate for one request and model in every interface: a preview, the limits, the
records, `lint`, `explain`, `simulate`, and the emulator's bill and count endpoints. After a bill,
only what was added is estimated."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from support.emulated_client import KEY, LONG, MODELS, WIRES, Connected, connected, settings
from support.raw_server import answering, raw_server, reply

from anaphora import AsyncClient
from anaphora.cli.common import anaphora
from anaphora.client.session import Session
from anaphora.emulator.server import Emulator
from anaphora.errors import AnaphoraError
from anaphora.prompt import Call, Params, PromptIR
from anaphora.tools import ToolRegistry
from anaphora.values import Bytes, Image, Message

every = pytest.mark.parametrize("name", MODELS)
on_every_wire = pytest.mark.parametrize("name", WIRES)

PICTURE = Image(Bytes(bytes(30_000), "image/png"))

ONCE = {"max_attempts": 1}

#: The emulator's endpoint that counts tokens, and the field of the count.
COUNTING = {
    "anthropic": ("/v1/messages/count_tokens", "input_tokens"),
    "openai_responses": ("/v1/responses/input_tokens", "input_tokens"),
    "gemini": ("/v1beta/models/gemini-2.5-flash:countTokens", "totalTokens"),
}


def registry() -> ToolRegistry:
    tools = ToolRegistry()

    @tools.tool
    def weather(city: str) -> str:
        """The weather in a city."""
        return f"It rains in {city}."

    return tools


def session(emulated: Connected, name: str, system: str = LONG) -> Session:
    return emulated.client.session(name, system=system, tools=registry())


def run_cli(*arguments: object) -> Any:
    ran = CliRunner().invoke(anaphora, [*map(str, arguments)], catch_exceptions=False)
    assert ran.exit_code in (0, 1), ran.output
    return json.loads(ran.stdout)


@every
@pytest.mark.parametrize("content", ["text", "image"])
def test_all_interfaces_count_the_same_tokens(
    emu: Emulator, name: str, content: str, tmp_path: Path
) -> None:
    message = Message.user("What is this?", *([PICTURE] if content == "image" else []))

    async def main() -> tuple[int, dict[str, Any]]:
        async with connected(emu, [name]) as emulated:
            chat = session(emulated, name)
            seen = chat.preview(message)
            counted = seen.usage.input
            assert counted is not None
            assert seen.bounds[0] <= counted <= seen.bounds[1]
            answered = await chat.send(message)
            assert answered.usage.input == counted, "the bill"
            assert sum(block.tokens for block in emulated.records[-1].blocks) == counted, (
                "the record"
            )
            sent, reply = emulated.transport.sent[-1], bytes(emulated.transport.received[-1])
            return counted, {
                "url": sent.url,
                "request": json.loads(bytes(sent.body)),
                "response": json.loads(reply),
                "time": 1_800_000_000,
            }

    counted, logged = asyncio.run(main())
    if name in COUNTING:
        path, field = COUNTING[name]
        headers = {"x-api-key": KEY, "x-goog-api-key": KEY, "authorization": f"Bearer {KEY}"}
        headers["anthropic-version"] = "2023-06-01"
        unwanted = ("max_tokens", "stream", "generationConfig", "max_output_tokens", "store")
        request = {key: value for key, value in logged["request"].items() if key not in unwanted}
        if name == "gemini":
            model = f"models/{MODELS[name]}"
            request = {"generateContentRequest": {"model": model, **request}}
        counting = httpx.post(f"{emu.url}{path}", json=request, headers=headers)
        assert counting.json().get(field) == counted, counting.text
    if name == "openrouter":
        return  # the rules of its caches are those of the host that it chose: not simulated
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps({**logged, **_where(name)}))
    (row,) = run_cli("simulate", log, "--json")["rows"]
    assert sum(row["predicted"][kind] for kind in ("read", "written", "uncached")) == counted


def _where(name: str) -> dict[str, str]:
    """The fields of a log line that identify the provider, which the emulator's URL does not."""
    houses = {"openai_chat": "openai", "openai_responses": "openai", "gemini": "google"}
    return {"provider": houses.get(name, name.partition("/")[0]), "model": MODELS[name]}


@on_every_wire
def test_lint_and_explain_agree(emu: Emulator, name: str, tmp_path: Path) -> None:
    async def main() -> tuple[int, int, str, dict[str, Any]]:
        async with connected(emu, [name]) as emulated:
            chat = session(emulated, name, "Be brief.")
            short = chat.preview("Hello")
            await chat.send("Hello")
            body = bytes(emulated.transport.sent[-1].body).decode()
            long = session(emulated, name)
            seen = long.preview("Hello")
            await long.send("Hello")
            return (
                short.usage.input or 0,
                seen.usage.input or 0,
                body,
                json.loads(bytes(emulated.transport.sent[-1].body)),
            )

    short, long, body, request = asyncio.run(main())
    file = tmp_path / "request.json"
    file.write_text(body)
    path = f"/v1beta/models/{MODELS[name]}:generateContent" if name == "gemini" else ""
    options = ["--model", MODELS[name]]
    found = run_cli("lint", file, "--json", *options)["findings"]
    reasons = [finding["why"] for finding in found if finding["rule"] == "too-short"]
    if name != "ollama":  # it caches prompts of any length
        assert [int(re.findall(r"about ([\d,]+) tokens", why)[0]) for why in reasons] == [short]
    # The same request twice: explain shows how much of the first can be read.
    calls = tmp_path / "calls.jsonl"
    line = {"request": request, "path": path, "dialect": name, **_where(name)}
    lines = (json.dumps({**line, "time": at}, separators=(",", ":")) for at in (0, 60))
    calls.write_text("\n".join(lines))
    _, again = run_cli("explain", calls, "--json", *options)["turns"]
    granule = 128 if name in ("openai_chat", "openai_responses") else 1
    assert long - granule < again["verdict"]["left"] <= long


@on_every_wire
@pytest.mark.parametrize("room", [0, 1])
def test_limits_reserve_the_estimate_of_a_preview(emu: Emulator, name: str, room: int) -> None:
    """Two calls in a minute fit when there is room for twice the number, and not for one less."""

    async def main() -> None:
        async with connected(emu, [name]) as emulated:
            counted = session(emulated, name).preview("Hello").usage.input or 0
        limits = {"tokens_per_minute": 2 * counted - room}
        async with connected(emu, [name], limits=limits, retry=ONCE) as emulated:
            emulated.transport.faults = ["reset"]  # no bill: what was reserved counts
            for _ in range(2):
                with pytest.raises(AnaphoraError):
                    await session(emulated, name).send("Hello", timeout=20)
            assert len(emulated.transport.sent) == 2 - room
            assert session(emulated, name).preview("Hello").wait > 0

    asyncio.run(main())


@on_every_wire
def test_limits_reserve_the_same_for_a_single_call(emu: Emulator, name: str) -> None:
    async def main() -> None:
        async with connected(emu, [name]) as emulated:
            seen = emulated.client.session(name, system=LONG).preview("Hello")
        counted = seen.usage.input or 0
        for room in (0, 1):
            limits = {"tokens_per_minute": 2 * counted - room}
            async with connected(emu, [name], limits=limits, retry=ONCE) as emulated:
                emulated.transport.faults = ["reset"]
                ir = PromptIR.chat([Message.user("Hello")], system=LONG)
                call = Call(ir=ir, model=MODELS[name], params=Params(max_tokens=1024))
                for _ in range(2):
                    with pytest.raises(AnaphoraError):
                        await emulated.client.complete(call, name, timeout=20)
                assert len(emulated.transport.sent) == 2 - room

    asyncio.run(main())


# ── After a bill ─────────────────────────────────────────────────────────────────────────────────

#: A client configured for another provider than the one its requests reach: its estimates differ
#: from the billed counts.
STRANGERS = {
    "anthropic": ({"dialect": "anthropic", "model": "claude-sonnet-4-5"}, "/minimax/anthropic"),
    "openai_chat": ({"dialect": "deepseek", "model": "gpt-5.2"}, "/v1"),
}


@asynccontextmanager
async def estranged(emu: Emulator, name: str) -> AsyncIterator[AsyncClient]:
    provider, path = STRANGERS[name]
    config = {"providers": {name: {**provider, "base_url": emu.url + path, "key": {"env": "KEY"}}}}
    async with AsyncClient.from_config(config, environ={"KEY": KEY}) as client:
        yield client


@pytest.mark.parametrize("name", STRANGERS)
def test_after_usage_only_added_messages_are_estimated(emu: Emulator, name: str) -> None:
    async def main() -> None:
        async with estranged(emu, name) as client:
            chat = client.session(name, system=LONG)
            first = chat.preview("One").usage.input or 0
            before = (await chat.send("One")).usage.input or 0
            assert abs(first - before) > before / 20, "the estimate is off before any bill"
            for text in ("Two", "Three", "Four"):
                seen = chat.preview(text)
                billed = (await chat.send(text)).usage.input or 0
                assert before < (seen.usage.input or 0) <= before + 2 * (billed - before)
                assert abs((seen.usage.input or 0) - billed) <= (billed - before) / 3
                assert seen.bounds[0] <= billed <= seen.bounds[1]
                before = billed

    asyncio.run(main())


def test_markers_depend_on_the_usage(emu: Emulator) -> None:
    """Estimated above the least that is cached, and billed below it: the next call is not marked."""

    async def main() -> None:
        async with estranged(emu, "anthropic") as client:
            chat = client.session("anthropic", system="You are terse. " * 222)
            seen = chat.preview("One")
            assert 1024 < (seen.usage.input or 0) < 1080
            assert seen.markers
            assert ((await chat.send("One", max_tokens=5)).usage.input or 0) < 1000
            seen = chat.preview("Two")
            assert (seen.usage.input or 0) < 1024
            assert not seen.markers

    asyncio.run(main())


@pytest.mark.parametrize("bill", [-5, 0, 1, 10**9])
def test_implausible_usage_changes_nothing(bill: int) -> None:
    """A prompt that was billed as one token would not be cached any more; one that was billed as
    a billion would lose its history to `compact_at`."""
    answer = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": MODELS["anthropic"],
        "content": [{"type": "text", "text": "Yes."}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": bill, "output_tokens": 3},
    }
    body = reply(json.dumps(answer).encode(), "200 OK", "Content-Type: application/json")

    async def main() -> None:
        async with raw_server(answering(body)) as server:
            config = {"providers": settings(server.url, ["anthropic"])}
            async with AsyncClient.from_config(config, environ={"KEY": KEY}) as client:
                chat = client.session("anthropic", system=LONG, compact_at=150_000)
                before = chat.preview("And?")
                for _ in range(3):
                    await chat.send("And?")
                assert len(chat.messages) == 6
                after = chat.preview("And?")
                assert (before.usage.input or 0) <= (after.usage.input or 0) < 10_000
                assert after.markers

    asyncio.run(main())
