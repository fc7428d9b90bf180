"""Bedrock's runtime for tests: InvokeModel and Converse of Claude, with streams in AWS's framing;
and Claude at Vertex. The answers, with their caching and their bill, are those of the emulator's Messages API."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import struct
import threading
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

import httpx

from .waiting import PATIENCE

_PATH = re.compile(r"/model/([^/]+)/(invoke|converse)(-with-response-stream|-stream)?\Z")
_VERTEX = re.compile(r"/models/([^/@]+)[^/]*:(?:r|streamR)awPredict\Z")
_MODEL = re.compile(r"(?:us\.)?anthropic\.(.+?)(?:-v1:0)?\Z")


def frame(payload: bytes, kind: str = "chunk") -> bytes:
    """One event of AWS's binary stream."""
    fields = {":event-type": kind, ":content-type": "application/json", ":message-type": "event"}
    headers = b"".join(
        bytes([len(name)])
        + name.encode()
        + b"\x07"
        + struct.pack(">H", len(value))
        + value.encode()
        for name, value in fields.items()
    )
    size = 12 + len(headers) + len(payload) + 4
    prelude = struct.pack(">II", size, len(headers))
    head = prelude + struct.pack(">I", zlib.crc32(prelude)) + headers + payload
    return head + struct.pack(">I", zlib.crc32(head))


class BedrockServer:
    def __init__(self, emulator_url: str) -> None:
        self.emulator_url = emulator_url
        self.url = ""
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.failures: list[int] = []
        """Statuses of the next answers, before they are answered."""


@contextlib.contextmanager
def bedrock_server(emulator_url: str) -> Iterator[BedrockServer]:
    bedrock = BedrockServer(emulator_url)

    class Handler(_Handler):
        state = bedrock

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        bedrock.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield bedrock
        finally:
            server.shutdown()
            thread.join(PATIENCE)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: BedrockServer

    def log_message(self, format: str, *args: Any) -> None: ...

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.state.requests.append((self.path, dict(self.headers), body))
        if self.state.failures:
            status = self.state.failures.pop(0)
            return self._answer(status, b'{"message":"busy"}', "ThrottlingException")
        if (vertex := _VERTEX.search(self.path)) is not None:
            fields = {**json.loads(body), "model": vertex[1]}
            fields.pop("anthropic_version")
            answer = self._ask(fields)
            return self._answer(
                answer.status_code, answer.content, kind=answer.headers["content-type"]
            )
        found = _PATH.search(self.path)
        named = _MODEL.match(unquote(found[1])) if found else None
        if found is None or named is None:
            return self._answer(404, b'{"message":"not found"}', "ResourceNotFoundException")
        converses, streams = found[2] == "converse", found[3] is not None
        fields = json.loads(body)
        sent = _messages(fields) if converses else fields
        sent.pop("anthropic_version", None)
        response = self._ask({**sent, "model": named[1], "stream": streams})
        if response.status_code != 200:
            message = json.dumps({"message": response.json()["error"]["message"]}).encode()
            return self._answer(response.status_code, message, "ValidationException")
        if not streams:
            reply = _converse_reply(response.json()) if converses else response.json()
            return self._answer(200, json.dumps(reply).encode())
        lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
        events = [json.loads(line) for line in lines]
        return self._stream(_converse_frames(events) if converses else _frames(events))

    def _ask(self, body: dict[str, Any]) -> httpx.Response:
        return httpx.post(
            f"{self.state.emulator_url}/anthropic/v1/messages",
            json=body,
            headers={"x-api-key": "emulated", "anthropic-version": "2023-06-01"},
            timeout=PATIENCE,
        )

    def _answer(
        self, status: int, data: bytes, error: str = "", kind: str = "application/json"
    ) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        if error:
            self.send_header("x-amzn-errortype", f"{error}:http://internal.amazon.com/coral/")
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, frames: list[bytes]) -> None:
        self.send_response(200)
        self.send_header("content-type", "application/vnd.amazon.eventstream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        data = b"".join(frames)
        for start in range(0, len(data), 300):
            piece = data[start : start + 300]
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")


def _frames(events: list[dict[str, Any]]) -> list[bytes]:
    found = []
    for event in events:
        data = base64.b64encode(json.dumps(event).encode()).decode()
        found.append(frame(json.dumps({"bytes": data, "p": "abcd"}).encode()))
    return found


# ── Converse ─────────────────────────────────────────────────────────────────────────────────────


def _blocks(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for block in blocks:
        if "cachePoint" in block:
            found[-1]["cache_control"] = {"type": "ephemeral"}
        elif "text" in block:
            found.append({"type": "text", "text": block["text"]})
        elif "toolUse" in block:
            use = block["toolUse"]
            name, given = use["name"], use["input"]
            found.append({"type": "tool_use", "id": use["toolUseId"], "name": name, "input": given})
        else:
            result = block["toolResult"]
            content = _blocks(result["content"])
            found.append(
                {"type": "tool_result", "tool_use_id": result["toolUseId"], "content": content}
            )
    return found


def _messages(fields: dict[str, Any]) -> dict[str, Any]:
    sent: dict[str, Any] = {
        "max_tokens": fields.get("inferenceConfig", {}).get("maxTokens", 4096),
        "system": _blocks(fields.get("system", [])),
        "messages": [
            {"role": each["role"], "content": _blocks(each["content"])}
            for each in fields["messages"]
        ],
    }
    if "toolConfig" in fields:
        sent["tools"] = _tools(fields["toolConfig"]["tools"])
    return sent


def _tools(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for tool in tools:
        if "cachePoint" in tool:
            found[-1]["cache_control"] = {"type": "ephemeral"}
        else:
            spec = tool["toolSpec"]
            schema = spec["inputSchema"]["json"]
            described = spec.get("description", "")
            found.append({"name": spec["name"], "description": described, "input_schema": schema})
    return found


def _usage(usage: dict[str, Any]) -> dict[str, int]:
    counts = {
        "inputTokens": usage["input_tokens"],
        "outputTokens": usage["output_tokens"],
        "cacheReadInputTokens": usage["cache_read_input_tokens"],
        "cacheWriteInputTokens": usage["cache_creation_input_tokens"],
    }
    return {**counts, "totalTokens": sum(counts.values())}


def _converse_reply(reply: dict[str, Any]) -> dict[str, Any]:
    content: list[dict[str, Any]] = []
    for block in reply["content"]:
        if block["type"] == "text":
            content.append({"text": block["text"]})
        elif block["type"] == "tool_use":
            use = {"toolUseId": block["id"], "name": block["name"], "input": block["input"]}
            content.append({"toolUse": use})
    return {
        "output": {"message": {"role": "assistant", "content": content}},
        "stopReason": reply["stop_reason"],
        "usage": _usage(reply["usage"]),
        "metrics": {"latencyMs": 3},
    }


def _converse_frames(events: list[dict[str, Any]]) -> list[bytes]:
    """Text begins without a start event, and `metadata` is last."""
    found: list[bytes] = []
    usage: dict[str, Any] = {}

    def add(kind: str, **fields: Any) -> None:
        found.append(frame(json.dumps({**fields, "p": "abcdefgh"}).encode(), kind))

    for event in events:
        at = {"contentBlockIndex": event.get("index", 0)}
        if event["type"] == "message_start":
            usage |= event["message"]["usage"]
            add("messageStart", role="assistant")
        elif event["type"] == "content_block_start":
            block = event["content_block"]
            if block["type"] == "tool_use":
                use = {"toolUseId": block["id"], "name": block["name"]}
                add("contentBlockStart", start={"toolUse": use}, **at)
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            if delta["type"] == "text_delta":
                add("contentBlockDelta", delta={"text": delta["text"]}, **at)
            elif delta["type"] == "input_json_delta":
                add("contentBlockDelta", delta={"toolUse": {"input": delta["partial_json"]}}, **at)
        elif event["type"] == "content_block_stop":
            add("contentBlockStop", **at)
        elif event["type"] == "message_delta":
            usage |= event["usage"]
            add("messageStop", stopReason=event["delta"]["stop_reason"])
    add("metadata", usage=_usage(usage), metrics={"latencyMs": 3})
    return found
