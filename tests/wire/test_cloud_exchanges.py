"""Recorded exchanges with Vertex AI and Azure: requests keep their meaning, answers, streams and
errors are read without loss, usage to the token."""

from __future__ import annotations

import functools
import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.exchanges import FILE
from support.roundtrip import RecordedExchange, check_exchange
from support.roundtrip.rules import RULES

from anaphora import catalog, wire
from anaphora.errors import ContentRefused, RateLimited, RequestRejected, Upstream
from anaphora.values import ReplyEnd, ReplyFail, Usage

CLOUDS = FILE.with_name("clouds.jsonl.gz")
pytestmark = pytest.mark.skipif(not CLOUDS.exists(), reason=f"no recorded exchanges at {CLOUDS}")
WIRES = ("anthropic", "gemini", "openai_chat", "openai_responses")


@functools.cache
def recorded() -> tuple[dict[str, Any], ...]:
    with gzip.open(CLOUDS, "rt", encoding="utf-8") as lines:
        return tuple(row for row in map(json.loads, lines) if row["cloud"] in ("vertex", "azure"))


def calls() -> list[dict[str, Any]]:
    return [row for row in recorded() if row["wire"] in WIRES]


def codec(row: dict[str, Any]) -> wire.Wire:
    found = catalog.dialects().at_host(row["host"], row["wire"], row["path"])
    assert found is not None, row["host"]
    return wire.codec_for(found)


def test_the_rows_are_there() -> None:
    assert len(calls()) == 194


def test_every_exchange_comes_back() -> None:
    failed = {}
    for row in calls():
        exchange = msgspec.convert(row, RecordedExchange, strict=False)
        result = check_exchange(exchange, RULES[row["wire"]])
        if not result.good:
            failed[row["id"]] = result
    assert not failed


#: Where each wire reports the tokens of the prompt, those read, and those of the answer.
USAGE = {
    "anthropic": ("usage", "input_tokens", "cache_read_input_tokens", "output_tokens"),
    "openai_chat": ("usage", "prompt_tokens", "prompt_tokens_details.cached_tokens", "completion_tokens"),
    "openai_responses": ("usage", "input_tokens", "input_tokens_details.cached_tokens", "output_tokens"),
    "gemini": ("usageMetadata", "promptTokenCount", "cachedContentTokenCount", "candidatesTokenCount"),
}  # fmt: skip


def count(usage: Any, place: str) -> int:
    for name in place.split("."):
        usage = (usage or {}).get(name)
    return usage or 0


def check_usage(usage: Usage, reply: dict[str, Any], name: str) -> None:
    holder, whole, read, output = USAGE[name]
    given = reply.get(holder)
    if given is None:
        assert usage.input is None
        return
    written = count(given, "cache_creation_input_tokens") if name == "anthropic" else 0
    prompt = count(given, whole) + count(given, "toolUsePromptTokenCount")
    if name == "anthropic":
        prompt += count(given, read) + written
    assert (usage.input or 0) == prompt
    assert (usage.read or 0) + usage.overlap == count(given, read)
    thoughts = count(given, "thoughtsTokenCount") if name == "gemini" else 0
    assert (usage.output or 0) == count(given, output) + thoughts


def test_usage_is_read_to_the_token() -> None:
    checked = 0
    for row in calls():
        if row["status"] != 200 or row["stream"]:
            continue
        body = row["response"].encode()
        try:
            reply = codec(row).read_reply(body)
        except ContentRefused:
            assert b"content_filter" in body or b"filtered" in body
            continue
        check_usage(reply.usage, json.loads(body), row["wire"])
        checked += 1
    assert checked > 140


def test_streams_are_read_in_any_pieces() -> None:
    streams = [row for row in calls() if row["stream"] and row["status"] == 200]
    assert len(streams) == 35
    for row in streams:
        body = row["response"].encode()
        whole = codec(row).reader()
        end = (whole.feed(body) + whole.close())[-1]
        assert isinstance(end, ReplyEnd | ReplyFail)
        for size in (1, 7, 1000):
            reader, events = codec(row).reader(), []
            for start in range(0, len(body), size):
                events += reader.feed(body[start : start + size])
            events += reader.close()
            assert events[-1] == end, row["id"]
            if len(body) > 20_000 and size == 1:
                break


def test_errors_are_of_their_kind() -> None:
    found: list[Upstream] = []
    for row in calls():
        if row["status"] >= 400:
            headers = row["response_headers"]
            found.append(codec(row).read_error(row["status"], headers, row["response"].encode()))
    assert [type(error) for error in found].count(RateLimited) == 1
    limited = next(error for error in found if isinstance(error, RateLimited))
    assert limited.code == "RateLimitReached"
    assert limited.retry_after is not None
    assert all(isinstance(error, RateLimited | RequestRejected) for error in found)


def test_cached_contents_and_counts_are_read() -> None:
    codec: Any = wire.get("vertex")
    for row in recorded():
        if row["wire"] == "gemini_cached_contents":
            held = codec.read_held(row["response"].encode())
            assert held.handle.startswith("projects/PROJECT/locations/")
            assert (held.tokens, held.expires is not None) == (9602, True)
            assert "/publishers/google/models/" in json.loads(row["request"])["model"]


def test_the_file_is_beside_the_repository() -> None:
    assert Path(__file__).parents[2] not in CLOUDS.parents
