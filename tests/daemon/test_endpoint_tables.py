"""Paths, headers, references and errors of the provider-compatible endpoints, as tables."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from support.tables import each_row

from anaphora import errors, wire
from anaphora.cache.verdict import Verdict
from anaphora.daemon.access.grants import LlmGrant
from anaphora.daemon.access.handles import references
from anaphora.daemon.calls.call import AppReply, StreamHead, StreamPiece
from anaphora.daemon.endpoints.errors import error_response
from anaphora.daemon.endpoints.headers import (
    forwarded_headers,
    forwarded_query,
    own_headers,
    query_fields,
    returned_headers,
)
from anaphora.daemon.endpoints.writing import StreamBody
from anaphora.daemon.faces import FACES, STARTS, face_at, find_route
from anaphora.daemon.faces.face import checked_model
from anaphora.errors import AnaphoraError, NotGranted, RequestRejected
from anaphora.values import Message, Notice, Reply
from anaphora.wire.permissions.kept import CallContent

REPLY = Reply(id="r", model="m", message=Message.assistant("Hi"), stop_reason="end")
ANTHROPIC = {"anthropic-version": "2023-06-01"}

# ── Paths ────────────────────────────────────────────────────────────────────────────────────────

VERTEX = "/v1/projects/p/locations/l/publishers"
PATHS = [
    ("POST", "/v1/messages", {}, ("anthropic", "generate", "")),
    ("POST", "/messages", {}, ("anthropic", "generate", "")),
    ("POST", "/v1/v1/messages", {}, ("anthropic", "generate", "")),
    ("POST", "/v1/messages/count_tokens", {}, ("anthropic", "count", "")),
    ("POST", "/v1/chat/completions", {}, ("openai_chat", "generate", "")),
    ("POST", "/chat/completions", {}, ("openai_chat", "generate", "")),
    ("POST", "/v1beta/openai/chat/completions", {}, ("openai_chat", "generate", "")),
    ("POST", "/v1/responses", {}, ("openai_responses", "generate", "")),
    ("POST", "/responses", {}, ("openai_responses", "generate", "")),
    ("POST", "/v1/responses/input_tokens", {}, ("openai_responses", "count", "")),
    ("POST", "/v1beta/models/g:generateContent", {}, ("gemini", "generate", "g")),
    ("POST", "/v1alpha/models/g:streamGenerateContent", {}, ("gemini", "stream", "g")),
    ("POST", "/v1/models/g:generateContent", {}, ("gemini", "generate", "g")),
    ("POST", "/v1beta/models/qwen3:0.6b:countTokens", {}, ("gemini", "count", "qwen3:0.6b")),
    ("GET", "/v1/models", {}, ("openai_chat", "models", "")),
    ("GET", "/v1/models", ANTHROPIC, ("anthropic", "models", "")),
    ("GET", "/v1beta/models", {}, ("gemini", "models", "")),
    ("GET", "/v1/models", {"x-goog-api-client": "x"}, ("gemini", "models", "")),
    ("GET", "/v1/models/openai/gpt-5.2", {}, ("openai_chat", "model", "openai/gpt-5.2")),
    ("GET", "/v1/responses/resp_1", {}, ("openai_responses", "get", "resp_1")),
    ("DELETE", "/v1/responses/resp_1", {}, ("openai_responses", "delete", "resp_1")),
    ("GET", "/v1/responses/resp_1/input_items", {}, ("openai_responses", "action", "resp_1")),
    ("GET", "/v1/responses/resp_1/input_items", {}, ("openai_responses", "action", "resp_1")),
    ("POST", "/v1/files", {}, ("openai_chat", "create", "")),
    ("GET", "/v1/files", ANTHROPIC, ("anthropic", "list", "")),
    ("DELETE", "/v1beta/files/f1", {}, ("gemini", "delete", "f1")),
    ("POST", "/model/a.b-v1:0/converse", {}, ("bedrock", "generate", "a.b-v1:0")),
    ("POST", "/model/a.b/converse-stream", {}, ("bedrock", "stream", "a.b")),
    ("POST", "/model/arn:aws:x/y/converse", {}, ("bedrock", "generate", "arn:aws:x/y")),
    ("POST", "/model/a/converse/converse", {}, ("bedrock", "generate", "a/converse")),
    ("POST", "/model/a/invoke/converse-stream", {}, ("bedrock", "stream", "a/invoke")),
    ("POST", "/model/a.b/count-tokens", {}, ("bedrock", "count", "a.b")),
    ("POST", "/model/a.b/invoke", {}, ("anthropic", "generate", "a.b")),
    ("POST", "/model/a.b/invoke-with-response-stream", {}, ("anthropic", "stream", "a.b")),
    ("POST", "/openai/v1/chat/completions", {}, ("openai_chat", "generate", "")),
    ("POST", "/openai/v1/responses", {}, ("openai_responses", "generate", "")),
    ("POST", "/openai/responses", {}, ("openai_responses", "generate", "")),
    ("POST", "/openai/deployments/d/chat/completions", {}, ("openai_chat", "generate", "d")),
    ("POST", "/models/chat/completions", {}, ("openai_chat", "generate", "")),
    ("POST", "/anthropic/v1/messages", {}, ("anthropic", "generate", "")),
    ("POST", f"{VERTEX}/anthropic/models/c@1:rawPredict", {}, ("anthropic", "generate", "c@1")),
    ("POST", f"{VERTEX}/anthropic/models/c:streamRawPredict", {}, ("anthropic", "stream", "c")),
    ("POST", f"{VERTEX}/anthropic/models/count-tokens:rawPredict", {}, ("anthropic", "count", "")),
    ("POST", f"{VERTEX}/google/models/g:generateContent", {}, ("gemini", "generate", "g")),
    (
        "POST",
        "/v1beta1/publishers/google/models/g:streamGenerateContent",
        {},
        ("gemini", "stream", "g"),
    ),
]


@each_row(("method", "path", "headers", "expected"), PATHS)
def test_paths(
    method: str, path: str, headers: dict[str, str], expected: tuple[str, str, str]
) -> None:
    route = find_route(method, path, headers)
    assert (route.wire, route.operation, route.name) == expected
    assert path.startswith(STARTS)


@each_row(
    ("method", "path", "status"),
    [
        ("GET", "/v1/messages", 405),
        ("DELETE", "/v1/models/x", 405),
        ("PUT", "/v1/files/f", 405),
        ("POST", "/v1/messages/../models", 404),
        ("POST", "/v1/messages;x=1", 404),
        ("POST", "/v1/messages/", 404),
        ("POST", "/V1/messages", 404),
        ("POST", "/v1/organizations/api_keys", 404),
        ("GET", "/v1/organization/usage/completions", 404),
        ("POST", "/v1/fine_tuning/jobs", 404),
        ("POST", "/v1beta/models/g:embedContent", 404),
        ("POST", "/api/pull", 404),
        ("GET", "/v1/files/a/b/content", 404),
        ("GET", "/v1/files/..", 404),
        ("POST", "/v1/responses/resp_1/compact", 404),
        ("POST", "/v1beta/models/a//b:generateContent", 400),
        ("POST", "/v1beta/models/../x:generateContent", 400),
        ("POST", "/model/../converse", 400),
        ("POST", "/model/a//b/converse", 400),
        ("GET", "/model/a/converse", 405),
        ("POST", "/model/a/converse/", 404),
        ("POST", "/model/converse", 404),
        ("POST", "/model/a/async-invoke", 404),
        ("POST", f"{VERTEX}/anthropic/models/c:predict", 404),
        ("POST", "/openai/deployments/a/b/chat/completions", 404),
    ],
)
def test_other_paths_are_refused(method: str, path: str, status: int) -> None:
    with pytest.raises(errors.Upstream) as refused:
        find_route(method, path, {})
    assert refused.value.status == status


def test_clients_that_try_a_websocket_are_sent_to_http() -> None:
    with pytest.raises(RequestRejected) as refused:
        find_route("GET", "/v1/responses", {"upgrade": "websocket"})
    assert refused.value.status == 426


@each_row("name", ["a b", "a\n", "a\x00", "ü", "", "../a", "a/./b", "x" * 300])
def test_names_of_models(name: str) -> None:
    with pytest.raises(RequestRejected):
        checked_model(name)


# ── Headers ──────────────────────────────────────────────────────────────────────────────────────


def test_only_listed_headers_go_upstream() -> None:
    headers = {
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "files-api-2025-04-14, secret-beta",
        "openai-beta": "x=1",
        "authorization": "Bearer ana_token",
        "x-api-key": "ana_token",
        "x-goog-api-key": "ana_token",
        "cookie": "a=b",
        "x-forwarded-for": "10.0.0.1",
        "x-http-method-override": "DELETE",
        "openai-organization": "org-1",
        "host": "daemon",
        "user-agent": "app",
    }
    grant = LlmGrant(betas=frozenset({"files-api-2025-04-14"}))
    forwarded, notices = forwarded_headers(headers, "anthropic", grant)
    assert forwarded == (
        ("anthropic-version", "2023-06-01"),
        ("anthropic-beta", "files-api-2025-04-14"),
    )
    assert [(notice.code, "secret-beta" in notice.message) for notice in notices] == [
        ("beta_not_granted", True)
    ]
    with pytest.raises(RequestRejected, match="anthropic-version"):
        forwarded_headers({"anthropic-version": "2023-06-01, 2099-01-01"}, "anthropic", grant)


def test_only_listed_query_fields_go_upstream() -> None:
    assert forwarded_query(b"limit=5&key=ana_token&after=x&alt=media&upload_id=9") == (
        "limit=5&after=x"
    )
    for query in (b"limit=1&limit=2", b"a=%ff", b"&".join([b"a=1"] * 100)):
        with pytest.raises(RequestRejected):
            query_fields(query)


def test_only_listed_headers_come_back() -> None:
    pairs = [
        ("Set-Cookie", "a=b"),
        ("anthropic-organization-id", "org"),
        ("openai-organization", "org"),
        ("openai-project", "proj"),
        ("x-ratelimit-remaining-tokens", "5"),
        ("openai-processing-ms", "12"),
        ("content-type", "text/html"),
        ("content-encoding", "gzip"),
        ("server", "cloudflare"),
    ]
    assert returned_headers(pairs) == {"openai-processing-ms": "12"}
    assert returned_headers([("content-type", "text/html\r\nx: y")], file=True) == {
        "content-type": "application/octet-stream"
    }


def test_own_headers_are_bounded_ascii() -> None:
    notices = tuple(Notice(f"code_{index}", "Ü\n\x7f" * 40, "a.b") for index in range(100))
    verdict = Verdict(result="miss", lost=7)
    headers = own_headers(
        "anthropic", "req_1", notices=notices, verdict=verdict, cost_usd=Decimal("1E-7")
    )
    assert all(value.isascii() and value.isprintable() for value in headers.values())
    assert max(map(len, headers.values())) <= 4_096
    listed = json.loads(headers["anaphora-notices"])
    more = int(listed[-1]["message"].split()[0])
    assert listed[-1]["code"] == "more_notices"
    assert len(listed) - 1 + more == 100
    assert json.loads(headers["anaphora-verdict"])["lost_tokens"] == 7
    assert headers["anaphora-cost-usd"] == "0.0000001"
    assert headers["request-id"] == headers["anaphora-request-id"] == "req_1"


# ── References ───────────────────────────────────────────────────────────────────────────────────

REFERENCES: list[tuple[dict[str, Any], list[tuple[str, str]]]] = [
    ({"previous_response_id": "resp_1"}, [("response", "resp_1")]),
    ({"previous_response_id": None, "conversation": None}, []),
    ({"tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]}, []),
    (
        {"tools": [{"container": {"type": "auto", "file_ids": ["f1", "f2"]}}]},
        [("file", "f1"), ("file", "f2")],
    ),
    (
        {"messages": [{"content": [{"type": "image", "source": {"file_id": "f1"}}]}]},
        [("file", "f1")],
    ),
    ({"contents": [{"parts": [{"fileData": {"fileUri": "gs://b/x"}}]}]}, []),
    (
        {
            "contents": [
                {"parts": [{"fileData": {"fileUri": "https://g.googleapis.com/v1beta/files/f1"}}]}
            ]
        },
        [("file", "f1")],
    ),
    (
        {"fileUri": "https://generativelanguage.googleapis.com/v1beta/files/f1?x=1"},
        [("file", "https://generativelanguage.googleapis.com/v1beta/files/f1?x=1")],
    ),
    ({"messages": [{"content": [{"type": "tool_use", "input": {"file_id": "mine"}}]}]}, []),
    *(
        ({"input": [{"type": "message", "content": [{"text": "tea", **cited}]}]}, found)
        for cited, found in (
            ({"type": "text", "citations": [{"file_id": "f1"}]}, []),
            ({"type": "output_text", "annotations": [{"file_id": "f1", "container_id": "c"}]}, []),
            ({"type": "input_file", "citations": [{"file_id": "f1"}]}, [("file", "f1")]),
            ({"type": ["text"], "citations": [{"file_id": "f1"}]}, [("file", "f1")]),
            ({"type": "text", "source": [{"file_id": "f1"}]}, [("file", "f1")]),
        )
    ),
    ({"input": [{"type": "file_search_call", "results": [{"file_id": "f1"}]}]}, []),
    ({"messages": [{"role": "assistant", "annotations": [{"file_id": "f1"}]}]}, []),
    ({"messages": [{"role": "user", "annotations": [{"file_id": "f1"}]}]}, [("file", "f1")]),
    ({"tools": [{"input_schema": {"properties": {"file_id": {}}}}]}, []),
    ({"messages": [{"content": "file_id"}]}, []),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, [("item", "msg_1")]),
    ({"input": [{"id": "msg_1"}]}, [("item", "msg_1")]),
    ({"items": [{"id": "msg_1", "type": None}]}, [("item", "msg_1")]),
    ({"input": [{"type": "reasoning", "id": "rs_1"}]}, [("item", "rs_1")]),
    ({"input": [{"type": "reasoning", "id": "rs_1", "content": [1]}]}, [("item", "rs_1")]),
    ({"input": [{"type": "reasoning", "id": "rs_1", "encrypted_content": "x"}]}, []),
    ({"input": [{"type": "reasoning", "id": "rs_msg_1_0", "summary": []}]}, []),  # written by us
    ({"input": [{"type": "reasoning", "id": "1e97", "content": [1]}]}, []),  # of an open model
]


@each_row(("body", "expected"), REFERENCES)
def test_references(body: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert sorted((one.kind, one.id) for one in references(body, CallContent())) == expected


@each_row(
    ("body", "kind"),
    [
        ({"input": [{"type": "item_reference"}]}, RequestRejected),
        ({"input": [{"type": "item_reference", "id": ["msg_1"]}]}, RequestRejected),
        ({"tools": [{"type": "file_search", "vector_store_ids": ["vs_1"]}]}, NotGranted),
        ({"tools": [{"retrieval": {"vertexAiSearch": {"datastore": "projects/x"}}}]}, NotGranted),
        ({"input": [{"content": "Hi"}]}, RequestRejected),
        ({"previous_response_id": 7}, RequestRejected),
    ],
)
def test_references_that_no_app_can_own(body: dict[str, Any], kind: type[AnaphoraError]) -> None:
    with pytest.raises(kind):
        list(references(body, CallContent()))


# ── Errors ───────────────────────────────────────────────────────────────────────────────────────

DENIALS: list[tuple[AnaphoraError, int, str | None, str | None]] = [
    (errors.NotGranted("no such model", param="model"), 403, "false", None),
    (
        errors.CapabilityDenied("no", capability="llm_complete", app="a", method="m"),
        403,
        "false",
        None,
    ),
    (errors.GrantExceeded("used up", limit="usd_per_day", resets_at=1.0), 402, "false", None),
    (errors.GrantRateLimited("slow", limit="requests_per_minute", retry_after=2.2), 429, None, "3"),
    (errors.StoreUnavailable("the disk is full"), 503, None, None),
    (errors.Throttled("limits", wait=4.0), 429, None, "4"),
    (errors.Unavailable("breaker", wait=9.0), 503, None, "9"),
    (errors.Timeout(1000), 504, None, None),
    (errors.Transport("connection refused"), 502, None, None),
    (errors.InvalidRequest("must be a text", path="messages[0]"), 400, None, None),
    (errors.RequestRejected("bad", status=422), 422, None, None),
    (errors.Overloaded("busy", status=529), 529, None, None),
]


@each_row("name", FACES)
@each_row(("problem", "status", "should_retry", "retry_after"), DENIALS)
def test_d13_statuses_and_headers(
    name: str,
    problem: AnaphoraError,
    status: int,
    should_retry: str | None,
    retry_after: str | None,
) -> None:
    response = error_response(name, problem, "req_1")
    assert response.status == status
    assert response.headers.get("x-should-retry") == should_retry
    assert response.headers.get("retry-after") == retry_after
    assert response.headers["anaphora-request-id"] == "req_1"
    read = wire.get(name).read_error(status, response.headers, response.body)
    assert str(read)


def test_messages_of_providers_lose_keys_and_accounts() -> None:
    problem = errors.Unauthenticated(
        "Incorrect API key provided: sk-proj-9aF3xLq8aF3xLq8 for organization org-AbCdEf123456",
        status=401,
        code="invalid_api_key",
        request_id="req_of_the_provider",
    )
    response = error_response("openai_chat", problem, "req_1")
    assert response.status == 401
    assert b"sk-proj" not in response.body
    assert b"org-AbC" not in response.body
    assert b"req_of_the_provider" not in response.body
    assert json.loads(response.body)["error"]["code"] == "invalid_api_key"
    config = errors.MissingSecret("/home/op/secrets/KEY.txt is missing", file="/home/op/llm.yaml")
    assert b"/home/op" not in error_response("openai_chat", config, "req_1").body


@each_row(
    ("path", "headers", "name"),
    [
        ("/v1/unknown", {}, "openai_chat"),
        ("/v1/unknown", ANTHROPIC, "anthropic"),
        ("/v1beta/unknown", {}, "gemini"),
        ("/v1/responses/x", {}, "openai_responses"),
    ],
)
def test_errors_are_in_the_callers_wire(path: str, headers: dict[str, str], name: str) -> None:
    assert face_at(path, headers) == name


@pytest.mark.parametrize(
    ("name", "path", "field"),
    [
        ("openai_chat", "$.max_tokens", "max_tokens"),
        ("openai_chat", "params.tool_choice", "tool_choice"),
        ("anthropic", "ir", "messages"),
        ("openai_responses", "ir", "input"),
        ("gemini", "ir", "contents"),
    ],
)
def test_errors_name_fields_of_the_callers_wire(name: str, path: str, field: str) -> None:
    response = error_response(name, errors.InvalidRequest("is wrong", path=path), "req_1")
    assert response.status == 400
    assert f'"{field}: is wrong"' in response.body.decode()
    if name.startswith("openai"):
        assert json.loads(response.body)["error"]["param"] == field


# ── Streams ──────────────────────────────────────────────────────────────────────────────────────


@each_row("size", [1, 2, 3, 7, 1_000])
@each_row(
    ("name", "data", "last"),
    [
        ("gemini", b'data: {"a":1}\r\n\r\ndata: {"finishReason":"STOP"}\r\n\r\n', b',"anaphora":'),
        ("gemini", b'data: {"a":1}\n\ndata: {"finishReason":"STOP"}\n\n', b',"anaphora":'),
        ("anthropic", b'event: a\ndata: {"a":1}\n\n', b": anaphora "),
    ],
)
def test_late_fields_follow_a_stream_however_it_is_cut(
    name: str, data: bytes, last: bytes, size: int
) -> None:
    head = StreamHead(request_id="r", provider="p", wire=name, model="m", passes_bytes=True)
    out = StreamBody(name, head)
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    written = b"".join(out.feed(StreamPiece((), piece)) for piece in pieces)
    reply = AppReply(
        request_id="r", provider="p", wire=name, model="m", reply=REPLY, cost_usd=Decimal("0.5")
    )
    whole = written + out.finish(reply)
    late = b'{"request_id":"r","cost_usd":"0.5"}'
    assert last + late in whole
    kept = whole.replace(last + late + b"\n\n" if last[:1] == b":" else last + late, b"")
    assert kept == data
