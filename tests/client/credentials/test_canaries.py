"""Secrets of the clouds reach their services, and no error, log, record or repr, however a call
fails: providers and token services that quote everything they got are part of the table."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.collectors import collected, logged
from support.local_server import LocalServer, local_server
from support.token_servers import (
    IDENTITY_HEADER,
    KNOWN,
    WEB_TOKEN,
    TokenServer,
    service_account,
    token_server,
)

from anaphora import AsyncClient, Client
from anaphora.client.config import ClientConfig
from anaphora.client.response import Record
from anaphora.errors import AnaphoraError

#: Parts of every secret that is used here.
PARTS = (
    KNOWN["AKIDBASE"], "7Hq2Zt9v", "Session-8Nw5Kc2t", "secret-sts-", "token-sts-", "2Lp6Gs8h",
    "6Tn1Vx4c", "5Kd8Qs3n", "9Wv4Jc6y", "BEGIN PRIVATE KEY",
)  # fmt: skip
VARIABLES = {
    "AWS_ID": "AKIDBASE",
    "AWS_SECRET": KNOWN["AKIDBASE"],
    "AWS_TOKEN": "FwoGZXIvYXdzEJr-Session-8Nw5Kc2t",
    "ENTRA": "entra-secret-6Tn1Vx4c",
    "AWS_REGION": "us-east-1",
}
PAIR = {"access_key": {"env": "AWS_ID"}, "secret_key": {"env": "AWS_SECRET"}}
AT_AWS = {"dialect": "anthropic/anthropic/aws", "region": "us-east-1", "model": "claude-opus-5"}
AT_AZURE = {"dialect": "azure", "account": {"resource": "r"}, "model": "gpt-5.2"}


def entries(tokens: TokenServer, folder: Path) -> dict[str, dict[str, Any]]:
    file = service_account(folder, tokens)
    at_vertex = {"dialect": "vertex/anthropic", "account": {"project": "p"}}
    role = {"role": "arn:aws:iam::000000000000:role/r"}
    return {
        "keys": AT_AWS | {"credentials": {"aws": {**PAIR, "session_token": {"env": "AWS_TOKEN"}}}},
        "role": AT_AWS | {"credentials": {"aws": {**PAIR, **role}}},
        "web identity": AT_AWS | {"credentials": {"aws": {"profile": "web"}}},
        "google": at_vertex
        | {"credentials": {"google": {"file": str(file)}}, "model": "claude-opus-5"},
        "azure": AT_AZURE | {"credentials": {"azure": {"client_id": "c-1"}}},
    }


NAMES = ("keys", "role", "web identity", "google", "azure")


@pytest.fixture(scope="module")
def tokens() -> Iterator[TokenServer]:
    with token_server() as running:
        yield running


@pytest.fixture(autouse=True)
def _variables(tokens: TokenServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text(WEB_TOKEN)
    (tmp_path / "config").write_text(
        "[profile web]\nrole_arn = arn:aws:iam::000000000000:role/w\n"
        f"web_identity_token_file = {tmp_path}/token\n"
    )
    files = {"AWS_CONFIG_FILE": "config", "AWS_SHARED_CREDENTIALS_FILE": "none"}
    more = {name: str(tmp_path / file) for name, file in files.items()}
    more |= {"IDENTITY_ENDPOINT": f"{tokens.url}/msi/token", "IDENTITY_HEADER": IDENTITY_HEADER}
    for name, value in (VARIABLES | more | {"AWS_ENDPOINT_URL_STS": tokens.url}).items():
        monkeypatch.setenv(name, value)


def quoting(request: Any) -> tuple[int, dict[str, str], Any]:
    """As AWS explains a wrong signature: with the canonical request, tokens included."""
    text = "\n".join(f"{name}:{value}" for name, value in request.headers.items())
    message = f"The canonical string should have been {request.path}\n{text}"
    headers = {"x-request-id": request.headers["authorization"].replace("\n", " ")}
    error = {"type": "error", "error": {"type": text, "code": text, "message": message}}
    return 400, headers, error


async def awaited(config: ClientConfig, records: list[Record]) -> None:
    async with AsyncClient.from_config(config, watchers=[records.append]) as client:
        await client.complete("Hello", "it")


async def streamed(config: ClientConfig, records: list[Record]) -> None:
    async with AsyncClient.from_config(config, watchers=[records.append]) as client:
        async for _ in client.session("it").send("Hello"):
            pass


async def synchronous(config: ClientConfig, records: list[Record]) -> None:
    def call() -> None:
        with Client.from_config(config, watchers=[records.append]) as client:
            client.session("it").send("Hello").result()

    await asyncio.to_thread(call)


WAYS: list[Callable[[ClientConfig, list[Record]], Awaitable[None]]] = [
    awaited,
    streamed,
    synchronous,
]


def assert_hidden(error: AnaphoraError, records: list[Record], log: list[str]) -> None:
    for collector, text in collected(error, records, log):
        for part in PARTS:
            place = text.find(part)
            assert place < 0, f"{collector}: …{text[max(0, place - 300) : place + 60]}"


def failing(way: Any, entry: dict[str, Any], url: str) -> AnaphoraError:
    """The error of a call, after a look at everything that was seen of it."""
    base = url
    if entry["dialect"] == "vertex/anthropic":
        base += "/v1/projects/{project}/locations/{location}/publishers/anthropic"
    entry = {**entry, "base_url": base, "retry": {"max_attempts": 1}}
    entry = {name: value for name, value in entry.items() if (name, base) != ("account", url)}
    config = ClientConfig.from_mapping({"providers": {"it": entry}})

    async def call() -> AnaphoraError:
        records: list[Record] = []
        with logged() as log:
            try:
                await way(config, records)
            except AnaphoraError as caught:
                error = caught
            else:
                raise AssertionError("the call did not fail")
            assert_hidden(error, records, log)
        assert len(records) == 1
        return error

    return asyncio.run(call(), debug=True)


def was_sent(server: LocalServer, name: str) -> bool:
    """Whether a secret reached the provider: so that the tests can fail."""
    headers = server.requests[-1].headers
    if name == "keys":
        return "8Nw5Kc2t" in headers["x-amz-security-token"]
    if name in ("role", "web identity"):
        return "token-sts-" in headers["x-amz-security-token"]
    return "2Lp6Gs8h" in headers["authorization"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.long
def test_a_provider_that_quotes_everything(
    name: str, way: Any, tokens: TokenServer, tmp_path: Path
) -> None:
    with local_server(quoting) as server:
        failing(way, entries(tokens, tmp_path)[name], server.url)
        assert was_sent(server, name)


@pytest.mark.parametrize("name", NAMES)
def test_a_provider_that_is_gone(name: str, tokens: TokenServer, tmp_path: Path) -> None:
    failing(awaited, entries(tokens, tmp_path)[name], "http://127.0.0.1:9")


@pytest.mark.parametrize("name, status", [("role", 503), *((name, 400) for name in NAMES[1:])])
def test_a_token_service_that_refuses(
    name: str, status: int, tokens: TokenServer, tmp_path: Path
) -> None:
    entry = entries(tokens, tmp_path)[name]
    tokens.failing = status
    try:
        with local_server(quoting) as server:
            failing(awaited, entry, server.url)
            assert server.requests == []
    finally:
        tokens.failing = 0


def test_a_token_service_that_quotes_the_token(
    tokens: TokenServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text(f"{WEB_TOKEN}-unknown")
    with local_server(quoting) as server:
        error = failing(awaited, entries(tokens, tmp_path)["web identity"], server.url)
    assert "InvalidIdentityToken" in str(error)


def test_secrets_in_the_wrong_place_are_not_shown() -> None:
    for entry in (
        AT_AWS | {"credentials": {"aws": {"profile": "AKIAIOSFODNN7Hq2Zt9v"}}},
        AT_AWS | {"credentials": {"aws": {"access_key": "AKIAIOSFODNN7Hq2Zt9v"}}},
        AT_AWS | {"credentials": {"aws": {"ambient": True, "role": "sk-canary-7Hq2Zt9vXw4L"}}},
        AT_AZURE | {"credentials": {"azure": {"client_id": "sk-canary-7Hq2Zt9vXw4LmP"}}},
    ):
        with logged() as log, pytest.raises(AnaphoraError) as caught:
            Client.from_config({"providers": {"it": entry}})
        for collector, text in collected(caught.value, [], log):
            if "locals" not in collector and collector not in ("Sentry", "rich"):
                assert "7Hq2Zt9v" not in text, (collector, text)


def test_configurations_show_names_only(tokens: TokenServer, tmp_path: Path) -> None:
    from anaphora.client.config.resolve import resolve

    for name, entry in entries(tokens, tmp_path).items():
        config = ClientConfig.from_mapping({"providers": {"it": entry}})
        one = resolve(config)["it"]
        shown = f"{config!r}{one!r}{one.credentials!r}{one.provider!r}"
        assert not any(part in shown for part in PARTS), name
        assert json.dumps(shown)
