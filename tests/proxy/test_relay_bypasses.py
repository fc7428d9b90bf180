"""Addresses in responses that lead past the proxy are reported."""

from __future__ import annotations

import gzip
import json

import pytest
from support.raw_http import exchange, request_bytes
from support.socket_upstream import CallList, answering, socket_upstream

from anaphora.proxy.server import running

RESULTS = "https://api.anthropic.com/v1/messages/batches/b/results?token=canary"
BATCH = json.dumps({"id": "b", "results_url": RESULTS}).encode()
UPLOAD = "X-Goog-Upload-URL: https://generativelanguage.googleapis.com/upload/v1beta/files?upload_id=canary"


def notices(path: str, body: bytes, *headers: str, status: str = "200 OK") -> list[tuple[str, str]]:
    lines = "".join(f"{line}\r\n" for line in (*headers, f"Content-Length: {len(body)}"))
    answer = f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + body
    seen = CallList()
    with (
        socket_upstream(answering(answer)) as upstream,
        running([upstream.route()], observers=[seen]) as proxy,
    ):
        exchange(proxy.port, request_bytes("POST", f"/up{path}", b"{}"))
    (call,) = seen.calls
    return [(notice.code, notice.message) for notice in call.notices]


@pytest.mark.parametrize(
    "path, body, headers, expected",
    [
        ("/upload/v1beta/files", b"", [UPLOAD],
         "the upload goes to generativelanguage.googleapis.com directly, past the proxy"),
        ("/v1/messages/batches/b", BATCH, [],
         "the results of the batch come from api.anthropic.com directly, past the proxy"),
        ("/v1/messages/batches/b", gzip.compress(BATCH), ["Content-Encoding: gzip"],
         "the results of the batch come from api.anthropic.com directly, past the proxy"),
        ("/v1/models", b"", ["Location: https://elsewhere.example/v1?token=canary"],
         "a client that follows the redirect goes to elsewhere.example directly, past the proxy"),
    ],
)  # fmt: skip
def test_address_that_bypasses_the_proxy(
    path: str, body: bytes, headers: list[str], expected: str
) -> None:
    assert notices(path, body, *headers) == [("bypasses_proxy", expected)]


@pytest.mark.parametrize(
    "path, body, headers",
    [
        ("/v1/models", b"{}", ["Location: /v2/models"]),
        ("/v1/messages", BATCH, []),
        ("/v1/messages/batches", b'{"results_url":null}', []),
        ("/v1/messages/batches", b'{"results_url":1}', []),
        ("/v1/messages/batches", b"not JSON", []),
        ("/v1/messages/batches", b"not gzip", ["Content-Encoding: gzip"]),
        ("/v1/messages/batches", b'{"results_url":"http://[broken"}', []),
    ],
)
def test_nothing_to_report(path: str, body: bytes, headers: list[str]) -> None:
    assert notices(path, body, *headers) == []
