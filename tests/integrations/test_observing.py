"""`observing`: everything on httpx, httpx2 and aiohttp in a block, per context, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import aiohttp
import anthropic
import httpx
import httpx2
import pytest
from support.observed import ASYNC, GUIDE, KEY, SYNC, addresses, anthropic_client, claude, close
from support.waiting import PATIENCE

import anaphora
from anaphora.emulator.server import Emulator
from anaphora.errors import InvalidRequest
from anaphora.integrations import observation
from anaphora.integrations.addresses import Addresses, RequestAddress
from anaphora.integrations.observation import shared
from anaphora.traffic.judging import CallJudge
from anaphora.traffic.sums import JudgedCall

pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class:DeprecationWarning")

HOOKED: list[tuple[Any, str]] = [
    (httpx.Client, "_transport_for_url"),
    (httpx.AsyncClient, "_transport_for_url"),
    (httpx2.Client, "_transport_for_url"),
    (httpx2.AsyncClient, "_transport_for_url"),
    (aiohttp.ClientSession, "_request"),
]
MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-opus-5-5",
    "content": [{"type": "text", "text": "Fine."}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 2000, "output_tokens": 3},
}


def hooked() -> list[Any]:
    return [getattr(owner, name) for owner, name in HOOKED]


@pytest.fixture(autouse=True)
def own_judge() -> Iterator[None]:
    """Each test begins with nothing seen, and leaves no hook behind."""
    shared.cache_clear()
    before = hooked()
    yield
    assert hooked() == before
    shared.cache_clear()


@pytest.fixture
def where(emu: Emulator) -> dict[str, str]:
    return addresses(emu.url)


def ask(emu: Emulator) -> None:
    with anthropic_client(emu.url) as client:
        client.messages.create(**claude())


# ── What is seen ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", SYNC)
def test_every_sync_sdk_is_seen(emu: Emulator, where: dict[str, str], name: str) -> None:
    make, call = SYNC[name]
    client = make(emu.url)  # made before the block
    with anaphora.observing(addresses=where) as seen:
        call(client)
        call(client)
    call(client)
    asyncio.run(close(client))
    assert [each.turn for each in seen.calls] == [1, 2]
    assert seen.sums.calls == 2


@pytest.mark.parametrize("name", ASYNC)
def test_every_async_sdk_is_seen_once(emu: Emulator, where: dict[str, str], name: str) -> None:
    """Also where httpx is on aiohttp, and both are hooked."""
    make, call = ASYNC[name]

    async def run() -> Any:
        with anaphora.observing(addresses=where) as seen:
            client = make(emu.url)
            await call(client)
            await call(client)
        await call(client)
        await close(client)
        return seen

    seen = asyncio.run(run())
    assert [each.turn for each in seen.calls] == [1, 2]


def test_observed_client_in_a_block_is_judged_once(
    emu: Emulator, where: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = []
    original = CallJudge.judge

    def judge(self: CallJudge, call: Any) -> JudgedCall:
        judged.append(call.number)
        return original(self, call)

    monkeypatch.setattr(CallJudge, "judge", judge)
    own: list[JudgedCall] = []
    outer: list[JudgedCall] = []
    inner: list[JudgedCall] = []
    with anthropic_client(emu.url) as client:
        anaphora.observe(client, on_verdict=own.append, provider="anthropic")
        with (
            anaphora.observing(on_verdict=outer.append, addresses=where),
            anaphora.observing(on_verdict=inner.append, addresses=where),
        ):
            client.messages.create(**claude())
    assert len(judged) == 1
    assert own == outer == inner
    assert len(own) == 1


def test_own_client_is_not_counted(emu: Emulator, where: dict[str, str]) -> None:
    """Its watchers have its verdicts already."""
    records: list[Any] = []
    with anaphora.observing(addresses=where) as seen:
        settings = {"wire": "anthropic", "base_url": f"{emu.url}/anthropic", "key": {"env": "KEY"}}
        with anaphora.Client.from_config(
            {"providers": {"main": settings}}, environ={"KEY": KEY}, watchers=[records.append]
        ) as client:
            client.complete(GUIDE, model="main/claude-opus-5-5", max_tokens=40)
        assert seen.calls == ()
        ask(emu)
    assert len(records) == 1
    assert len(seen.calls) == 1


def test_blocks_nest_and_the_inner_ends_first(emu: Emulator, where: dict[str, str]) -> None:
    with anaphora.observing(addresses=where) as outer:
        with anaphora.observing(addresses=where) as inner:
            ask(emu)
        ask(emu)
    ask(emu)
    assert (len(outer.calls), len(inner.calls)) == (2, 1)


def test_stream_that_outlives_its_block_is_judged(emu: Emulator, where: dict[str, str]) -> None:
    with anthropic_client(emu.url) as client:
        with anaphora.observing(addresses=where) as seen:
            stream = client.messages.create(**claude(), stream=True)
        assert list(stream)
    assert [call.kind for call in seen.calls] == ["judged"]


# ── Per context ──────────────────────────────────────────────────────────────────────────────────


def test_other_threads_are_not_seen(emu: Emulator, where: dict[str, str]) -> None:
    thread = threading.Thread(target=ask, args=(emu,))
    with anaphora.observing(addresses=where) as seen:
        thread.start()
        thread.join()
    assert seen.calls == ()


def test_tasks_see_their_own_block(emu: Emulator, where: dict[str, str]) -> None:
    async def run(count: int, both: asyncio.Barrier) -> int:
        with anaphora.observing(addresses=where) as seen:
            await both.wait()
            url = f"{emu.url}/anthropic"
            async with anthropic.AsyncAnthropic(api_key=KEY, base_url=url) as client:
                calls = [client.messages.create(**claude()) for _ in range(count)]
                await asyncio.gather(*calls)
            await both.wait()
        return len(seen.calls)

    async def together() -> list[int]:
        both = asyncio.Barrier(2)
        return list(await asyncio.gather(run(1, both), run(3, both)))

    assert asyncio.run(together()) == [1, 3]


def test_task_that_outlives_its_block_is_seen_no_more(emu: Emulator, where: dict[str, str]) -> None:
    async def run() -> tuple[int, int]:
        ended = asyncio.Event()

        async def later() -> None:
            await ended.wait()
            url = f"{emu.url}/anthropic"
            async with anthropic.AsyncAnthropic(api_key=KEY, base_url=url) as client:
                await client.messages.create(**claude())

        with anaphora.observing(addresses=where) as seen:
            task = asyncio.create_task(later())
        with anaphora.observing(addresses=where) as other:
            ended.set()
            await task
        return len(seen.calls), len(other.calls)

    assert asyncio.run(run()) == (0, 0)


def test_block_may_end_in_another_context(emu: Emulator, where: dict[str, str]) -> None:
    """As fixtures of some test runners do."""
    stack = contextlib.ExitStack()

    async def enter() -> Any:
        return stack.enter_context(anaphora.observing(addresses=where))

    seen = asyncio.run(enter())
    stack.close()
    ask(emu)
    assert seen.calls == ()


# ── Restored ─────────────────────────────────────────────────────────────────────────────────────


def test_hooks_are_restored_on_error() -> None:
    before = hooked()

    def fail() -> None:
        with anaphora.observing():
            assert all(now is not then for now, then in zip(hooked(), before, strict=True))
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fail()
    assert hooked() == before
    assert observation.active() == ()


def test_wrong_option_leaves_no_hook() -> None:
    with pytest.raises(InvalidRequest), anaphora.observing(addresses={"nowhere": "anthropic"}):
        pass


def test_hook_that_another_tool_has_wrapped_stays(emu: Emulator, where: dict[str, str]) -> None:
    with anaphora.observing(addresses=where):
        ours = httpx2.Client._transport_for_url

        def theirs(self: Any, url: Any) -> Any:
            return ours(self, url)

        httpx2.Client._transport_for_url = theirs  # type: ignore[method-assign]
    ask(emu)
    assert httpx2.Client._transport_for_url is theirs
    with anaphora.observing(addresses=where) as seen:
        ask(emu)
    assert len(seen.calls) == 1
    httpx2.Client._transport_for_url = ours.__wrapped__  # type: ignore[attr-defined, method-assign]


# ── Which addresses ──────────────────────────────────────────────────────────────────────────────


class Unread(httpx2.Request):
    """A request whose headers and body must not be looked at."""

    forbidden = False

    def __getattribute__(self, name: str) -> Any:
        forbidden = super().__getattribute__("forbidden")
        if forbidden and name in ("headers", "content", "_content", "stream", "read"):
            raise AssertionError(f"{name} was read")
        return super().__getattribute__(name)


@pytest.mark.parametrize(
    ("url", "seen"),
    [
        ("https://api.anthropic.com/v1/messages", True),
        ("https://api.deepseek.com/anthropic/v1/messages", True),
        ("https://my-resource.openai.azure.com/openai/v1/chat/completions", True),
        ("http://localhost:11434/v1/chat/completions", True),
        ("https://gateway.example/team/v1/messages", True),
        ("https://gateway.example/v1/messages", False),
        ("https://gateway.example/team-2/v1/messages", False),
        ("https://example.com/v1/messages", False),
        ("https://api.anthropic.com.example.com/v1/messages", False),
        ("http://localhost:3000/v1/messages", False),
        ("http://localhost:11434/api/chat", False),
        ("http://127.0.0.1:3000/v1/chat/completions", False),
        ("https://api.anthropic.com/v1/files", False),
        ("https://api.anthropic.com/v1/messages/count_tokens", False),
    ],
)
def test_only_known_addresses_are_read(url: str, seen: bool) -> None:
    request = Unread("POST", url, content=json.dumps(claude()).encode())

    class Answering(httpx2.BaseTransport):
        def handle_request(self, request: httpx2.Request) -> httpx2.Response:
            return httpx2.Response(200, json=MESSAGE)

    where = {"https://gateway.example/team": "anthropic"}
    with (
        anaphora.observing(addresses=where) as observed,
        httpx2.Client(transport=Answering()) as client,
    ):
        transport = client._transport_for_url(request.url)
        request.forbidden = not seen
        transport.handle_request(request)
    assert len(observed.calls) == seen


VARIABLES = {
    "ANTHROPIC_BASE_URL": "http://gateway:8080",
    "OPENAI_BASE_URL": "http://gateway:8080/v1",
    "OLLAMA_HOST": "gpu:11434",
    "DEEPSEEK_BASE_URL": "not a url",
    "GEMINI_API_BASE": "https://gateway/gemini",
}


@pytest.mark.parametrize(
    ("url", "wire", "provider"),
    [
        ("http://gateway:8080/v1/messages", "anthropic", "anthropic"),
        ("http://gateway:8080/v1/chat/completions", "openai_chat", "openai"),
        ("http://gpu:11434/v1/chat/completions", "openai_chat", "ollama"),
        ("https://gateway/gemini/v1beta/models/x:generateContent", "gemini", "google"),
        ("http://gateway:8081/v1/messages", "anthropic", None),
    ],
)
def test_addresses_of_the_environment_are_configured(
    url: str, wire: str, provider: str | None
) -> None:
    parts = httpx.URL(url)
    address = RequestAddress(parts.scheme, parts.host, parts.port, parts.path)
    route = Addresses(variables=VARIABLES).route(address, wire)
    assert (None if route is None else route.provider) == provider


def test_nothing_is_imported_that_nobody_uses() -> None:
    """`import anaphora` is light, and what is not installed is not needed."""
    program = """
import sys
import anaphora
loaded = [name for name in ("httpx", "httpx2", "aiohttp", "anaphora.integrations") if name in sys.modules]
assert not loaded, loaded
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("httpx", "httpx2", "starlette", "granian", "rich", "click"):
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Missing())
with anaphora.observing() as seen:
    pass
assert seen.calls == ()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE)
