"""Requests with AWS signatures: botocore under a grant, and what an attacker may change or repeat."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256
from typing import Any

import botocore.config
import botocore.exceptions
import botocore.session
import httpx
import pytest
from support.bedrock_server import BedrockServer, bedrock_server
from support.daemon import GRANT, TestedDaemon, llm_yaml, running_daemon, started_daemon
from support.ledgers import rows
from support.signing import ASKED, MODEL, PATH, is_refused, keys_of, send, signed_request
from support.tables import each_row

from anaphora.client.credentials.sigv4 import AwsKeys
from anaphora.daemon.access.identity import ADMIN
from anaphora.emulator.server import Emulator
from anaphora.errors import StoreUnavailable

UNSIGNED = "UNSIGNED-PAYLOAD"


@pytest.fixture(scope="module")
def bedrock(running_emulator: Emulator) -> Iterator[BedrockServer]:
    with bedrock_server(running_emulator.url) as server:
        yield server


def settings(emulator: Emulator, bedrock: BedrockServer) -> tuple[dict[str, Any], dict[str, Any]]:
    llm = llm_yaml(emulator.url)
    llm["daemon"]["failed_logins_per_minute"] = 100_000
    llm["providers"]["aws"] = {
        "dialect": "bedrock",
        "model": MODEL,
        "base_url": bedrock.url,
        "region": "us-east-1",
        "key": {"secret": "PROVIDER_KEY"},
        "prices": {"*": {"input": 1, "output": 2}},
        "retry": {"max_attempts": 1},
    }
    grant = {**GRANT, "llm": {**GRANT["llm"], "providers": ["aws", *GRANT["llm"]["providers"]]}}
    return llm, {"demo": grant, "other": grant, "small": with_llm(grant, max_body_bytes=2000)}


def with_llm(grant: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {**grant, "llm": {**grant["llm"], **fields}}


@pytest.fixture(scope="module")
def daemon(
    running_emulator: Emulator, bedrock: BedrockServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TestedDaemon]:
    llm, apps = settings(running_emulator, bedrock)
    folder = tmp_path_factory.mktemp("signatures")
    with running_daemon(folder, running_emulator, llm=llm, extensions=apps) as running:
        yield running


def client_of(daemon: TestedDaemon, app: str = "demo", **config: Any) -> Any:
    keys = keys_of(daemon, app)
    return botocore.session.get_session().create_client(
        "bedrock-runtime",
        region_name="us-east-1",
        endpoint_url=daemon.url,
        aws_access_key_id=keys.access_key,
        aws_secret_access_key=keys.secret.reveal(),
        config=botocore.config.Config(**config) if config else None,
    )


def signed(
    daemon: TestedDaemon, *body: bytes, keys: AwsKeys | None = None, **options: Any
) -> httpx.Request:
    return signed_request(daemon.url, keys or keys_of(daemon), *body, **options)


# ── botocore ─────────────────────────────────────────────────────────────────────────────────────


def test_botocore_under_a_grant(daemon: TestedDaemon) -> None:
    client = client_of(daemon)
    answer = client.converse(modelId=MODEL, **ASKED)
    assert answer["output"]["message"]["content"][0]["text"]
    assert answer["usage"]["totalTokens"]
    events = list(client.converse_stream(modelId=MODEL, **ASKED)["stream"])
    assert "messageStart" in events[0]
    assert events[-1]["metadata"]["usage"]["totalTokens"]
    body = {"anthropic_version": "bedrock-2023-05-31", "max_tokens": 9, **claude("Hello")}
    answer = client.invoke_model(modelId=MODEL, body=json.dumps(body))
    assert json.loads(answer["body"].read())["content"]
    answer = client.invoke_model_with_response_stream(modelId=MODEL, body=json.dumps(body))
    chunks = [json.loads(event["chunk"]["bytes"]) for event in answer["body"]]
    assert chunks[-1]["type"] == "message_stop"
    assert client.count_tokens(modelId=MODEL, input={"converse": ASKED})["inputTokens"] > 0


def claude(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def test_tool_loop_of_botocore_on_gemini(daemon: TestedDaemon) -> None:
    client, model = client_of(daemon), "gemini-2.5-flash"
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    spec = {"name": "weather", "description": "Tells it.", "inputSchema": {"json": schema}}
    config = {"tools": [{"toolSpec": spec}], "toolChoice": {"tool": {"name": "weather"}}}
    messages: list[Any] = [{"role": "user", "content": [{"text": "Weather in Rome?"}]}]
    answer = client.converse(modelId=model, messages=messages, toolConfig=config)
    assert answer["stopReason"] == "tool_use"
    message = answer["output"]["message"]
    (use,) = [block["toolUse"] for block in message["content"] if "toolUse" in block]
    assert use["name"] == "weather"
    result = {"toolUseId": use["toolUseId"], "content": [{"json": {"sun": True}}]}
    messages += [message, {"role": "user", "content": [{"toolResult": result}]}]
    tools = {"tools": config["tools"]}
    stream = client.converse_stream(modelId=model, messages=messages, toolConfig=tools)["stream"]
    events = list(stream)
    assert any("delta" in event.get("contentBlockDelta", {}) for event in events)
    assert events[-1]["metadata"]["usage"]["inputTokens"]


def test_retries_of_botocore_pass(daemon: TestedDaemon, bedrock: BedrockServer) -> None:
    client = client_of(daemon, retries={"mode": "standard", "max_attempts": 3})
    before = len(bedrock.requests)
    bedrock.failures.append(429)
    asked = {"messages": [{"role": "user", "content": [{"text": "Again"}]}]}
    answer = client.converse(modelId=MODEL, **asked)
    assert answer["ResponseMetadata"]["RetryAttempts"] == 1
    assert len(bedrock.requests) == before + 2


def test_refusals_of_the_grant_are_not_retried(daemon: TestedDaemon) -> None:
    client = client_of(daemon)
    limit = {"maxTokens": 100_000}
    with pytest.raises(client.exceptions.AccessDeniedException, match="max_tokens") as raised:
        client.converse(modelId=MODEL, inferenceConfig=limit, **ASKED)
    assert raised.value.response["ResponseMetadata"]["RetryAttempts"] == 0
    assert raised.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403
    with pytest.raises(client.exceptions.ValidationException, match="no-such-model"):
        client.converse(modelId="no-such-model", **ASKED)


def test_secrets_go_nowhere(daemon: TestedDaemon, bedrock: BedrockServer) -> None:
    keys = keys_of(daemon)
    assert send(signed(daemon)).status_code == 200
    path, headers, body = bedrock.requests[-1]
    sent = f"{path} {headers}".encode() + body
    assert keys.access_key.encode() not in sent
    assert "AWS4" not in str(headers)
    assert keys.secret.reveal().encode() not in sent
    log = (daemon.home / "daemon.log").read_text()
    assert keys.secret.reveal() not in log
    assert keys.access_key not in log
    assert keys.secret.reveal() not in repr(keys)


# ── What an attacker may change ──────────────────────────────────────────────────────────────────


def changed(request: httpx.Request, **headers: str) -> httpx.Request:
    for name, value in headers.items():
        request.headers[name.replace("_", "-")] = value
    return request


def test_altered_requests_are_refused(daemon: TestedDaemon, bedrock: BedrockServer) -> None:
    before, now = len(bedrock.requests), time.time()
    body = json.dumps(ASKED).encode()
    other = body.replace(b"Hello", b"Jello")
    url = daemon.url + PATH
    headers = dict(signed(daemon).headers)
    moved = httpx.Request("POST", url.replace("haiku", "opus"), headers=headers, content=body)
    query = httpx.Request("POST", f"{url}?x=1", headers=headers, content=body)
    stream = httpx.Request("POST", f"{url}-stream", headers=headers, content=body)
    host = signed(daemon)
    host.headers["host"] = "localhost:" + host.headers["host"].rpartition(":")[2]
    unsigned_body = signed(daemon, body_hash=UNSIGNED, x_amz_content_sha256=UNSIGNED)
    chunked = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
    rows = {
        "body": httpx.Request("POST", url, headers=headers, content=other),
        "model": moved,
        "query": query,
        "stream": stream,
        "host": host,
        "content type": changed(signed(daemon), content_type="application/json; charset=utf-8"),
        "date": changed(signed(daemon), x_amz_date="20200101T000000Z"),
        "old": signed(daemon, now=now - 301),
        "new": signed(daemon, now=now + 310),
        "hash": signed(daemon, other, body_hash=sha256(body).hexdigest()),
        "stated hash": signed(
            daemon,
            other,
            body_hash=sha256(body).hexdigest(),
            x_amz_content_sha256=sha256(body).hexdigest(),
        ),
        "unsigned body": unsigned_body,
        "chunks": signed(daemon, body_hash=chunked, x_amz_content_sha256=chunked),
        "added header": changed(signed(daemon), x_amz_security_token="t"),
        "provider": changed(signed(daemon), anaphora_provider="gemini"),
        "encoding": changed(signed(daemon), content_encoding="identity"),
        "betas": changed(signed(daemon), anthropic_beta="x"),
        "secret": signed(daemon, keys=AwsKeys(keys_of(daemon).access_key, "x" * 40)),
        "other app": signed(
            daemon,
            keys=AwsKeys(keys_of(daemon, "other").access_key, keys_of(daemon).secret.reveal()),
        ),
        "unknown": signed(daemon, keys=AwsKeys("ANAK000000000000", "x" * 40)),
        "lower case": signed(
            daemon,
            keys=AwsKeys(keys_of(daemon).access_key.lower(), keys_of(daemon).secret.reveal()),
        ),
        "administrator": signed(daemon, keys=keys_of(daemon, ADMIN)),
        "aws": signed(daemon, keys=AwsKeys("AKIAIOSFODNN7EXAMPLE", "x" * 40)),
        "service": signed(daemon, service="s3"),
    }
    for name, request in rows.items():
        response = send(request)
        assert is_refused(response), (name, response.status_code, response.text)
        assert list(response.json()) == ["message"]
    assert len(bedrock.requests) == before


def test_presigned_queries_are_refused(daemon: TestedDaemon) -> None:
    query = "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=a&X-Amz-Signature=" + "0" * 64
    for text in (query, query.lower()):
        response = httpx.post(f"{daemon.url}{PATH}?{text}", json=ASKED)
        assert is_refused(response, "Presigned"), response.text


def test_headers_must_be_sent_once(daemon: TestedDaemon) -> None:
    """Two readers could use different ones."""
    for name in ("x-amz-date", "authorization", "content-type"):
        request = signed(daemon)
        pairs = [*request.headers.multi_items(), (name, request.headers[name])]
        twice = httpx.Request("POST", request.url, headers=pairs, content=request.content)
        response = send(twice)
        assert response.status_code in (400, 403), (name, response.text)


def test_header_names_and_spaces_do_not_matter(daemon: TestedDaemon) -> None:
    request = signed(daemon, x_amz_meta="a  b")
    pairs = [(name.title(), value) for name, value in request.headers.multi_items()]
    folded = [(name, value.replace("a  b", "a b")) for name, value in pairs]
    response = send(httpx.Request("POST", request.url, headers=folded, content=request.content))
    assert response.status_code == 200, response.text


def test_signature_and_token_together_are_refused(daemon: TestedDaemon) -> None:
    response = send(changed(signed(daemon), api_key=daemon.token()))
    assert is_refused(response), response.text


def test_signature_does_not_open_other_doors(daemon: TestedDaemon) -> None:
    """Administration is for tokens."""
    for app in ("demo", ADMIN):
        response = send(signed(daemon, b"{}", keys=keys_of(daemon, app), path="/rpc"))
        assert response.status_code == 401


def test_large_body_of_an_unverified_signature_is_limited(daemon: TestedDaemon) -> None:
    keys = keys_of(daemon, "small")
    forged = AwsKeys(keys.access_key, "x" * 40)
    body = json.dumps({**ASKED, "system": [{"text": "x" * 4000}]}).encode()
    for pair in (keys, forged):
        assert send(signed(daemon, body, keys=pair)).status_code == 413


# ── Once ─────────────────────────────────────────────────────────────────────────────────────────


def test_signature_is_accepted_once(daemon: TestedDaemon) -> None:
    request = signed(daemon)
    assert send(request).status_code == 200
    assert is_refused(send(request), "used before")
    assert is_refused(send(request), "used before")
    assert send(signed(daemon)).status_code == 200


def test_equal_requests_of_one_second_have_one_signature(daemon: TestedDaemon) -> None:
    """botocore signs nothing that would tell them apart. A header of the app's own does."""
    request, same = (signed(daemon, now=time.time() // 10 * 10, x_amz_number="n") for _ in "ab")
    assert request.headers["authorization"] == same.headers["authorization"]
    assert send(request).status_code == 200
    assert is_refused(send(same), "used before")


def test_signature_may_be_used_again_after_a_failure_without_cost(
    daemon: TestedDaemon, bedrock: BedrockServer
) -> None:
    request = signed(daemon)
    bedrock.failures.append(429)
    assert send(request).status_code == 429
    assert send(request).status_code == 200
    assert is_refused(send(request), "used before")
    request = signed(daemon, b'{"messages":"no list"}')
    assert send(request).status_code == 400
    assert is_refused(send(request), "used before")


def test_signature_is_refused_after_a_restart(
    running_emulator: Emulator, bedrock: BedrockServer, tmp_path: Any
) -> None:
    """The second daemon reads the store of the first."""
    llm, apps = settings(running_emulator, bedrock)
    with running_daemon(tmp_path, running_emulator, llm=llm, extensions=apps) as first:
        request = signed(first)
        port = first.daemon.address.port
        assert send(request).status_code == 200
        tokens = {"demo": first._tokens["demo"]}
    with started_daemon(first.home, tokens, port=port):
        assert is_refused(send(request), "used before")


def test_revoked_and_rotated_keys(daemon: TestedDaemon) -> None:
    with daemon.socket_client() as admin:

        def call(method: str, **params: Any) -> Any:
            message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            return admin.post("/rpc", json=message).json()["result"]

        call("admin.apps.rotate", app="other", overlap=0)
        keys = keys_of(daemon, "other")
        assert send(signed(daemon, keys=keys)).status_code == 200
        call("admin.apps.revoke", app="other")
        assert is_refused(send(signed(daemon, keys=keys)))


@each_row("name", ["api-key", "x-api-key", "x-goog-api-key"])
def test_token_in_a_header_is_never_passed_on(
    name: str, daemon: TestedDaemon, bedrock: BedrockServer
) -> None:
    response = httpx.post(daemon.url + PATH, json=ASKED, headers={name: daemon.token()})
    assert response.status_code == 200, response.text
    _, headers, body = bedrock.requests[-1]
    assert daemon.token() not in f"{headers}{body.decode()}"
    assert name not in {each.lower() for each in headers}


def test_signature_is_refused_without_the_store(
    running_emulator: Emulator, bedrock: BedrockServer, tmp_path: Any, monkeypatch: Any
) -> None:
    """Otherwise it could be used twice."""
    llm, apps = settings(running_emulator, bedrock)
    with running_daemon(tmp_path, running_emulator, llm=llm, extensions=apps) as daemon:
        before, store = len(bedrock.requests), daemon.daemon.services.store

        async def fail(*_: object, **__: object) -> None:
            raise StoreUnavailable("the disk is full")

        async def later(*_: object, **__: object) -> None:
            """The disk is full, and the row is written later."""

        monkeypatch.setattr(store, "add_handle", fail)
        answer = send(signed(daemon))
        assert (answer.status_code, len(bedrock.requests)) == (503, before)
        assert answer.headers["x-amzn-errortype"].startswith("ServiceUnavailableException:")
        monkeypatch.setattr(store, "add_handle", later)
        assert is_refused(send(signed(daemon)))
        assert len(bedrock.requests) == before


def test_old_signatures_are_removed(daemon: TestedDaemon) -> None:
    """The store keeps those whose time has not ended."""
    store = daemon.home / "store.sqlite"
    count = "SELECT COUNT(*) FROM handles WHERE kind = 'signature' AND created < ?"
    assert send(signed(daemon, now=time.time() - 290)).status_code == 200
    with closing(sqlite3.connect(store)) as database, database:
        database.execute("UPDATE handles SET created = 1 WHERE kind = 'signature'")
    assert rows(store, count, 2.0) != [(0,)]
    for _ in range(256):
        send(signed(daemon, b"{}"))
    assert rows(store, count, 2.0) == [(0,)]
