"""The official SDKs, observed at the emulator, whose own journal knows what happened."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import aiohttp
import anthropic
import httpx
import httpx2
import openai
import pytest
from google import genai
from support.observed import (
    ASYNC,
    GEMINI,
    GUIDE,
    KEY,
    SYNC,
    addresses,
    anthropic_client,
    claude,
    close,
    google_client,
    mistral_client,
    openai_client,
)

import anaphora
from anaphora.emulator.server import Emulator
from anaphora.errors import InvalidRequest
from anaphora.integrations.httpx_transport import ObservedTransport
from anaphora.integrations.observation import shared
from anaphora.traffic.sums import JudgedCall

#: google-genai subclasses aiohttp's session, which aiohttp advises against.
pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class:DeprecationWarning")

#: What differs from one answer to the next, with any client.
VOLATILE = re.compile(
    r"(msg|req|resp|chatcmpl|rs|fc|call|cmpl|item)[_-][\w-]+|\d{9,}(\.\d+)?|'?date'?: '[^']*'"
    r"|created_at='[^']*'|_duration=\d+|response_id='[^']*'|0x\w+|Date': '[^']*'"
    r"|datetime\([^)]*\)|id='[^']*'|'id': '[^']*'|\"id\": ?\"[^\"]*\"|duration\W+\d+"
)


@pytest.fixture(autouse=True)
def own_judge() -> Iterator[None]:
    """Each test begins with nothing seen."""
    shared.cache_clear()
    yield
    shared.cache_clear()


def same(answer: Any) -> str:
    return VOLATILE.sub("·", answer.decode() if isinstance(answer, bytes) else repr(answer))


def check_bill(call: JudgedCall, journal: dict[str, Any]) -> None:
    assert call.usage is not None
    known = call.usage.read is not None
    assert not known or call.usage.read == journal["read"]
    assert call.usage.uncached == journal["uncached"] + (0 if known else journal["read"])
    if known and journal["cost_usd"] is not None:
        assert str(call.cost_usd) == journal["cost_usd"]


@pytest.mark.parametrize("name", SYNC)
def test_sync_calls_are_judged_and_answered_as_before(emu: Emulator, name: str) -> None:
    make, ask = SYNC[name]
    verdicts: list[JudgedCall] = []
    client = make(emu.url)
    kept = dict(vars(client))
    assert (
        anaphora.observe(client, on_verdict=verdicts.append, addresses=addresses(emu.url)) is client
    )
    assert vars(client) == kept, "the SDK's own attributes are left alone"
    answers = [same(ask(client)) for _ in range(2)]
    asyncio.run(close(client))
    assert [call.turn for call in verdicts] == [1, 2]
    assert [call.conversation for call in verdicts] == [1, 1]
    second, first = emu.requests()[:2]
    check_bill(verdicts[0], first)
    check_bill(verdicts[1], second)
    emu.reset()
    plain = make(emu.url)
    assert [same(ask(plain)) for _ in range(2)] == answers
    asyncio.run(close(plain))
    assert len(verdicts) == 2, "another client is not observed"


@pytest.mark.parametrize("name", ASYNC)
def test_async_calls_are_judged_and_answered_as_before(emu: Emulator, name: str) -> None:
    make, ask = ASYNC[name]
    verdicts: list[JudgedCall] = []

    async def twice(observed: bool) -> list[str]:
        client = make(emu.url)
        if observed:
            anaphora.observe(client, on_verdict=verdicts.append, addresses=addresses(emu.url))
        answers = [same(await ask(client)) for _ in range(2)]
        await close(client)
        return answers

    answers = asyncio.run(twice(True))
    assert [call.turn for call in verdicts] == [1, 2]
    second, first = emu.requests()[:2]
    check_bill(verdicts[0], first)
    check_bill(verdicts[1], second)
    emu.reset()
    assert asyncio.run(twice(False)) == answers
    assert len(verdicts) == 2


@pytest.mark.parametrize("name", ["aiohttp", "httpx2", "httpx", "given session"])
def test_google_is_observed_on_whatever_its_async_calls_use(
    emu: Emulator, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdicts: list[JudgedCall] = []

    async def ask() -> None:
        options: dict[str, Any] = {}
        given: Any = None
        if name in ("httpx", "httpx2"):
            monkeypatch.setenv("GOOGLE_GENAI_HTTP_CLIENT", name)
            package: Any = httpx if name == "httpx" else httpx2
            given = options["httpx_async_client"] = package.AsyncClient()
        elif name == "given session":
            given = options["aiohttp_client"] = aiohttp.ClientSession()
        client = google_client(emu.url, **options)
        anaphora.observe(client, on_verdict=verdicts.append, addresses=addresses(emu.url))
        for _ in range(2):
            await client.aio.models.generate_content(model=GEMINI, contents=GUIDE)
        await close(client)
        if given is not None:
            await (given.aclose() if hasattr(given, "aclose") else given.close())

    asyncio.run(ask())
    assert [call.turn for call in verdicts] == [1, 2]
    assert verdicts[1].verdict is not None
    assert verdicts[1].verdict.result == "hit"


def test_break_is_named_with_its_byte_and_its_cost(emu: Emulator) -> None:
    verdicts: list[JudgedCall] = []
    client = anthropic_client(emu.url)
    anaphora.observe(client, on_verdict=verdicts.append, provider="anthropic")
    for day, turn in ((15, 1), (15, 2), (16, 3)):
        client.messages.create(**claude(f"Today is 2026-11-{day}. {GUIDE}", turn))
    client.close()
    assert [call.verdict.result for call in verdicts if call.verdict] == ["first", "hit", "miss"]
    broken = verdicts[-1]
    assert broken.broke
    assert broken.change is not None
    assert (broken.change.kind, broken.change.path) == ("date", "system[0].text")
    assert broken.lost_usd is not None
    assert "Miss" in str(broken)
    assert str(broken).startswith("claude-opus-5-5, conversation 1, turn 3: ")


def test_conversation_goes_on_in_another_client(emu: Emulator) -> None:
    """A web backend may make a client for each request."""
    verdicts: list[JudgedCall] = []
    for turn in (1, 2, 3):
        with anthropic_client(emu.url) as client:
            anaphora.observe(client, on_verdict=verdicts.append, provider="anthropic")
            client.messages.create(**claude(count=turn))
    assert [(call.conversation, call.turn) for call in verdicts] == [(1, 1), (1, 2), (1, 3)]


def test_accounts_are_kept_apart(emu: Emulator) -> None:
    verdicts: list[JudgedCall] = []
    for key in ("one", "two"):
        with anthropic.Anthropic(api_key=key, base_url=f"{emu.url}/anthropic") as client:
            anaphora.observe(client, on_verdict=verdicts.append, provider="anthropic")
            client.messages.create(**claude())
    assert [call.conversation for call in verdicts] == [1, 2]


def test_copies_of_a_client_are_observed(emu: Emulator) -> None:
    verdicts: list[JudgedCall] = []
    with anthropic_client(emu.url) as client:
        anaphora.observe(client, on_verdict=verdicts.append, provider="anthropic")
        client.with_options(max_retries=0).messages.create(**claude())
    assert len(verdicts) == 1


def test_last_observation_of_a_client_counts(emu: Emulator) -> None:
    first: list[JudgedCall] = []
    second: list[JudgedCall] = []
    with anthropic_client(emu.url) as client:
        for calls in (first, second):
            anaphora.observe(client, on_verdict=calls.append, provider="anthropic")
        client.messages.create(**claude())
    assert (len(first), len(second)) == (0, 1)
    assert not isinstance(client._client._transport.inner, ObservedTransport)  # type: ignore[attr-defined]


@pytest.mark.parametrize("package", [httpx, httpx2])
def test_http_clients_are_observed_themselves(emu: Emulator, package: Any) -> None:
    verdicts: list[JudgedCall] = []
    with package.Client() as client:
        anaphora.observe(client, on_verdict=verdicts.append, provider="anthropic")
        headers = {"x-api-key": KEY, "anthropic-version": "2023-06-01"}
        body = claude()
        response = client.post(f"{emu.url}/anthropic/v1/messages", json=body, headers=headers)
        assert response.json()["type"] == "message"
        client.get(f"{emu.url}/anthropic/v1/models", headers=headers)
    assert [call.model for call in verdicts] == [body["model"]]


def test_frameworks_that_hold_an_sdk_are_observed(emu: Emulator) -> None:
    """As models of pydantic-ai and LangChain do."""

    class ModelOfFramework:
        def __init__(self) -> None:
            self.client = openai_client(emu.url)

    verdicts: list[JudgedCall] = []
    model = anaphora.observe(ModelOfFramework(), on_verdict=verdicts.append, provider="openai")
    model.client.responses.create(model="gpt-5.2", input=GUIDE)
    model.client.close()
    assert len(verdicts) == 1


@pytest.mark.parametrize("value", [object(), None, "client", 3, anaphora])
def test_what_has_no_http_client_is_refused(value: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"client: no HTTP client .* `with anaphora.observing"):
        anaphora.observe(value)


async def _coroutine(call: JudgedCall) -> None: ...


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"on_verdict": 3}, "on_verdict: must be a function, not int"),
        ({"on_verdict": _coroutine}, "on_verdict: an async function would never be awaited"),
        ({"watchers": print}, r"watchers: must be a list of functions.*watchers=\[print\]"),
        ({"mark": "yes"}, "mark: must be a bool, not str"),
        ({"provider": "nobody"}, "provider: no provider 'nobody'; there are openai"),
        ({"addresses": {"http://one.invalid": "nobody"}}, "addresses: no provider 'nobody'"),
        ({"addresses": {"one.invalid": "openai"}}, "addresses: not a base URL like https://"),
        ({"addresses": ["http://one.invalid"]}, "addresses: must map base URLs to providers"),
    ],
)
def test_options_are_checked(options: dict[str, Any], reason: str) -> None:
    with httpx.Client() as client, pytest.raises(InvalidRequest, match=reason):
        anaphora.observe(client, **options)


def test_unknown_address_is_seen_and_not_judged(emu: Emulator) -> None:
    verdicts: list[JudgedCall] = []
    records: list[Any] = []
    with openai_client(emu.url) as client:
        anaphora.observe(client, on_verdict=verdicts.append, watchers=[records.append])
        client.responses.create(model="gpt-5.2", input=GUIDE)
    assert verdicts == []
    (record,) = records
    assert (record.error, record.verdict) == (None, None)


def test_watchers_get_records_as_those_of_the_client_do(emu: Emulator) -> None:
    from prometheus_client import CollectorRegistry, generate_latest

    from anaphora.client.observe import Metrics

    registry = CollectorRegistry()
    with anthropic_client(emu.url, max_retries=0) as client:
        anaphora.observe(client, watchers=[Metrics(registry)], provider="anthropic")
        for turn in (1, 2):
            client.messages.create(**claude(count=turn))
        with pytest.raises(anthropic.APIStatusError):
            client.messages.create(**claude(), extra_headers={"x-emulator-fault": "529"})
    text = generate_latest(registry).decode()
    read = emu.requests()[1]["read"]
    assert f'kind="read",model="claude-opus-5-5",provider="anthropic"}} {float(read)}' in text
    assert 'anaphora_verdicts_total{cause="none",result="hit"} 1.0' in text
    assert "Upstream" in text


def test_verdicts_are_logged_where_there_is_no_observer(
    emu: Emulator, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "anaphora.observe")
    with anthropic_client(emu.url) as client:
        anaphora.observe(client, provider="anthropic")
        for day in (15, 16):
            client.messages.create(**claude(f"Today is 2026-11-{day}. {GUIDE}"))
    first, second = (record for record in caplog.records if record.name == "anaphora.observe")
    assert (first.levelname, second.levelname) == ("INFO", "WARNING")
    assert "a date changed" in second.getMessage()
    assert "2026-11-1" not in second.getMessage(), "a log gets no text of a prompt"


def test_transport_is_passed_to_an_sdk(emu: Emulator) -> None:
    verdicts: list[JudgedCall] = []

    def observed() -> Any:
        where = addresses(emu.url)
        return anaphora.integrations.sdk.transport(on_verdict=verdicts.append, addresses=where)

    http = anthropic.DefaultHttpxClient(transport=observed())
    with anthropic_client(emu.url, http_client=http) as client:
        client.messages.create(**claude())
    with openai.OpenAI(
        api_key=KEY,
        base_url=f"{emu.url}/openai/v1",
        http_client=httpx2.Client(transport=observed()),
    ) as other:
        other.responses.create(model="gpt-5.2", input=GUIDE)

    async def ask() -> None:
        options = {"base_url": f"{emu.url}/google", "async_client_args": {"transport": observed()}}
        google = genai.Client(api_key=KEY, http_options=options)  # type: ignore[arg-type]
        await google.aio.models.generate_content(model=GEMINI, contents=GUIDE)
        await close(google)
        own = anthropic.DefaultAsyncHttpxClient(transport=observed())
        base = f"{emu.url}/anthropic"
        async with anthropic.AsyncAnthropic(api_key=KEY, base_url=base, http_client=own) as third:
            await third.messages.create(**claude())

    asyncio.run(ask())
    assert [call.provider for call in verdicts] == ["anthropic", "openai", "google", "anthropic"]
    assert verdicts[-1].turn == 2


def test_transport_takes_transports_only() -> None:
    with pytest.raises(InvalidRequest, match=r"inner: must be a transport of httpx or httpx2, not"):
        anaphora.integrations.sdk.transport(httpx.Client)  # the class, not a transport


def test_clients_of_every_sdk_are_found() -> None:
    found = [
        anaphora.observe(make("http://127.0.0.1:9"))
        for make in (anthropic_client, openai_client, google_client, mistral_client)
    ]
    assert len(found) == 4
