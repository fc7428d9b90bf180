"""Bodies of unusual shape give what each row of the file expects, through client, daemon and
watch."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.daemon import GRANT, TestedDaemon, running_daemon
from support.failing_provider import FailingProvider
from support.odd_exchanges import Json, needs_odd_exchanges, odd_row, odd_rows
from support.raw_http import exchange, request_bytes
from support.rpc_calls import audit_rows
from support.socket_upstream import socket_upstream

from anaphora import AsyncClient, catalog, errors, wire
from anaphora.proxy.server import running
from anaphora.rendered import Plan
from anaphora.traffic.calls import ProxyRoute
from anaphora.traffic.judging import Judge
from anaphora.values import Message, Reply, ReplyFail, Text, Usage

pytestmark = needs_odd_exchanges

#: The wire or dialect that a provider of each kind is configured with.
SPOKEN = {
    "vertex": "gemini",
    "google": "gemini",
    "azure": "azure",
    "vercel": "openai_chat",
    "llamacpp": "llamacpp",
    "together": "together",
    "mistral": "mistral",
    "openrouter": "openrouter",
}
MODELS = {
    "anthropic": "claude-sonnet-4-5",
    "openai_chat": "gpt-4o",
    "openai_responses": "gpt-5.2",
    "gemini": "gemini-2.5-pro",
}
ASK = [{"role": "user", "content": "hi"}]
JSON = {"content-type": "application/json"}
PATHS = {
    "anthropic": "/v1/messages",
    "openai_chat": "/v1/chat/completions",
    "openai_responses": "/v1/responses",
    "gemini": "/v1beta/models/{model}:{method}",
}


def spoken(row: Json) -> str:
    return SPOKEN.get(row["dialect"]) or str(row["wire"])


def llm_yaml(url: str) -> Json:
    names = {*SPOKEN.values(), *MODELS}
    return {
        "providers": {
            name: {
                "wire": name,
                "base_url": url,
                "key": {"secret": "PROVIDER_KEY"},
                "retry": {"max_attempts": 1},
                "breaker": {"failures": 1_000},
                **({"model": MODELS[name]} if name in MODELS else {}),
            }
            for name in sorted(names)
        },
        "daemon": {"port": 0},
    }


def grant(**llm: Any) -> Json:
    providers = sorted({*SPOKEN.values(), *MODELS})
    base = {**GRANT["llm"], "providers": providers, "usd_per_day": "unlimited", "n": 8}
    base["share_cache"] = True  # what others sent is not masked, so that bytes pass
    return {**GRANT, "llm": {**base, **llm}}


APPS = {
    "demo": grant(),
    "prompts": grant(allow=["stored_prompts"]),
    "limited": grant(allow=["stored_prompts"], usd_per_day=100),
    "monthly": grant(allow=["stored_prompts"], usd_per_month=100),
}


@pytest.fixture(scope="module")
def provider() -> FailingProvider:
    return FailingProvider()


@pytest.fixture(scope="module")
def daemon(
    provider: FailingProvider, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TestedDaemon]:
    with socket_upstream(provider) as upstream:
        provider.url = upstream.url
        folder, config = tmp_path_factory.mktemp("daemon"), llm_yaml(upstream.url)
        with running_daemon(folder, upstream, extensions=APPS, llm=config) as tested:
            yield tested


@pytest.fixture(autouse=True)
def forget(provider: FailingProvider) -> None:
    provider.requests.clear()


def serve(provider: FailingProvider, row: Json, *headers: str) -> None:
    if row["stream"]:
        provider.stream_pieces(row["body"])
    else:
        kind = "content-type: application/json"
        provider.fail(row["status"], row["body"].encode(), kind, *headers)


def ask(daemon: TestedDaemon, caller: str, at: str, *, stream: bool = False) -> Any:
    """A call of a plain request on the wire of `caller`, which the provider `at` answers."""
    method = "streamGenerateContent" if stream else "generateContent"
    model = "some-model"
    path = PATHS[caller].format(model=model, method=method)
    if caller == "gemini":
        body: Json = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
    elif caller == "openai_responses":
        body = {"model": model, "input": "hi", "stream": stream}
    else:
        body = {"model": model, "messages": ASK, "max_tokens": 99, "stream": stream}
    given = {**daemon.headers(), "anaphora-provider": at}
    with daemon.client(headers=given) as http:
        return http.post(path, json=body, params={"alt": "sse"} if stream else None)


def check_reply(row: Json, reply: Reply) -> None:
    expect = row["expect"]
    texts = [part.text for part in reply.message.parts if isinstance(part, Text)]
    assert "".join(texts) == expect["text"]
    assert reply.stop_reason == expect.get("stop", "end")
    for name in ("input", "output"):
        if name in expect:
            assert getattr(reply.usage, name) == expect[name]
    if "reasoning" in expect:
        assert (reply.usage.reasoning or 0) == expect["reasoning"]


# ── Replies ──────────────────────────────────────────────────────────────────────────────────────


def client_of(row: Json, url: str) -> AsyncClient:
    config = {"wire": spoken(row), "base_url": url, "key": {"env": "KEY"}, "model": "m"}
    return AsyncClient.from_config(
        {"providers": {"it": {**config, "retry": {"max_attempts": 1}}}},
        environ={"KEY": "sk-canary-1"},
    )


async def answered(row: Json, url: str) -> Any:
    async with client_of(row, url) as client:
        return await client.complete("hi", max_tokens=99)


@pytest.mark.parametrize("row", [row for row in odd_rows("reply") if not row.values[0]["stream"]])
def test_reply_through_the_client(row: Json, provider: FailingProvider, daemon: object) -> None:
    serve(provider, row)
    response = asyncio.run(answered(row, provider.url))
    check_reply(row, response.reply)
    if row["expect"].get("notices") == "none":
        assert response.reply.notices == ()


@pytest.mark.parametrize("caller", PATHS)
@pytest.mark.parametrize("row", [row for row in odd_rows("reply") if not row.values[0]["stream"]])
def test_reply_through_the_daemon(
    row: Json, caller: str, provider: FailingProvider, daemon: TestedDaemon
) -> None:
    serve(provider, row)
    response = ask(daemon, caller, spoken(row))
    assert response.status_code == 200, response.text
    if caller == row["wire"]:
        assert response.content == row["body"].encode()
    check_reply(row, wire.get(caller).read_reply(response.content))
    if row["expect"].get("notices") == "none" and caller == row["wire"]:
        codes = [
            each["code"] for each in json.loads(response.headers.get("anaphora-notices", "[]"))
        ]
        assert not {"usage_unreadable", "fields_left_out"}.intersection(codes)


@pytest.mark.parametrize("row", [row for row in odd_rows("reply") if not row.values[0]["stream"]])
def test_reply_through_watch(row: Json, provider: FailingProvider, daemon: object) -> None:
    serve(provider, row)
    judge = watched(row, plain_request(row), provider.url)
    (call,) = judge.calls
    assert call.kind == "judged", call.reason
    assert call.usage is not None
    for name in ("input", "output"):
        if name in row["expect"]:
            assert getattr(call.usage, name) == row["expect"][name]


def plain_request(row: Json) -> bytes:
    if row["wire"] == "gemini":
        return json.dumps({"contents": [{"parts": [{"text": "hi"}]}]}).encode()
    return json.dumps({"model": "gpt-4o", "messages": ASK, "stream": row["stream"]}).encode()


def watched(row: Json, body: bytes, url: str) -> Judge:
    """What watch makes of a request and its answer, which pass unchanged."""
    judge = Judge()
    route = ProxyRoute(prefix="/up", provider=wire.provider_of(spoken(row)), upstream=url)
    path = PATHS[row["wire"]].format(model="gemini-2.5-pro", method="generateContent")
    headers = {"Content-Type": "application/json", "Connection": "close"}
    with running([route], observers=[judge]) as proxy:
        response = exchange(proxy.port, request_bytes("POST", f"/up{path}", body, **headers))
    if row["what"] != "request" and not row["stream"]:
        assert response.body == row["body"].encode()
    return judge


# ── Streams ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("row", [row for row in odd_rows("reply") if row.values[0]["stream"]])
def test_stream_through_the_client(row: Json, provider: FailingProvider, daemon: object) -> None:
    async def streamed() -> None:
        async with client_of(row, provider.url) as client:
            async for _ in client.stream("hi", max_tokens=99):
                pass

    serve(provider, row)
    with pytest.raises(errors.Upstream, match="context shift is disabled") as failed:
        asyncio.run(streamed())
    assert (failed.value.status, failed.value.code) == (500, "server_error")
    assert failed.value.partial.message.text == row["expect"]["text_before"]


@pytest.mark.parametrize("caller", PATHS)
@pytest.mark.parametrize("row", [row for row in odd_rows("reply") if row.values[0]["stream"]])
def test_stream_through_the_daemon(
    row: Json, caller: str, provider: FailingProvider, daemon: TestedDaemon
) -> None:
    serve(provider, row)
    response = ask(daemon, caller, spoken(row), stream=True)
    reader = wire.get(caller).reader()
    last = [*reader.feed(response.content), *reader.close()][-1]
    assert isinstance(last, ReplyFail), last
    assert last.message == "context shift is disabled"
    assert last.error == "Overloaded"
    assert last.partial is not None
    assert last.partial.message.text == row["expect"]["text_before"]
    assert "\nerror:" not in response.text


@pytest.mark.parametrize("row", [row for row in odd_rows("reply") if row.values[0]["stream"]])
def test_stream_through_watch(row: Json, provider: FailingProvider, daemon: object) -> None:
    serve(provider, row)
    (call,) = watched(row, plain_request(row), provider.url).calls
    assert (call.kind, "context shift is disabled" in call.reason) == ("error", True)


# ── Requests ─────────────────────────────────────────────────────────────────────────────────────


def send(daemon: TestedDaemon, row: Json, at: str, app: str = "demo", **changes: Any) -> Any:
    path = PATHS[row["wire"]].format(model=MODELS["gemini"], method="generateContent")
    body = {**json.loads(row["body"]), **changes}
    with daemon.client(headers={**daemon.headers(app), "anaphora-provider": at}) as http:
        return http.post(path, json=body)


def served(provider: FailingProvider, at: str) -> None:
    """Any answer of a provider of that wire."""
    reply = Reply(
        id="reply_1",
        model=MODELS[at],
        message=Message.assistant("ok"),
        stop_reason="end",
        usage=Usage(uncached=9, output=1),
    )
    data = wire.get(at).write_reply(reply)
    provider.fail(200, data, "content-type: application/json")


def sent(provider: FailingProvider) -> Json:
    body: Json = json.loads(provider.requests[-1].partition(b"\r\n\r\n")[2])
    return body


def codes(response: Any) -> list[str]:
    return [each["code"] for each in json.loads(response.headers.get("anaphora-notices", "[]"))]


def test_float_of_gemini(provider: FailingProvider, daemon: TestedDaemon) -> None:
    row = odd_row("gemini-float-topk")
    path = PATHS["gemini"].format(model="m", method="generateContent")
    call = wire.get("gemini").parse(row["body"].encode(), path)
    assert call.params.top_k == row["expect"]["top_k"]
    served(provider, "gemini")
    with daemon.client(headers={**daemon.headers(), "anaphora-provider": "gemini"}) as http:
        path = PATHS["gemini"].format(model=MODELS["gemini"], method="generateContent")
        response = http.post(path, content=row["body"].encode(), headers=JSON)
    assert response.status_code == 200, response.text
    assert sent(provider) == json.loads(row["body"])  # where 50 is sent for 50.0
    served(provider, "anthropic")
    with daemon.client(headers={**daemon.headers(), "anaphora-provider": "anthropic"}) as http:
        path = PATHS["gemini"].format(model=MODELS["anthropic"], method="generateContent")
        response = http.post(path, json=json.loads(row["body"]))
    assert response.status_code == 200, response.text
    assert sent(provider)["top_k"] == 50


@pytest.mark.parametrize("at", ["anthropic", "gemini"])
@pytest.mark.parametrize(
    "name", ["chat-system-with-name", "chat-message-level-marker", "chat-part-level-marker"]
)
def test_system_message_on_another_wire(
    name: str, at: str, provider: FailingProvider, daemon: TestedDaemon
) -> None:
    row = odd_row(name)
    served(provider, at)
    response = send(daemon, row, at, model=MODELS[at])
    assert response.status_code == 200, response.text
    body = sent(provider)
    if at == "gemini":
        assert body["systemInstruction"]["parts"] == [{"text": "SYSTEM TEXT"}]
        assert len(body["contents"]) == 1
        expected = "foreign_fields" if name == "chat-system-with-name" else "mark_left_out"
        assert expected in codes(response)
        return
    (system,) = body["system"]
    (user,) = body["messages"][0]["content"]
    assert system["text"] == "SYSTEM TEXT"
    if name == "chat-system-with-name":
        assert "name of openai_chat: left out" in response.headers["anaphora-notices"]
    elif name == "chat-message-level-marker":
        assert system["cache_control"] == {"type": "ephemeral"}
    else:
        assert system["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
        assert user["cache_control"] == {"type": "ephemeral"}


@pytest.mark.parametrize("at", ["anthropic", "openai_responses", "gemini"])
def test_two_choices_are_refused(at: str, provider: FailingProvider, daemon: TestedDaemon) -> None:
    response = send(daemon, odd_row("chat-two-choices"), at, model=MODELS[at])
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", "n")
    assert "one choice per call" in error["message"]
    assert provider.requests == []


def test_developer_passes_without_a_notice(provider: FailingProvider, daemon: TestedDaemon) -> None:
    served(provider, "openai_chat")
    response = send(daemon, odd_row("chat-developer-on-gpt-4o"), "openai_chat")
    assert response.status_code == 200, response.text
    assert sent(provider)["messages"][0]["role"] == "developer"
    assert "role_changed" not in codes(response)


def test_marker_through_translate() -> None:
    """The dialect of the row, without a daemon."""
    for name in ("chat-message-level-marker", "chat-part-level-marker"):
        row = odd_row(name)
        call = wire.get("openrouter").parse(row["body"].encode())
        rendered = wire.get("anthropic").render(
            call, catalog.profile("anthropic", "claude-sonnet-4-5")
        )
        plan = Plan(marks=rendered.marks)
        body = json.loads(wire.get("anthropic").assemble(rendered, plan).body.join())
        assert "cache_control" in body["system"][0]


# ── A stored prompt ──────────────────────────────────────────────────────────────────────────────

PROMPT = "responses-stored-prompt"
#: Its input, "hi", as it is sent: a text that a breakpoint may reach is a list.
INPUT = {
    "type": "message",
    "role": "user",
    "content": [{"type": "input_text", "text": "hi"}],
}


def test_stored_prompt_needs_a_permission(provider: FailingProvider, daemon: TestedDaemon) -> None:
    response = send(daemon, odd_row(PROMPT), "openai_responses")
    assert response.status_code == 403
    assert "stored_prompts" in response.json()["error"]["message"]
    assert provider.requests == []


@pytest.mark.parametrize("at", ["openai_responses", None])
def test_stored_prompt_passes(
    at: str | None, provider: FailingProvider, daemon: TestedDaemon
) -> None:
    served(provider, "openai_responses")
    row = odd_row(PROMPT)
    headers = daemon.headers("prompts") | ({} if at is None else {"anaphora-provider": at})
    with daemon.client(headers=headers) as http:
        response = http.post("/v1/responses", content=row["body"].encode(), headers=JSON)
    assert response.status_code == 200, response.text
    body, asked = sent(provider), json.loads(row["body"])
    assert {name: body.get(name) for name in asked} == asked | {"input": [INPUT]}
    assert "model" not in body
    (audited,) = [
        each
        for each in audit_rows(daemon)
        if each.call_id == response.headers["anaphora-request-id"]
    ]
    assert audited.answered_by == MODELS["openai_responses"]


@pytest.mark.parametrize("app", ["limited", "monthly"])
@pytest.mark.parametrize("model", [{}, {"model": "gpt-5.2"}])
def test_stored_prompt_has_no_bound(
    app: str, model: Json, provider: FailingProvider, daemon: TestedDaemon
) -> None:
    response = send(daemon, odd_row(PROMPT), "openai_responses", app, **model)
    assert response.status_code == 400
    assert "no bound" in response.json()["error"]["message"]
    assert provider.requests == []


def test_stored_prompt_is_judged_by_watch(provider: FailingProvider, daemon: object) -> None:
    row = odd_row(PROMPT)
    served(provider, "openai_responses")
    (call,) = watched(row, row["body"].encode(), provider.url).calls
    assert (call.kind, call.model) == ("judged", MODELS["openai_responses"]), call.reason
    assert call.cost_usd is not None
    assert provider.requests[-1].endswith(row["body"].encode())


# ── Errors ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("row", odd_rows("error"))
def test_error_through_the_daemon(
    row: Json, provider: FailingProvider, daemon: TestedDaemon
) -> None:
    serve(provider, row, "x-request-id: req_of_the_provider")
    response = ask(daemon, row["wire"], spoken(row))
    assert response.status_code == row["status"]
    given, found = json.loads(row["body"])["error"], response.json()["error"]
    given.pop("message"), found.pop("message")
    details = found.pop("details", [])
    assert found == {
        name: given[name] for name in ("type", "code", "param", "status") if name in given
    }
    for detail in given.get("details", []):
        if detail["@type"].endswith("RetryInfo"):
            assert detail in details
    assert "user_id" not in response.text
    assert response.headers["anaphora-provider-request-id"] == "req_of_the_provider"
    if "retry_after" in row["expect"]:
        assert response.headers["retry-after"] == str(row["expect"]["retry_after"])
    (audited,) = [
        each
        for each in audit_rows(daemon)
        if each.call_id == response.headers["anaphora-request-id"]
    ]
    assert audited.request_id == "req_of_the_provider"


@pytest.mark.parametrize("row", odd_rows("error"))
def test_error_through_the_client(row: Json, provider: FailingProvider, daemon: object) -> None:
    serve(provider, row)
    with pytest.raises(errors.Upstream) as failed:
        asyncio.run(answered(row, provider.url))
    error = json.loads(row["body"])["error"]
    assert error["message"] in str(failed.value)
    if "metadata" in error:
        inner = json.loads(error["metadata"]["raw"])["error"]["message"]
        assert inner in str(failed.value)


@pytest.mark.parametrize("row", odd_rows("error"))
def test_error_through_watch(row: Json, provider: FailingProvider, daemon: object) -> None:
    serve(provider, row)
    (call,) = watched(row, plain_request(row), provider.url).calls
    assert (call.kind, call.status) == ("error", row["status"])
