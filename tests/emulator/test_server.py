"""The journal, the clock, the page, and starting an emulator."""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from support.servers import free_port
from support.tables import each_row
from support.waiting import PATIENCE

from anaphora import emulator
from anaphora.emulator import EmulatorOptions, Latency
from anaphora.emulator.engine import Engine, show_calls
from anaphora.emulator.exchange import EmulatorRequest
from anaphora.emulator.journal import Journal
from anaphora.emulator.replies.script import Script
from anaphora.emulator.server import Emulator, serve
from anaphora.errors import InvalidRequest, Io

LONG = "A beginning that stays the same. " * 400


def body(system: str, *texts: str) -> Any:
    marked = {"type": "text", "text": system, "cache_control": {"type": "ephemeral"}}
    messages = [
        {"role": "assistant" if at % 2 else "user", "content": text}
        for at, text in enumerate(texts or ("Hello",))
    ]
    return {"model": "claude-opus-5-5", "max_tokens": 100, "system": [marked], "messages": messages}


def ask(engine: Engine, request: Any, at: float = 0.0) -> Any:
    headers = {"x-api-key": "k", "anthropic-version": "2023-06-01"}
    data = json.dumps(request).encode()
    return engine.respond(
        EmulatorRequest(method="POST", path="/v1/messages", headers=headers, body=data, now=at)
    )


# ── The journal ──────────────────────────────────────────────────────────────────────────────────


def test_journal_shows_markers_cost_and_verdict(emu: Emulator) -> None:
    with anthropic.Anthropic(base_url=emu.url, api_key="k", max_retries=0) as client:
        first = client.messages.create(**body(LONG))
        client.messages.create(**body("It is 09:31. " + LONG))
    entries = httpx.get(f"{emu.url}/_emulator/requests").json()["requests"]
    assert [one["number"] for one in entries] == [2, 1]
    assert entries[1]["markers"] == [{"path": "system[0]", "ttl": "5m"}]
    assert entries[1]["written"] == {"5m": first.usage.cache_creation_input_tokens}
    assert entries[1]["verdict"]["result"] == "first"
    assert float(entries[1]["cost_usd"]) > 0
    assert entries[0]["verdict"]["result"] == "miss"
    assert entries[0]["verdict"]["cause"] in ("system_changed", "marker_on_volatile")
    # The field, the character in it, and the texts before and after; keys are never shown.
    change = entries[0]["verdict"]["change"]
    assert (change["path"], change["character"]) == ("system[0].text", 0)
    sentence = entries[0]["verdict"]["sentence"]
    assert "at character 0 of system[0].text" in sentence
    assert f"was `{change['before']}`, now `It is 09:31. {LONG[:20]}" in sentence


def test_short_conversation_is_not_a_miss_in_the_journal(emu: Emulator) -> None:
    with anthropic.Anthropic(base_url=emu.url, api_key="k", max_retries=0) as client:
        client.messages.create(**body("Be brief.", "Hello"))
        client.messages.create(**body("Be very brief.", "Hello", "Hi.", "More"))
    last = httpx.get(f"{emu.url}/_emulator/requests?last=1").json()["requests"][0]
    assert last["verdict"]["result"] == "not_cacheable"
    sentence = "Not cached: the previous prompt was below the minimum"
    assert last["verdict"]["sentence"].startswith(sentence)


@pytest.mark.long
def test_reasoning_without_a_summary_streams_no_part_of_one(emu: Emulator) -> None:
    with openai.OpenAI(base_url=f"{emu.url}/v1", api_key="k", max_retries=0) as client:
        stream = client.responses.create(model="gpt-6.1-sol", input="Hello", stream=True)
        events = list(stream)
    items = [event.item for event in events if event.type == "response.output_item.done"]
    reasoning = [item for item in items if item.type == "reasoning"]
    assert [item.summary for item in reasoning] == [[]]
    assert not [event.type for event in events if "summary" in event.type]


def test_continued_conversation_is_a_hit() -> None:
    engine = Engine()
    ask(engine, body(LONG, "Hello"), 0.0)
    ask(engine, body(LONG, "Hello", "Hi.", "More"), 10.0)
    last = engine.journal.entries(1)[0]
    assert last["verdict"]["result"] == "hit"
    assert last["read"] > 0


def test_journal_takes_prompts_without_content() -> None:
    engine = Engine()
    data = json.dumps({"model": "gpt-4o", "input": []}).encode()
    for _ in range(2):
        headers = {"authorization": "Bearer k"}
        request = EmulatorRequest(method="POST", path="/v1/responses", headers=headers, body=data)
        assert engine.respond(request).status == 200
    assert [entry["status"] for entry in engine.journal.entries()] == [200, 200]


def test_rejected_request_is_in_the_journal_and_not_billed() -> None:
    engine = Engine()
    assert ask(engine, {**body(LONG), "wat": 1}).status == 400
    (entries,) = engine.journal.entries()
    assert entries["status"] == 400
    assert entries["error"]
    assert "read" not in entries


def test_keys_and_prompts_are_not_in_the_journal() -> None:
    engine = Engine()
    ask(engine, body(LONG + " hush-hush"))
    text = json.dumps(engine.journal.entries())
    assert "hush-hush" not in text
    assert '"k"' not in text


def test_journal_is_bounded_by_calls_and_by_bytes() -> None:
    engine = Engine(EmulatorOptions(remembered=5))
    engine.journal = engine._generator._journal = Journal(5, show_calls, max_bytes=3 * len(LONG))
    for number in range(12):
        ask(engine, body(LONG, f"Question {number}"), float(number))
    entries = engine.journal.entries()
    assert [one["number"] for one in entries] == [12, 11, 10, 9, 8]
    assert all(one["verdict"]["sentence"] for one in entries), (
        "computed before the prompt was dropped"
    )
    kept = [entry for entry in engine.journal._entries if entry.billed is not None]
    assert len(kept) <= 3


def test_calls_are_compared_with_earlier_ones_however_late_the_journal_is_read() -> None:
    unread, always_read = (Engine(EmulatorOptions(remembered=5)) for _ in range(2))
    for turn in range(6):
        for name in "abc":
            texts = [f"{name} says {at}: {LONG}" for at in range(2 * turn + 1)]
            for engine in (unread, always_read):
                ask(engine, body(LONG, *texts), float(turn))
            always_read.journal.entries()
    late, current = unread.journal.entries(), always_read.journal.entries()
    assert [entry["compared_with"] for entry in late] == [15, 14, 13, 12, 11]
    for one, other in zip(late, current, strict=True):
        assert (one["verdict"], one["compared_with"]) == (other["verdict"], other["compared_with"])


def test_unread_calls_are_bounded_by_number_and_bytes() -> None:
    engine = Engine(EmulatorOptions(remembered=5))
    for number in range(30):
        ask(engine, body(LONG, f"Question {number}"), float(number))
    assert len(engine.journal._unindexed) == 10
    engine.journal = engine._generator._journal = Journal(5, show_calls, max_bytes=3 * len(LONG))
    for number in range(9):
        ask(engine, body(LONG, f"Question {number}"), float(number))
    waiting = engine.journal._unindexed
    assert sum(billed.size for _, billed in waiting) == engine.journal._unindexed_bytes
    assert engine.journal._unindexed_bytes <= 3 * len(LONG)


# ── The clock, and starting anew ─────────────────────────────────────────────────────────────────


def test_clock_is_moved_over_http(emu: Emulator) -> None:
    url = f"{emu.url}/_emulator/clock"
    before = httpx.get(url).json()
    moved = httpx.post(url, json={"advance": 3600}).json()
    assert moved["offset"] == before["offset"] + 3600
    assert abs(httpx.post(url, json={"set": 1_800_000_000}).json()["now"] - 1_800_000_000) < 60


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        b"{}",
        b'{"advance":1,"set":2}',
        b'{"forward":1}',
        b'"x"',
        b'{"set":1e12}',
        b'{"set":1e308}',
        b'{"set":-1}',
        b'{"set":NaN}',
        b'{"advance":-1e12}',
        b'{"advance":1e400}',
        b"\xff",
        b"[" * 100_000,
    ],
)
def test_invalid_clock_change_is_rejected(emu: Emulator, wrong: bytes) -> None:
    answer = httpx.post(f"{emu.url}/_emulator/clock", content=wrong)
    assert answer.status_code == 400
    assert answer.json()["error"]
    assert emu.engine.offset == 0


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), 1e12, -1e12])
def test_invalid_clock_change_raises(emu: Emulator, seconds: float) -> None:
    with pytest.raises(InvalidRequest, match="between the years 1970 and 9000"):
        emu.advance(seconds)


@pytest.mark.parametrize("when", [0, 221_845_392_000])
def test_calls_at_the_ends_of_the_clock(emu: Emulator, when: int) -> None:
    """Dates in headers, bodies, resources and the journal."""
    httpx.post(f"{emu.url}/_emulator/clock", json={"set": when + 1 if not when else when - 1})
    with anthropic.Anthropic(base_url=emu.url, api_key="k", max_retries=0) as client:
        assert client.messages.create(**body(LONG)).content
    cached = {"model": "models/gemini-2.5-flash", "contents": [{"parts": [{"text": LONG}]}]}
    answer = httpx.post(f"{emu.url}/v1beta/cachedContents", json=cached, params={"key": "k"})
    assert answer.status_code == 200
    assert len(httpx.get(f"{emu.url}/_emulator/requests").json()["requests"]) == 2


def test_reset_clears_the_state(emu: Emulator) -> None:
    with anthropic.Anthropic(base_url=emu.url, api_key="k", max_retries=0) as client:
        client.messages.create(**body(LONG))
        emu.advance(60)
        assert httpx.post(f"{emu.url}/_emulator/reset").json() == {"reset": True}
        assert emu.requests() == []
        assert emu.engine.offset == 0
        assert not client.messages.create(**body(LONG)).usage.cache_read_input_tokens


def test_page_runs_only_its_own_script(emu: Emulator) -> None:
    page = httpx.get(emu.url, follow_redirects=True)
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    loaded = re.findall(r'(?:src|href|action)="(?!data:)([^"]*)"', page.text)
    assert loaded
    assert all(re.match(r"/_emulator|#", address) for address in loaded), "its own server only"
    assert "<script>" not in page.text


# ── Scripts, seeds and times ─────────────────────────────────────────────────────────────────────

SCRIPT = """
replies:
  - match: {text: refund, tool: lookup}
    reply: {tool_calls: [{name: lookup, arguments: {order: 17}}]}
  - match: {text: weather}
    reply: {text: "Sunny. ", stop: length}
"""
LOOKUP: Any = {"type": "function", "function": {"name": "lookup", "parameters": {"type": "object"}}}


def test_script_answers_matching_requests() -> None:
    with (
        emulator.running(EmulatorOptions(script=Script.decode(SCRIPT, "script.yaml"))) as emu,
        openai.OpenAI(base_url=f"{emu.url}/v1", api_key="k", max_retries=0) as client,
    ):
        messages: Any = [{"role": "user", "content": "A refund, please"}]
        called = client.chat.completions.create(model="gpt-4o", messages=messages, tools=[LOOKUP])
        calls: Any = called.choices[0].message.tool_calls
        assert json.loads(calls[0].function.arguments) == {"order": 17}
        messages = [{"role": "user", "content": "The weather?"}]
        reply = client.chat.completions.create(model="gpt-4o", messages=messages)
        assert reply.choices[0].message.content == "Sunny. "
        assert reply.choices[0].finish_reason == "length"
        messages = [{"role": "user", "content": "Anything else"}]
        assert client.chat.completions.create(model="gpt-4o", messages=messages).choices
        assert [one["scripted"] for one in emu.requests()] == [False, True, True]


def test_replies_depend_on_the_seed() -> None:
    answers = [ask(Engine(EmulatorOptions(seed=seed)), body(LONG)).body for seed in (1, 1, 2)]
    assert answers[0] == answers[1] != answers[2]


def test_stream_has_the_requested_latency() -> None:
    engine = Engine(EmulatorOptions(latency=Latency.parse("200ms,10ms")))
    chunks = ask(engine, {**body(LONG), "stream": True}).chunks
    assert [chunk.delay for chunk in chunks] == [0.2, *[0.01] * (len(chunks) - 1)]


def test_simultaneous_calls_all_write() -> None:
    """A written prefix can be read once the response has begun, and no sooner."""
    engine = Engine(EmulatorOptions(latency=Latency(first=2.0)))
    together = [json.loads(ask(engine, body(LONG), at).body)["usage"] for at in (0.0, 1.0, 3.0)]
    assert [bool(usage["cache_read_input_tokens"]) for usage in together] == [False, False, True]


@pytest.mark.parametrize("after, found", [(308.0, True), (310.0, False)])
def test_lifetime_counts_from_the_response(after: float, found: bool) -> None:
    engine = Engine(EmulatorOptions(latency=Latency(first=9.0)))
    ask(engine, body(LONG), 0.0)
    usage = json.loads(ask(engine, body(LONG), after).body)["usage"]
    assert bool(usage["cache_read_input_tokens"]) is found


@each_row("wrong", ["", "5", "5m", "1s,2s,3s", "fast", "-1s"])
def test_invalid_latency_is_rejected(wrong: str) -> None:
    with pytest.raises(InvalidRequest, match="latency"):
        Latency.parse(wrong)


# ── Starting ─────────────────────────────────────────────────────────────────────────────────────


def test_two_emulators_share_nothing() -> None:
    with emulator.running() as one, emulator.running() as other:
        assert one.url != other.url
        httpx.get(f"{one.url}/v1/models", headers={"authorization": "Bearer k"})
        assert (len(one.requests()), len(other.requests())) == (1, 0)
    with pytest.raises(httpx.TransportError):
        httpx.get(one.url)


def test_importing_anaphora_does_not_load_the_emulator() -> None:
    code = "import sys, anaphora; print([m for m in sys.modules if 'emulator' in m or m in ('granian', 'starlette', 'yaml')])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def start(*args: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-u", "-m", "anaphora", "emulate", *args]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.long
def test_command_serves_until_interrupted(tmp_path: Path) -> None:
    faults = tmp_path / "faults.yaml"
    faults.write_text("faults: [{fault: '529', nth: 1}]")
    with start(
        "--port", str(free_port()), "--faults", str(faults), "--providers", "openai"
    ) as child:
        assert child.stdout is not None
        line = child.stdout.readline()
        found = re.search(r"http://[\d.:]+", line)
        assert found is not None, child.stderr and child.stderr.read()
        keyed = {"authorization": "Bearer k"}
        statuses = [
            httpx.get(found[0] + path, headers=keyed).status_code
            for path in ("/v1/models", "/v1/models", "/mistral/v1/models", "/_emulator/requests")
        ]
        os.kill(child.pid, signal.SIGINT)
        assert child.wait(PATIENCE) == 0
    assert statuses == [529, 200, 404, 200]


def test_port_in_use_raises(emu: Emulator) -> None:
    from anaphora.emulator.server import serve

    with pytest.raises(Io, match=str(emu.port)):
        serve(port=emu.port)


@pytest.mark.parametrize("port", ["99999", "-1", "x"])
def test_bad_port_is_a_usage_error(port: str) -> None:
    with start("--port", port) as child:
        assert child.wait(PATIENCE) == 2
        assert child.stderr is not None
        assert "--port" in child.stderr.read()


@pytest.mark.parametrize("name", ["http://emulator", "emulator:80"])
@pytest.mark.long
def test_bad_allowed_host_is_a_usage_error(name: str) -> None:
    with start("--allow-host", name) as child:
        assert child.wait(PATIENCE) == 2
        assert child.stderr is not None
        assert "write it without scheme and port" in child.stderr.read()


@pytest.mark.parametrize(
    "text, message",
    [("replies:\n  - reply: {txet: a}\n", "script.yaml:2"), ("replies: [", "script.yaml")],
)
def test_invalid_script_stops_the_command(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "script.yaml"
    file.write_text(text)
    with start("--port", "1", "--script", str(file)) as child:
        assert child.wait(PATIENCE) == 2
        assert child.stderr is not None
        assert message in child.stderr.read()


def test_control_paths_may_end_with_a_slash(emu: Emulator) -> None:
    for method, path in (
        ("GET", "requests/"),
        ("GET", "clock/"),
        ("POST", "reset/"),
        ("GET", "conversations/"),
        ("GET", ""),
    ):
        answer = httpx.request(method, f"{emu.url}/_emulator/{path}")
        assert answer.status_code == 200, path
    assert httpx.post(f"{emu.url}/_emulator/requests/").status_code == 405
    assert httpx.get(f"{emu.url}/_emulator/nothing/").status_code == 404


def test_interpreter_is_set_up_for_an_emulator_in_the_foreground() -> None:
    before = sys.getswitchinterval(), gc.get_threshold()
    during = []

    def ready(_: Emulator) -> None:
        during.append((sys.getswitchinterval(), gc.get_threshold()[0]))
        signal.raise_signal(signal.SIGINT)

    serve(port=0, ready=ready)
    ((interval, young),) = during
    assert interval < before[0]
    assert young > before[1][0]
    assert (sys.getswitchinterval(), gc.get_threshold()) == before
