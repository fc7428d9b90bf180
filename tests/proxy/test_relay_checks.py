"""`check` of an observer: a request may be refused before it is sent, in the caller's format."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal

import pytest
from support.raw_http import exchange, request_bytes
from support.socket_upstream import SocketUpstream, answering, socket_upstream

from anaphora.errors import ColdCallRefused, Denied
from anaphora.proxy.routes import default_routes
from anaphora.proxy.server import running
from anaphora.proxy.spend_check import ProgramLimit, SpendCheck
from anaphora.traffic.calls import RelayedCall, UpstreamRequest
from anaphora.traffic.judging import Judge

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
BODY = b'{"model": "m", "messages": []}'
PATHS = {
    "anthropic": ("/anthropic/v1/messages", "billing_error"),
    "openai_chat": ("/openai/chat/completions", "insufficient_quota"),
    "openai_responses": ("/openai/responses", "insufficient_quota"),
    "gemini": ("/google/v1beta/models/m:streamGenerateContent", "RESOURCE_EXHAUSTED"),
    "bedrock": ("/bedrock/model/m/converse-stream", "no more"),
}


class Failing:
    async def check(self, request: UpstreamRequest) -> Denied | None:
        raise LookupError(f"a check that fails refuses nothing: {request.path}")

    def call_ended(self, call: RelayedCall) -> None:
        pass


class Refusing:
    def __init__(self) -> None:
        self.seen: list[UpstreamRequest] = []
        self.calls: list[RelayedCall] = []
        self.refuses = True

    async def check(self, request: UpstreamRequest) -> Denied | None:
        self.seen.append(request)
        return ColdCallRefused("no more today", cold=None) if self.refuses else None

    def call_ended(self, call: RelayedCall) -> None:
        self.calls.append(call)


@pytest.fixture(scope="module")
def upstream() -> Iterator[SocketUpstream]:
    with socket_upstream(answering(OK)) as running_upstream:
        yield running_upstream


@pytest.mark.parametrize("name", PATHS)
def test_refused_request_is_answered_in_its_format_and_not_sent(
    upstream: SocketUpstream, name: str
) -> None:
    upstream.requests.clear()
    path, kind = PATHS[name]
    names = ("anthropic", "openai", "google", "bedrock")
    refusing, judge = Refusing(), Judge()
    with running(
        default_routes(dict.fromkeys(names, upstream.url), region="us-east-1"),
        observers=[judge, Failing(), refusing],
    ) as proxy:
        request = request_bytes("POST", path, BODY, **{"anaphora-cold": "allow", "x-own": "1"})
        answer = exchange(proxy.port, request)
        refusing.refuses = False
        passed = exchange(proxy.port, request)
        assert proxy.settle(10.0)
    assert answer.status == 402
    assert "x-should-retry: false" in answer.head
    assert "no more today" in answer.body.decode()
    assert kind in json.dumps(json.loads(answer.body))
    assert passed.status == 200
    (sent,) = upstream.requests
    assert b"anaphora-cold" not in sent
    assert b"x-own: 1" in sent
    assert [("anaphora-cold", "allow") in each.headers for each in refusing.seen] == [True] * 2
    assert [each.number for each in refusing.seen] == [call.number for call in refusing.calls]
    assert [call.outcome for call in refusing.calls] == ["refused", "complete"]
    refused = judge.calls[0]
    assert (refused.kind, refused.reason, refused.status) == ("refused", "no more today", 402)
    assert judge.summary().kinds["refused"] == 1


def test_ollamas_own_api_passes_unread_and_says_so_once(upstream: SocketUpstream) -> None:
    upstream.requests.clear()
    judge, data = Judge(), b'{ "model":"qwen3","messages":[],"prompt":"x" }'
    limit = SpendCheck(judge, ProgramLimit(Decimal(1)))
    with running(default_routes({"ollama": upstream.url}), observers=[judge, limit]) as proxy:
        for path in ("/api/chat", "/ollama/api/generate", "/ollama/v1/api/chat"):
            answer = exchange(proxy.port, request_bytes("POST", path, data))
            assert (answer.status, answer.body) == (200, b"{}")
        assert proxy.settle(10.0)
    assert [sent.split(b" ")[1] for sent in upstream.requests] == [
        b"/api/chat",
        b"/api/generate",
        b"/api/chat",
    ]
    assert all(sent.endswith(data) for sent in upstream.requests)
    assert [call.kind for call in judge.calls] == ["other"] * 3
    assert {call.reason for call in judge.calls} == {"this API of the provider is not read"}
    first, *others = [[notice.message for notice in call.notices] for call in judge.calls]
    assert first == ["Ollama's /api/ is passed on, not read; /v1 is read."]
    assert others == [[], []]
