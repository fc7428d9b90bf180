"""Counts of streams whose model is not Claude: OpenAI's include cached tokens in the input, and
replies that are not streamed do not. The figures are those of maximhq/bifrost#6942."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import msgspec
import pytest
from support.bedrock_server import frame
from support.tables import each_row
from support.waiting import PATIENCE

from anaphora import Client, wire
from anaphora.client.config import ClientConfig
from anaphora.traffic.calls import LoggedCall
from anaphora.values import ReplyEnd, Usage

GPT, CLAUDE = "us.openai.gpt-5.6-sol", "us.anthropic.claude-sonnet-5"


def counts(uncached: int, read: int, written: int) -> dict[str, int]:
    found = {"inputTokens": uncached, "outputTokens": 19, "cacheReadInputTokens": read}
    found["cacheWriteInputTokens"] = written
    return found | {"totalTokens": sum(found.values())}


def stream(usage: dict[str, int]) -> bytes:
    events: list[tuple[str, dict[str, Any]]] = [
        ("messageStart", {"role": "assistant"}),
        ("contentBlockDelta", {"delta": {"text": "Hi"}, "contentBlockIndex": 0}),
        ("contentBlockStop", {"contentBlockIndex": 0}),
        ("messageStop", {"stopReason": "end_turn"}),
        ("metadata", {"usage": usage, "metrics": {"latencyMs": 3}}),
    ]
    return b"".join(frame(json.dumps(fields).encode(), kind) for kind, fields in events)


def read(model: str, data: bytes) -> Usage:
    reader = wire.get("bedrock").reader(model)
    end = [*reader.feed(data), *reader.close()][-1]
    assert isinstance(end, ReplyEnd)
    return end.reply.usage


@each_row(
    ("model", "sent", "uncached"),
    [
        (GPT, (4995, 0, 4993), 2),
        (GPT, (4995, 4993, 0), 2),
        (GPT, (4993, 0, 4993), 0),
        (f"/model/{GPT}/converse-stream", (4995, 0, 4993), 2),
        ("openai.gpt-6-sol-v1:0", (6000, 3000, 1000), 2000),
        (GPT, (2, 0, 4993), 2),  # as replies that are not streamed
        (GPT, (4995, 0, 0), 4995),
        (CLAUDE, (4995, 0, 4993), 4995),
        ("", (4995, 0, 4993), 4995),
    ],
)
def test_cached_tokens_are_counted_once(
    model: str, sent: tuple[int, int, int], uncached: int
) -> None:
    usage = read(model, stream(counts(*sent)))
    assert (usage.uncached, usage.read, usage.written_total) == (uncached, sent[1], sent[2])
    assert usage.input == uncached + sent[1] + sent[2]
    writing = wire.get("bedrock")
    reply = writing.read_reply(b'{"output":{"message":{"content":[]}}}')
    written = json.loads(writing.write_reply(msgspec.structs.replace(reply, usage=usage)))["usage"]
    assert written["inputTokens"] == uncached
    assert written["totalTokens"] == uncached + sent[1] + sent[2] + 19


@pytest.mark.parametrize("stream_", [True, False])
def test_client_and_logs_count_alike(stream_: bool) -> None:
    whole = {
        "output": {"message": {"role": "assistant", "content": [{"text": "Hi"}]}},
        "stopReason": "end_turn",
        "usage": counts(2, 0, 4993),
    }
    data = stream(counts(4995, 0, 4993)) if stream_ else json.dumps(whole).encode()
    logged = LoggedCall(
        request=b"{}",
        response=data,
        wire="bedrock",
        provider="bedrock",
        path=f"/model/{GPT}/converse-stream",
        stream=stream_,
    )
    assert logged.reply(logged.codec()[0]).usage.uncached == 2

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None: ...

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            kind = "vnd.amazon.eventstream" if stream_ else "json"
            self.send_header("content-type", f"application/{kind}")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        entry = {
            "dialect": "bedrock",
            "base_url": f"http://127.0.0.1:{server.server_address[1]}",
            "region": "r",
            "key": {"env": "KEY"},
            "model": GPT,
        }
        config = ClientConfig.from_mapping({"providers": {"aws": entry}})
        with Client.from_config(config, environ={"KEY": "k"}) as client:
            if stream_:
                end = list(client.stream("Hello", "aws"))[-1]
                assert isinstance(end, ReplyEnd)
                usage = end.reply.usage
            else:
                usage = client.complete("Hello", "aws").usage
        server.shutdown()
        thread.join(PATIENCE)
    assert (usage.uncached, usage.written_total) == (2, 4993)
