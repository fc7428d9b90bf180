"""The proxy records, and replays what it recorded to any program."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import anthropic
import httpx
import httpx2
import openai
import pytest
from support.exchanges import Json, all_records, needs_exchanges
from support.sdk_exchanges import KEY, asker

from anaphora import catalog, emulator, errors
from anaphora.emulator import EmulatorOptions
from anaphora.emulator.server import Emulator
from anaphora.proxy.recording import CompleteUpstreamResponse, RecordedUpstream
from anaphora.proxy.routes import default_routes
from anaphora.proxy.server import Proxy, running
from anaphora.replay import FixtureStore, Player
from anaphora.replay.fixture import Fixture, FixturePiece
from anaphora.replay.keys import ReplayRequest, key_of
from anaphora.replay.player import Mode
from anaphora.replay.rules import MatchRules
from anaphora.traffic.calls import ProxyRoute, UpstreamRequest

#: Where aiohttp is installed google-genai uses it, in a way that aiohttp advises against.
pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class:DeprecationWarning")

NOWHERE = "http://127.0.0.1:9"
ASK: dict[str, Any] = {
    "model": "claude-opus-4-8",
    "max_tokens": 64,
    "messages": [{"role": "user", "content": "Hello?"}],
}


def contents(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir())


@contextlib.contextmanager
def proxied(
    url: str, folder: Path, mode: Mode = "once", *, pace: bool = False, **options: Any
) -> Iterator[tuple[Proxy, Player]]:
    """A proxy that records what a server answers, or replays it."""
    player = Player(folder, mode, **options)
    routes = default_routes({"anthropic": url, "openai": url, "google": url})
    with running(routes, upstream=RecordedUpstream(player, pace=pace)) as proxy:
        yield proxy, player


def client(proxy: Proxy, **options: Any) -> anthropic.Anthropic:
    return anthropic.Anthropic(api_key=KEY, base_url=proxy.url_of("anthropic"), **options)


# ── Exchanges with real services ─────────────────────────────────────────────────────────────────


class LiveProvider:
    """Gives the recorded answers, a stream in many pieces."""

    def __init__(self) -> None:
        self.record: Json = {}

    async def send(self, request: UpstreamRequest) -> LiveProvider:
        assert ("authorization", f"Bearer {KEY}") in request.headers
        self.status = self.record["status"]
        self.headers = (("content-type", self.record["content_type"]),)
        return self

    async def __aiter__(self) -> AsyncIterator[bytes]:
        data = self.record["response"].encode()
        size = 700 if self.record["stream"] else len(data)
        for start in range(0, len(data), size):
            yield data[start : start + size]

    async def close(self) -> None:
        pass


def route_of(record: Json) -> ProxyRoute:
    row = catalog.dialects().at_host(record["host"], record["wire"], record["path"])
    return ProxyRoute(
        prefix="/" + record["host"].replace(".", "-"),
        provider=row.provider if row else "",
        upstream=f"https://{record['host']}",
    )


def kinds(records: list[Json]) -> list[Json]:
    """The first exchange of each host, streamed and whole, with each status."""
    found: dict[object, Json] = {}
    for each in records:
        found.setdefault((each["host"], each["stream"], each["status"]), each)
    return list(found.values())


@needs_exchanges
@pytest.mark.parametrize("chosen", [kinds, pytest.param(list, marks=pytest.mark.soak)])
@pytest.mark.parametrize(
    "wire", ["anthropic", "openai_chat", "openai_responses", "gemini", "bedrock"]
)
def test_recorded_exchanges_are_replayed_to_the_official_sdk(
    wire: str,
    chosen: Callable[[list[Json]], list[Json]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every exchange is recorded; the SDK asks for those that are chosen."""
    monkeypatch.setattr("os.fsync", lambda _: None)  # no crash is tested here
    records = [record for record in all_records() if record["wire"] == wire]
    provider = LiveProvider()

    async def record_all() -> None:
        upstream = RecordedUpstream(Player(tmp_path), provider)
        for provider.record in records:
            request = UpstreamRequest(
                method="POST",
                route=route_of(provider.record),
                path=unquote(provider.record["path"])
                if wire == "gemini"
                else provider.record["path"],
                query="alt=sse" if wire == "gemini" and provider.record["stream"] else "",
                headers=(("authorization", f"Bearer {KEY}"),),
                body=provider.record["request"].encode(),
            )
            response = await upstream.send(request)
            assert b"".join([data async for data in response]) == (
                provider.record["response"].encode()
            )
            await response.close()
        await upstream.close()

    asyncio.run(record_all())
    assert KEY.encode() not in contents(tmp_path)
    player = Player(tmp_path, "none")
    records = chosen(records)
    routes = {route.prefix: route for route in map(route_of, records)}
    with (
        running(routes.values(), upstream=RecordedUpstream(player)) as proxy,
        contextlib.ExitStack() as stack,
    ):
        live = stack.enter_context(asker(wire))
        asks = {prefix: stack.enter_context(asker(wire, proxy.url + prefix)) for prefix in routes}
        for record in records:
            assert asks[route_of(record).prefix](record) == live(record), record["id"]
    assert player.report.replayed == len(records)
    assert player.report.misses == ()


# ── A server that answers ────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def emu() -> Iterator[Emulator]:
    with emulator.running() as running_emulator:
        yield running_emulator


def test_attempts_that_an_sdk_retried_are_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(anthropic.Anthropic, "_calculate_retry_timeout", lambda *_: 0.0)
    answers, attempts = [], []
    with emulator.running(EmulatorOptions()) as emu:
        for url in (emu.url, NOWHERE):
            with proxied(url, tmp_path) as (proxy, player):
                statuses: list[int] = []
                http = httpx2.Client(
                    event_hooks={
                        "response": [lambda each, found=statuses: found.append(each.status_code)]
                    }
                )
                faults = ["529", "rate-limit; seconds=0.01", "reset"]

                def with_fault(request: Any, left: list[str] = faults) -> None:
                    if left:
                        request.headers["x-emulator-fault"] = left.pop(0)

                http.event_hooks["request"] = [with_fault]
                with client(proxy, max_retries=3, http_client=http) as api:
                    answers.append(api.messages.create(**ASK))
                attempts.append(statuses)
            assert player.report.misses == ()
    assert answers[0] == answers[1]
    for statuses in attempts:  # whether the head of a response that broke off was sent is a race
        assert (statuses[:2], statuses[3:]) == ([529, 429], [200])


def test_stream_keeps_its_cuts(emu: Emulator, tmp_path: Path) -> None:
    pieces = []
    for url in (emu.url, NOWHERE):
        with proxied(url, tmp_path) as (proxy, _), client(proxy) as api:
            body = {**ASK, "stream": True}
            with api.messages.with_streaming_response.create(**body) as response:
                pieces.append(list(response.iter_bytes()))
    assert b"".join(pieces[0]) == b"".join(pieces[1])
    (entry,) = FixtureStore.open(tmp_path).entries
    recorded = FixtureStore.open(tmp_path).fixture(entry.path)
    assert [piece.data for piece in recorded.pieces if piece.data] == pieces[1]


def test_miss_is_an_error_of_the_provider(emu: Emulator, tmp_path: Path) -> None:
    with proxied(emu.url, tmp_path) as (proxy, _), client(proxy) as api:
        api.messages.create(**ASK)
    with proxied(NOWHERE, tmp_path, "none") as (proxy, player):
        with client(proxy) as api, pytest.raises(anthropic.BadRequestError) as caught:
            api.messages.create(**{**ASK, "max_tokens": 65})
        assert "recorded 64, asked 65, differs in max_tokens" in caught.value.message
        with (
            openai.OpenAI(api_key=KEY, base_url=f"{proxy.url_of('openai')}/v1") as other,
            pytest.raises(openai.BadRequestError, match=r"no replay fixture for model=gpt-5\.1"),
        ):
            other.responses.create(model="gpt-5.1", input="Hello?")
    assert len(player.report.misses) == 2


def test_compressed_answer_is_recorded_decompressed(tmp_path: Path) -> None:
    data = json.dumps({"data": "answer " * 50}).encode()
    seen: list[tuple[str, str]] = []

    class Compressed:
        async def send(self, request: UpstreamRequest) -> CompleteUpstreamResponse:
            seen.extend(request.headers)
            headers = (("content-type", "application/json"), ("content-encoding", "gzip"))
            return CompleteUpstreamResponse(200, headers, gzip.compress(data))

        async def close(self) -> None:
            pass

    routes = [ProxyRoute(prefix="", provider="openai", upstream=NOWHERE)]
    for upstream in (Compressed(), None):
        player = Player(tmp_path)
        with running(routes, upstream=RecordedUpstream(player, upstream)) as proxy:
            response = httpx.get(f"{proxy.url}/v1/models", headers={"accept-encoding": "br, zstd"})
        assert response.content == data
    assert "content-encoding" not in response.headers
    assert ("accept-encoding", "gzip, deflate") in seen  # what can be searched for secrets


def test_upload_matches_whatever_its_boundary_is(emu: Emulator, tmp_path: Path) -> None:
    """The files of the API, then a request whose key is in its query."""
    found = []
    for url in (emu.url, NOWHERE):
        with proxied(url, tmp_path) as (proxy, player):
            base = proxy.url_of("openai")
            with openai.OpenAI(api_key=KEY, base_url=f"{base}/v1", max_retries=0) as api:
                file = api.files.create(file=("a.jsonl", b'{"a":1}\n'), purpose="batch")
                found.append((file, api.files.content(file.id).content))
            query = {"key": f"{KEY}-{len(found)}"}
            models = httpx.get(f"{proxy.url_of('google')}/v1beta/models", params=query)
            assert models.status_code == 200
        assert player.report.misses == ()
    assert found[0] == found[1]
    assert KEY.encode() not in contents(tmp_path)


def test_request_that_is_too_large_is_passed_on_and_not_recorded(
    emu: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anaphora.proxy.relay.KEPT_BYTES", 1000)

    def post(proxy: Proxy) -> httpx.Response:
        def pieces() -> Iterator[bytes]:
            body = json.dumps({**ASK, "system": "Be terse. " * 300}).encode()
            for start in range(0, len(body), 500):
                yield body[start : start + 500]

        url = f"{proxy.url_of('anthropic')}/v1/messages"
        return httpx.post(
            url, content=pieces(), headers={"x-api-key": KEY, "anthropic-version": "2023-06-01"}
        )

    with proxied(emu.url, tmp_path) as (proxy, player):
        assert post(proxy).status_code == 200
    with pytest.raises(errors.Io, match="larger than 32 MB, and is not recorded"):
        player.close()
    with proxied(NOWHERE, tmp_path, "none") as (proxy, _):
        refused = post(proxy)
    assert (refused.status_code, "larger than 32 MB" in refused.text) == (400, True)


def stored(folder: Path, **response: Any) -> None:
    """A folder with an answer to `ASK` that no recorder wrote."""
    request = ReplayRequest(
        method="POST", provider="anthropic", path="/v1/messages", body=json.dumps(ASK).encode()
    )
    key = key_of(request, MatchRules()).key
    FixtureStore.open(folder, create=True).add(
        Fixture(key=key, provider="anthropic", path="/v1/messages", **response)
    )


def test_fixture_that_cannot_be_sent_is_an_error(tmp_path: Path) -> None:
    stored(tmp_path, status=42)
    reason = "a response does not have status 42"
    with (
        proxied(NOWHERE, tmp_path, "none") as (proxy, player),
        client(proxy) as api,
        pytest.raises(anthropic.BadRequestError, match=reason),
    ):
        api.messages.create(**ASK)
    assert reason in player.report.misses[0]


def test_headers_of_a_fixture_do_not_frame_the_response(tmp_path: Path) -> None:
    headers = (("content-length", "2"), ("transfer-encoding", "chunked"), ("x-name", "Zoë 😀"))
    stored(tmp_path, headers=headers, pieces=(FixturePiece(0.0, b'{"a":1}'),))
    with proxied(NOWHERE, tmp_path, "none") as (proxy, _):
        answer = httpx.post(proxy.url_of("anthropic") + "/v1/messages", json=ASK)
    assert answer.content == b'{"a":1}'
    assert dict(answer.headers.raw)[b"x-name"] == "Zoë 😀".encode()
