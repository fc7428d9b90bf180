"""Calls through the proxy in an audit log."""

from __future__ import annotations

import contextlib
import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from support.planted import PLACES, Place, spec
from support.planted import body as request_body

from anaphora.audit import AuditEnvelope, AuditLog, calls, verify
from anaphora.catalog import dialects
from anaphora.emulator.faults import HEADER
from anaphora.emulator.server import Emulator
from anaphora.proxy.auditing import ProxyAudit
from anaphora.proxy.routes import default_routes
from anaphora.proxy.server import running
from anaphora.traffic.judging import Judge

KEY = "sk-canary-9aF3xLq8ZpQ"
SYSTEM = "SYSTEMCANARY You are terse. " * 400


@contextlib.contextmanager
def relayed(emu: Emulator, path: Path) -> Iterator[str]:
    judge = Judge()
    with AuditLog(path, app="watched") as log:
        routes = default_routes({"anthropic": f"{emu.url}/anthropic"})
        with running(routes, observers=[judge, ProxyAudit(log, judge)]) as proxy:
            yield proxy.url_of("anthropic")


def post(url: str, body: dict[str, Any], **headers: str) -> bytes:
    headers = {"content-type": "application/json", "x-api-key": KEY, **headers}
    headers["anthropic-version"] = "2023-06-01"
    request = urllib.request.Request(f"{url}/v1/messages", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request) as response:
            answer: bytes = response.read()
    except urllib.error.HTTPError as problem:
        problem.close()
        raise
    return answer


def body(*texts: str, system: str = SYSTEM) -> dict[str, Any]:
    marked = {"type": "text", "text": system, "cache_control": {"type": "ephemeral"}}
    messages = [
        {"role": "assistant" if index % 2 else "user", "content": text}
        for index, text in enumerate(texts)
    ]
    fields = {"model": "claude-sonnet-4-5", "max_tokens": 20, "system": [marked]}
    return fields | {"messages": messages}


def rows_of(path: Path) -> list[AuditEnvelope]:
    return [call for _, call in calls(path)]


def stored(folder: Path) -> bytes:
    files = [one for one in folder.rglob("*") if one.is_file() and one.suffix != ".key"]
    return b"".join(one.read_bytes() for one in files)


def test_each_relayed_call_has_a_row(emu: Emulator, tmp_path: Path) -> None:
    path = tmp_path / "audit"
    with relayed(emu, path) as url:
        first = post(url, body("USERCANARY"))
        post(url, body("USERCANARY", "Yes.", "And Rome?"))
        post(url, body("USERCANARY", "Yes.", "And Rome?", system=f"Monday. {SYSTEM}"))
        listed = urllib.request.Request(f"{url}/v1/models", headers={"x-api-key": KEY})
        urllib.request.urlopen(listed).close()
    one, two, three = rows_of(path)
    assert verify(path).rows == 6
    assert (one.app, one.adapter, one.provider, one.model) == (
        "watched",
        "proxy",
        "anthropic",
        "claude-sonnet-4-5",
    )
    assert one.raw_hash == blake3(first).hexdigest()
    assert one.usage.written_total > 1000
    assert (two.verdict, two.lost) == ("hit", 0)
    assert two.usage.read == one.usage.written_total
    assert (three.broke, three.cause) == (True, "system_changed")
    assert three.lost_nano_usd is not None
    assert three.lost > 1000
    assert one.cost_nano_usd is not None
    assert one.blocks[0].digest == two.blocks[0].digest != three.blocks[0].digest
    assert [(block.kind, block.marker, block.ttl) for block in one.blocks] == [
        ("system", True, "5m"),
        ("messages", False, None),
    ]
    assert len({one.prompt_hash, two.prompt_hash, three.prompt_hash}) == 3
    assert [row.turn for row in (one, two)] == [1, 2]
    assert one.conversation == two.conversation != ""
    assert one.output_nano_usd is not None
    assert 0 < one.output_nano_usd < one.cost_nano_usd


@pytest.mark.parametrize("fault, status", [("529", 529), ("spend-cap", 429), ("cut", 200)])
def test_failed_calls_have_rows_without_text(
    fault: str, status: int, emu: Emulator, tmp_path: Path
) -> None:
    path = tmp_path / "audit"
    failures = (urllib.error.URLError, http.client.HTTPException)
    with relayed(emu, path) as url, contextlib.suppress(*failures):
        post(url, body("USERCANARY") | {"stream": True}, **{HEADER: fault})
    (row,) = rows_of(path)
    assert row.outcome != "ok" or fault == "cut"
    assert row.status == status
    assert b"CANARY" not in stored(tmp_path)


def test_rows_tell_streams_from_whole_answers(emu: Emulator, tmp_path: Path) -> None:
    with relayed(emu, tmp_path / "audit") as url:
        post(url, body("Hello"))
        post(url, body("Hello") | {"stream": True})
    assert [row.streamed for row in rows_of(tmp_path / "audit")] == [False, True]


def test_no_prompt_response_or_key_is_stored(emu: Emulator, tmp_path: Path) -> None:
    with relayed(emu, tmp_path / "audit") as url:
        answer = json.loads(post(url, body("USERCANARY")))
    data = stored(tmp_path)
    assert len(rows_of(tmp_path / "audit")) == 1
    assert b"CANARY" not in data
    assert KEY.encode() not in data
    assert answer["content"][0]["text"][:10].encode() not in data


def test_an_error_that_repeats_the_prompt_is_not_stored(emu: Emulator, tmp_path: Path) -> None:
    """The emulator names what is wrong with a request."""
    request = body("one") | {"messages": [{"role": "USERCANARY", "content": "USERCANARY"}]}
    with relayed(emu, tmp_path / "audit") as url, pytest.raises(urllib.error.HTTPError):
        post(url, request)
    assert [row.outcome for row in rows_of(tmp_path / "audit")] == ["Upstream"]
    assert b"CANARY" not in stored(tmp_path)


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_no_text_is_stored_on_any_wire(place: Place, emu: Emulator, tmp_path: Path) -> None:
    prompt = spec()
    prompt["system"][0] = "SYSTEMCANARY " + prompt["system"][0]
    prompt["messages"][0] = ("user", ["USERCANARY"])
    prompt["tools"][0]["description"] = "TOOLCANARY"
    row = next(
        row
        for row in dialects().rows
        if row.provider == place.provider and place.wire in (row.wire, row.name, row.provider)
    )
    path = row.request_path
    if row.wire == "gemini":
        path += f"/{place.model}:generateContent"
    headers = {"content-type": "application/json", "anthropic-version": "2023-06-01"}
    headers |= dict.fromkeys(("x-api-key", "x-goog-api-key"), KEY)
    headers["authorization"] = f"Bearer {KEY}"
    judge = Judge()
    upstreams = {place.provider: f"{emu.url}/{place.provider}"}
    with AuditLog(tmp_path / "audit") as log:
        routes = default_routes(upstreams)
        with running(routes, observers=[judge, ProxyAudit(log, judge)]) as proxy:
            url = proxy.url_of(place.provider) + path
            data = request_body(place, prompt)
            request = urllib.request.Request(url, data, headers)
            with urllib.request.urlopen(request) as response:
                assert response.read()
    (kept,) = rows_of(tmp_path / "audit")
    assert (kept.provider, kept.model, kept.outcome) == (place.provider, place.model, "ok")
    assert kept.usage.input > 1000
    assert len(kept.blocks) >= 4
    assert b"CANARY" not in stored(tmp_path)
    assert KEY.encode() not in stored(tmp_path)
