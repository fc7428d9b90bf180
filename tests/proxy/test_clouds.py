"""The clouds' own clients through the proxy, by the variables that `watch` sets, at an emulator that
verifies AWS's signatures: they read their cache, and every call is judged by its bill."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import boto3
import botocore.exceptions
import httpx
import pytest
from botocore.config import Config
from support.cloud_agent import CLIENTS, GUIDE, QUESTIONS
from support.emulated_client import AT_ONCE
from support.signed_emulator import signed_emulator
from support.socket_upstream import answering, socket_upstream

from anaphora.emulator import EmulatorOptions
from anaphora.emulator.server import Emulator
from anaphora.proxy.placeholders import PlaceholderTokens, with_placeholder_keys
from anaphora.proxy.programs import environment, upstreams_from
from anaphora.proxy.recording import RecordedUpstream
from anaphora.proxy.routes import NetworkUpstream, RouteTable, default_routes
from anaphora.proxy.server import Proxy, running
from anaphora.proxy.signing import RequestSigner
from anaphora.replay.player import Player
from anaphora.traffic.judging import Judge
from anaphora.traffic.placing import Placer

ACCESS, SECRET = "AKIACANARY0000000000", "canary/secret+9aF3xLq8ZpQ7"
BEARER = "ABSKcanary-9aF3xLq8ZpQ7"
CLAUDE = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
NAMES = [name for name in CLIENTS if name != "converse-unmarked"]


@pytest.fixture(scope="module")
def emu() -> Iterator[Emulator]:
    with signed_emulator(EmulatorOptions(latency=AT_ONCE), ACCESS, SECRET) as running:
        yield running


@pytest.fixture(autouse=True)
def variables(
    emu: Emulator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[dict[str, str]]:
    """The environment of a user whose addresses are all at the emulator."""
    for name in os.environ:
        if name.startswith(("AWS_", "ANTHROPIC_", "GOOGLE_", "AZURE_", "OPENAI_", "CLOUD_ML_")):
            monkeypatch.delenv(name)
    emu.reset()
    boto3.DEFAULT_SESSION = None
    yield {
        "HOME": str(tmp_path),
        "AWS_ACCESS_KEY_ID": ACCESS,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL_BEDROCK_RUNTIME": emu.url,
        "ANTHROPIC_BEDROCK_BASE_URL": emu.url,
        "ANTHROPIC_BEDROCK_MANTLE_BASE_URL": f"{emu.url}/bedrock/anthropic",
        "ANTHROPIC_VERTEX_BASE_URL": f"{emu.url}/v1",
        "ANTHROPIC_VERTEX_PROJECT_ID": "p",
        "GOOGLE_VERTEX_BASE_URL": emu.url,
        "GOOGLE_CLOUD_PROJECT": "p",
        "ANTHROPIC_FOUNDRY_BASE_URL": f"{emu.url}/azure/anthropic",
        "ANTHROPIC_FOUNDRY_API_KEY": "canary-foundry-key",
        "AZURE_OPENAI_ENDPOINT": emu.url,
        "AZURE_OPENAI_API_KEY": "canary-azure-key",
    }
    boto3.DEFAULT_SESSION = None


@contextlib.contextmanager
def program(
    environ: Mapping[str, str], tmp_path: Path, *, offline: bool = False, **options: Any
) -> Iterator[Proxy]:
    """A proxy, and the environment of its program in this process."""
    tokens = PlaceholderTokens()
    options.setdefault("upstream", NetworkUpstream(signer=RequestSigner(environ)))
    routes = default_routes(upstreams_from(environ), environ.get("AWS_DEFAULT_REGION", ""))
    with running(routes, pages=tokens, **options) as proxy, pytest.MonkeyPatch.context() as patch:
        changed, _ = environment(proxy, environ, ())
        changed = with_placeholder_keys(changed, ()) if offline else changed
        for name in environ:
            patch.delenv(name, raising=False)
        for name, value in {**changed, **tokens.environment(str(tmp_path), proxy.url)}.items():
            patch.setenv(name, value)
        boto3.DEFAULT_SESSION = None
        yield proxy


@pytest.mark.parametrize("name", NAMES)
def test_calls_are_judged_by_their_bills(
    emu: Emulator, variables: dict[str, str], tmp_path: Path, name: str
) -> None:
    judge = Judge()
    with program(variables, tmp_path, observers=[judge]):
        first, second = CLIENTS[name]()
    assert first == 0
    assert second > 2000
    assert [call["read"] for call in emu.requests()] == [second, first]
    assert [(call.kind, call.turn) for call in judge.calls] == [("judged", 1), ("judged", 2)]
    assert [call.usage.read or 0 for call in judge.calls if call.usage] == [first, second]
    assert [call.verdict.result for call in judge.calls if call.verdict] == ["first", "hit"]
    assert all(call.cost_usd for call in judge.calls)


@pytest.mark.parametrize("name", ["converse", "invoke-stream", "bedrock", "mantle"])
def test_bearer_token_is_sent_by_the_proxy(
    emu: Emulator, variables: dict[str, str], tmp_path: Path, name: str
) -> None:
    """boto3 sends none over plain HTTP; the program signs with placeholder keys."""
    del variables["AWS_ACCESS_KEY_ID"], variables["AWS_SECRET_ACCESS_KEY"]
    variables["AWS_BEARER_TOKEN_BEDROCK"] = BEARER
    with program(variables, tmp_path) as proxy:
        assert proxy
        assert BEARER not in str(dict(os.environ))
        _, second = CLIENTS[name]()
    assert second > 2000
    assert {call["status"] for call in emu.requests()} == {200}


def runtime(**options: Any) -> Any:
    config = Config(retries={"total_max_attempts": 1})
    return boto3.client("bedrock-runtime", config=config, **options)


def ask(client: Any, **more: Any) -> Any:
    messages = [{"role": "user", "content": [{"text": "Hello"}]}]
    return client.converse(modelId=CLAUDE, messages=messages, **more)


def test_keys_of_a_profile_sign(emu: Emulator, variables: dict[str, str], tmp_path: Path) -> None:
    """That of AWS_PROFILE, and another one that the program names in its code."""
    del variables["AWS_ACCESS_KEY_ID"], variables["AWS_SECRET_ACCESS_KEY"]
    file, other = tmp_path / "credentials", "AKIAOTHER00000000000"
    file.write_text(
        f"[work]\naws_access_key_id = {other}\naws_secret_access_key = wrong\n"
        f"[home]\naws_access_key_id = {ACCESS}\naws_secret_access_key = {SECRET}\n"
    )
    variables |= {"AWS_SHARED_CREDENTIALS_FILE": str(file), "AWS_PROFILE": "work"}
    with program(variables, tmp_path):
        with pytest.raises(botocore.exceptions.ClientError, match="security token"):
            ask(runtime())
        session = boto3.Session(profile_name="home")
        assert ask(session.client("bedrock-runtime"))["stopReason"] == "end_turn"


@pytest.mark.parametrize("token", [None, "canary-token"])
def test_keys_in_the_code_are_refused(
    emu: Emulator, variables: dict[str, str], tmp_path: Path, token: str | None
) -> None:
    """The proxy does not sign with another identity: that would change who pays."""
    with program(variables, tmp_path):
        client = runtime(
            aws_access_key_id="AKIAINCODE0000000000",
            aws_secret_access_key="canary-in-code",
            aws_session_token=token,
        )
        with pytest.raises(client.exceptions.AccessDeniedException) as raised:
            ask(client)
    reason = str(raised.value)
    assert "cannot sign this request again" in reason
    assert "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS=true" in reason
    assert "canary" not in reason
    assert raised.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403
    assert emu.requests() == []


def test_without_credentials_a_signed_request_is_refused(
    variables: dict[str, str], tmp_path: Path
) -> None:
    with program(variables, tmp_path, upstream=NetworkUpstream(signer=RequestSigner({}))):
        client = runtime()
        with pytest.raises(client.exceptions.AccessDeniedException, match="neither in the env"):
            ask(client)


def test_token_is_not_sent_without_tls(variables: dict[str, str], tmp_path: Path) -> None:
    variables["AWS_BEARER_TOKEN_BEDROCK"] = BEARER
    variables["AWS_ENDPOINT_URL_BEDROCK_RUNTIME"] = "http://bedrock.example"
    del variables["ANTHROPIC_BEDROCK_BASE_URL"]
    with program(variables, tmp_path):
        client = runtime()
        with pytest.raises(client.exceptions.AccessDeniedException, match="not sent without TLS"):
            ask(client)


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("route", ["bedrock", "bedrock-mantle", "anthropic-aws", "ollama"])
def test_only_requests_of_the_program_are_signed(
    emu: Emulator, variables: dict[str, str], tmp_path: Path, route: str, held: bool
) -> None:
    """Other processes know the port and may know the id of a key, but not the address."""
    if held:
        variables["AWS_BEARER_TOKEN_BEDROCK"] = BEARER
    variables |= {"ANTHROPIC_AWS_BASE_URL": emu.url, "OLLAMA_HOST": emu.url}
    body = {"messages": [{"role": "user", "content": [{"text": "Hello"}]}]}
    with program(variables, tmp_path) as proxy:
        for middle in ("", "/wrong", "/%2e%2e/bedrock", "//"):
            url = f"{proxy.url}/{route}{middle}/model/{CLAUDE}/converse"
            for more in ({}, {"x-amz-security-token": "any"}):
                answer = httpx.post(url, json=body, headers=signed("us-east-1") | more)
                assert answer.status_code == 403
                assert "requests of its own command only" in answer.text
                assert proxy.url_of("bedrock").rpartition("/")[2] not in answer.text
        assert emu.requests() == []
        url = f"{proxy.url_of('bedrock')}/model/{CLAUDE}/converse"
        assert httpx.post(url, json=body, headers=signed("us-east-1")).status_code == 200


def test_no_repr_of_a_route_shows_its_secret() -> None:
    with running(default_routes()) as proxy:
        secret = proxy.url_of("bedrock").rpartition("/")[2]
        assert len(secret) >= 32
        assert secret not in repr(proxy.routes)
        assert secret not in httpx.get(f"{proxy.url}/nowhere").text


# ── Where requests go ────────────────────────────────────────────────────────────────────────────


def signed(region: str, service: str = "bedrock") -> dict[str, str]:
    scope = f"{ACCESS}/20261118/{region}/{service}/aws4_request"
    value = f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature={'0' * 64}"
    return {"authorization": value}


@pytest.mark.parametrize(
    ("path", "headers", "upstream", "provider"),
    [
        ("/bedrock/model/m/converse", signed("eu-west-1"), "bedrock-runtime.eu-west-1.amazonaws.com", "bedrock"),
        ("/bedrock/model/m/converse", {}, "bedrock-runtime.us-west-2.amazonaws.com", "bedrock"),
        ("/bedrock/inference-profiles", signed("eu-west-1"), "bedrock.eu-west-1.amazonaws.com", "bedrock"),
        ("/bedrock-mantle/v1/responses", {}, "bedrock-mantle.us-west-2.api.aws", "bedrock"),
        ("/aiplatform.googleapis.com/v1/projects/p/locations/us-east5/publishers/anthropic/models/m:rawPredict", {}, "us-east5-aiplatform.googleapis.com", "anthropic"),
        ("/aiplatform.googleapis.com/v1/projects/p/locations/eu/publishers/google/models/m:generateContent", {}, "aiplatform.eu.rep.googleapis.com", "google"),
        ("/aiplatform.googleapis.com/v1beta1/publishers/google/models/m:generateContent", {}, "aiplatform.googleapis.com", "google"),
    ],
)  # fmt: skip
def test_regions_come_from_the_signature_the_path_or_the_environment(
    path: str, headers: dict[str, str], upstream: str, provider: str
) -> None:
    found = RouteTable(default_routes({}, "us-west-2")).find(path, headers)
    assert found is not None
    assert (found[0].upstream, found[0].provider) == (f"https://{upstream}", provider)


@pytest.mark.parametrize("headers", [signed("evil.example/x"), signed("a@b"), {}])
def test_regions_are_checked(
    variables: dict[str, str], tmp_path: Path, headers: dict[str, str]
) -> None:
    with running(default_routes()) as proxy:
        answer = httpx.post(f"{proxy.url}/bedrock/model/m/converse", json={}, headers=headers)
    assert answer.status_code == 400
    assert answer.headers["x-amzn-errortype"].startswith("ValidationException")
    assert "set AWS_REGION" in answer.json()["message"]


# ── Markers ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("fix", [False, True])
def test_placed_points_are_signed_and_read(
    emu: Emulator, variables: dict[str, str], tmp_path: Path, fix: bool
) -> None:
    placer = Placer(fix=fix)
    with program(variables, tmp_path, observers=[placer], place=placer):
        *_, last = CLIENTS["converse-unmarked"]()
    assert placer.placed >= (1 if fix else 2)
    assert placer.fixes["place_markers"] == placer.placed
    assert last > 2000
    emu.reset()
    with program(variables, tmp_path):
        assert not any(CLIENTS["converse-unmarked"]())


# ── Other makers' bodies ─────────────────────────────────────────────────────────────────────────


def test_other_bodies_pass_unread(variables: dict[str, str], tmp_path: Path) -> None:
    head = (
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 13\r\n"
        "x-amzn-bedrock-input-token-count: 12\r\nx-amzn-bedrock-output-token-count: 5\r\n\r\n"
    )
    judge, placer = Judge(), Placer()
    with socket_upstream(answering(head.encode() + b'{"output":{}}')) as upstream:
        variables["AWS_ENDPOINT_URL_BEDROCK_RUNTIME"] = upstream.url
        del variables["ANTHROPIC_BEDROCK_BASE_URL"]
        with program(variables, tmp_path, observers=[judge, placer], place=placer):
            body = json.dumps({"prompt": GUIDE, "max_gen_len": 5})
            model = "meta.llama3-70b-instruct-v1:0"
            answer = runtime().invoke_model(modelId=model, body=body)
            assert answer["body"].read() == b'{"output":{}}'
    (call,) = judge.calls
    assert (call.kind, call.model) == ("not_judged", model)
    assert call.usage is not None
    assert (call.usage.uncached, call.usage.output) == (12, 5)
    assert call.cost_usd == judge.summary().spent_usd
    assert judge.summary().unread.calls == 1


# ── Recordings ───────────────────────────────────────────────────────────────────────────────────


def test_recorded_and_replayed_without_credentials(
    emu: Emulator, variables: dict[str, str], tmp_path: Path
) -> None:
    """Binary streams included; no file contains a secret."""
    folder = tmp_path / "recordings"
    network = NetworkUpstream(signer=RequestSigner(variables))
    made = RecordedUpstream(Player(folder, "all"), network)
    with program(variables, tmp_path, upstream=made):
        recorded = {name: [*CLIENTS[name]()] for name in NAMES}
    assert made.player.report.recorded == len(NAMES) * len(QUESTIONS)
    written = b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())
    for secret in (ACCESS, SECRET, "canary", "anaphora-replay", "Signature="):
        assert secret.encode() not in written
    emu.reset()
    bare = {
        name: value
        for name, value in variables.items()
        if not name.endswith(("_KEY", "_KEY_ID", "_REGION"))
    }
    player = Player(folder, "none")
    with program(bare, tmp_path, offline=True, upstream=RecordedUpstream(player)):
        replayed = {name: [*CLIENTS[name]()] for name in NAMES}
    assert not player.report.misses
    assert replayed == recorded
    assert emu.requests() == []
