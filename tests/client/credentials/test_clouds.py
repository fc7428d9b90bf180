"""Providers at the clouds as a user calls them: addresses, credentials, caches and models."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from support.aws_signatures import scope_of, signature_problem
from support.bedrock_server import BedrockServer, bedrock_server
from support.local_server import SeenRequest, local_server
from support.token_servers import KNOWN, TokenServer, service_account, token_server

import anaphora
from anaphora import AsyncClient, Client, Message, catalog, wire
from anaphora.client.config import ClientConfig
from anaphora.client.config.environment import Environment
from anaphora.emulator.server import Emulator
from anaphora.errors import InvalidConfig, InvalidRequest, MissingSecret, Unauthenticated
from anaphora.rendered import Plan
from anaphora.values import ReplyEnd

CLAUDE = "claude-sonnet-4-5"
GUIDE = "Answer in short sentences. " + "Look before you leap, and say what you saw. " * 400


@pytest.fixture(scope="module")
def tokens() -> Iterator[TokenServer]:
    with token_server() as running:
        yield running


@pytest.fixture
def vertex(emu: Emulator) -> Iterator[BedrockServer]:
    with bedrock_server(emu.url) as running:
        yield running


def google(file: Path) -> dict[str, Any]:
    return {"google": {"file": str(file)}}


def configured(**entry: Any) -> ClientConfig:
    return ClientConfig.from_mapping({"providers": {"cloud": entry}})


# ── Vertex AI ────────────────────────────────────────────────────────────────────────────────────


def test_claude_at_vertex_reads_its_cache_at_turn_two(
    vertex: BedrockServer, tokens: TokenServer, tmp_path: Path
) -> None:
    config = configured(
        dialect="vertex/anthropic",
        base_url=f"{vertex.url}/v1/projects/{{project}}/locations/{{location}}/publishers/anthropic",
        region="us-east5",
        account={"project": "p-1"},
        credentials=google(service_account(tmp_path, tokens)),
        model=f"{CLAUDE}@20250929",
    )
    with Client.from_config(config) as client:
        chat = client.session("cloud", system=GUIDE)
        first, second = chat.send("One").result(), chat.send("Two").result()
    assert first.usage.written_total
    assert second.usage.read
    assert second.cost_usd is not None
    path, headers, body = vertex.requests[-1]
    start = "/v1/projects/p-1/locations/us-east5/publishers/anthropic/models"
    assert path == f"{start}/{CLAUDE}@20250929:rawPredict"
    assert {name.lower(): value for name, value in headers.items()}["authorization"].startswith(
        "Bearer ya29.google-"
    )
    sent = json.loads(body)
    assert "model" not in sent
    assert sent["anthropic_version"] == "vertex-2023-10-16"


def test_claude_at_vertex_streams(vertex: BedrockServer) -> None:
    variables = {
        "ANTHROPIC_VERTEX_PROJECT_ID": "p-1",
        "CLOUD_ML_REGION": "us-east5",
        "ANTHROPIC_VERTEX_BASE_URL": f"{vertex.url}/v1",
    }
    with Client.from_env(variables) as client:
        events = list(client.stream("Hello", model=f"vertex/{CLAUDE}"))
        whole = client.complete("Hello", model=f"vertex/{CLAUDE}")
    assert isinstance(events[-1], ReplyEnd)
    assert whole.text
    paths = [path for path, _, _ in vertex.requests]
    assert [path.rpartition(":")[2] for path in paths] == ["streamRawPredict", "rawPredict"]
    assert json.loads(vertex.requests[0][2])["stream"] is True


def test_the_module_calls_vertex_by_variables(
    vertex: BedrockServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_VERTEX_PROJECT_ID", "p-1")
    monkeypatch.setenv("ANTHROPIC_VERTEX_BASE_URL", f"{vertex.url}/v1")
    assert anaphora.complete(f"vertex/{CLAUDE}", "Hello").text
    assert "/locations/global/" in vertex.requests[-1][0]


@pytest.mark.parametrize("chosen", ["1", "TRUE"])
def test_express_keys_need_no_project(chosen: str) -> None:
    """As with Google's SDK: a key, and the variable that chooses Vertex AI."""
    variables = {"GOOGLE_GENAI_USE_VERTEXAI": chosen, "GOOGLE_API_KEY": "AIza-canary"}
    with Client.from_env(variables) as client:
        one = client._client._chooser.targets(None, "vertex/gemini-2.5-flash")[0][0]
        assert one.endpoint.wire_name == "google/gemini/express"
    url = "https://aiplatform.googleapis.com/v1beta1/publishers/google"
    assert one.endpoint.base_url == url
    assert one.endpoint._headers == {"x-goog-api-key": "AIza-canary"}
    # With a project, or without that variable, it is not the express mode.
    for more in ({"GOOGLE_CLOUD_PROJECT": "p"}, {"GOOGLE_GENAI_USE_VERTEXAI": "0"}):
        environment = Environment({**variables, **more})
        assert environment._rows["vertex"].surface == "vertex"


def test_express_keys_go_to_the_address_of_the_variable(emu: Emulator) -> None:
    variables = {
        "GOOGLE_GENAI_USE_VERTEXAI": "1",
        "GOOGLE_API_KEY": "any",
        "GOOGLE_VERTEX_BASE_URL": emu.url,
    }
    with Client.from_env(variables) as client:
        assert client.complete("Hi", model="vertex/gemini-2.5-flash").text
        assert client.count_tokens("Hi", model="vertex/gemini-2.5-flash").exact


def test_claude_on_google_cloud_needs_its_workspace() -> None:
    entry = {"dialect": "anthropic/anthropic/google-cloud", "account": {"project": "p"}}
    with pytest.raises(
        InvalidConfig, match=r"workspace\}; set it with `account: \{workspace: …\}`"
    ):
        Client.from_config(configured(**entry))
    entry["account"] = {"project": "p", "workspace": "wrkspc_1"}
    with Client.from_config(configured(**entry)) as client:
        assert client.providers == ("cloud",)


def test_gemini_at_vertex_holds_its_prefix(emu: Emulator) -> None:
    """The cached content is in the account's location, and named in full."""
    seen: list[tuple[str, str, bytes]] = []

    class Watching:
        def __init__(self) -> None:
            from anaphora.client.transport.over_aiohttp import AiohttpTransport

            self._transport = AiohttpTransport()

        async def send(self, request: Any) -> Any:
            seen.append((request.method, request.url, request.body))
            return await self._transport.send(request)

        async def close(self) -> None:
            await self._transport.close()

    variables = {"GOOGLE_CLOUD_PROJECT": "p-1", "GOOGLE_VERTEX_BASE_URL": f"{emu.url}/google"}
    with_key = variables | {"CLOUDSDK_AUTH_ACCESS_TOKEN": "token-1"}

    async def run() -> None:
        transport = Watching()
        async with AsyncClient.from_env(with_key, transport=transport) as client:
            chat = client.session("vertex", system=GUIDE * 3, model="gemini-2.0-flash")
            for text in ("One", "Two", "Three"):
                answer = await chat.send(text)
                assert not [notice for notice in answer.notices if "handle" in notice.code]
            assert answer.usage.read
            await chat.close()
        await transport.close()

    asyncio.run(run())
    location = f"{emu.url}/google/v1/projects/p-1/locations/global"
    method, url, body = next(one for one in seen if "cachedContents" in one[1])
    assert (method, url) == ("POST", f"{location}/cachedContents")
    name = "projects/p-1/locations/global/publishers/google/models/gemini-2.0-flash"
    assert json.loads(body)["model"] == name
    method, url, _ = seen[-1]
    assert method == "DELETE"
    assert url.startswith(f"{location}/cachedContents/")
    using = next(json.loads(body) for _, _, body in seen if b'"cachedContent"' in body)
    assert using["cachedContent"].startswith("projects/p-1/locations/global/cachedContents/")


@pytest.mark.parametrize(
    "region, host",
    [
        ("global", "aiplatform.googleapis.com"),
        ("us", "aiplatform.us.rep.googleapis.com"),
        ("eu", "aiplatform.eu.rep.googleapis.com"),
        ("europe-west4", "europe-west4-aiplatform.googleapis.com"),
        (None, "aiplatform.googleapis.com"),
    ],
)
def test_regions_of_vertex_have_their_hosts(region: str | None, host: str) -> None:
    from anaphora.client.config.resolve import check

    for dialect in ("vertex", "vertex/anthropic"):
        entry = {"dialect": dialect, "account": {"project": "p"}}
        if region is not None:
            entry["region"] = region
        one = check(ClientConfig.from_mapping({"providers": {"it": entry}}))["it"]
        place = f"https://{host}/v1/projects/p/locations/{region or 'global'}/publishers/"
        assert one.base_url.startswith(place)


# ── What the SDKs send ───────────────────────────────────────────────────────────────────────────


def captured(act: Callable[[str], object]) -> SeenRequest:
    """The request that an SDK sends to a URL."""
    with local_server(lambda request: (500, {}, {})) as server:
        with pytest.raises((anthropic.APIStatusError, openai.APIStatusError)):
            act(server.url)
        return server.requests[0]


def rendered(name: str, path: str, body: bytes) -> tuple[str, dict[str, Any]]:
    """The request, parsed and rendered again."""
    codec = wire.get(name)
    call = codec.parse(body, path)
    profile = catalog.profile(wire.provider_of(name), call.model)
    request = codec.assemble(codec.render(call, profile), Plan())
    return request.path, json.loads(request.body.join())


@pytest.mark.parametrize("streams", [False, True])
def test_requests_of_anthropics_vertex_client_come_back(streams: bool) -> None:
    def act(url: str) -> None:
        sdk = anthropic.AnthropicVertex(
            region="us-east5", project_id="p", access_token="t", base_url=f"{url}/v1", max_retries=0
        )
        with sdk:
            sdk.messages.create(
                model="claude-opus-4-5@20251101",
                max_tokens=20,
                messages=[{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
                stream=streams,
            )

    sent = captured(act)
    path, body = rendered("vertex/anthropic", sent.path, sent.body)
    assert sent.path.endswith(path)
    given = json.loads(sent.body)
    assert body == {name: value for name, value in given.items() if value is not False}


def test_requests_of_foundrys_client_come_back() -> None:
    def act(url: str) -> None:
        sdk = anthropic.AnthropicFoundry(base_url=f"{url}/anthropic", api_key="k", max_retries=0)
        content: Any = [{"type": "text", "text": "Hi"}]
        with sdk:
            sdk.messages.create(
                model="my-claude", max_tokens=20, messages=[{"role": "user", "content": content}]
            )

    sent = captured(act)
    row = wire.dialect_of("anthropic/anthropic/foundry")
    assert row.path == sent.path
    assert sent.headers[row.auth] == "k"
    given = json.loads(sent.body)
    given = {name: value for name, value in given.items() if value is not False}
    assert rendered(row.name, sent.path, sent.body)[1] == given


def test_requests_of_azures_client_come_back() -> None:
    def act(url: str) -> None:
        sdk = openai.AzureOpenAI(
            azure_endpoint=url, api_version="2024-10-21", api_key="k", max_retries=0
        )
        with sdk:
            sdk.chat.completions.create(
                model="my-deployment", messages=[{"role": "user", "content": "Hi"}]
            )

    sent = captured(act)
    path, body = rendered("azure/openai_chat/dated", sent.path, sent.body)
    assert path.replace("{api_version}", "2024-10-21") == sent.path
    assert sent.headers["api-key"] == "k"
    assert body["messages"] == json.loads(sent.body)["messages"]


# ── Azure ────────────────────────────────────────────────────────────────────────────────────────


def chat_reply(model: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": "Yes.", "refusal": None}
    usage = {"prompt_tokens": 1200, "completion_tokens": 3, "total_tokens": 1203}
    return {
        "id": "c1",
        "object": "chat.completion",
        "created": 1,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}],
        "usage": usage,
        "prompt_filter_results": [{"prompt_index": 0, "content_filter_results": {}}],
    }


@pytest.mark.parametrize(
    "dialect, path",
    [
        ("azure", "/openai/v1/chat/completions"),
        (
            "azure/openai_chat/dated",
            "/openai/deployments/my-gpt/chat/completions?api-version=2024-12-01-preview",
        ),
        ("azure/openai_chat/inference", "/models/chat/completions?api-version=2024-12-01-preview"),
    ],
)
def test_a_deployment_is_learned_from_its_answer(dialect: str, path: str) -> None:
    with local_server(lambda request: (200, {}, chat_reply("gpt-5.2-2025-12-11"))) as azure:
        given = {"account": {"api_version": "2024-12-01-preview"}} if "/" in dialect else {}
        config = configured(
            dialect=dialect, base_url=azure.url, key={"env": "AZURE_KEY"}, model="my-gpt", **given
        )
        with Client.from_config(config, environ={"AZURE_KEY": "k-1"}) as client:
            first = client.complete("Hello", "cloud")
            second = client.session("cloud").send("Hello").result()
            target = client.session("cloud").send("Hi").result().record
    assert first.cost_usd == second.cost_usd
    assert first.cost_usd is not None
    assert [one.path for one in azure.requests] == [path] * 3
    assert azure.requests[0].headers["api-key"] == "k-1"
    assert target.model == "my-gpt"
    assert target.answered_by == "gpt-5.2-2025-12-11"


def test_rules_of_a_deployment_are_those_of_its_model() -> None:
    with local_server(lambda request: (200, {}, chat_reply("gpt-5.2-2025-12-11"))) as azure:
        config = configured(dialect="azure", base_url=azure.url, model="my-gpt")

        async def run() -> None:
            async with AsyncClient.from_config(config) as client:
                await client.complete("Hello", "cloud")
                endpoint = client._pool.called("cloud")
                assert endpoint is not None
                target = endpoint.target("my-gpt")
                begun = endpoint.begun(target)
                known = catalog.rules("azure", "gpt-5.2", "openai_chat")
                assert begun.rules == known
                assert begun.profile.id == "gpt-5.2"
                assert begun.model == "my-gpt"
                assert target.price(time.time()) is not None
                assert endpoint.listed_model("other") == "other"

        asyncio.run(run())


def test_azure_takes_a_token_instead_of_a_key(
    tokens: TokenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from support.token_servers import IDENTITY_HEADER

    monkeypatch.setenv("IDENTITY_ENDPOINT", f"{tokens.url}/msi/token")
    monkeypatch.setenv("IDENTITY_HEADER", IDENTITY_HEADER)
    with local_server(lambda request: (200, {}, chat_reply("gpt-5.2"))) as azure:
        config = configured(
            dialect="azure",
            base_url=azure.url,
            credentials={"azure": {"client_id": "client-1"}},
            model="gpt-5.2",
        )
        with Client.from_config(config) as client:
            client.complete("Hello", "cloud")
    headers = azure.requests[0].headers
    assert headers["authorization"].startswith("Bearer eyJ")
    assert "api-key" not in headers


# ── AWS ──────────────────────────────────────────────────────────────────────────────────────────


def messages_reply() -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": CLAUDE,
        "content": [{"type": "text", "text": "Yes."}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 9, "output_tokens": 3},
    }


class AwsDoor:
    """Verifies signatures with a clock that is `ahead` of ours."""

    def __init__(self, ahead: float = 0.0) -> None:
        self.ahead = ahead
        self.verified: list[bool] = []
        self.error = ""

    def __call__(self, request: BaseHTTPRequestHandler) -> tuple[int, dict[str, str], Any]:
        now = time.time() + self.ahead
        body: bytes = request.body  # type: ignore[attr-defined]
        given = {name.lower(): value for name, value in request.headers.items()}
        found = signature_problem("POST", request.path, given, body, KNOWN, now)
        self.verified.append(found is None)
        headers = {"Date": formatdate(now, usegmt=True)}
        if found is not None:
            error = {"type": "error", "error": {"type": "forbidden", "message": found.message}}
            return 403, headers | {"x-amzn-errortype": found.code}, error
        assert scope_of(given["authorization"])[1:] == ("us-east-1", "aws-external-anthropic")
        return 200, headers, messages_reply()


def aws(url: str, **more: Any) -> ClientConfig:
    entry = {
        "dialect": "anthropic/anthropic/aws",
        "base_url": url,
        "region": "us-east-1",
        "headers": {"anthropic-workspace-id": "w-1"},
        "credentials": {"aws": {"access_key": {"env": "ID"}, "secret_key": {"env": "SECRET"}}},
        "model": CLAUDE,
        **more,
    }
    return configured(**entry)


PAIR = {"ID": "AKIDBASE", "SECRET": KNOWN["AKIDBASE"]}


@pytest.mark.parametrize("ahead", [0.0, 3600.0, -3600.0])
def test_a_wrong_clock_is_corrected_once(ahead: float) -> None:
    door = AwsDoor(ahead)
    with local_server(door) as server, Client.from_config(aws(server.url), environ=PAIR) as client:
        for _ in range(3):
            assert client.complete("Hello", "cloud").text == "Yes."
    assert door.verified == ([False] if ahead else []) + [True] * 3
    assert server.requests[0].headers["anthropic-workspace-id"] == "w-1"


def test_a_wrong_secret_is_refused_once() -> None:
    door = AwsDoor()
    with local_server(door) as server:
        wrong = PAIR | {"SECRET": "wrong-secret-4Rj7Np2m"}
        refused = pytest.raises((Unauthenticated, anaphora.errors.Forbidden))
        with Client.from_config(aws(server.url), environ=wrong) as client, refused as caught:
            client.complete("Hello", "cloud")
    assert door.verified == [False]
    assert "4Rj7Np2m" not in f"{caught.value}"


def test_a_profile_of_the_shared_files_signs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "credentials"
    file.write_text(
        f"[llm]\naws_access_key_id = AKIDOTHER\naws_secret_access_key = {KNOWN['AKIDOTHER']}\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    door = AwsDoor()
    with local_server(door) as server:
        config = aws(server.url, credentials={"aws": {"profile": "llm"}})
        with Client.from_config(config) as client:
            client.complete("Hello", "cloud")
    assert door.verified == [True]
    assert "Credential=AKIDOTHER/" in server.requests[0].headers["authorization"]


# ── Configurations ───────────────────────────────────────────────────────────────────────────────

UNFIT: list[tuple[dict[str, Any], str]] = [
    ({"dialect": "deepseek", "credentials": {"ambient": True}}, "takes a `key`, and no credentials"),
    (
        {"dialect": "vertex", "account": {"project": "p"}, "credentials": {"aws": {"profile": "x"}}},
        "takes credentials of google",
    ),
    (
        {"dialect": "vertex", "account": {"project": "p"}, "key": {"env": "K"}, "credentials": {"ambient": True}},
        "there is also a `key`",
    ),
    ({"dialect": "vertex"}, "the URL contains {project}; set it with `account: {project: …}`"),
    ({"dialect": "anthropic/anthropic/aws", "region": "x", "credentials": {"aws": {}}}, "name one source of keys"),
    ({"dialect": "anthropic/anthropic/aws", "region": "x", "credentials": {}}, "name one source"),
    (
        {"dialect": "anthropic/anthropic/aws", "region": "x", "credentials": {"aws": {"access_key": {"env": "A"}}}},
        "access_key and secret_key belong together",
    ),
    ({"dialect": "vertex", "account": {"project": "p"}, "credentials": {"google": {"file": "gone.json"}}}, "there is no file"),
    ({"dialect": "azure", "account": {"resource": "r"}, "credentials": {"azure": {"tenant": "t", "client_id": "c"}}}, "tenant and client_secret belong together"),
]  # fmt: skip


@pytest.mark.parametrize("entry, reason", UNFIT)
def test_unfit_credentials_are_named(entry: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        Client.from_config({"providers": {"it": entry}}, environ={"K": "k"})
    assert reason in str(caught.value)


def test_ambient_credentials_are_the_default_but_never_without_encryption() -> None:
    from anaphora.client.config.resolve import resolve

    def credentials(**entry: Any) -> object:
        config = {"dialect": "azure", "account": {"resource": "r"}, **entry}
        made = ClientConfig.from_mapping({"providers": {"it": config}})
        return resolve(made, environ={"K": "k"})["it"].credentials

    assert credentials() is not None
    assert credentials(credentials={"ambient": True}) is not None
    assert credentials(credentials={"azure": {"ambient": True}}) is not None
    assert credentials(base_url="http://localhost:1") is None
    assert credentials(base_url="HTTP://localhost:1") is None
    assert credentials(base_url="http://localhost:1", credentials={"ambient": True}) is not None
    assert credentials(key={"env": "K"}) is None


@pytest.mark.parametrize(
    "url, signs",
    [
        ("http://127.0.0.1:7707", True),
        ("http://localhost:7707", True),
        ("http://127.0.0.1.example:7707", False),
        ("http://10.0.0.1:7707", False),
    ],
)
def test_a_key_pair_in_variables_signs_for_this_machine(url: str, signs: bool) -> None:
    """A daemon or an emulator there takes what boto3 would send."""
    from anaphora.client.config.resolve import resolve

    entry = {"dialect": "bedrock", "region": "us-east-1", "base_url": url}
    made = ClientConfig.from_mapping({"providers": {"it": entry}})
    pair = {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "s"}
    found = resolve(made, environ=pair)["it"]
    assert (found.credentials is not None) == signs
    assert resolve(made, environ={})["it"].credentials is None
    assert not found.notices  # the region is part of the signature


def test_models_of_other_makers_are_refused_at_a_cloud() -> None:
    config = {"dialect": "vertex", "account": {"project": "p"}, "key": {"env": "K"}}
    refused = pytest.raises(InvalidRequest, match="is a model of anthropic")
    with Client.from_config({"providers": {"v": config}}, environ={"K": "k"}) as client, refused:
        client.complete("Hi", "v", model="claude-opus-5")


@pytest.mark.parametrize(
    "model, message",
    [
        ("vertex/claude-opus-5", "no project for vertex/anthropic in the environment: set ANTHROPIC_VERTEX_PROJECT_ID"),
        ("vertex/gemini-2.5-pro", "set GOOGLE_CLOUD_PROJECT"),
        ("azure/gpt-5.2", "no address for azure in the environment: set AZURE_OPENAI_ENDPOINT or AZURE_RESOURCE_NAME, and AZURE_OPENAI_API_KEY"),
        ("azure/claude-opus-5", "set ANTHROPIC_FOUNDRY_BASE_URL or ANTHROPIC_FOUNDRY_RESOURCE, and ANTHROPIC_FOUNDRY_API_KEY"),
    ],
)  # fmt: skip
def test_missing_variables_are_named(model: str, message: str) -> None:
    environ = {"OPENAI_API_KEY": "k", "HOME": os.devnull}
    with Client.from_env(environ) as client, pytest.raises(MissingSecret) as caught:
        client.complete("Hi", model=model)
    assert message in str(caught.value)


def test_a_misspelt_profile_is_named_before_its_region(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("[profile work]\nregion = us-west-2\n")
    environ = {
        "AWS_PROFILE": "wrok",
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }
    with pytest.raises(MissingSecret, match=r"no AWS profile 'wrok' in .*; there are: work"):
        Client.from_env(environ)
    with pytest.raises(MissingSecret, match="no region for bedrock"):
        Client.from_env({"AWS_BEARER_TOKEN_BEDROCK": "k", "HOME": os.devnull})
    with pytest.raises(MissingSecret, match="no address for azure"):
        Client.from_env({"AZURE_OPENAI_API_KEY": "k"})


def test_models_in_paths_are_names() -> None:
    codec = wire.get("vertex/anthropic")
    call = anaphora.Call(
        ir=anaphora.PromptIR.chat([Message.user("Hi")]),
        model="../other",
        params=anaphora.Params(max_tokens=9),
    )
    with pytest.raises(InvalidRequest, match="is part of the path"):
        codec.render(call, catalog.profile("anthropic", "claude-opus-5"))
