"""Files and batches of Anthropic and OpenAI, through the official clients."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import anthropic
import httpx
import openai
import pytest

from anaphora import emulator
from anaphora.emulator import EmulatorOptions, Latency
from anaphora.emulator.server import Emulator

#: Seconds that batches take: longer than any test, so that one ends when its test advances the clock.
TAKES = 3600.0
HELLO: Any = [{"role": "user", "content": "Hello"}]
LONG = "A beginning that stays the same. " * 400
MARKED: Any = [{"type": "text", "text": LONG, "cache_control": {"type": "ephemeral"}}]
ASK: Any = {"model": "claude-opus-5-5", "max_tokens": 64, "system": MARKED, "messages": HELLO}
DATA = b"one\r\ntwo\r\n--three\x00\xff\r\n"


@pytest.fixture(scope="module")
def serving() -> Iterator[Emulator]:
    options = EmulatorOptions(batch_seconds=TAKES, latency=Latency(first=0.0), any_model=True)
    with emulator.running(options) as running:
        yield running


@pytest.fixture
def emu(serving: Emulator) -> Emulator:
    serving.reset()
    return serving


@pytest.fixture
def claude(emu: Emulator) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=emu.url, api_key="k", max_retries=0) as client:
        yield client


@pytest.fixture
def gpt(emu: Emulator) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{emu.url}/v1", api_key="k", max_retries=0) as client:
        yield client


# ── Files ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("beta", [False, True])
def test_anthropic_files(claude: anthropic.Anthropic, beta: bool) -> None:
    files: Any = claude.beta.files if beta else claude.files
    made = files.upload(file=("notes.txt", DATA, "text/plain"))
    assert (made.filename, made.mime_type, made.size_bytes) == (
        "notes.txt",
        "text/plain",
        len(DATA),
    )
    more = [files.upload(file=(f"{at}.txt", b"x", "text/plain")).id for at in range(4)]
    assert [file.id for file in files.list(limit=2)] == [*reversed(more), made.id]
    assert files.retrieve_metadata(made.id) == made
    with pytest.raises(anthropic.BadRequestError, match="downloaded"):
        files.download(made.id)
    block = {"type": "document", "source": {"type": "file", "file_id": made.id}}
    text = {"type": "text", "text": "Summarise."}
    ask = {**ASK, "messages": [{"role": "user", "content": [block, text]}]}
    assert claude.messages.create(**ask).content
    files.delete(made.id)
    with pytest.raises(anthropic.NotFoundError):
        files.retrieve_metadata(made.id)


def test_bytes_are_uploaded_without_a_file_name(
    claude: anthropic.Anthropic, gpt: openai.OpenAI
) -> None:
    made = claude.files.upload(file=DATA)
    assert (made.filename, made.size_bytes) == ("upload", len(DATA))
    other = gpt.files.create(file=DATA, purpose="user_data")
    assert gpt.files.content(other.id).read() == DATA


def test_openai_files(gpt: openai.OpenAI) -> None:
    made = gpt.files.create(file=("notes.txt", DATA), purpose="user_data")
    other = gpt.files.create(file=("b.jsonl", b"{}"), purpose="batch")
    assert (made.filename, made.bytes, made.purpose) == ("notes.txt", len(DATA), "user_data")
    assert [file.id for file in gpt.files.list()] == [other.id, made.id]
    assert [file.id for file in gpt.files.list(purpose="batch")] == [other.id]
    assert gpt.files.content(made.id).read() == DATA
    assert gpt.files.retrieve(made.id) == made
    part = {"type": "file", "file": {"file_id": made.id}}
    ask: Any = [{"role": "user", "content": [part, {"type": "text", "text": "Summarise."}]}]
    assert gpt.chat.completions.create(model="gpt-4o", messages=ask).choices
    assert gpt.files.delete(made.id).deleted
    with pytest.raises(openai.NotFoundError):
        gpt.files.retrieve(made.id)


def test_files_belong_to_their_key(emu: Emulator, gpt: openai.OpenAI) -> None:
    made = gpt.files.create(file=("notes.txt", DATA), purpose="user_data")
    with openai.OpenAI(base_url=f"{emu.url}/v1", api_key="other", max_retries=0) as other:
        assert not list(other.files.list())
        with pytest.raises(openai.NotFoundError):
            other.files.content(made.id)


def test_upload_without_a_file_is_rejected(emu: Emulator, gpt: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="multipart"):
        gpt.post("/files", body={"purpose": "batch"}, cast_to=object)


# ── Batches ──────────────────────────────────────────────────────────────────────────────────────


def batch_of(claude: anthropic.Anthropic, **more: Any) -> Any:
    bad = {**ASK, "messages": []}
    requests: Any = [
        {"custom_id": "one", "params": ASK},
        {"custom_id": "two", "params": ASK},
        {"custom_id": "bad", "params": bad},
    ]
    return claude.messages.batches.create(requests=requests, **more)


def test_anthropic_batch(emu: Emulator, claude: anthropic.Anthropic) -> None:
    alone = claude.messages.create(**ASK)
    cost = Decimal(emu.requests()[0]["cost_usd"])
    emu.advance(TAKES)
    batches = claude.messages.batches
    made = batch_of(claude)
    assert (made.processing_status, made.request_counts.processing) == ("in_progress", 3)
    with pytest.raises(anthropic.AnthropicError):
        batches.results(made.id)
    emu.advance(TAKES)
    done = batches.retrieve(made.id)
    assert (done.processing_status, done.request_counts.errored) == ("ended", 1)
    results = {each.custom_id: each.result for each in batches.results(made.id)}
    first, second, bad = (results[name] for name in ("one", "two", "bad"))
    assert first.type == second.type == "succeeded"
    assert first.message.content == alone.content
    assert first.message.usage.cache_creation_input_tokens
    # They run at once, so neither reads what the other writes.
    assert second.message.usage.cache_creation_input_tokens
    assert first.message.usage.service_tier == "batch"
    assert bad.type == "errored"
    assert bad.error.error.type == "invalid_request_error"
    calls = [call for call in emu.requests() if call["batch"]]
    assert Decimal(calls[-1]["cost_usd"]) * 2 == cost
    assert [batch.id for batch in batches.list()] == [made.id]
    assert batches.delete(made.id).type == "message_batch_deleted"


def test_anthropic_batch_is_canceled(emu: Emulator, claude: anthropic.Anthropic) -> None:
    made = batch_of(claude)
    assert claude.messages.batches.cancel(made.id).processing_status == "canceling"
    emu.advance(TAKES)
    ended = claude.messages.batches.retrieve(made.id)
    assert (ended.processing_status, ended.request_counts.canceled) == ("ended", 3)
    results = claude.messages.batches.results(made.id)
    assert {each.result.type for each in results} == {"canceled"}
    assert not any(call["batch"] for call in emu.requests())


@pytest.mark.parametrize("ids", [[], ["a", "a"], ["not allowed"]])
def test_anthropic_batch_needs_unique_ids(claude: anthropic.Anthropic, ids: list[str]) -> None:
    requests: Any = [{"custom_id": name, "params": ASK} for name in ids]
    with pytest.raises(anthropic.BadRequestError, match="requests"):
        claude.messages.batches.create(requests=requests)


@pytest.mark.parametrize(
    ("url", "body"),
    [
        ("/v1/chat/completions", {"model": "gpt-4o", "messages": HELLO}),
        ("/v1/responses", {"model": "gpt-5.6", "input": "Hello"}),
    ],
)
def test_openai_batch(emu: Emulator, gpt: openai.OpenAI, url: Any, body: Any) -> None:
    bodies = {"one": body, "two": body, "bad": {"model": "gpt-4o", "messages": []}}
    lines = [
        json.dumps({"custom_id": name, "method": "POST", "url": url, "body": body})
        for name, body in bodies.items()
    ]
    file = gpt.files.create(file=("in.jsonl", "\n".join(lines).encode()), purpose="batch")
    made = gpt.batches.create(
        input_file_id=file.id, endpoint=url, completion_window="24h", metadata={"run": "7"}
    )
    assert (made.status, made.metadata) == ("in_progress", {"run": "7"})
    assert not any(call["batch"] for call in emu.requests())
    emu.advance(TAKES)
    done = gpt.batches.retrieve(made.id)
    assert (done.status, done.output_file_id is None) == ("completed", False)
    counts: Any = done.request_counts
    assert (counts.total, counts.completed, counts.failed) == (3, 2, 1)
    output = [
        json.loads(line) for line in gpt.files.content(done.output_file_id or "").iter_lines()
    ]
    assert [line["custom_id"] for line in output] == ["one", "two"]
    assert output[0]["response"]["body"]["usage"]
    failed = json.loads(gpt.files.content(done.error_file_id or "").read())
    assert failed["response"]["status_code"] in (400, 404)
    assert [batch.id for batch in gpt.batches.list()] == [made.id]


def test_openai_batch_is_canceled(emu: Emulator, gpt: openai.OpenAI) -> None:
    line = {"custom_id": "one", "method": "POST", "url": "/v1/responses"}
    data = json.dumps({**line, "body": {"model": "gpt-5.6", "input": "Hello"}}).encode()
    file = gpt.files.create(file=("in.jsonl", data), purpose="batch")
    made = gpt.batches.create(
        input_file_id=file.id, endpoint="/v1/responses", completion_window="24h"
    )
    assert gpt.batches.cancel(made.id).status == "cancelling"
    emu.advance(TAKES)
    assert gpt.batches.retrieve(made.id).status == "cancelled"


def test_openai_batch_names_the_line_that_is_wrong(gpt: openai.OpenAI) -> None:
    file = gpt.files.create(file=("in.jsonl", b'{"custom_id": "one"}'), purpose="batch")
    with pytest.raises(openai.BadRequestError, match=r"line 1 of file-.*url"):
        gpt.batches.create(input_file_id=file.id, endpoint="/v1/responses", completion_window="24h")


@pytest.mark.parametrize(
    ("times", "reason"), [(0, "has no requests"), (2, "line 2 of .* 'a' is used twice")]
)
def test_openai_batch_needs_requests_with_unique_ids(
    gpt: openai.OpenAI, times: int, reason: str
) -> None:
    body = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Hello"}]}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    data = b"\n".join([json.dumps(line).encode()] * times) or b"\n"
    file = gpt.files.create(file=("requests.jsonl", data), purpose="batch")
    with pytest.raises(openai.BadRequestError, match=reason):
        gpt.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )


@pytest.mark.parametrize(
    ("path", "cursor"),
    [
        ("/anthropic/v1/models", "after_id"),
        ("/anthropic/v1/files", "page"),
        ("/anthropic/v1/messages/batches", "before_id"),
        ("/openai/v1/files", "after"),
        ("/openai/v1/batches", "after"),
        ("/openai/v1/chat/completions", "after"),
        ("/v1beta/files", "pageToken"),
    ],
)
def test_lists_have_one_page(emu: Emulator, path: str, cursor: str) -> None:
    headers = {"x-api-key": "k", "authorization": "Bearer k", "anthropic-version": "2023-06-01"}
    if path.startswith("/v1beta"):
        headers = {"x-goog-api-key": "k"}
    answer = httpx.get(f"{emu.url}{path}", params={"limit": "1"}, headers=headers)
    assert answer.status_code == 200
    assert not answer.json().get("has_more")
    answer = httpx.get(f"{emu.url}{path}", params={cursor: "x"}, headers=headers)
    assert answer.status_code == 404
    assert "one page" in answer.json()["error"]["message"]
